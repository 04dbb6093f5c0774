"""How random programs grow: `Generator` and the registry of what it may add (`fuzz_ops`, `fuzz_shape_ops`).

A registered function takes the `Generator` and adds steps; it may give up at any time. What TensorFlow refuses at the first size assignment
is not added.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from disc_tf.ir.types import DType
from disc_tf.testing.fuzz_program import MOST_ELEMENTS, Evaluation, Program, Ref, Step
from disc_tf.testing.tf_case import specials

FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
INTS = ("int32", "int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
SYMBOLS = ("b", "s", "h")


def np_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


class Generator:
    """Grows a program. ``value`` and ``shape`` look at the first size assignment."""

    def __init__(self, seed: int, steps: int = 12) -> None:
        self.rng = np.random.default_rng(seed)
        r = self.rng
        sizes = [{"b": int(r.integers(2, 5)), "s": int(r.integers(2, 8)), "h": int(r.integers(2, 6))}]
        sizes.append({n: int(r.choice([1, 1, 2, 3, 17])) for n in SYMBOLS})
        sizes.append({n: int(r.choice([0, 1, 2, 5])) for n in SYMBOLS})
        sizes.append({n: int(r.choice([1, 4, 9, 33])) for n in SYMBOLS})
        self.program = Program([], sizes)
        self.evaluation = Evaluation(sizes)
        self.floats = self.choice(FLOATS)
        for _ in range(int(r.integers(1, 4))):
            self.placeholder(self.floats)
        if r.random() < 0.5:
            self.placeholder(self.choice(INTS))
        if r.random() < 0.2:
            self.placeholder("bool")
        load_generators()
        for _ in range(steps):
            self.choice(GENERATORS)(self)
        self._outputs()

    def _outputs(self) -> None:
        used = {ref for step in self.program.steps for ref in step.refs()}
        refs = [ref for ref in self.refs() if self.program.steps[ref[0]].op not in ("Placeholder", "Const")]
        leaves = [ref for ref in refs if ref not in used]
        inner = [ref for ref in refs if ref in used and self.rng.random() < 0.15]
        self.program.outputs = leaves + inner

    # ---- looking ------------------------------------------------------------------------------------------------

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def flip(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def refs(self) -> list[Ref]:
        return [(i, p) for i, v in enumerate(self.evaluation.values[0]) for p in range(len(v))]  # type: ignore[arg-type]

    def value(self, ref: Ref) -> np.ndarray:
        return self.evaluation.values[0][ref[0]][ref[1]]  # type: ignore[index]

    def values(self, ref: Ref) -> list[np.ndarray]:
        """The value at each size assignment at which it did not fail."""
        return [found[ref[1]] for v in self.evaluation.values if isinstance(found := v[ref[0]], list)]

    def shape(self, ref: Ref) -> tuple[int, ...]:
        return self.value(ref).shape

    def rank(self, ref: Ref) -> int:
        return self.value(ref).ndim

    def kind(self, ref: Ref) -> str:
        dtype = DType.from_np(self.value(ref).dtype)
        return "f" if dtype.is_float else "b" if dtype.is_bool else "i"

    def exact(self, ref: Ref) -> bool:
        errors = [self.evaluation.errors[k][ref[0]] for k in range(len(self.program.sizes))]
        return all(not e or not e[ref[1]].size or e[ref[1]].max() == 0 for e in errors)

    def all_within(self, ref: Ref, low: float, high: float) -> bool:
        """Whether the value's elements are in a range at every size assignment."""
        return all(bool(((x >= low) & (x <= high)).all()) for x in (v.astype(np.float64) for v in self.values(ref)))

    def has_nans(self, ref: Ref) -> bool:
        """Whether the value has NaN elements at some size assignment."""
        return any(bool(np.isnan(x.astype(np.float64)).any()) for x in self.values(ref))

    def has_denormals(self, ref: Ref) -> bool:
        """Whether a floating-point value has denormal elements at some size assignment."""
        return any(x.dtype.kind == "f" and bool(((x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)).any()) for x in self.values(ref))

    def shapes_of(self, *refs: Ref) -> list[tuple[tuple[int, ...], ...]]:
        """Their shapes at each size assignment at which none of them failed."""
        out = []
        for values in self.evaluation.values:
            found = [values[i] for i, _ in refs]
            if all(isinstance(v, list) for v in found):
                out.append(tuple(v[p].shape for v, (_, p) in zip(found, refs, strict=True)))  # type: ignore[index]
        return out

    def pick(self, kinds: str = "fib", min_rank: int = 0, max_rank: int = 9, exact: bool = False, like: Ref | None = None) -> Ref | None:
        """A value, recent ones more often. ``like``: of its dtype."""
        found = [
            r for r in self.refs()
            if self.kind(r) in kinds and min_rank <= self.rank(r) <= max_rank and (not exact or self.exact(r))
            and (like is None or self.value(r).dtype == self.value(like).dtype)
        ]  # fmt: skip
        if not found:
            return None
        at = len(found) - 1 - int(min(self.rng.exponential(3), len(found) - 1))
        return found[at]

    # ---- adding -------------------------------------------------------------------------------------------------

    def add(
        self, op: str, operands: dict[str, Any], *, ulps: float = 0.0, sums: bool = False, floor: float = 0.0,
        undefined: tuple[int, ...] = (), **attrs: Any,
    ) -> list[Ref]:  # fmt: skip
        """Add a step; its outputs, or nothing if TensorFlow refuses it at the first assignment."""
        step = Step(op, operands, attrs, ulps, sums, floor, undefined)
        if any(r is None for r in operands.values()) or not self.evaluation.add(step):
            return []
        self.program.steps.append(step)
        i = len(self.program.steps) - 1
        return [(i, p) for p in range(len(self.evaluation.values[0][i]))]  # type: ignore[arg-type]

    def const(self, value: Any, dtype: Any = None) -> Ref:
        return self.add("Const", {}, value=np.asarray(value, dtype))[0]

    def axis(self, rank: int) -> int:
        return int(self.rng.integers(-rank, rank))

    def dims(self) -> tuple[str | int, ...]:
        rank = int(self.rng.choice([0, 1, 2, 2, 2, 3, 3, 4]))
        return tuple(self.choice(("b", "s", "h", "b", "s", 1, 4, 8)) for _ in range(rank))

    def data(self, dtype: str, shape: Sequence[int], special: bool) -> np.ndarray:
        r, t = self.rng, np_dtype(dtype)
        if dtype == "bool":
            return r.integers(0, 2, shape).astype(bool)
        if special:
            pool = specials(DType.from_np(t))
            return np.asarray(pool[r.integers(0, len(pool), shape)]).reshape(shape)
        if t.kind in "iu":
            return r.integers(0 if t.kind == "u" else -5, 9, shape).astype(t)
        return np.asarray(r.uniform(-2, 2, shape)).astype(t)

    def _small(self, dims: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """The dims, the greatest ones 1 where the tensor would be larger than what a step may give."""
        extents = [d if isinstance(d, int) else self.program.sizes[0][d] for d in dims]
        out = list(dims)
        while math.prod(extents) > MOST_ELEMENTS:
            at = extents.index(max(extents))
            extents[at] = out[at] = 1
        return tuple(out)

    def placeholder(self, dtype: str, dims: Sequence[str | int] | None = None, special: bool | None = None) -> Ref:
        """A new input; ``dims`` (symbols and ints), ``special`` (hard values): at random."""
        dims = tuple(self.dims() if dims is None else dims)
        special = self.flip(0.15) if special is None else special
        dims = self._small(dims)
        data = [self.data(dtype, [d if isinstance(d, int) else sizes[d] for d in dims], special) for sizes in self.program.sizes]
        declared = tuple(d if isinstance(d, int) and self.flip() else "?" if isinstance(d, int) else d for d in dims)
        return self.add("Placeholder", {}, dtype=dtype, dims=declared, data=data)[0]


Gen = Callable[[Generator], Any]
GENERATORS: list[Gen] = []


def generator(weight: int = 1) -> Callable[[Gen], Gen]:
    def register(fn: Gen) -> Gen:
        GENERATORS.extend([fn] * weight)
        return fn

    return register


@functools.cache
def load_generators() -> None:
    """Import the modules that register generators."""
    for info in pkgutil.iter_modules([str(Path(__file__).parent)], "disc_tf.testing."):
        if info.name.startswith("disc_tf.testing.fuzz_") and info.name != __name__:
            importlib.import_module(info.name)
