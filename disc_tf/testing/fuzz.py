"""Differential fuzzing: random TensorFlow graphs, compiled once each, at several shapes against TensorFlow's eager answers.

    python -m disc_tf.testing.fuzz --seed 0 --seconds 600

Each cluster of a graph gets TensorFlow's own values for its inputs, so errors do not pile up across clusters. What is found is reduced
(steps become inputs, outputs are dropped) and printed as a small program. The work is done in a child process: a crash or a hang is a
finding too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from disc_tf.ir.types import DType
from disc_tf.testing.fuzz_program import Evaluation, Failed, Program, Ref, Step, build_graph, evaluate

#: what TensorFlow refuses while the graph is built, and we need not compile
_NOT_COMPILED = frozenset({
    "INVALID", "NOT_CONSTANT", "RANK_UNKNOWN", "UNSUPPORTED_OP", "DTYPE", "ATTRIBUTE", "CLUSTER_TOO_SMALL", "SHAPE", "TOO_COMPLEX",
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Finding:
    """``kind``: compile, result, status, type; findings of one kind (and key) are the same for the reducer."""

    kind: str
    key: str
    message: str


def check(program: Program, evaluation: Evaluation, target: str) -> tuple[list[Finding], int]:
    """Everything that is wrong with a program compiled for ``target``; the number of comparisons made."""
    from disc_tf.frontend.analysis import analyse
    from disc_tf.frontend.cluster import make_clusters
    from disc_tf.frontend.importer import ImportFailed, import_cluster
    from disc_tf.frontend.load import load

    try:
        graph_def = build_graph(program)
    except (ValueError, TypeError):
        return [], 0  # TensorFlow's shape inference refuses it
    loaded = load(graph_def, [f"n{i}:{p}" for i, p in program.outputs], verify=True)
    analysis = analyse(loaded.graph, [n for n, _ in loaded.fetches], use_tf_shapes=False)
    clustering = make_clusters(analysis, loaded.fetches, loaded.targets, min_cluster_size=1)
    findings = [
        Finding("compile", f"reason {r.code}", f"{n} ({loaded.graph[n].op}): {r}")
        for n, r in clustering.reasons.items() if r.code not in _NOT_COMPILED
    ]  # fmt: skip
    done = 0
    for cluster in clustering.clusters:
        try:
            imported = import_cluster(clustering, cluster)
        except ImportFailed as e:
            if e.reason.code != "INVALID":
                findings.append(Finding("compile", f"import {e.reason.code}", str(e)))
            continue
        nodes = [n.name for n in cluster.nodes]
        found, compared = _check_cluster(imported, nodes, program, evaluation, target)
        findings += found
        done += compared
    return findings, done


def _check_cluster(imported: Any, nodes: Sequence[str], program: Program, evaluation: Evaluation, target: str) -> tuple[list[Finding], int]:
    from disc_tf.compiler import compile_module
    from disc_tf.testing.native_case import load as load_executable
    from disc_tf.testing.tf_case import Failure

    args, results = list(imported.args), list(imported.results)
    try:
        compiled = compile_module(imported.module, [target], host_results=imported.host_results, verify_passes=True)
    except Exception as e:
        return [Finding("compile", f"{type(e).__name__} {_skeleton(str(e))}", f"{type(e).__name__}: {e}")], 0
    out: list[Finding] = []
    done = 0
    steps = [ref[0] for n in nodes if (ref := _ref((n, 0))) is not None]
    with load_executable(compiled.executable, target) as executable:
        for k, sizes in enumerate(program.sizes):
            values = [_value(evaluation, k, _ref(ref)) for ref in args]
            if any(v is None for v in values):
                continue
            codes = {v.code for i in steps if isinstance(v := evaluation.values[k][i], Failed) and v.code is not None}
            guards = [_guarded(evaluation, k, _ref(ref)) for ref in results]
            answer = _run(executable, [v for v in values if v is not None], [g and g[0] for g in guards])
            if isinstance(answer, Finding):
                out.append(dataclasses.replace(answer, message=f"at {sizes}: {answer.message}"))
                continue
            done += 1
            if isinstance(answer, Failure):
                if not codes:
                    out.append(Finding("status", "ours fails", f"at {sizes}: {answer}, TensorFlow does not"))
                elif answer.code not in codes:
                    out.append(Finding("status", "code", f"at {sizes}: {answer}, TensorFlow fails with {codes}"))
                continue
            if codes:
                texts = [v.message for i in steps if isinstance(v := evaluation.values[k][i], Failed) and v.code is not None]
                out.append(Finding("status", "TensorFlow fails", f"at {sizes}: {texts}, ours does not"))
                continue
            if any(g is not None and not (g[1] == _GUARD).all() for g in guards):
                out.append(Finding("memory", "overrun", f"at {sizes}: bytes around a result were overwritten"))
            for ref, got in zip(results, answer, strict=True):
                want = _value(evaluation, k, at := _ref(ref))
                if want is None or at is None:
                    continue
                i, p = at
                problem = difference(want, got, evaluation.errors[k][i][p])
                if problem:
                    out.append(Finding("result", "values", f"n{i}:{p} at {sizes}: {problem}"))
    return out, done


def _run(executable: Any, arrays: list[np.ndarray], outputs: list[np.ndarray | None]) -> Any:
    """The results, the status (`Failure`), or a finding: a result of another shape than TensorFlow's."""
    from disc_tf.runtime.executable import DiscError
    from disc_tf.testing.tf_case import Failure

    try:
        return [np.array(r) for r in executable.run(arrays, outputs)]
    except DiscError as e:
        return Failure(e.code, e.message)
    except ValueError as e:
        return Finding("result", "shape", str(e))


