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


#: what, whether it is in order (None: it is not installed), detail
Check = tuple[str, bool | None, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--need", action="append", default=[], choices=("compiler", "tensorflow", *_OPTIONAL), metavar="WHAT",
        help="exit with 1 if this is missing: compiler, tensorflow, serve, remote or server (repeatable)",
    )  # fmt: skip


def _version(package: str) -> str:
    return installed(package) or "not installed"


def can_compile() -> bool:
    """Whether the compiler's packages are installed: serving needs none of them."""
    return not absent(["llvmlite"])


def checks() -> list[Check]:
    """(what, ok, detail) of everything that can be wrong; ok is None for what is missing and not everybody needs."""
    out: list[Check] = [("python", sys.version_info >= (3, 11), platform.python_version())]
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
            version = f"llvmlite {_version('llvmlite')}"
            out.append(("compiler", not lacks or None, f"{version}, lacks {_names(lacks)}; {advice('compiler')}" if lacks else version))
        except (ImportError, OSError) as e:
            out.append(("compiler", False, f"{e}; {advice('compiler')} again"))
    else:
        out.append(("compiler", None, f"optimised graphs run here; {advice('compiler')} to make them"))
    return [*out, _op_library(), *_extras()]


def _names(packages: list[str]) -> str:
    return ", ".join(packages)


def _extras() -> list[Check]:
    """Of the extras that not everybody needs: being without one is no fault."""
    out: list[Check] = []
    for extra, purpose in _OPTIONAL.items():
        lacks = absent(EXTRAS[extra])
        detail = f"not installed ({purpose}): lacks {_names(lacks)}; {advice(extra)}" if lacks else f"installed ({purpose})"
        out.append((extra, None if lacks else True, detail))
    return out


def _op_library() -> Check:
    """Without TensorFlow stand-alone files run all the same."""
    if absent(["tensorflow"]):
        detail = "no TensorFlow: stand-alone files run here (disc-tf run NAME.disc); install TensorFlow 2.16-2.21 for graphs"
        return "op library", None, detail
    try:
        import tensorflow as tf

        import disc_tf

        disc_tf.load_op_library()
        return "op library", True, f"DiscLaunch loads in TensorFlow {tf.__version__}"
    except ImportError as e:
        return "op library", False, f"{e}; install TensorFlow 2.16-2.21"
    except Exception as e:
        return "op library", False, f"{type(e).__name__}: {e}"


def _packs() -> list[Check]:
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


def _trust() -> list[Check]:
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


_WORDS = {True: "ok", None: "missing", False: "failed"}
#: names of ``--need`` -> the check that they stand for, where that has another name
_CHECK_OF = {"tensorflow": "op library"}


def run(args: argparse.Namespace) -> int:
    versions = {p: _version(p) for p in _PACKAGES}
    found = checks()
    targets = {t: all(f in cpu_flags() for f in fs) for t, fs in ISA_FEATURES.items()}
    needed = {_CHECK_OF.get(n, n) for n in args.need}
    ok = all(good or (good is None and what not in needed) for what, good, _ in found)
    if args.json:
        rows = [{"what": what, "ok": good is True, "status": _WORDS[good], "detail": detail} for what, good, detail in found]
        missing = [what for what, good, _ in found if good is None]
        data = {"ok": ok, "versions": versions, "targets": targets, "can_compile": can_compile(), "missing": missing, "checks": rows}
        print(json.dumps(data, indent=2))
        return OK if ok else INTERNAL_ERROR
    for name, version in versions.items():
        print(f"{name:12s} {version}")
    print("targets      " + ", ".join(f"{t} ({'runs here' if good else 'not on this CPU'})" for t, good in targets.items()))
    for what, good, detail in found:
        print(f"{'FAILED' if good is False else _WORDS[good]:7s} {what}: {detail}")
    return OK if ok else INTERNAL_ERROR
