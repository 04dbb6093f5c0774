"""Random TensorFlow programs as data: steps, their eager values at several sizes, and what error each value may have.

A `Program` is a list of `Step`; a step is a placeholder, a constant or one ``tf.raw_ops`` call on earlier steps' outputs. `Evaluation`
runs it eagerly (op by op: no grappler) at every size assignment, which is the reference; `build_graph` makes the GraphDef.

Errors: each float value carries a bound of the difference that rounding may make, found by running the op again with disturbed operands and
adding the op's own allowance. 0 means that the bits are defined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import EPSILON, tensorflow

#: (step, output port)
Ref = tuple[int, int]
#: how often inexact operands are moved, together
_DRAWS = 7
#: up to this many inexact operands are moved one by one, too
_MOVED_ALONE = 4
#: sums of their operand's elements
_LINEAR = frozenset({"Sum", "Mean"})
Operand = Ref | list[Ref]


#: of a tensor at the first assignment: a step that gives more is not taken
MOST_ELEMENTS = 20000


@dataclasses.dataclass
class Step:
    """``op``: a raw op, "Placeholder" (attrs: dtype, dims: names or ints, data: one array per size assignment) or "Const" (attrs: value).
    ``ulps``: the op's own rounding allowance; ``sums``: error is relative to the same op on absolute values (reductions, products).
    ``floor``: the allowance is that of a result of at least this size (TensorFlow's Elu is exp(x) - 1: exact to a unit
    of 1, not of the result). ``undefined``: ports whose values mean nothing (memory that TensorFlow leaves as it was)."""

    op: str
    operands: dict[str, Operand] = dataclasses.field(default_factory=dict)
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    ulps: float = 0.0
    sums: bool = False
    floor: float = 0.0
    undefined: tuple[int, ...] = ()

    def refs(self) -> list[Ref]:
        out: list[Ref] = []
        for o in self.operands.values():
            out.extend(o if isinstance(o, list) else [o])
        return out


@dataclasses.dataclass
class Body:
    """A branch or a loop's body: ``steps`` on ``params`` values, which are (0, 0), (1, 0), ...; step k is ``params + k``. The values of
    enclosing steps are captured as constants only."""

    params: int
    steps: list[Step]
    results: list[Ref]

    def __call__(self, *given: Any) -> list[Any]:
        """The results as tensors, eager or in the graph under construction."""
        values: list[list[Any]] = [[x] for x in given]
        for step in self.steps:
            values.append(call(step, lambda ref: values[ref[0]][ref[1]]))
        return [values[i][p] for i, p in self.results]

    def __repr__(self) -> str:
        inner = [f"n{self.params + k} = {_text(s)}" for k, s in enumerate(self.steps)]
        return f"[{'; '.join([*inner, 'return ' + ', '.join(_name(r) for r in self.results)])}]"


@dataclasses.dataclass
class Program:
    """``steps`` in order; ``outputs``: what is fetched; ``sizes``: the assignments, the first of which never fails."""

    steps: list[Step]
    sizes: list[dict[str, int]]
    outputs: list[Ref] = dataclasses.field(default_factory=list)

    def needed(self) -> set[int]:
        """Steps that the outputs need."""
        work = [i for i, _ in self.outputs]
        seen = set(work)
        while work:
            for i, _ in self.steps[work.pop()].refs():
                if i not in seen:
                    seen.add(i)
                    work.append(i)
        return seen

    def describe(self) -> str:
        """The needed steps as Python that anybody can read."""
        lines = []
        for i in sorted(self.needed()):
            s = self.steps[i]
            if s.op == "Placeholder":
                shapes = [list(np.shape(d)) if d is not None else None for d in s.attrs["data"]]
                lines.append(f"n{i} = placeholder({s.attrs['dtype']}, {list(s.attrs['dims'])})  # fed {shapes}")
            else:
                lines.append(f"n{i} = {_text(s)}")
        lines.append(f"fetch {', '.join(_name(r) for r in self.outputs)}; sizes {self.sizes}")
        return "\n".join(lines)


def _text(s: Step) -> str:
    if s.op == "Const":
        v = s.attrs["value"]
        return f"constant({v.dtype}{list(v.shape)} {v.reshape(-1)[:12].tolist()})"
    names = {k: [_name(r) for r in o] if isinstance(o, list) else _name(o) for k, o in s.operands.items()}
    args = ", ".join([*(f"{k}={v}".replace("'", "") for k, v in names.items()), *(f"{k}={v!r}" for k, v in s.attrs.items())])
    return f"{s.op}({args})"


def _name(ref: Ref) -> str:
    return f"n{ref[0]}" if ref[1] == 0 else f"n{ref[0]}:{ref[1]}"


@dataclasses.dataclass(frozen=True)
class Failed:
    """A step that TensorFlow refused at a size assignment (``code``), or that depends on one (None)."""

    code: int | None
    message: str = ""


def run_step(step: Step, operand: Any) -> list[Any] | Failed:
    """Run a step eagerly; ``operand(ref)`` gives a tensor."""
    tf = tensorflow()
    try:
        return call(step, operand)
    except tf.errors.OpError as e:
        return Failed(e.error_code, e.message)
    except (ValueError, TypeError) as e:
        return Failed(3, f"{type(e).__name__}: {e}")


#: steps that are no raw op: name -> function(operands, attributes) -> tensors
STRUCTURED: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {}


def call(step: Step, operand: Callable[[Ref], Any], name: str | None = None) -> list[Any]:
    """The results of a step as a list of tensors, eager or in the graph under construction, whose node gets the name."""
    tf = tensorflow()
    if step.op == "Const":
        return [tf.constant(step.attrs["value"], name=name)]
    given = {k: [operand(r) for r in o] if isinstance(o, list) else operand(o) for k, o in step.operands.items()}
    if step.op in STRUCTURED:
        found = list(_flat(STRUCTURED[step.op](given, step.attrs)))
        return found if name is None else list(tf.raw_ops.IdentityN(input=found, name=name))
    result = getattr(tf.raw_ops, step.op)(**given, **step.attrs, **({} if name is None else {"name": name}))
    return [] if isinstance(result, tf.Operation) or result is None else list(_flat(result))


def _flat(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        for r in result:
            yield from _flat(r)
    else:
        yield result


class Evaluation:
    """Reference values of every step at every size assignment: ``values[k][i]`` is a list of arrays or `Failed`; ``errors`` likewise."""

    def __init__(self, sizes: Sequence[Mapping[str, int]]) -> None:
        self.tensors: list[list[list[Any] | Failed]] = [[] for _ in sizes]
        self.values: list[list[list[np.ndarray] | Failed]] = [[] for _ in sizes]
        self.errors: list[list[list[np.ndarray]]] = [[] for _ in sizes]

    def add(self, step: Step) -> bool:
        """Evaluate one more step; False (and nothing is kept) if it fails at the first assignment."""
        done = []
        for k in range(len(self.values)):
            found = self._one(step, k)
            if k == 0 and isinstance(found[0], Failed):
                return False
            if k == 0 and any(DType.from_tf(t.dtype.as_datatype_enum) is None or t.shape.num_elements() > MOST_ELEMENTS for t in found[0]):
                return False
            done.append(found)
        for k, (tensors, values, errors) in enumerate(done):
            self.tensors[k].append(tensors)
            self.values[k].append(values)
            self.errors[k].append(errors)
        return True

    def tensor(self, k: int, ref: Ref) -> Any:
        """The eager tensor of a step that did not fail at assignment ``k``."""
        found = self.tensors[k][ref[0]]
        assert not isinstance(found, Failed)
        return found[ref[1]]

    def value(self, k: int, ref: Ref) -> np.ndarray:
        """Its array."""
        found = self.values[k][ref[0]]
        assert not isinstance(found, Failed)
        return found[ref[1]]

    def _one(self, step: Step, k: int) -> tuple[Any, Any, list[np.ndarray]]:
        tf = tensorflow()
        if step.op in ("Placeholder", "Const"):
            value = step.attrs["data"][k] if step.op == "Placeholder" else step.attrs["value"]
            if value is None:
                return Failed(None), Failed(None), []
            return [tf.constant(value)], [value], [np.zeros(np.shape(value))]
        if any(isinstance(self.tensors[k][i], Failed) for i, _ in step.refs()):
            return Failed(None), Failed(None), []
        tensors = run_step(step, lambda ref: self.tensor(k, ref))
        if isinstance(tensors, Failed):
            return tensors, tensors, []
        values = [np.asarray(t.numpy()) for t in tensors]
        errors = self._error(step, k, values)
        for port in step.undefined:
            errors[port] = np.full(values[port].shape, np.inf)
        return tensors, values, errors

    def _error(self, step: Step, k: int, values: list[np.ndarray]) -> list[np.ndarray]:
        given = {ref: self.errors[k][ref[0]][ref[1]] for ref in step.refs()}
        if step.op in STRUCTURED:  # rounding inside of it may grow as that of its operands does
            given = {ref: np.maximum(error, _own_error(step, self.value(k, ref))) for ref, error in given.items()}
        inexact = any(e.size and e.max() > 0 for e in given.values())
        out = [_own_error(step, v) for v in values]
        if step.sums and values:
            out = self._sum_error(step, k, values)
        if not inexact:
            return out
        for draw in range(_DRAWS):
            moved = run_step(step, {ref: self._disturbed(k, ref, error, draw) for ref, error in given.items()}.__getitem__)
            for j, d in enumerate(_moves(values, moved)):
                out[j] = np.maximum(out[j], 1.5 * d + _own_error(step, values[j], 1.0))
        if step.op in _LINEAR:  # of few elements, moves in random directions may cancel each other out in all draws
            out = [np.maximum(out[0], self._added_up(step, k, given))]
        moving = [ref for ref, e in given.items() if e.size and e.max() > 0]
        if 1 < len(moving) <= _MOVED_ALONE:
            # moved together, operands may cancel each other out (x - y): each alone, and their sum
            total = [np.zeros(v.shape) for v in values]
            for ref in moving:
                alone = [np.zeros(v.shape) for v in values]
                for draw in range(2):
                    tensors = {r: self._disturbed(k, r, e if r == ref else np.zeros_like(e), draw) for r, e in given.items()}
                    alone = [np.maximum(a, d) for a, d in zip(alone, _moves(values, run_step(step, tensors.__getitem__)), strict=True)]
                total = [t + a for t, a in zip(total, alone, strict=True)]
            out = [np.maximum(o, 1.5 * t + _own_error(step, v, 1.0)) for o, t, v in zip(out, total, values, strict=True)]
        return out

    def _added_up(self, step: Step, k: int, given: Mapping[Ref, np.ndarray]) -> np.ndarray:
        """The errors of a sum's terms, all in one direction."""
        tf = tensorflow()

        def moved(ref: Ref) -> Any:
            t, e = self.tensor(k, ref), given[ref]
            return tf.constant(e, tf.float64) if t.dtype.is_floating and e.shape == tuple(t.shape) else t

        found = run_step(step, moved)
        return np.zeros(()) if isinstance(found, Failed) else 1.5 * np.abs(np.asarray(found[0].numpy(), np.float64))

    def _disturbed(self, k: int, ref: Ref, error: np.ndarray, draw: int) -> Any:
        """The operand moved by its error, in random directions and (odd draws) their opposites; the unknown becomes NaN, then anything.

        The last two draws move it to where functions have poles and steps, as far as its error reaches there: to zero, to whole numbers.
        """
        tf = tensorflow()
        value = self.value(k, ref)
        if not error.size or error.max() == 0 or not DType.from_np(value.dtype).is_float:
            return self.tensor(k, ref)
        rng = np.random.default_rng((ref[0], ref[1], draw // 2))
        sign = rng.choice([-1.0, 1.0], value.shape) * (-1 if draw % 2 else 1)
        with np.errstate(all="ignore"):
            exact = value.astype(np.float64)
            moved = exact + sign * np.where(np.isfinite(error), error, 0)
            if draw >= _DRAWS - 2:
                pole = np.zeros_like(exact) if draw == _DRAWS - 2 else np.round(exact)
                reached = (error > 0) & (np.abs(exact - pole) <= error)
                moved = np.where(reached, np.copysign(pole, sign) if draw == _DRAWS - 2 else pole, moved)
            unknown = np.where(np.isnan(exact), 0.0, np.nan)
            if draw:
                unknown = rng.choice([[np.inf], [-np.inf], [0.0, 1e3, -1e3, np.inf], [1.0], [0.0], [-1.0]][draw - 1], value.shape)
            return tf.constant(np.where(np.isfinite(error), moved, unknown).astype(value.dtype))

    def _sum_error(self, step: Step, k: int, values: list[np.ndarray]) -> list[np.ndarray]:
        """Rounding of sums is relative to the sum of absolute values."""
        tf = tensorflow()

        def absolute(ref: Ref) -> Any:
            t = self.tensor(k, ref)
            return tf.abs(t) if t.dtype.is_floating else t

        bound = run_step(step, absolute)
        # products overflow in one order and not in another: none of those that hold back the small factors may
        most = run_step(step, lambda ref: _at_least_one(absolute(ref))) if "Prod" in step.op else bound
        if isinstance(bound, Failed) or isinstance(most, Failed):
            return [np.full(v.shape, np.inf) for v in values]
        terms = max((np.size(self.value(k, ref)) for ref in step.refs()), default=1)
        out = []
        for v, b, m in zip(values, bound, most, strict=True):
            dtype = DType.from_np(v.dtype)
            if not dtype.is_float:
                out.append(np.zeros(v.shape))
                continue
            # 16-bit sums are rounded after each addition in some of TensorFlow's kernels
            growth = min(terms, 512) if dtype.bits == 16 else 8.0 + min(terms, 64)
            size = np.abs(np.asarray(b.numpy()).astype(np.float64))
            top = float(np.finfo(v.dtype).max) if dtype.bits != 16 or v.dtype == np.float16 else 3.38e38
            # sums near overflow depend on the order
            largest = np.abs(np.asarray(m.numpy()).astype(np.float64))
            out.append(np.where(np.isfinite(largest) & (largest < top / 4), step.ulps * EPSILON[dtype] * growth * size, np.inf))
        return out


def _at_least_one(t: Any) -> Any:
    tf = tensorflow()
    return tf.maximum(t, tf.ones_like(t)) if t.dtype.is_floating else t


def _moves(values: list[np.ndarray], moved: Any) -> list[np.ndarray]:
    """How far each result moved; infinitely where it failed or has another shape."""
    if isinstance(moved, Failed):
        return [np.full(v.shape, np.inf) for v in values]
    return [
        np.full(v.shape, np.inf) if tuple(m.shape) != v.shape else _distance(v, np.asarray(m.numpy()))
        for v, m in zip(values, moved, strict=True)
    ]


def _own_error(step: Step, value: np.ndarray, at_least: float = 0.0) -> np.ndarray:
    """The op's own rounding; ``at_least``: an operand that moves by less than a unit may still tip the rounding of the result."""
    dtype = DType.from_np(value.dtype)
    ulps = max(step.ulps, at_least)
    if not dtype.is_float or not ulps:
        return np.zeros(value.shape)
    with np.errstate(all="ignore"):
        size = np.where(np.isfinite(value.astype(np.float64)), np.abs(value.astype(np.float64)), 0.0)
    return ulps * EPSILON[dtype] * np.maximum(size, step.floor) + 1e-37 * (dtype.bits == 32)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype != b.dtype:
        return np.full(a.shape, np.inf)
    if not DType.from_np(a.dtype).is_float:
        return np.where(a == b, 0.0, np.inf)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        d = np.abs(x - y)
    return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.where(np.isnan(d), np.inf, d))


def evaluate(program: Program) -> Evaluation | None:
    """The reference of a whole program, None if a step fails at the first assignment."""
    evaluation = Evaluation(program.sizes)
    for step in program.steps:
        if not evaluation.add(step):
            return None
    return evaluation


def build_graph(program: Program) -> Any:
    """The GraphDef of the steps that the outputs need: step i is ``n<i>``. ValueError where TensorFlow's shape inference refuses it."""
    tf = tensorflow()
    made: dict[int, list[Any]] = {}
    with tf.Graph().as_default() as graph:
        for i in sorted(program.needed()):
            step = program.steps[i]
            name = f"n{i}"
            if step.op == "Placeholder":
                dims = None if step.attrs["dims"] is None else [d if isinstance(d, int) else None for d in step.attrs["dims"]]
                made[i] = [tf.compat.v1.placeholder(step.attrs["data"][0].dtype, dims, name=name)]
            else:
                made[i] = call(step, lambda ref: made[ref[0]][ref[1]], name)
    return graph.as_graph_def()