_GUARD = 0xA5
_MARGIN = 512


def _guarded(evaluation: Evaluation, k: int, ref: Ref | None) -> tuple[np.ndarray, np.ndarray] | None:
    """An array for a result, and the bytes around it; None if the reference does not know its shape."""
    want = _value(evaluation, k, ref)
    if want is None:
        return None
    raw = np.full(want.nbytes + 2 * _MARGIN, _GUARD, np.uint8)
    array = raw[_MARGIN : _MARGIN + want.nbytes].view(want.dtype).reshape(want.shape)
    margins = np.lib.stride_tricks.as_strided(raw, (2, _MARGIN), (want.nbytes + _MARGIN, 1))
    return array, margins


def _ref(ref: tuple[str, int]) -> Ref | None:
    """The step's result that a tensor of the graph is; None for one inside of a step."""
    name, port = ref
    return (int(name[1:]), port) if name[1:].isdecimal() else None


def _value(evaluation: Evaluation, k: int, ref: Ref | None) -> np.ndarray | None:
    if ref is None:
        return None
    values = evaluation.values[k][ref[0]]
    return None if isinstance(values, Failed) else values[ref[1]]


def _skeleton(text: str) -> str:
    """A message without the names and numbers that reducing changes."""
    return " ".join(w for w in text.split()[:6] if w.isalpha())


def difference(want: np.ndarray, got: np.ndarray, error: np.ndarray) -> str:
    """What is wrong with a result, given the error that each element may have; "" if nothing."""
    if want.dtype != got.dtype:
        return f"dtype {got.dtype} instead of {want.dtype}"
    if want.shape != got.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    dtype = DType.from_np(want.dtype)
    if not dtype.is_float:
        bad = (want != got) & (error == 0)
    else:
        import ml_dtypes

        tiny = float(ml_dtypes.finfo(want.dtype).tiny) * 4
        w, g = want.astype(np.float64), got.astype(np.float64)
        with np.errstate(all="ignore"):
            near = np.abs(w - g) <= error * 1.5 + tiny
        same = (w == g) | (np.isnan(w) & np.isnan(g)) | near
        # an infinite bound says that nothing is known of the element
        bad = ~same & ~np.isinf(error)
    if not bad.any():
        return ""
    at = np.unravel_index(int(np.argmax(bad)), bad.shape)
    allowed = error[at] if error.shape == bad.shape else error
    return f"{int(bad.sum())} of {bad.size} differ: TF {want[at]!r}, ours {got[at]!r} (allowed {allowed:.3g}) at {[int(i) for i in at]}"


