"""Builds and runs the RAL's own tests (tests/runtime/cpp), without sanitizers; `make test-sanitize` runs them with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import which

ROOT = Path(__file__).parents[2]


def test_runtime_in_cpp() -> None:
    beside = Path(sys.executable).parent / "cmake"
    cmake = str(beside) if beside.is_file() else which("cmake")
    assert cmake is not None, "the tests need CMake: pip install cmake"
    build = ROOT / "build" / "cpp-tests"
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(build), "-DDISC_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"],
        [cmake, "--build", str(build), "--parallel", "2", "--target", "ral_tests"],
        [str(build / "tests" / "runtime" / "cpp" / "ral_tests")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, f"{' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}"
