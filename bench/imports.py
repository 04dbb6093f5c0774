"""What `import disc_tf.ops` and `import disc_tf.runtime` cost.

    python -m bench.imports [--rounds 5]

Each round is a process of its own; processor time, so that what else the machine does counts less. For ops the time is that on top of
TensorFlow's own import, loading the op library included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import time, {before}
start = time.process_time()
import {module}
print(time.process_time() - start)
"""


def cost(before: str, module: str) -> float:
    """Seconds that importing ``module`` takes after ``before``."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", PROGRAM.format(before=before, module=module)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for before, module in (("numpy", "disc_tf.runtime"), ("tensorflow", "disc_tf.ops")):
        times = [cost(before, module) * 1e3 for _ in range(rounds)]
        print(f"import {module} after {before}: {statistics.median(times):.1f} ms (least {min(times):.1f})")


if __name__ == "__main__":
    main()