# ---- reducing -----------------------------------------------------------------------------------------------------------


def reduce_program(program: Program, finding: Finding, target: str, seconds: float = 60.0) -> Program:
    """A smaller program with a finding of the same kind and key."""
    end = time.monotonic() + seconds

    def still(candidate: Program) -> bool:
        if time.monotonic() > end:
            return False
        evaluation = evaluate(candidate)
        if evaluation is None:
            return False
        try:
            found, _ = check(candidate, evaluation, target)
        except Exception as e:
            found = [Finding("crash", type(e).__name__, str(e))]
        return any((f.kind, f.key) == (finding.kind, finding.key) for f in found)

    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate in _smaller(program):
            if still(candidate):
                program, changed = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for out in program.outputs:
        if len(program.outputs) > 1:
            yield dataclasses.replace(program, outputs=[out])
    for out in program.outputs:
        if len(program.outputs) > 1:
            yield dataclasses.replace(program, outputs=[o for o in program.outputs if o != out])
    if len(program.sizes) > 1:
        for k in range(len(program.sizes)):
            yield _only_size(program, k)
    needed = program.needed()
    # an output's own operand instead of it
    for n, (i, _) in enumerate(program.outputs):
        for ref in program.steps[i].refs():
            if program.steps[ref[0]].op not in ("Placeholder", "Const"):
                yield dataclasses.replace(program, outputs=[*program.outputs[:n], ref, *program.outputs[n + 1 :]])
    evaluation = evaluate(program)
    if evaluation is None:
        return
    for i in sorted(needed):
        step = program.steps[i]
        if step.op in ("Placeholder", "Const") or any(i == o for o, _ in program.outputs):
            continue
        first = evaluation.values[0][i]
        if not isinstance(first, Failed) and len(first) == 1:
            data = [None if isinstance(v := evaluation.values[k][i], Failed) else v[0] for k in range(len(program.sizes))]
            dims = tuple("?" for _ in range(data[0].ndim)) if data[0] is not None else ()
            cut = Step("Placeholder", {}, {"dtype": str(data[0].dtype) if data[0] is not None else "", "dims": dims, "data": data})
            yield dataclasses.replace(program, steps=[*program.steps[:i], cut, *program.steps[i + 1 :]])


def _only_size(program: Program, k: int) -> Program:
    steps = []
    for s in program.steps:
        if s.op == "Placeholder":
            s = dataclasses.replace(s, attrs={**s.attrs, "data": [s.attrs["data"][k]]})
        steps.append(s)
    return dataclasses.replace(program, steps=steps, sizes=[program.sizes[k]])


# ---- running ------------------------------------------------------------------------------------------------------------


def run_seed(seed: int, steps: int = 12, *, reduce_seconds: float = 60.0) -> tuple[list[str], int]:
    """Reports of what is wrong with the program of a seed; the number of comparisons made."""
    from disc_tf.testing.fuzz_generator import Generator
    from disc_tf.testing.native_case import TARGETS

    generator = Generator(seed, steps)
    program = generator.program
    if not program.outputs:
        return [], 0
    targets = usable_targets(TARGETS)
    target = targets[seed % len(targets)]
    try:
        findings, done = check(program, generator.evaluation, target)
    except Exception as e:
        findings, done = [Finding("crash", type(e).__name__, f"{type(e).__name__}: {e}")], 0
    reports = []
    for key in dict.fromkeys((f.kind, f.key) for f in findings):
        finding = next(f for f in findings if (f.kind, f.key) == key)
        small = reduce_program(program, finding, target, reduce_seconds) if reduce_seconds > 0 else program
        again = evaluate(small)
        shown = [finding]
        if again is not None:
            try:
                shown = [f for f in check(small, again, target)[0] if (f.kind, f.key) == key] or shown
            except Exception:
                shown = [finding]
        reports.append(f"seed {seed} {target} {finding.kind}/{finding.key}: {shown[0].message}\n{small.describe()}")
    return reports, done


