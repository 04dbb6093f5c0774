"""Whether a server's binary (or a TensorFlow library) exports every function that the op looks up by name.

    python serving/check_symbols.py BINARY...

With all of them there, `LD_PRELOAD=libdisc_tf_op.so` can register the op in a binary that was not rebuilt; exit code 1 and the missing
names otherwise. Needs `nm` (binutils).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

HEADER = Path(__file__).resolve().parents[1] / "disc_tf" / "runtime" / "tf_op" / "tf_c_api.h"


def needed(header: Path) -> set[str]:
    """The names in DISC_TF_FUNCTIONS."""
    text = header.read_text()
    return set(re.findall(r"X\([^,()]*,\s*(TF_\w+),", text[text.index("define DISC_TF_FUNCTIONS") :]))


def exported(binary: str) -> set[str]:
    """The dynamic symbols that a file defines, versions stripped."""
    found = subprocess.run(["nm", "-D", "--defined-only", binary], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in found.splitlines() if line.strip()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="+", help="files that are in one process together")
    parser.add_argument("--header", type=Path, default=HEADER, help="tf_c_api.h")
    args = parser.parse_args()
    want = needed(args.header)
    try:
        have = set().union(*(exported(b) for b in args.binary))
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"nm failed: {getattr(e, 'stderr', None) or e}", file=sys.stderr)
        return 2
    missing = sorted(want - have)
    print(f"{len(want) - len(missing)} of {len(want)} functions are exported")
    for name in missing:
        print(f"missing: {name}")
    return 1 if missing or not want else 0


if __name__ == "__main__":
    sys.exit(main())
