"""Outlining: what depends on constants and variables alone moves to function "prepare", which runs once per process."""

from __future__ import annotations

import dataclasses

from disc_tf.ir.core import ArgInfo, Function, Module, Op, Value, clone_op, replace_all_uses, walk
from disc_tf.ir.pass_manager import Pass
from disc_tf.ir.types import TensorType
from disc_tf.passes.dce import eliminate
from disc_tf.passes.rewriter import ELEMENTWISE, base_name, words

_VIEWS = words("reshape transpose slice reverse broadcast_in_dim")
_MOVABLE = _VIEWS | {"concatenate", "pad", "reduce", "dot_general", "constant", "iota"} | ELEMENTWISE
_WEIGHTS = ("const", "variable")


@dataclasses.dataclass(frozen=True)
class OutlinePrepare(Pass):
    """Move maximal computations on weights from "main" to "prepare"; "main" gets one parameter of kind ``prepared`` for each result.

    View ops at the end of such a computation stay in "main", where they cost nothing (a bare transpose of a weight is folded into the
    strides of the dot that reads it). Results that would be more than ``growth`` times larger than what they are made of stay, too.
    """

    growth: int = 2
    name = "outline_prepare"

    def run(self, module: Module, ctx: object) -> None:
        outline(module, self.growth)


def outline(module: Module, growth: int = 2) -> int:
    """Number of prepared values made."""
    main = module.main
    if "prepare" in module.functions:
        raise ValueError("outline_prepare: the module has a function 'prepare' already")
    weights = weight_parameters(main)
    made = weight_values(main, weights, growth)
    frontier: dict[Value, None] = {}
    for op in main.body.ops:
        if op in made:
            continue
        for v in (*op.operands, *(x for r in op.regions for inner in walk(r) for x in inner.operands)):
            while v.op in made and v.op.name in _VIEWS:  # type: ignore[union-attr]
                v = v.op.operands[0]  # type: ignore[union-attr]
            if v.op in made and v.op.name not in ("constant", "iota") and made[v.op]:  # type: ignore[union-attr,index]
                frontier[v] = None
    if not frontier:
        return 0
    results = sorted(frontier, key=lambda v: v.uid)
    prepare = _extract(main, weights, results)
    module.add(prepare)
    for i, v in enumerate(results):
        param = main.add_arg(v.tensor, ArgInfo(f"prepared{i}", "prepared"))
        replace_all_uses(v, param)
    eliminate(main)
    return len(results)


def weight_parameters(fn: Function) -> set[Value]:
    """The parameters that are weights: constants and variables."""
    return {p for p, a in zip(fn.params, fn.args, strict=True) if a.kind in _WEIGHTS}


def weight_values(fn: Function, weights: set[Value], growth: int = 2) -> dict[Op, bool]:
    """Ops computable from weights and constants (not much larger than these) -> whether they depend on a weight at all."""
    made: dict[Op, bool] = {}
    for op in fn.body.ops:
        if base_name(op.name) not in _MOVABLE or len(op.results) != 1 or not isinstance(op.result.type, TensorType):
            continue
        if not op.result.tensor.is_static or not all(v in weights or v.op in made for v in op.operands):
            continue
        have = sum(int(v.tensor.num_elements()) for v in op.operands)
        size = int(op.result.tensor.num_elements())
        if op.name not in ("constant", "iota", "broadcast_in_dim") and size > max(growth * have, 4096):
            continue
        made[op] = any(v in weights or made.get(v.op, False) for v in op.operands)  # type: ignore[arg-type]
    return made


def _extract(main: Function, weights: set[Value], results: list[Value]) -> Function:
    needed: set[Op] = set()
    stack = [v.op for v in results]
    while stack:
        op = stack.pop()
        if op is None or op in needed:
            continue
        needed.add(op)
        stack.extend(v.op for v in op.operands)
    used = {v for op in needed for v in op.operands if v in weights}
    prepare = Function("prepare")
    mapping: dict[Value, Value] = {}
    for p, info in zip(main.params, main.args, strict=True):
        if p in used:
            mapping[p] = prepare.add_arg(p.tensor, dataclasses.replace(info))
    for op in main.body.ops:
        if op not in needed:
            continue
        prepare.body.append(clone_op(op, mapping))
    prepare.body.append(Op("return", [mapping[v] for v in results]))
    prepare.result_names = [f"prepared{i}" for i in range(len(results))]
    return prepare
