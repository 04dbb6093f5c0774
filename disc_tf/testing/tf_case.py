"""One-op differential tests of the lowering: TensorFlow's answer against ours through the IR's numpy interpreter.

``check_op("AddV2", x=array, y=array)`` builds a graph with that one node, runs it eagerly in this process (eager execution skips
grappler; oneDNN is off: the reference settings of docs/numerics.md), lowers it with static, partly known and unknown dims, and compares
values, dtypes, shapes and error codes. TensorFlow is imported once, on first use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.lower import lower_nodes
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import rule_for

#: how the dims of the operands are declared: all known, every other one known, none known
MODES = ("static", "partial", "dynamic")

#: relative rounding unit of each float type
EPSILON = {DType.F64: 2.0**-52, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


@functools.cache
def tensorflow() -> Any:
    """TensorFlow with the reference settings. ``RuntimeError`` if it was imported before with others."""
    import sys

    if "tensorflow" in sys.modules and os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0":
        raise RuntimeError("TensorFlow was imported with oneDNN on: set TF_ENABLE_ONEDNN_OPTS=0 first")
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # another suite in this process has used TensorFlow already
        tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf


@dataclasses.dataclass(frozen=True)
class Failure:
    """An error status. ``code`` is TF's; None where TF raises outside of a kernel (graph construction)."""

    code: int | None
    message: str


Answer = list[np.ndarray] | Failure
Tensors = Mapping[str, "np.ndarray | Sequence[np.ndarray]"]


