"""Control flow, shape bridges and checks: while, case, return, disc.dim, disc.bind_dim, disc.check, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, compatible, register
from disc_tf.ir.types import TOKEN, DType, TensorType, Type

MAX_ITERATIONS = 10_000_000  # of a loop in the reference interpreter


class CheckFailed(Exception):
    """A `disc.check` was false. `code` is TensorFlow's status code, `node` the original node's name."""

    def __init__(self, code: int, message: str, node: str) -> None:
        super().__init__(f"{message} (code {code}, node {node!r})")
        self.code = code
        self.message = message
        self.node = node


def _region_results(i: InferInput, region: int) -> list[Type]:
    block = i.regions[region]
    if not block.ops or block.ops[-1].name != "return":
        raise i.fail(f"region {region} has no return")
    return [v.type for v in block.results]


def _expect(i: InferInput, have: Sequence[Type], want: Sequence[Type], what: str) -> None:
    if len(have) != len(want):
        raise i.fail(f"{what}: {len(have)} values, should be {len(want)}")
    for k, (a, b) in enumerate(zip(have, want, strict=True)):
        if not compatible(a, b, i.env):
            raise i.fail(f"{what}: value {k} has type {a}, should have {b}")


def _infer_while(i: InferInput) -> list[Type]:
    cond, body = i.regions
    results = list(i.result) if i.result is not None else list(i.types)
    if len(results) != len(i.types):
        raise i.fail(f"has {len(results)} results for {len(i.types)} carried values")
    _expect(
        i, [p.type for p in cond.params], [p.type for p in body.params], "parameters of condition and body"
    )
    # A dim that changes over the iterations is a symbol of the regions, bound there; then only dtype and rank must agree.
    _expect(i, i.types, [_loose(p.type) for p in body.params], "initial values")
    predicate = _region_results(i, 0)
    if predicate != [TensorType(DType.BOOL, ())]:
        raise i.fail("the condition must return one bool scalar")
    _expect(i, _region_results(i, 1), [_loose(p.type) for p in body.params], "values returned by the body")
    _expect(i, results, [_loose(p.type) for p in body.params], "results")
    return results


def _loose(t: Type) -> Type:
    """`t` with its symbolic dims made anonymous (static ones stay)."""
    if not isinstance(t, TensorType):
        return t
    return t.with_dims([d if d.is_static else Dim.of(f"_any{k}") for k, d in enumerate(t.dims)])


def _while_reference(op: Op, inputs: Sequence[Any], ctx: EvalContext) -> list[Any]:
    cond, body = op.regions
    values = list(inputs)
    for _ in range(MAX_ITERATIONS):
        if not bool(ctx.run(cond, values)[0]):
            return values
        values = ctx.run(body, values)
    raise RuntimeError(f"while: more than {MAX_ITERATIONS} iterations")


def _infer_case(i: InferInput) -> list[Type]:
    index = i.scalar(0, "i")
    if index.dtype != DType.I32:
        raise i.fail("the index must be i32")
    if not i.regions:
        raise i.fail("needs at least one branch")
    for k, block in enumerate(i.regions):
        if block.params:
            raise i.fail(f"branch {k} must have no parameters")
    results = list(i.result) if i.result is not None else _region_results(i, 0)
    for k in range(len(i.regions)):
        _expect(i, _region_results(i, k), results, f"branch {k}")
    return results


def _case_reference(op: Op, inputs: Sequence[Any], ctx: EvalContext) -> list[Any]:
    index = int(inputs[0])
    last = len(op.regions) - 1
    return ctx.run(op.regions[index if 0 <= index < last else last], [])


def _infer_dim(i: InferInput) -> list[Type]:
    chosen = i.chosen()
    if chosen.rank or chosen.dtype not in (DType.I32, DType.I64):
        raise i.fail(f"gives an i32 or i64 scalar, not {chosen}")
    return [chosen]


def _dim_reference(op: Op, inputs: Sequence[Any], ctx: EvalContext) -> list[Any]:
    return [np.asarray(ctx.dim(op.attrs["dim"]), np.int64).astype(op.result.dtype.np)]


def _infer_bind(i: InferInput) -> list[Type]:
    i.scalar(0)
    if Dim.of(i.attrs["symbol"]).symbol is None:
        raise i.fail(f"{i.attrs['symbol']!r} is not a symbol")
    return []


def _bind_reference(op: Op, inputs: Sequence[Any], ctx: EvalContext) -> list[Any]:
    ctx.bind(op.attrs["symbol"], int(inputs[0]))
    return []


def _infer_check(i: InferInput) -> list[Type]:
    i.scalar(0, "b")
    if i.types[1] != TOKEN:
        raise i.fail("operand 1 must be a token")
    return [TOKEN]


def _check_reference(op: Op, inputs: Sequence[Any], ctx: EvalContext) -> list[Any]:
    if not bool(inputs[0]):
        raise CheckFailed(op.attrs["code"], op.attrs["message"], op.attrs["node"])
    return [None]


def _infer_tokens(i: InferInput) -> list[Type]:
    if any(t != TOKEN for t in i.types):
        raise i.fail("all operands must be tokens")
    return [TOKEN]


def _token_reference(op: Op, inputs: Sequence[Any], ctx: EvalContext) -> list[Any]:
    return [None]


def _return_reference(op: Op, inputs: Sequence[Any], ctx: EvalContext) -> list[Any]:
    return []


register(
    OpDef("while", None, _infer_while, _while_reference, regions=2, typed=True, stablehlo="stablehlo.while")
)
register(OpDef("case", 1, _infer_case, _case_reference, regions=None, typed=True, stablehlo="stablehlo.case"))
register(OpDef("return", None, lambda i: [], _return_reference, stablehlo="stablehlo.return"))
register(OpDef("disc.dim", 0, _infer_dim, _dim_reference, {"dim": Attr("dim")}, typed=True))
register(OpDef("disc.bind_dim", 1, _infer_bind, _bind_reference, {"symbol": Attr("str")}, effect=True))
register(
    OpDef(
        "disc.check",
        2,
        _infer_check,
        _check_reference,
        {"code": Attr("int"), "message": Attr("str"), "node": Attr("str", default="")},
        effect=True,
    )
)
register(OpDef("disc.create_token", 0, _infer_tokens, _token_reference, stablehlo="stablehlo.create_token"))
register(OpDef("disc.after_all", None, _infer_tokens, _token_reference, stablehlo="stablehlo.after_all"))
