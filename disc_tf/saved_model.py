"""`optimize_saved_model`: a SavedModel in, the same SavedModel with compiled clusters out; `restore_saved_model`: the way back.

    r = disc_tf.optimize_saved_model("models/in", "models/out", targets=("x86-64-v3",))
    r.path, r.report

The result has the original's signatures, variables, assets and object graph, and loads wherever `import disc_tf.ops` was done before. Its
`assets.extra/disc_tf` holds the original's graph (without weights) for `restore_saved_model`, and a marker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import lzma
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from disc_tf.extras import COMPILING, require
from disc_tf.frontend.rewrite import OPTIMIZED, launch_nodes
from disc_tf.frontend.saved_model import Choice, SavedModelError, choose_meta_graphs, read_saved_model
from disc_tf.optimizer import Compiled, Elsewhere
from disc_tf.options import Options
from disc_tf.publish import PublishError, check_destination, staged
from disc_tf.report import NOT_VERIFIED
from disc_tf.saved_model_files import EXTRA, FINGERPRINT, Tools, copy_rest, digest_of, graph_file, set_op_list, write_message
from disc_tf.saved_model_report import SavedModelReport
from disc_tf.saved_model_rewrite import Rewritten, originals_again, rewrite_meta_graph
from disc_tf.saved_model_source import as_directory, frozen
from disc_tf.testing.tf_files import tools_of
from disc_tf.testing.tf_process import Hosts
from disc_tf.version import __version__

#: what we keep in a model that we wrote
OURS = f"{EXTRA}/disc_tf"
MARKER = f"{OURS}/model.json"

Progress = Callable[[str], None]


class Prove(Protocol):
    """Fills the report's verification for a candidate directory; may call back to put clusters back. ``spent``: seconds of the time budget
    that are gone already."""

    def __call__(
        self, source: Path, candidate: Path, report: SavedModelReport, put_back: Callable[[Collection[str]], None], /, *, spent: float
    ) -> None: ...


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
    elsewhere: Elsewhere | None = None,
    hosts: Hosts | None = None,
    **overrides: Any,
) -> SavedModelResult:
    """Compile what the signatures and the methods of a SavedModel compute, and write the result to ``dst``.

    src: a SavedModel's directory, a `.keras` or `.h5` file, a Keras model, a `tf.Module`, a `tf.function` with an input signature or one
    concrete function; objects are saved first. tags: compile only the MetaGraph that has just these (default: every one but those for
    training, see `choose_meta_graphs`). signatures: compile only these.
    all_functions: also methods for training and those of inner objects. freeze: bake the variables' values in; what is left then are the
    signatures. overwrite: replace ``dst`` in one step. dry_run: say what would be compiled. verify, timing: run every signature against
    TensorFlow before anything is published; clusters that differ, or that are slower, are put back. threads: of that
    (0: all). elsewhere: compiles in place of this process (`disc_tf.remote.Client.compile_graph`). hosts: processes that have
    imported TensorFlow, for what is asked of it here (None: this one imports it). options, overrides: see `Options`.

    Raises `SavedModelError` for a model that cannot be read, `PublishError` for a destination that cannot be written, `OptionError`.
    What cannot be compiled stays as it is, with the reason in the report.
    """
    settings = Options.from_overrides(options, **overrides)
    signatures = [signatures] if isinstance(signatures, str) else signatures
    tags = [tags] if isinstance(tags, str) else tags
    if dst is None and not dry_run:
        raise SavedModelError("no destination is given")
    if not dry_run and elsewhere is None:
        require("compiling", "compiler", (*COMPILING, *(("tensorflow",) if verify or freeze else ())))
    start = time.perf_counter()
    own = Path(src) if isinstance(src, str | Path) else None  # not the copy that a frozen model or an object is made into
    if verify and own is not None and not dry_run:
        _refuse_no_text(own)
    if dst is not None and not dry_run:
        check_destination(dst, overwrite=overwrite, source=own)
    if freeze and own is not None and own.is_dir():
        _refuse_ours(own, read_saved_model(own))  # before TensorFlow loads it
    with contextlib.ExitStack() as stack:
        original = source = stack.enter_context(as_directory(src, progress=progress))
        if freeze:
            source = stack.enter_context(frozen(original, signatures=signatures, tags=tags, progress=progress))
        message = read_saved_model(source)
        _refuse_ours(source, message)
        digest = digest_of(source)
        tools = Tools() if hosts is None else stack.enter_context(tools_of(hosts))
        parts = [_Part(c, _report(digest, c, settings), tools) for c in choose_meta_graphs(message, tags, signatures)]
        report = parts[0].report
        report.other_graphs = [part.report for part in parts[1:]]
        report.times_ms["read"] = (time.perf_counter() - start) * 1e3
        looked_at = [part for part in parts if not part.choice.reason]
        if dry_run:
            _compile(looked_at, settings, all_functions, True, elsewhere, progress)
            return SavedModelResult(None, report)
        assert dst is not None
        with _files(dst), staged(dst, overwrite=overwrite, source=own or source) as directory:
            _compile(looked_at, settings, all_functions, False, elsewhere, progress)
            copy_rest(source, directory)

            def write() -> None:
                _write(source, directory, message, looked_at, tools)

            write()
            _keep_original(source, directory)
            if verify:
                limits = {"timing": timing, "threads": threads, "time_budget": settings.time_budget, "progress": progress}
                prove = prove or functools.partial(_default_proof, **limits)
                _prove(prove, original, directory, looked_at, write, frozen=freeze)
            else:
                for part in looked_at:
                    part.report.warnings.append(NOT_VERIFIED)
            _mark(directory, report)
        report.times_ms["all"] = (time.perf_counter() - start) * 1e3
        return SavedModelResult(Path(dst), report)


def _refuse_no_text(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise SavedModelError(f"{path}: TensorFlow, which proves the result, takes names of UTF-8 text only: rename it") from None


def _refuse_ours(source: Path, message: Any) -> None:
    """`SavedModelError` for a model with our code in it, whoever saved it: what is restored of the result would not be an original."""
    if read_marker(source) is not None or any(launch_nodes(message)):
        raise SavedModelError(f"{source} {OPTIMIZED}")


@dataclasses.dataclass
class _Part:
    """A MetaGraph on its way. ``rewritten``: what was compiled of it; ``now``: as it is in the candidate."""

    choice: Choice
    report: SavedModelReport
    tools: Tools
    rewritten: Rewritten | None = None
    now: Any = None

    def without(self, names: Collection[str]) -> None:
        """Have these clusters (keys of ``report.clusters``) in TensorFlow."""
        assert self.rewritten is not None
        self.now = self.rewritten.without(names)
        if self.now is not self.choice.meta and self.report.compiled_clusters:
            set_op_list(self.now, self.tools)


def _report(digest: str, choice: Choice, settings: Options) -> SavedModelReport:
    return SavedModelReport(
        compiler_version=__version__,
        source_digest=digest,
        tags=choice.tags,
        signatures=choice.names,
        options=settings.to_dict(),
        reason=choice.reason,
    )


def _compile(
    parts: Sequence[_Part], settings: Options, all_functions: bool, dry_run: bool, elsewhere: Elsewhere | None, progress: Progress
) -> None:
    compiled: Compiled = {}
    for part in parts:
        start = time.perf_counter()
        where = f"[{part.choice.title}] " if len(parts) > 1 else ""
        part.rewritten = rewrite_meta_graph(
            part.choice.meta,
            settings,
            signatures=part.choice.signatures,
            all_functions=all_functions,
            dry_run=dry_run,
            compiled=compiled,
            elsewhere=elsewhere,
            progress=lambda text, where=where: progress(where + text),
        )
        report = part.report
        report.functions, report.skipped = part.rewritten.functions, part.rewritten.skipped
        if not report.functions:
            report.warnings.append("nothing was looked at: the model has no signatures and no methods")
        report.times_ms["compile"] = (time.perf_counter() - start) * 1e3
        if not dry_run:
            part.without(())


def _write(source: Path, directory: Path, message: Any, parts: Sequence[_Part], tools: Tools) -> None:
    """Write the message with the MetaGraphs of ``parts`` as they are now."""
    new = type(message)()
    new.CopyFrom(message)
    for part in parts:
        new.meta_graphs[part.choice.index].CopyFrom(part.now)
    write_message(source, directory, new, tools)


def _prove(
    prove: Prove, original: Path, directory: Path, parts: Sequence[_Part], write: Callable[[], None], *, frozen: bool
) -> None:
    """MetaGraph after MetaGraph, each loaded by its tags; a time budget is for all of them. ``frozen``: the result is compared whether
    anything was compiled or not; `SavedModelError` if it differs even as it was frozen."""
    start = time.monotonic()
    for part in parts:
        if not part.report.compiled_clusters and not frozen:
            continue

        def put_back(names: Collection[str], part: _Part = part) -> None:
            part.without(names)
            write()

        prove(original, directory, part.report, put_back, spent=time.monotonic() - start)
        if frozen and part.report.verified is False:
            why = next((r.message for results in part.report.verification.values() for r in results if not r.ok), "it differs")
            raise SavedModelError(f"cannot freeze {original}: the frozen model is not the same: {why}; leave out --freeze")


def _default_proof(source: Path, candidate: Path, report: SavedModelReport, put_back: Any, **limits: Any) -> None:
    from disc_tf.proof_saved_model import prove_saved_model

    prove_saved_model(source, candidate, report, put_back, **limits)


@contextlib.contextmanager
def _files(destination: str | Path) -> Iterator[None]:
    """What the system says of files, as an error that names the destination."""
    try:
        yield
    except OSError as e:  # shutil.Error too
        raise PublishError(f"cannot write {destination}: {e}") from e


# ---- what we leave in a model ------------------------------------------------------------------------------------


def _keep_original(source: Path, directory: Path) -> None:
    """What `restore_saved_model` needs, in a folder of our own."""
    ours = directory / OURS
    ours.mkdir(parents=True, exist_ok=True)
    file = graph_file(source)
    (ours / f"original.{file.name}.xz").write_bytes(lzma.compress(file.read_bytes(), preset=1))
    if (source / FINGERPRINT).exists():
        shutil.copyfile(source / FINGERPRINT, ours / f"original.{FINGERPRINT}")


def _mark(directory: Path, report: SavedModelReport) -> None:
    """What later readers need: the only file that is written after the proof."""
    marker = {
        "made_by": f"disc_tf {report.compiler_version}",
        "source_digest": report.source_digest,
        "digest": digest_of(directory),
        "clusters": sorted(name for name, c in report.clusters_of_all.items() if c.status == "compiled"),
        "verified": report.verified_all,
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
    exact = marker is not None and marker.get("digest") == digest_of(source) and bool(_kept(source))
    launches = 0
    if not exact:
        for meta in message.meta_graphs:
            launches += originals_again(meta)
        if not launches and marker is None:
            raise SavedModelError(f"{source} was not optimised by disc_tf: there is nothing to restore")
    with _files(dst), staged(dst, overwrite=overwrite, source=source) as directory:
        copy_rest(source, directory)
        if exact:
            kept = _kept(source)[0]
            (directory / kept.name.removeprefix("original.").removesuffix(".xz")).write_bytes(_unpacked(kept))
            if (source / OURS / f"original.{FINGERPRINT}").exists():
                shutil.copyfile(source / OURS / f"original.{FINGERPRINT}", directory / FINGERPRINT)
        else:
            for meta in message.meta_graphs:
                set_op_list(meta, Tools())
            write_message(source, directory, message, Tools())
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

