"""`optimize_saved_model`: a SavedModel in, the same SavedModel with compiled clusters out; `restore_saved_model`: the way back.

    r = disc_tf.optimize_saved_model("models/in", "models/out", targets=("x86-64-v3",))
    r.path, r.report

The result has the original's signatures, variables, assets and object graph, and loads wherever `import disc_tf.ops` was done before. Its
`assets.extra/disc_tf` holds the original's graph (without weights) for `restore_saved_model`, and a marker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import lzma
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.functions import every_node
from disc_tf.frontend.saved_model import (
    FILE,
    TEXT_FILE,
    SavedModelError,
    choose_meta_graph,
    read_saved_model,
    signature_names,
    write_saved_model,
)
from disc_tf.options import Options
from disc_tf.publish import PublishError, check_destination, make_writable, staged
from disc_tf.report import NOT_VERIFIED
from disc_tf.saved_model_report import SavedModelReport
from disc_tf.saved_model_rewrite import Rewritten, originals_again, rewrite_meta_graph
from disc_tf.saved_model_source import as_directory
from disc_tf.version import __version__

EXTRA = "assets.extra"
#: what we keep in a model that we wrote
OURS = f"{EXTRA}/disc_tf"
MARKER = f"{OURS}/model.json"
FINGERPRINT = "fingerprint.pb"

Progress = Callable[[str], None]
#: fills the report's verification for a candidate directory; may call back to put clusters back
Prove = Callable[[Path, Path, SavedModelReport, Callable[[Collection[str]], None]], None]


@dataclasses.dataclass
class SavedModelResult:
    """``path``: the published directory (None after a dry run)."""

    path: Path | None
    report: SavedModelReport


def optimize_saved_model(
    src: Any,
    dst: str | Path | None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    tags: Sequence[str] | None = None,
    signatures: Sequence[str] | None = None,
    all_functions: bool = False,
    freeze: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    verify: bool = True,
    timing: bool = True,
    threads: int = 0,
    prove: Prove | None = None,
    progress: Progress = lambda _text: None,
    **overrides: Any,
) -> SavedModelResult:
    """Compile what the signatures and the methods of a SavedModel compute, and write the result to ``dst``.

    src: a SavedModel's directory, a `.keras` or `.h5` file, a Keras model, a `tf.Module`, a `tf.function` with an input signature or one
    concrete function; objects are saved first. tags: of the graph to compile (default: ``serve``). signatures: compile only these.
    all_functions: also methods for training and those of inner objects. freeze: bake the variables' values in; what is left then are the
    signatures. overwrite: replace ``dst`` in one step. dry_run: say what would be compiled. verify, timing: run every signature against
    TensorFlow before anything is published; clusters that differ, or that are slower, are put back. threads: of that
    (0: all). options, overrides: see `Options`.

    Raises `SavedModelError` for a model that cannot be read, `PublishError` for a destination that cannot be written, `OptionError`.
    What cannot be compiled stays as it is, with the reason in the report.
    """
    settings = Options.from_overrides(options, **overrides)
    signatures = [signatures] if isinstance(signatures, str) else signatures
    tags = [tags] if isinstance(tags, str) else tags
    if dst is None and not dry_run:
        raise SavedModelError("no destination is given")
    start = time.perf_counter()
    own = Path(src) if isinstance(src, str | Path) else None  # not the copy that a frozen model or an object is made into
    if dst is not None and not dry_run:
        check_destination(dst, overwrite=overwrite, source=own)
    with as_directory(src, freeze=freeze, signatures=signatures, tags=tags, progress=progress) as source:
        if read_marker(source) is not None:
            raise SavedModelError(f"{source} was optimised by disc_tf: give the original, which `disc-tf restore` gives back")
        message = read_saved_model(source)
        meta = choose_meta_graph(message, tags)
        report = _report(source, meta, signatures, settings)
        report.times_ms["read"] = (time.perf_counter() - start) * 1e3
        if dry_run:
            _compile(meta, settings, report, signatures, all_functions, True, progress)
            return SavedModelResult(None, report)
        assert dst is not None
        with _files(dst), staged(dst, overwrite=overwrite, source=own or source) as directory:
            rewritten = _compile(meta, settings, report, signatures, all_functions, False, progress)
            _copy_rest(source, directory)
            _write(source, directory, message, meta, rewritten.without(()), report)
            if not verify:
                report.warnings.append(NOT_VERIFIED)
            elif report.compiled_clusters:

                def put_back(names: Collection[str]) -> None:
                    _write(source, directory, message, meta, rewritten.without(names), report)

                (prove or _prove(timing, threads, settings.time_budget, progress))(source, directory, report, put_back)
            _mark(source, directory, report)
        report.times_ms["all"] = (time.perf_counter() - start) * 1e3
        return SavedModelResult(Path(dst), report)


def _prove(timing: bool, threads: int, time_budget: float, progress: Progress) -> Prove:
    def run(source: Path, candidate: Path, report: SavedModelReport, put_back: Callable[[Collection[str]], None]) -> None:
        from disc_tf.proof_saved_model import prove_saved_model

        limits = {"timing": timing, "threads": threads, "time_budget": time_budget}
        prove_saved_model(source, candidate, report, put_back, progress=progress, **limits)

    return run


def _report(source: Path, meta: Any, signatures: Sequence[str] | None, settings: Options) -> SavedModelReport:
    return SavedModelReport(
        compiler_version=__version__,
        source_digest=_digest(source),
        tags=sorted(meta.meta_info_def.tags),
        signatures=list(signatures) if signatures is not None else signature_names(meta),
        options=settings.to_dict(),
    )


def _compile(
    meta: Any,
    settings: Options,
    report: SavedModelReport,
    signatures: Sequence[str] | None,
    all_functions: bool,
    dry_run: bool,
    progress: Progress,
) -> Rewritten:
    start = time.perf_counter()
    rewritten = rewrite_meta_graph(
        meta, settings, signatures=signatures, all_functions=all_functions, dry_run=dry_run, progress=progress
    )
    report.functions, report.skipped = rewritten.functions, rewritten.skipped
    if not rewritten.functions:
        report.warnings.append("nothing was looked at: the model has no signatures and no methods")
    report.times_ms["compile"] = (time.perf_counter() - start) * 1e3
    return rewritten


@contextlib.contextmanager
def _files(destination: str | Path) -> Iterator[None]:
    """What the system says of files, as an error that names the destination."""
    try:
        yield
    except OSError as e:  # shutil.Error too
        raise PublishError(f"cannot write {destination}: {e}") from e


# ---- files -------------------------------------------------------------------------------------------------------


def _graph_file(directory: Path) -> Path:
    return directory / FILE if (directory / FILE).exists() else directory / TEXT_FILE


def _digest(directory: Path) -> str:
    return hashlib.sha256(_graph_file(directory).read_bytes()).hexdigest()


def _copy_rest(source: Path, directory: Path) -> None:
    """Everything but the graph itself, its fingerprint and what an earlier optimisation left."""

    def ignore(where: str, names: list[str]) -> list[str]:
        at = Path(where)
        if at == source:
            return [n for n in names if n in (FILE, TEXT_FILE, FINGERPRINT)]
        return ["disc_tf"] if at == source / EXTRA and "disc_tf" in names else []

    shutil.copytree(source, directory, ignore=ignore, ignore_dangling_symlinks=True, dirs_exist_ok=True)
    make_writable(directory)  # the source may be read-only


def _write(source: Path, directory: Path, message: Any, meta: Any, changed: Any, report: SavedModelReport) -> None:
    """Write the message with one of its MetaGraphs changed."""
    new = type(message)()
    new.CopyFrom(message)
    index = next(i for i, m in enumerate(message.meta_graphs) if m is meta)
    new.meta_graphs[index].CopyFrom(changed)
    if report.compiled_clusters:
        _set_op_list(new.meta_graphs[index])
    _write_message(source, directory, new)


def _write_message(source: Path, directory: Path, message: Any) -> None:
    """`saved_model.pb`, and the fingerprint of it if the source has one."""
    write_saved_model(directory, message)
    if (source / FINGERPRINT).exists():
        (directory / FINGERPRINT).write_bytes(_fingerprint(directory, (source / FINGERPRINT).read_bytes()))


def _set_op_list(meta: Any) -> None:
    """`stripped_op_list` as TensorFlow makes it for the new graph (our op included)."""
    import tensorflow as tf
    from tensorflow.python.framework.meta_graph import stripped_op_list_for_graph
    from tensorflow.python.framework.op_def_registry import get as find_op

    from disc_tf.ops import OP_NAME, load_op_library

    load_op_library()
    graph = tf.compat.v1.GraphDef.FromString(meta.graph_def.SerializeToString())
    try:
        found = stripped_op_list_for_graph(graph)
    except Exception:  # ops that this process does not know: ours is added to what the file says
        listed = meta.meta_info_def.stripped_op_list.op
        if OP_NAME not in {op.name for op in listed} and any(n.op == OP_NAME for n in every_node(meta.graph_def)):
            listed.add().MergeFromString(find_op(OP_NAME).SerializeToString())
        return
    meta.meta_info_def.stripped_op_list.Clear()
    meta.meta_info_def.stripped_op_list.MergeFromString(found.SerializeToString())


def _fingerprint(directory: Path, original: bytes) -> bytes:
    """TensorFlow's fingerprint of the new files; the original's where TensorFlow cannot make one."""
    try:
        from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

        return fingerprinting.CreateFingerprintDef(str(directory))
    except Exception:  # an older TensorFlow
        return original


def _mark(source: Path, directory: Path, report: SavedModelReport) -> None:
    """What `restore_saved_model` and later readers need, in a folder of our own."""
    ours = directory / OURS
    ours.mkdir(parents=True, exist_ok=True)
    file = _graph_file(source)
    (ours / f"original.{file.name}.xz").write_bytes(lzma.compress(file.read_bytes(), preset=1))
    if (source / FINGERPRINT).exists():
        shutil.copyfile(source / FINGERPRINT, ours / f"original.{FINGERPRINT}")
    marker = {
        "made_by": f"disc_tf {report.compiler_version}",
        "source_digest": report.source_digest,
        "digest": _digest(directory),
        "clusters": sorted(name for name, c in report.clusters.items() if c.status == "compiled"),
        "verified": report.verified,
    }
    (directory / MARKER).write_text(json.dumps(marker, indent=1) + "\n")


def read_marker(path: str | Path) -> dict[str, Any] | None:
    """What we wrote into a model that we optimised: ``made_by``, ``source_digest``, ``digest``, ``clusters``; None for other models."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((Path(path) / MARKER).read_text())
        if isinstance(found, dict) and "source_digest" in found:
            return found
    return None


