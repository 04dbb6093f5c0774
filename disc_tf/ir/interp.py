"""The reference interpreter: evaluates IR on numpy arrays through the references of the op set.

Slow and exact: the meaning that passes, lowering and kernels are tested against. Blocks are walked iteratively; recursion follows the
nesting of regions only. Values die after their last use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.ir.core import Block, Function, Module, Op, Value, walk
from disc_tf.ir.dims import Dim
from disc_tf.ir.opset import CheckFailed, op_def
from disc_tf.ir.types import TensorType

# Their regions run on whole arrays at once: the shapes inside are not those of the types.
_VECTORISED = frozenset({"reduce", "reduce_window", "sort", "scatter"})


class EvaluationError(ValueError):
    """Inputs that do not fit the parameters, or an op whose result is not what its type says."""


class _Context:
    """One evaluation: the values and the symbols bound so far (implements `opset.EvalContext`)."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self.symbols = dict(symbols)
        self.values: dict[Value, Any] = {}
        self.vectorised = 0
        self._deaths: dict[Block, list[list[Value]]] = {}

    def dim(self, dim: Dim) -> int:
        try:
            return dim.evaluate(self.symbols)
        except KeyError as e:
            raise EvaluationError(f"symbol {e.args[0]!r} of dimension {dim} is not bound") from None

    def bind(self, symbol: str, value: int) -> None:
        self.symbols[symbol] = value

    def run(self, block: Block, inputs: Sequence[Any]) -> list[Any]:
        for param, value in zip(block.params, inputs, strict=True):
            self.values[param] = value
            if not self.vectorised and isinstance(param.type, TensorType):
                bind_dims(
                    self.symbols, param.type, np.shape(value), repr(param), fresh=block.parent_op is not None
                )
        for op, dead in zip(block.ops, self.deaths(block), strict=True):
            if op.name == "return":
                return [self.values[v] for v in op.operands]
            self.step(op)
            for v in dead:
                self.values.pop(v, None)
        raise EvaluationError("block has no return")

    def step(self, op: Op) -> None:
        operands = [self.values[v] for v in op.operands]
        vectorised = op.name in _VECTORISED
        self.vectorised += vectorised
        try:
            results = op_def(op.name).reference(op, operands, self)
        except (CheckFailed, EvaluationError):
            raise
        except Exception as e:
            raise EvaluationError(
                f"{op!r} (from {', '.join(op.loc) or 'no node'}): {type(e).__name__}: {e}"
            ) from e
        finally:
            self.vectorised -= vectorised
        for value, result in zip(op.results, results, strict=True):
            self.values[value] = result if result is None else np.asarray(result)
            if not self.vectorised:
                self.check(op, value)

    def check(self, op: Op, value: Value) -> None:
        if not isinstance(value.type, TensorType):
            return
        array = self.values[value]
        if op.name in ("while", "case"):  # their results may carry symbols that are known only now
            bind_dims(self.symbols, value.type, array.shape, repr(value))
        shape = tuple(self.dim(d) for d in value.type.dims)
        if array.shape != shape or array.dtype != value.type.dtype.np:
            raise EvaluationError(
                f"{op!r}: evaluates to {array.dtype}{list(array.shape)}, its type says {list(shape)}"
            )

    def deaths(self, block: Block) -> list[list[Value]]:
        """For each op the values of this block that nothing after it needs."""
        found = self._deaths.get(block)
        if found is None:
            last: dict[Value, int] = {}
            for i, op in enumerate(block.ops):
                last.update((r, i) for r in op.results)
                last.update((v, i) for v in op.operands)
                for region in op.regions:
                    last.update((v, i) for inner in walk(region) for v in inner.operands)
            own = {r for op in block.ops for r in op.results} | set(block.params)
            found = [[] for _ in block.ops]
            for v, i in last.items():
                if v in own:
                    found[i].append(v)
            self._deaths[block] = found
        return found


def bind_dims(
    symbols: dict[str, int], type: TensorType, shape: Sequence[int], what: str, fresh: bool = False
) -> None:
    """Bind the symbols that stand alone as dims of `type` to the extents of `shape`; check those bound before.

    Affine dims of one unbound symbol are solved. `fresh`: a symbol bound before is bound anew (a region's parameters).
    Raises EvaluationError when an extent does not fit.
    """
    if len(shape) != type.rank:
        raise EvaluationError(f"{what}: rank {len(shape)} given for {type}")
    for axis, (dim, extent) in enumerate(zip(type.dims, shape, strict=True)):
        name = dim.symbol
        if name is not None and (fresh or name not in symbols):
            symbols[name] = int(extent)
            continue
        unbound = dim.symbols() - symbols.keys()
        if len(unbound) == 1:
            _solve(symbols, dim, int(extent), next(iter(unbound)))
            unbound = dim.symbols() - symbols.keys()
        if not unbound and dim.evaluate(symbols) != extent:
            raise EvaluationError(
                f"{what}: dimension {axis} is {extent}, but {dim} is {dim.evaluate(symbols)} with {symbols}"
            )


def _solve(symbols: dict[str, int], dim: Dim, extent: int, name: str) -> None:
    """Bind `name` where `dim` is affine in it."""
    at0 = dim.substitute({**symbols, name: 0})
    slope = dim.substitute(symbols) - at0
    if (
        len(slope.terms) == 1
        and slope.symbols() == {name}
        and slope.terms[0][1][0][1] == 1
        and len(slope.terms[0][1]) == 1
    ):
        coefficient = slope.terms[0][0]
        if slope.terms[0][1][0][0].kind == "sym" and (extent - int(at0)) % coefficient == 0:
            symbols[name] = (extent - int(at0)) // coefficient


def evaluate(
    target: Module | Function, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Evaluate a function (of a module: `main`) on arrays of exactly the parameters' dtypes.

    Symbols are bound from the arguments' shapes, from `symbols`, and by `disc.bind_dim`. Tokens among the results are
    left out. Raises CheckFailed for a failing `disc.check`, EvaluationError for inputs that do not fit.
    """
    fn = target.main if isinstance(target, Module) else target
    if len(inputs) != len(fn.params):
        raise EvaluationError(f"{fn.name} takes {len(fn.params)} arguments, not {len(inputs)}")
    ctx = _Context(symbols or {})
    arrays = [np.asarray(x) for x in inputs]
    for param, array in zip(fn.params, arrays, strict=True):
        if array.dtype != param.dtype.np:
            raise EvaluationError(f"argument {param!r} has dtype {array.dtype}")
    # Twice: an expression among the dims may need a symbol that a later argument binds.
    for param, array in [*zip(fn.params, arrays, strict=True)] * 2:
        bind_dims(ctx.symbols, param.tensor, array.shape, f"argument {param!r}")
    return [r for r in ctx.run(fn.body, arrays) if r is not None]


__all__ = ["CheckFailed", "EvaluationError", "bind_dims", "evaluate"]
