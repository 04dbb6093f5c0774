"""Where the native libraries are: in the installed package, or built on demand in a source checkout.

A wheel carries ``libdisc_ral.so`` and ``libdisc_tf_op.so`` beside this file. In a source checkout (the directory with
CMakeLists.txt) they are built into ``build/runtime`` with CMake, and built again when a source is newer; that takes
a minute or more and any C++17 compiler, and is said on standard error. A lock file keeps processes that need them at the same time apart.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

LIBRARIES = ("disc_ral", "disc_tf_op")
_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent


class BuildError(RuntimeError):
    """The native libraries are not there and could not be built; the message has the compiler's words."""


def _sources() -> list[Path]:
    files = [_ROOT / "CMakeLists.txt", _HERE / "exports.map"]
    for part in ("ral", "tf_op"):
        files += [p for p in (_HERE / part).rglob("*") if p.suffix in (".cc", ".h")]
    return files


def _is_checkout() -> bool:
    return (_ROOT / "CMakeLists.txt").is_file() and (_HERE / "ral" / "src").is_dir()


def _packaged(file_name: str) -> Path | None:
    """In the package itself; an editable install may add a second directory to the package's path."""
    package = sys.modules.get("disc_tf.runtime")
    for directory in [_HERE, *map(Path, getattr(package, "__path__", ()))]:
        if (directory / file_name).is_file():
            return directory / file_name
    return None


def _cmake() -> str | None:
    import shutil

    beside = Path(sys.prefix) / "bin" / "cmake"
    return shutil.which("cmake") or (str(beside) if beside.is_file() else None)


def _up_to_date(build: Path) -> bool:
    libraries = [build / f"lib{name}.so" for name in LIBRARIES]
    if not all(p.is_file() for p in libraries):
        return False
    oldest = min(p.stat().st_mtime for p in libraries)
    return all(p.stat().st_mtime <= oldest for p in _sources())


def build(build_dir: Path | None = None) -> Path:
    """Builds both libraries unless they are newer than all sources; the directory with them. Raises BuildError."""
    directory = build_dir or _ROOT / "build" / "runtime"
    if _up_to_date(directory):
        return directory
    import fcntl
    import subprocess

    directory.mkdir(parents=True, exist_ok=True)
    cmake = _cmake()
    if cmake is None:
        raise BuildError("building the runtime needs CMake: pip install cmake, or install disc-tf as a package")
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _up_to_date(directory):
            return directory
        print(f"disc_tf: compiling the runtime into {directory} (once, a minute or more)", file=sys.stderr, flush=True)
        commands = [
            [cmake, "-S", str(_ROOT), "-B", str(directory), "-DCMAKE_BUILD_TYPE=Release"],
            [cmake, "--build", str(directory), "--parallel", "2"],
        ]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise BuildError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
        for name in LIBRARIES:  # a relink that changed nothing keeps the old time stamp
            (directory / f"lib{name}.so").touch()
    return directory


@functools.cache
def library_path(name: str = "disc_ral") -> Path:
    """Path of ``lib<name>.so``: "disc_ral" (the runtime) or "disc_tf_op" (DiscLaunch for TensorFlow).

    In a source checkout it is built first if need be. Raises BuildError, ValueError for another name.
    """
    if name not in LIBRARIES:
        raise ValueError(f"no library {name!r}; there are {', '.join(LIBRARIES)}")
    file_name = f"lib{name}.so"
    packaged = _packaged(file_name)
    if not _is_checkout() or (packaged is not None and _cmake() is None):
        if packaged is None:
            raise BuildError(f"{file_name} is not in the package at {_HERE}: install disc-tf again")
        return packaged
    return build() / file_name
