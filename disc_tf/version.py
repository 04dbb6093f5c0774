"""The version, in one place (pyproject.toml reads it from here)."""

from __future__ import annotations

__version__ = "0.1.0"


def installed(package: str) -> str | None:
    """The version of a package, None if it is not installed. TensorFlow has two packages."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return installed("tensorflow-cpu") if package == "tensorflow" else None