# ---- the way back ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Restored:
    """``exact``: the graph file is the original's, byte for byte. ``launches``: how many DiscLaunch nodes were replaced otherwise."""

    path: Path
    exact: bool
    launches: int


def restore_saved_model(src: str | Path, dst: str | Path, *, overwrite: bool = False) -> Restored:
    """The model without our code: the original's bytes if ``src`` is as we wrote it, else each launch replaced by the function that it
    was made from. `SavedModelError` if nothing of ours is in the model."""
    source = Path(src)
    message = read_saved_model(source)
    marker = read_marker(source)
    exact = marker is not None and marker.get("digest") == _digest(source) and bool(_kept(source))
    launches = 0
    if not exact:
        for meta in message.meta_graphs:
            launches += originals_again(meta)
        if not launches and marker is None:
            raise SavedModelError(f"{source} was not optimised by disc_tf: there is nothing to restore")
    with _files(dst), staged(dst, overwrite=overwrite, source=source) as directory:
        _copy_rest(source, directory)
        if exact:
            kept = _kept(source)[0]
            (directory / kept.name.removeprefix("original.").removesuffix(".xz")).write_bytes(_unpacked(kept))
            if (source / OURS / f"original.{FINGERPRINT}").exists():
                shutil.copyfile(source / OURS / f"original.{FINGERPRINT}", directory / FINGERPRINT)
        else:
            for meta in message.meta_graphs:
                _set_op_list(meta)
            _write_message(source, directory, message)
        extra = directory / EXTRA
        if extra.is_dir() and not any(extra.iterdir()):
            extra.rmdir()
    return Restored(Path(dst), exact, launches)


def _unpacked(file: Path) -> bytes:
    try:
        return lzma.decompress(file.read_bytes())
    except lzma.LZMAError as e:
        raise SavedModelError(f"{file} is damaged ({e}): delete it, and the model is restored from its own functions") from e


def _kept(source: Path) -> list[Path]:
    return sorted((source / OURS).glob("original.saved_model.pb*.xz"))

