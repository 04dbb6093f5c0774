"""Phase 8, the outside of the host program: `disc_executable_query`, the dispatchers, and segments with their signature checks."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from disc_tf.codegen.host import INTERNAL, INVALID_ARGUMENT, Check, CheckTable, RunEmitter, add_data
from disc_tf.codegen.llvm import I1, I8, I32, I64, NULL, PTR, FnBuilder, ModuleText, V
from disc_tf.ir.core import Function, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType

#: a row of the table of static dims: input, axis, extent, row of the check table
_ROW = struct.Struct("<iiqq")


def emit_signature(module: ModuleText, run: RunEmitter, fn: Function, args: Sequence[int], checks: CheckTable) -> None:
    """Receive the arguments of ``fn`` and check every dim: static extents, shared symbols, compound expressions.

    Arguments of static shape (weights: there may be thousands) are checked by a loop over a table, the others one by one.
    """
    b = run.b
    seen: list[tuple[Value, int, V]] = []
    static: list[bytes] = []

    def row_of(position: int, value: Value, index: int, axis: int) -> int:
        info = fn.args[position] if len(fn.args) == len(fn.params) else None
        name = info.name if info else f"#{index}"
        message = f"argument {name}: dimension {axis} must be {value.dims[axis]} (type {value.type})"
        return checks.id_of(Check(INVALID_ARGUMENT, message, info.tensor if info else ""))

    numbers: dict[tuple[int, int], int] = {}
    for position, (value, index) in enumerate(zip(fn.params, args, strict=True)):
        if index < 0 or not isinstance(value.type, TensorType) or value.rank == 0:
            continue
        for axis, d in enumerate(value.dims):
            plain = d.symbol is not None and d.symbol not in run.symbols and value.dims.index(d) == axis
            if not plain:
                numbers[index, axis] = row_of(position, value, index, axis)
        if all(d.is_static for d in value.dims):
            static += [_ROW.pack(index, axis, int(d), numbers[index, axis]) for axis, d in enumerate(value.dims)]
            continue
        _, dims = run.input(index)
        run.bind_argument(value, dims)
        seen.append((value, index, dims))
    for value, index, dims in seen:
        for axis, d in enumerate(value.dims):
            actual = b.load(I64, b.gep(dims, axis, I64), invariant=True)
            expected = run.dims.i64(d)
            if expected.name != actual.name:
                run.require(b.icmp("eq", actual, expected), INVALID_ARGUMENT, numbers[index, axis])
    if static:
        _check_static(module, run, static)


def _check_static(module: ModuleText, run: RunEmitter, rows: Sequence[bytes]) -> None:
    b = run.b
    symbol = f"{b.name}_static_dims"
    add_data(module, symbol, b"".join(rows))
    table = V(f"@{symbol}", PTR)

    def check(i: V, _: list[V]) -> None:
        row = b.gep(table, b.mul(i, _ROW.size), I8)
        ref = run.require_ptr(run.call("recv_input", PTR, b.load(I32, row)))
        dims = b.load(PTR, b.gep(ref, 16, I8))
        actual = b.load(I64, b.gep(dims, b.sext(b.load(I32, b.gep(row, 4, I8)), I64), I64))
        ok = b.icmp("eq", actual, b.load(I64, b.gep(row, 8, I8)))
        number = b.trunc(b.load(I64, b.gep(row, 16, I8)), I32)
        b.if_then(b.not_(ok), lambda: run.fail_with(INVALID_ARGUMENT, number))

    b.loop(0, len(rows), 1, [], check)


def emit_query(n_prepared: int, n_segments: int) -> FnBuilder:
    """``i32 disc_executable_query(u32 max_abi, disc_executable* out)``: the only exported symbol."""
    b = FnBuilder("disc_executable_query", [("max_abi", I32), ("out", PTR)], I32)
    max_abi, out = b.params
    b.if_then(b.icmp("ult", max_abi, 1), lambda: b.ret(b.const(1, I32)))
    b.store(b.const(32, I32), out)
    b.store(b.const(1, I32), b.gep(out, 4, I8))
    b.store(V("@prepare", PTR) if n_prepared else NULL, b.gep(out, 8, I8))
    b.store(b.const(n_segments, I32), b.gep(out, 16, I8))
    b.store(b.const(n_prepared, I32), b.gep(out, 20, I8))
    b.store(V("@segment", PTR), b.gep(out, 24, I8))
    b.ret(b.const(0, I32))
    return b


def emit_dispatcher(name: str, targets: Sequence[tuple[str, Sequence[int]]]) -> FnBuilder:
    """``i32 name(ctx, api, i32 index)``: calls ``targets[index]``, a function and the i32 arguments that it takes after ``(ctx, api)``."""
    b = FnBuilder(name, [("ctx", PTR), ("api", PTR), ("index", I32)], I32, linkage="internal")
    ctx, api, index = b.params

    def case(target: str, more: Sequence[int]):
        def run() -> None:
            b.ret(b.call(target, I32, [ctx, api, *(b.const(x, I32) for x in more)], declare=False))

        return run

    b.switch(index, {i: case(*t) for i, t in enumerate(targets)}, lambda: b.ret(b.const(INTERNAL, I32)))
    return b


def emit_segment(
    module: ModuleText,
    name: str,
    fn: Function,
    args: Sequence[int],
    predicate: Sequence[tuple[Dim, Dim]],
    uniform: str,
    general: str | None,
    checks: CheckTable,
) -> FnBuilder:
    """The segment's entry: signature checks, the entry predicate, then the uniform or the general body."""
    run = RunEmitter(name, [("ctx", PTR), ("api", PTR)])
    b = run.b
    emit_signature(module, run, fn, args, checks)
    if general is None or not predicate:
        b.ret(b.call(uniform, I32, [run.ctx, run.api], declare=False))
        return b
    ok = b.const(1, I1)
    for x, y in predicate:
        ok = b.and_(ok, b.icmp("eq", run.dims.i64(x), run.dims.i64(y)))
    b.if_else(
        ok,
        lambda: b.ret(b.call(uniform, I32, [run.ctx, run.api], declare=False)),
        lambda: b.ret(b.call(general, I32, [run.ctx, run.api], declare=False)),
    )
    return b