def usable_targets(targets: Sequence[str]) -> list[str]:
    """Those that this machine can run."""
    from disc_tf.runtime.executable import host_isa

    return [t for t in targets if t <= host_isa()]


def work(first: int, seconds: float, steps: int, reduce_seconds: float, count: int) -> None:
    """Child: one JSON line per seed, before (so that a crash has a name) and after."""
    from disc_tf.runtime.executable import set_num_threads
    from disc_tf.testing.tf_case import tensorflow

    tensorflow()
    set_num_threads(2)
    end = time.monotonic() + seconds
    seed = first
    while time.monotonic() < end and (count <= 0 or seed < first + count):
        print(json.dumps({"start": seed}), flush=True)
        reports, done = run_seed(seed, steps, reduce_seconds=reduce_seconds)
        print(json.dumps({"done": seed, "compared": done, "reports": reports}), flush=True)
        seed += 1


@dataclasses.dataclass
class Summary:
    """``graphs`` that were checked, ``compared``: runs that were compared, ``reports``: one per finding."""

    graphs: int = 0
    compared: int = 0
    reports: list[str] = dataclasses.field(default_factory=list)
    next_seed: int = 0


def fuzz(seed: int, seconds: float, *, steps: int = 12, reduce_seconds: float = 60.0, count: int = 0, verbose: bool = False) -> Summary:
    """Fuzz from ``seed`` on for about ``seconds`` (or ``count`` graphs) in child processes; a child that dies is a finding of its seed."""
    summary = Summary(next_seed=seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end and (count <= 0 or summary.next_seed < seed + count):
        left = max(1.0, end - time.monotonic())
        todo = seed + count - summary.next_seed if count > 0 else 0
        command = [sys.executable, "-m", "disc_tf.testing.fuzz", "--child", "--seed", str(summary.next_seed), "--seconds", str(left)]
        command += ["--steps", str(steps), "--reduce", str(reduce_seconds), "--count", str(todo)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        at = _follow(child, summary, verbose, MAX_SECONDS + 4 * reduce_seconds)
        code = child.wait()
        errors = child.stderr.read()[-1500:] if child.stderr else ""
        if code == 0:
            break
        summary.reports.append(f"seed {at}: the process ended with status {code}\n{errors}")
        if verbose:
            print(summary.reports[-1], flush=True)
        if at is None:
            break
        summary.next_seed = at + 1
    return summary


#: a graph that takes longer than this (and its reductions) hangs
MAX_SECONDS = 240.0


def _follow(child: Any, summary: Summary, verbose: bool, limit: float) -> int | None:
    """Read the child's lines; it is killed when it is silent for ``limit`` seconds. The seed that it was at."""
    at: int | None = None
    watch = threading.Timer(limit, child.kill)
    watch.start()
    for line in child.stdout:
        watch.cancel()
        watch = threading.Timer(limit, child.kill)
        watch.start()
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if "start" in message:
            at = message["start"]
            continue
        summary.graphs += 1
        summary.compared += message["compared"]
        summary.next_seed = message["done"] + 1
        summary.reports += message["reports"]
        if verbose:
            for r in message["reports"]:
                print(r + "\n", flush=True)
    watch.cancel()
    return at


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--count", type=int, default=0, help="graphs at most (0: as many as the time allows)")
    parser.add_argument("--reduce", type=float, default=60.0, help="seconds for reducing each finding")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        work(args.seed, args.seconds, args.steps, args.reduce, args.count)
        return 0
    found = fuzz(args.seed, args.seconds, steps=args.steps, reduce_seconds=args.reduce, count=args.count, verbose=True)
    print(f"{found.graphs} graphs, {found.compared} runs compared, {len(found.reports)} findings; next seed {found.next_seed}")
    return 1 if found.reports else 0


if __name__ == "__main__":
    sys.exit(main())