def split_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of a raw op as (tensors, attributes): arrays and lists of arrays are tensors."""
    tensors, attrs = {}, {}
    for name, value in arguments.items():
        is_list = isinstance(value, (list, tuple)) and value and all(isinstance(v, np.ndarray) for v in value)
        (tensors if isinstance(value, np.ndarray) or is_list else attrs)[name] = value
    return tensors, attrs


def _flat(tensors: Tensors) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in tensors.items():
        if isinstance(value, np.ndarray):
            yield name, value
        else:
            for i, v in enumerate(value):
                yield f"{name}_{i}", v


def tf_answer(op: str, arguments: Mapping[str, Any]) -> Answer:
    """The eager result of ``tf.raw_ops.<op>``, or its error."""
    tf = tensorflow()
    try:
        tensors, attrs = split_arguments(arguments)
        given = {
            name: tf.constant(v) if isinstance(v, np.ndarray) else [tf.constant(x) for x in v] for name, v in tensors.items()
        }
        result = getattr(tf.raw_ops, op)(**given, **attrs)
    except tf.errors.OpError as e:
        return Failure(e.error_code, e.message)
    except (ValueError, TypeError) as e:
        return Failure(None, str(e))
    if result is None or isinstance(result, tf.Operation):
        return []
    results = result if isinstance(result, (list, tuple)) else [result]
    return [plain(np.asarray(r.numpy())) for r in _flatten(results)]


def plain(array: np.ndarray) -> np.ndarray:
    """An array of a quantized type (numpy has these as records of one integer) as its integers."""
    return array if array.dtype.fields is None else array.view(array.dtype[0])


def _flatten(results: Any) -> Iterator[Any]:
    for r in results:
        if isinstance(r, (list, tuple)):
            yield from _flatten(r)
        else:
            yield r


@dataclasses.dataclass
class Graph:
    """The NodeViews of a one-op graph; ``feeds`` are the names of its placeholders in order of ``arrays``."""

    nodes: list[NodeView]
    feeds: list[str]
    arrays: list[np.ndarray]
    output: str


def one_op_graph(op: str, arguments: Mapping[str, Any], const: Sequence[str]) -> Graph:
    """Build the node in a TF graph, operands in ``const`` as Const nodes, the others as placeholders of unknown shape."""
    tf = tensorflow()
    tensors, attrs = split_arguments(arguments)
    feeds: list[str] = []
    arrays: list[np.ndarray] = []

    def operand(name: str, value: np.ndarray, known: bool) -> Any:
        if known:
            return tf.constant(value, name=f"const_{name}")
        feeds.append(f"arg_{name}")
        arrays.append(plain(value))
        return tf.compat.v1.placeholder(value.dtype, None, name=f"arg_{name}")

    with tf.Graph().as_default() as graph:
        given: dict[str, Any] = {}
        for name, value in tensors.items():
            if isinstance(value, np.ndarray):
                given[name] = operand(name, value, name in const)
            else:
                given[name] = [operand(f"{name}_{i}", v, name in const) for i, v in enumerate(value)]
        getattr(tf.raw_ops, op)(**given, **attrs, name="tested")
        nodes = [NodeView.from_proto(n) for n in graph.as_graph_def().node]
    return Graph([n for n in nodes if n.name not in feeds], feeds, arrays, "tested")


def declared_dims(shape: Sequence[int], mode: str, index: int) -> list[Dim]:
    """The dims of operand ``index`` in a mode; unknown dims are symbols ``a<operand>d<axis>``."""
    known = {"static": lambda _i: True, "partial": lambda i: (i + index) % 2 == 0, "dynamic": lambda _i: False}[mode]
    return [Dim.of(int(n)) if known(i) else Dim.of(f"a{index}d{i}") for i, n in enumerate(shape)]


def lower_graph(graph: Graph, mode: str, known_dims: Sequence[str] = ()) -> Function:
    """The graph as a function of its placeholders, all results of the tested node and the final token returned.

    known_dims: operands whose dims are static in every mode (shape vectors: their length is a result's rank); ``"x:3"`` is one dim
    of ``x`` (channels). The function is verified.
    """
    from disc_tf.ir.verifier import verify

    fn = Function("main")
    builder = Builder(fn.body, fn.env)
    ctx = LoweringContext(builder, fn.env)
    feeds: dict[tuple[str, int], Value] = {}
    for i, (name, array) in enumerate(zip(graph.feeds, graph.arrays, strict=True)):
        operand = name.removeprefix("arg_")
        dims = declared_dims(array.shape, "static" if operand in known_dims else mode, i)
        dims = [Dim.of(int(n)) if f"{operand}:{k}" in known_dims else d for k, (n, d) in enumerate(zip(array.shape, dims, strict=True))]
        type = TensorType.of(DType.from_np(array.dtype), dims)
        feeds[(name, 0)] = fn.add_arg(type, ArgInfo(name))
    found = lower_nodes(ctx, graph.nodes, feeds)
    results = [found[key] for key in sorted(k for k in found if k[0] == graph.output)]
    builder.return_([*results, *([ctx.token] if ctx.token is not None else [])])
    fn.result_names = [f"{graph.output}:{i}" for i in range(len(results))]
    verify(fn)
    return fn


def our_answer(fn: Function, arrays: Sequence[np.ndarray]) -> Answer:
    """The interpreter's result, or the failed check."""
    from disc_tf.ir.interp import evaluate
    from disc_tf.ir.opset.control import CheckFailed

    try:
        results = evaluate(fn, list(arrays))
    except CheckFailed as e:
        return Failure(e.code, e.message)
    return [np.asarray(r) for r in results[: len(fn.result_names)]]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Allowed error of a float result: ``ulps`` rounding units of ``|reference| + floor``; ``relative_floor`` adds that fraction of the
    root mean square of the reference to the floor (for sums, whose rounding is relative to their terms)."""

    ulps: float = 4.0
    floor: float = 1e-30
    relative_floor: float = 0.0


def difference(reference: np.ndarray, ours: np.ndarray, tolerance: Tolerance) -> str:
    """What differs, "" if nothing. Integers and bools must be equal; NaN equals NaN; infinities must match; denormals count as zero
    (TF's threads and ours flush them, the interpreter does not)."""
    if reference.dtype != ours.dtype:
        return f"dtype {ours.dtype} instead of {reference.dtype}"
    if reference.shape != ours.shape:
        return f"shape {list(ours.shape)} instead of {list(reference.shape)}"
    dtype = DType.from_np(reference.dtype)
    if not dtype.is_float:
        bad = reference != ours
    else:
        r, o = reference.astype(np.float64), ours.astype(np.float64)
        tiny = float(ml_dtypes.finfo(reference.dtype).tiny)
        r, o = np.where(np.abs(r) < tiny, 0.0, r), np.where(np.abs(o) < tiny, 0.0, o)
        finite = np.isfinite(r)
        size = np.where(finite, np.abs(r), 0.0)
        floor = tolerance.floor
        if tolerance.relative_floor and finite.any():
            floor += tolerance.relative_floor * float(np.sqrt(np.mean(np.square(size[finite]))))
        with np.errstate(invalid="ignore"):
            near = np.abs(o - r) <= tolerance.ulps * EPSILON[dtype] * (size + floor)
        bad = ~np.where(finite, near, (r == o) | (np.isnan(r) & np.isnan(o)))
    if not bad.any():
        return ""
    at = np.unravel_index(int(np.argmax(bad)), bad.shape) if bad.shape else ()
    return f"{int(bad.sum())} of {bad.size} values differ: TF {reference[at]!r}, ours {ours[at]!r} at {[int(i) for i in at]}"


def run_case(op: str, arguments: Mapping[str, Any], const: Sequence[str], modes: Sequence[str], tol: Tolerance,
             outputs: Sequence[int] | None = None, known_dims: Sequence[str] = ()) -> list[str]:  # fmt: skip
    """All differences of one case, each with its mode."""
    reference = tf_answer(op, arguments)
    if isinstance(reference, Failure) and "Could not find device for node" in reference.message:
        return [f"TF has no CPU kernel for this case of {op}: not a test"]
    try:
        graph = one_op_graph(op, arguments, const)
    except (ValueError, TypeError) as e:  # TF's shape functions reject it while the graph is built
        return [] if isinstance(reference, Failure) else [f"the graph cannot be built: {e}"]
    problems = []
    for mode in modes:
        problem = _compare_mode(graph, mode, reference, tol, outputs, known_dims)
        if problem:
            problems.append(f"{op} [{mode}]: {problem}")
    return problems


def _compare_mode(
    graph: Graph, mode: str, reference: Answer, tol: Tolerance, outputs: Sequence[int] | None,
    known_dims: Sequence[str] = (),
) -> str:  # fmt: skip
    try:
        fn = lower_graph(graph, mode, known_dims)
    except Unsupported as e:
        if e.code == "INVALID" and isinstance(reference, Failure):
            return ""
        return f"not lowered: {e}"
    ours = our_answer(fn, graph.arrays)
    if isinstance(reference, Failure) or isinstance(ours, Failure):
        if not isinstance(ours, Failure):
            return f"TF fails ({reference}), ours does not"
        if not isinstance(reference, Failure):
            return f"ours fails ({ours}), TF does not"
        return "" if reference.code in (ours.code, None) else f"TF fails with {reference}, ours with {ours}"
    if len(ours) != len(reference):
        return f"{len(ours)} results instead of {len(reference)}"
    for i in range(len(ours)) if outputs is None else outputs:
        problem = difference(reference[i], ours[i], tol)
        if problem:
            return f"result {i}: {problem}"
    return ""


def check_op(
    op: str,
    *,
    const: Sequence[str] | None = None,
    modes: Sequence[str] = MODES,
    tol: Tolerance = Tolerance(),
    outputs: Sequence[int] | None = None,
    known_dims: Sequence[str] = (),
    **arguments: Any,
) -> None:
    """Assert that the lowering of one op agrees with TF in all ``modes``.

    arguments: of ``tf.raw_ops.<op>``; numpy arrays (and lists of them) are operands. const: names of operands that are graph constants;
    by default those that the rule needs at compile time. outputs: which results to compare, by default all. known_dims: see `lower_graph`.
    """
    if const is None:
        tensors, _ = split_arguments(arguments)
        names = list(tensors)
        const = [names[p] for p in rule_for(op).constants]
    problems = run_case(op, arguments, const, modes, tol, outputs, known_dims)
    assert not problems, "\n".join(problems)


# ---- data ---------------------------------------------------------------------------------------------------------------


def array(shape: Sequence[int], dtype: DType | str, seed: int = 0, low: float = -4.0, high: float = 4.0) -> np.ndarray:
    """Random values of a dtype: floats in [low, high), integers likewise (clipped to the type), bools."""
    dtype = DType.from_name(dtype) if isinstance(dtype, str) else dtype
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return rng.uniform(low, high, shape).astype(dtype.np)
    info = np.iinfo(dtype.np)
    values = rng.integers(max(int(low), info.min), min(int(high), int(info.max)), shape, endpoint=True)
    return values.astype(dtype.np)


def specials(dtype: DType) -> np.ndarray:
    """The values at which kernels differ: signed zeros, infinities, NaN, extremes; for integers the extremes and small ones."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_float:
        top = float(ml_dtypes.finfo(dtype.np).max)
        values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, np.inf, -np.inf, np.nan, top, -top, 1e-3, -1e-3, 30.0, -30.0]
        return np.array(values, np.float64).astype(dtype.np)
    info = np.iinfo(dtype.np)
    values = [0, 1, 2, 3, 5, 7, int(info.max), int(info.max) - 1, int(info.min), int(info.min) + 1]
    if info.min < 0:
        values += [-1, -2, -3, -7]
    return np.array(values, dtype.np)
