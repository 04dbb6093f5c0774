"""`disc-tf doctor`: is this environment able to compile and to run?"""

from __future__ import annotations

import argparse
import json
import platform
import sys

from disc_tf.commands.common import INTERNAL_ERROR, OK
from disc_tf.extras import EXTRAS, absent, advice
from disc_tf.runtime.cpu import ISA_FEATURES, cpu_flags, native_target
from disc_tf.version import installed

_PACKAGES = ("disc-tf", "tensorflow", "numpy", "protobuf", "jax", "jaxlib", "llvmlite", "scipy")
#: extra -> what it is for
_OPTIONAL = {
    "serve": "disc-tf serve, disc-tf serving",
    "remote": "disc-tf optimize --remote",
    "server": "disc-tf-server",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _version(package: str) -> str:
    return installed(package) or "not installed"


def can_compile() -> bool:
    """Whether the compiler's packages are installed: serving needs none of them."""
    return not absent(["llvmlite"])


def checks() -> list[tuple[str, bool, str]]:
    """(what, ok, detail) of everything that can be wrong."""
    out = [("python", sys.version_info >= (3, 11), platform.python_version())]
    try:
        out.append(("cpu target", True, native_target()))
    except RuntimeError as e:
        out.append(("cpu target", False, str(e)))
    try:
        from disc_tf.runtime import library_path

        out.append(("runtime library", True, str(library_path())))
    except Exception as e:
        out.append(("runtime library", False, f"{e}; install the package, or build it with `make env`"))
    else:
        out += _packs() + _trust()
    if can_compile():
        try:
            import llvmlite.binding  # noqa: F401

            lacks = absent(EXTRAS["compiler"])
            out.append(("compiler", True, f"llvmlite {_version('llvmlite')}{f', without {_names(lacks)}' if lacks else ''}"))
        except (ImportError, OSError) as e:
            out.append(("compiler", False, f"{e}; install disc-tf[compiler] again"))
    else:
        out.append(("compiler", True, f"not installed: optimised graphs run here; {advice('compiler')} to make them"))
    return [*out, _op_library(), *_extras()]


def _names(packages: list[str]) -> str:
    return ", ".join(packages)


def _extras() -> list[tuple[str, bool, str]]:
    """Of the extras that not everybody needs: being without one is no fault."""
    out = []
    for extra, purpose in _OPTIONAL.items():
        lacks = absent(EXTRAS[extra])
        detail = f"not installed ({purpose}): lacks {_names(lacks)}; {advice(extra)}" if lacks else f"installed ({purpose})"
        out.append((extra, True, detail))
    return out


def _op_library() -> tuple[str, bool, str]:
    """Without TensorFlow stand-alone files run all the same."""
    if absent(["tensorflow"]):
        detail = "no TensorFlow: stand-alone files run here (disc-tf run NAME.disc); install TensorFlow 2.16-2.21 for graphs"
        return "op library", True, detail
    try:
        import tensorflow as tf

        import disc_tf

        disc_tf.load_op_library()
        return "op library", True, f"DiscLaunch loads in TensorFlow {tf.__version__}"
    except ImportError as e:
        return "op library", False, f"{e}; install TensorFlow 2.16-2.21"
    except Exception as e:
        return "op library", False, f"{type(e).__name__}: {e}"


def _packs() -> list[tuple[str, bool, str]]:
    """Of the directory of packed weights, if one is set."""
    from pathlib import Path

    from disc_tf.runtime import DiscError, packs_directory, share_packs

    if not (directory := packs_directory()):
        return []
    try:
        share_packs(directory)
    except DiscError as e:
        return [("shared packs", False, f"{e.message}; set DISC_TF_PACKS to a directory that only this user or root may write into")]
    sizes = [p.stat().st_size for p in Path(directory).glob("*.pack")]
    return [("shared packs", True, f"{directory}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB")]


def _trust() -> list[tuple[str, bool, str]]:
    """Of the policy that says which code is loaded, if there is one."""
    from disc_tf.runtime import DiscError, set_trust, trust_file

    if not (file := trust_file()):
        return [("trust policy", True, "none: any code is loaded (DISC_TF_TRUST=FILE: only what a key of it signed, docs/service.md)")]
    try:
        set_trust(file)
    except DiscError as e:
        return [("trust policy", False, f"{e.message}; no code is loaded until that is put right")]
    return [("trust policy", True, f"{file}: only code that a key of it signed is loaded{_keys(file)}")]


def _keys(file: str) -> str:
    try:
        from disc_tf.remote.trust import TrustError, TrustPolicy
    except ImportError:
        return ""
    try:
        keys = TrustPolicy.from_file(file).keys.values()
    except TrustError as e:
        return f" (clients do not take it: {e})"
    return "; keys: " + ", ".join(f"{k.id}{' (revoked)' if k.revoked else ''}" for k in keys)


def run(args: argparse.Namespace) -> int:
    versions = {p: _version(p) for p in _PACKAGES}
    found = checks()
    targets = {t: all(f in cpu_flags() for f in fs) for t, fs in ISA_FEATURES.items()}
    ok = all(good for _, good, _ in found)
    if args.json:
        rows = [{"what": what, "ok": good, "detail": detail} for what, good, detail in found]
        data = {"ok": ok, "versions": versions, "targets": targets, "can_compile": can_compile(), "checks": rows}
        print(json.dumps(data, indent=2))
        return OK if ok else INTERNAL_ERROR
    for name, version in versions.items():
        print(f"{name:12s} {version}")
    print("targets      " + ", ".join(f"{t} ({'runs here' if good else 'not on this CPU'})" for t, good in targets.items()))
    for what, good, detail in found:
        print(f"{'ok  ' if good else 'FAIL'} {what}: {detail}")
    return OK if ok else INTERNAL_ERROR
