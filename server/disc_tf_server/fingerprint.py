"""What decides about a result besides the request: the compiler's own sources and the packages that it computes and generates code with."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from disc_tf.version import __version__, installed

#: rooms of disc_tf that no compile passes through (docs/architecture.md, section 7)
_OUTSIDE = {"commands", "insight", "just_in_time", "report_html", "serving", "testing", "cli.py"}
_KINDS = {".py", ".binpb", ".z", ".json"}
_PACKAGES = ("llvmlite", "jaxlib", "jax", "numpy", "scipy", "ml_dtypes", "protobuf")


def package_root() -> Path:
    """Where the compiler package lies."""
    import disc_tf

    return Path(disc_tf.__file__).parent


def source_files(root: Path) -> list[Path]:
    """The files of the package that a compile may read, in order."""
    files = (f for f in root.rglob("*") if f.suffix in _KINDS and f.is_file() and "__pycache__" not in f.parts)
    return sorted(f for f in files if f.relative_to(root).parts[0] not in _OUTSIDE)


def hash_of(root: Path, versions: dict[str, str]) -> bytes:
    """SHA-256 over the names and contents of the sources, and the versions."""
    total = hashlib.sha256(b"disc_tf compiler 1\0")
    for file in source_files(root):
        content = hashlib.sha256(file.read_bytes()).digest()
        total.update(f"{file.relative_to(root).as_posix()}\0".encode() + content)
    for name, version in sorted(versions.items()):
        total.update(f"\0{name}={version}".encode())
    return total.digest()


def versions() -> dict[str, str]:
    """Package -> version, LLVM's own included."""
    found = {name: installed(name) or "" for name in _PACKAGES}
    try:
        from llvmlite.binding import llvm_version_info

        found["llvm"] = ".".join(map(str, llvm_version_info))
    except ImportError:
        found["llvm"] = ""
    found["disc_tf"] = __version__
    return found


@functools.cache
def fingerprint() -> bytes:
    """Of the compiler that is installed here (32 bytes)."""
    return hash_of(package_root(), versions())
