"""Prepared constants as functions: what a `PrepareEntry` asks for, computed from constant arguments alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.codegen.context import EmitContext, PrepareTable
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.kernel_cache import structure_of
from disc_tf.fusion.types import Fusion, PrepareEntry
from disc_tf.fusion.views import of_value
from disc_tf.ir.core import ArgInfo, Block, Function, Op, Value, clone_block, walk
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType


@dataclasses.dataclass
class PrepareCall:
    """How an entry is made: the function's symbol, and the RAL inputs that its parameters stand for."""

    symbol: str
    args: list[int]


def prepare_function(
    main: Function, prepare: Function | None, arg_index: Sequence[int], entry: PrepareEntry, param: int
) -> tuple[Function, list[int]]:
    """The function that makes a prepared entry, and the RAL inputs of its parameters.

    The entry's view is of main's parameter ``param``: a constant (then the function has one parameter), or a prepared
    parameter (then it is the part of ``prepare`` that makes it). A panel layout adds the packing op. arg_index: the RAL input of
    each parameter of main.
    """
    info = main.args[param]
    fn = Function("prepare_entry")
    if info.kind == "prepared":
        if prepare is None:
            raise ValueError(f"parameter {info.name} is prepared, but there is no prepare function")
        which = sum(a.kind == "prepared" for a in main.args[:param])
        value = _part(prepare, prepare.results[which], fn)
        by_name = {(a.name, a.tensor): arg_index[i] for i, a in enumerate(main.args)}
        args = [by_name[a.name, a.tensor] for a in fn.args]
    else:
        value = fn.add_arg(main.params[param].tensor, ArgInfo(info.name, "const", info.digest, info.tensor))
        args = [arg_index[param]]
    if entry.layout != ("plain",) or entry.view.source is None or not _is_whole(entry, value):
        view = dataclasses.replace(entry.view, source=value)
        pack = Op("disc.pack", [value], [packed_type(entry, value)], {"view": view, "layout": entry.layout})
        value = fn.body.append(pack).result
    fn.body.append(Op("return", [value]))
    return fn, args


def _part(prepare: Function, result: Value, fn: Function) -> Value:
    """Copy what ``result`` needs into ``fn``: ops in order, and the parameters that they use."""
    needed: set[Op] = set()
    used: set[Value] = {result}
    work = [result]
    while work:
        op = work.pop().op
        if op is None or op in needed:
            continue
        needed.add(op)
        operands = [v for o in (op, *(i for r in op.regions for i in walk(r))) for v in o.operands]
        used.update(operands)
        work += operands
    part = Block()  # only a list to copy from: the ops stay where they are
    part.params = [p for p in prepare.params if p in used]
    part.ops = [op for op in prepare.body.ops if op in needed]
    mapping: dict[Value, Value] = {}
    fn.body = clone_block(part, mapping)
    fn.args = [a for a, p in zip(prepare.args, prepare.params, strict=True) if p in used]
    return mapping[result]


def _is_whole(entry: PrepareEntry, value: Value) -> bool:
    return entry.view.offset == Dim.of(0) and entry.view.axes == of_value(value).axes


def packed_type(entry: PrepareEntry, value: Value) -> TensorType:
    """The type of a packed constant: elements of the source's dtype, panels zero-filled to their width."""
    if len(entry.layout) == 1:
        return TensorType(value.dtype, entry.view.dims)
    k = Dim.of(1)
    *rest, n = entry.view.dims
    for d in rest:
        k = k * d
    width = int(entry.layout[1])
    columns = ((n + (width - 1)) // width) * width
    if len(entry.layout) == 2:
        return TensorType.of(value.dtype, [columns * k])
    group = int(entry.layout[2])  # words, and of fours a row of what sums begin with
    dtype = value.dtype if value.dtype.bits * group == 32 else DType.I16
    return TensorType.of(dtype, [columns * group * ((k + (group - 1)) // group + int(group == 4))])


def prepare_key(fn: Function, target: CpuTarget) -> tuple | None:
    """What decides the code of a function from `prepare_function`: equal layers' weights are made by one function. None: no key."""
    ops = [op for op in fn.body.ops if op.name != "return"]
    whole = Fusion("prepare", ops, list(fn.params), list(fn.results))
    return structure_of(whole, EmitContext(target, fn.env, {}, PrepareTable()))
