"""What `pip install disc-tf` leaves out: the extras, their packages, and what to say where one is missing. Imports none of them."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

#: package (as pip knows it) -> module that it is imported by, where they differ
_MODULES = {
    "protobuf": "google.protobuf",
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "grpcio-status": "grpc_status",
    "googleapis-common-protos": "google.rpc",
    "prometheus-client": "prometheus_client",
}
_REMOTE = ("grpcio", "grpcio-status", "googleapis-common-protos", "protobuf", "ml_dtypes", "zstandard", "cryptography")
_SERVER = ("jax", "jaxlib", "llvmlite", "scipy", "grpcio-health-checking", "grpcio-reflection", "prometheus-client", "fsspec")
#: extra -> its packages, as pyproject.toml has them; ``server`` with those of ``remote``
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "compiler": ("tensorflow", "jax", "jaxlib", "llvmlite", "ml_dtypes", "protobuf", "scipy"),
    "serve": ("grpcio", "grpcio-health-checking", "aiohttp", "prometheus-client", "ml_dtypes", "protobuf", "fsspec"),
    "remote": _REMOTE,
    "server": (*_REMOTE, *_SERVER),
}
#: what reads a graph
GRAPHS = ("protobuf", "ml_dtypes")
#: what compiles one: the rest of the extra is for verifying, or for single ops
COMPILING = (*GRAPHS, "llvmlite")

#: in every message about missing packages
LACKING = "needs more packages ("


class MissingPackages(ModuleNotFoundError):
    """Something needs packages that are not installed; the message has the way out. ``name``: a module of the first of them."""


def advice(extra: str, missing: Iterable[str] = (), package: Path | None = None) -> str:
    """The command that installs an extra, or several (``compiler,serve``), the way this package (or the one in ``package``) was installed.
    TensorFlow, which most leave out, is named if need be."""
    tensorflow = extra == "serve" or ("tensorflow" in missing and "compiler" not in extra)
    root = checkout(package or Path(__file__).parent)
    if root is None:
        what = shlex.quote(f"disc-tf[{extra}]")
    else:
        what = "-e " + shlex.quote(f"{'.' if root == Path.cwd() else root}[{extra}]")
    return f"pip install {what}" + (" tensorflow" if tensorflow else "")


def checkout(package: Path) -> Path | None:
    """The source tree that a package's directory is part of; None where it was installed from a wheel."""
    root = package.resolve().parent
    return root if (root / "pyproject.toml").is_file() else None


def absent(packages: Iterable[str]) -> list[str]:
    """Those of the packages that are not installed."""
    return [p for p in packages if not _found(_MODULES.get(p, p))]


def require(what: str, extra: str, packages: Iterable[str]) -> None:
    """`MissingPackages` if one is not installed. ``what`` needs them: a command, a flag, a function."""
    if missing := absent(packages):
        raise missing_packages(what, extra, missing)


@contextlib.contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Imports that need an extra: `MissingPackages`, with all that is missing of it, where one does not succeed."""
    try:
        yield
    except MissingPackages:
        raise
    except ModuleNotFoundError as e:
        if (package := package_of(e.name or "")) is None:
            raise
        raise missing_packages(what, extra, absent(EXTRAS[extra]) or [package]) from e


def missing_packages(what: str, extra: str, missing: Iterable[str]) -> MissingPackages:
    """The error, to be raised."""
    names = list(missing)
    text = f"{what} needs more packages ({', '.join(names)}): {advice(extra, names)}"
    return MissingPackages(text, name=_MODULES.get(names[0], names[0]))


def package_of(module: str) -> str | None:
    """The package of an extra that a module is of; None if it is of none."""
    packages = dict.fromkeys(p for named in EXTRAS.values() for p in named)
    known = {_MODULES.get(p, p): p for p in packages}
    found = next((p for m, p in known.items() if module == m or module.startswith(f"{m}.")), None)
    return "protobuf" if found is None and module == "google" else found


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the package above it is missing, or a module of that name is half there
        return False
