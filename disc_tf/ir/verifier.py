"""The IR verifier: what every pass may rely on, and must keep.

* every op is in the op set and its attributes, operands and result types agree with its `OpDef`;
* a value is used only after its definition, in its block or inside a region of a later op; `uses` and `parent` are kept;
* a block ends with its only `return`;
* tokens form chains: each is consumed at most once, in the block that made it, by what comes later;
* every symbol in a type or attribute is bound before: by the dims of a parameter, by `disc.bind_dim`, or as the dim of a loop's
  or branch's result.
"""

from __future__ import annotations

from collections.abc import Iterable

from disc_tf.ir.core import Block, Function, Module, Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.opset import IRError, op_def
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import TensorType, TokenType, Type


class VerifyError(IRError):
    """The module breaks a rule of the IR; the message names function, op and origin."""


def verify(target: Module | Function) -> None:
    """Check a module or a function. Raises VerifyError."""
    functions = target.functions.values() if isinstance(target, Module) else [target]
    for fn in functions:
        verify_function(fn)


def verify_function(fn: Function) -> None:
    """Check one function. Raises VerifyError."""
    if len(fn.args) != len(fn.params):
        raise VerifyError(
            f"function {fn.name}: {len(fn.args)} ArgInfo entries for {len(fn.params)} parameters"
        )
    for p in fn.params:
        if isinstance(p.type, TokenType):
            raise VerifyError(f"function {fn.name}: parameter {p!r} is a token")
    checker = _Checker(fn)
    checker.block(fn.body, fn.env, None)
    tensors = [v for v in fn.results if isinstance(v.type, TensorType)]
    if fn.result_names and len(fn.result_names) not in (len(tensors), len(fn.results)):
        raise VerifyError(
            f"function {fn.name}: {len(fn.result_names)} result names for {len(tensors)} results"
        )


class _Checker:
    """A walk in program order. Recursion follows region nesting only."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.visible: set[Value] = set()
        self.symbols: set[str] = set()
        self.spent: set[Value] = set()

    def fail(self, op: Op | None, message: str) -> VerifyError:
        where = f"function {self.fn.name}"
        if op is not None:
            origin = f" (from {', '.join(op.loc)})" if op.loc else ""
            where += f", {op!r}{origin}"
        return VerifyError(f"{where}: {message}")

    def block(self, block: Block, env: ShapeEnv, parent: Op | None) -> None:
        if block.parent_op is not parent:
            raise self.fail(parent, "a region's parent_op is not the op that holds it")
        values = list(block.params)
        bound = set(_symbols(p.type for p in block.params)) - self.symbols
        self.symbols |= bound
        for i, p in enumerate(block.params):
            if p.owner is not block or p.index != i:
                raise self.fail(parent, f"parameter {p!r} does not know its block")
        self.visible.update(block.params)
        for position, op in enumerate(block.ops):
            if (op.name == "return") != (position == len(block.ops) - 1):
                raise self.fail(op, "a block must end with its only return")
            self.op(block, op, env, bound)
            values += op.results
        if not block.ops:
            raise self.fail(parent, "a block has no return")
        if parent is not None:
            for v in (*block.params, *block.results):
                if isinstance(v.type, TokenType):
                    raise self.fail(parent, "a token must not cross a region boundary")
        self.visible.difference_update(values)
        self.symbols -= bound

    def op(self, block: Block, op: Op, env: ShapeEnv, bound: set[str]) -> None:
        if op.parent is not block:
            raise self.fail(op, "its parent is not the block that holds it")
        for i, v in enumerate(op.operands):
            self.operand(block, op, i, v)
        for i, r in enumerate(op.results):
            if r.owner is not op or r.index != i:
                raise self.fail(op, f"result {r!r} does not know its op")
        try:
            op_def(op.name).verify(op, env)
        except IRError as e:
            raise self.fail(op, str(e)) from None
        if op.name == "disc.bind_dim":
            symbol = op.attrs["symbol"]
            if symbol in self.symbols:
                raise self.fail(op, f"symbol {symbol!r} is bound already")
            self.symbols.add(symbol)
            bound.add(symbol)
        for region in op.regions:
            self.block(region, env.child(), op)
        used = set(_attr_symbols(op.attrs.values()))
        results = set(_symbols(r.type for r in op.results))
        if op.name in ("while", "case"):
            bound |= results - self.symbols
            self.symbols |= results
        unbound = (used | results) - self.symbols
        if unbound:
            raise self.fail(op, f"symbols used before they are bound: {', '.join(sorted(unbound))}")
        self.visible.update(op.results)

    def operand(self, block: Block, op: Op, i: int, v: Value) -> None:
        if v not in self.visible:
            raise self.fail(op, f"operand {i} ({v!r}) is not defined before it")
        if (op, i) not in v.uses:
            raise self.fail(op, f"operand {i} ({v!r}) does not list it among its uses")
        if isinstance(v.type, TokenType):
            home = v.owner.parent if isinstance(v.owner, Op) else v.owner
            if home is not block:
                raise self.fail(op, f"token {v!r} crosses a region boundary")
            if v in self.spent:
                raise self.fail(op, f"token {v!r} is consumed twice")
            self.spent.add(v)


def _symbols(types: Iterable[Type]) -> Iterable[str]:
    for t in types:
        if isinstance(t, TensorType):
            for d in t.dims:
                if not d.is_static:
                    yield from d.symbols()


def _attr_symbols(values: Iterable[object]) -> Iterable[str]:
    for v in values:
        for d in v if isinstance(v, tuple) else (v,):
            if isinstance(d, Dim):
                yield from d.symbols()
