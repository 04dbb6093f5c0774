"""IR as text, readable by a stranger; `parser.parse_module` reads it back.

    func main(%x: f32[n,768] {kind="device"}, %w: f32[768,64]) facts ["1 <= n"] {
      %y = dot_general(%x, %w) {lhs_batching=[], ..., lhs_contracting=[1], rhs_contracting=[0]} : f32[n,64] loc("dense/MatMul")
      %c = constant() {value=f32[] 0.0} : f32[]
      %s = reduce(%y, %c) {dimensions=[1]} : f32[n] (%acc: f32[], %e: f32[]) {
        %sum = add(%acc, %e) : f32[]
        return(%sum)
      }
      return(%s) ["scores:0"]
    }

Constants of up to 16 elements are written out, splats as `splat`, others as base64 of the zlib-compressed row-major little-endian bytes, or
`elided` for dumps (`elide` elements or more), which does not parse back.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

import numpy as np

from disc_tf.ir.core import ArgInfo, Block, Function, Module, Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType

_INLINE = 16


class _Printer:
    def __init__(self, elide: int | None) -> None:
        self.elide = elide
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []

    def name(self, v: Value) -> str:
        """A unique name: the hint where there is one, else a number."""
        found = self.names.get(v)
        if found is None:
            base = re.sub(r"[^A-Za-z0-9_.]", "_", v.hint) or str(len(self.names))
            found, n = base, 0
            while found in self.taken:
                n += 1
                found = f"{base}_{n}"
            self.taken.add(found)
            self.names[v] = found
        return f"%{found}"

    def emit(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def params(self, block: Block, args: list[ArgInfo] | None = None) -> str:
        parts = []
        for i, p in enumerate(block.params):
            info = format_arg(args[i], p.hint) if args is not None and i < len(args) else ""
            parts.append(f"{self.name(p)}: {p.type}{info}")
        return f"({', '.join(parts)})"

    def function(self, fn: Function) -> None:
        self.names, self.taken = {}, set()
        facts = fn.env.facts()
        suffix = f" facts {json.dumps(facts)}" if facts else ""
        self.emit(0, f"func {fn.name}{self.params(fn.body, fn.args)}{suffix} {{")
        self.block(fn.body, 1, fn.result_names)
        self.emit(0, "}")

    def block(self, block: Block, depth: int, result_names: list[str] | None = None) -> None:
        for op in block.ops:
            self.op(op, depth, result_names)

    def op(self, op: Op, depth: int, result_names: list[str] | None) -> None:
        left = f"{', '.join(self.name(r) for r in op.results)} = " if op.results else ""
        text = f"{left}{op.name}({', '.join(self.name(v) for v in op.operands)})"
        if op.attrs:
            text += " {" + ", ".join(f"{k}={format_attr(v, self.elide)}" for k, v in op.attrs.items()) + "}"
        if op.name == "return" and result_names:
            text += f" {json.dumps(result_names)}"
        if len(op.results) == 1:
            text += f" : {op.results[0].type}"
        elif op.results:
            text += f" : ({', '.join(str(r.type) for r in op.results)})"
        if op.loc:
            text += f" loc({', '.join(json.dumps(x) for x in op.loc)})"
        if not op.regions:
            self.emit(depth, text)
            return
        for i, region in enumerate(op.regions):
            head = self.params(region)
            self.emit(depth, f"{text} {head} {{" if i == 0 else f"}} {head} {{")
            self.block(region, depth + 1)
        self.emit(depth, "}")


def format_arg(info: ArgInfo, hint: str) -> str:
    """The braces after a parameter, empty when all is default."""
    parts = []
    if info.name != hint:
        parts.append(f"name={json.dumps(info.name)}")
    if info.kind != "device":
        parts.append(f"kind={json.dumps(info.kind)}")
    if info.tensor:
        parts.append(f"tensor={json.dumps(info.tensor)}")
    if info.digest:
        parts.append(f'digest="{info.digest.hex()}"')
    return f" {{{', '.join(parts)}}}" if parts else ""


def format_attr(value: Any, elide: int | None = None) -> str:
    """An attribute value in text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Dim):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, np.ndarray):
        return format_array(value, elide)
    raise TypeError(f"no text form for an attribute of type {type(value).__name__}")


def _number(x: Any, dtype: DType) -> str:
    if dtype.is_bool:
        return "true" if x else "false"
    return repr(float(x)) if dtype.is_float else str(int(x))


def format_array(value: np.ndarray, elide: int | None = None) -> str:
    """`dtype[shape]` and the elements (see the module's docstring)."""
    dtype = DType.from_np(value.dtype)
    head = f"{dtype}[{','.join(map(str, value.shape))}]"
    if value.ndim == 0:
        return f"{head} {_number(value[()], dtype)}"
    if value.size <= _INLINE:
        return f"{head} [{', '.join(_number(x, dtype) for x in value.reshape(-1))}]"
    if all(s == 0 or n == 1 for s, n in zip(value.strides, value.shape, strict=True)):
        return f"{head} splat {_number(value.flat[0], dtype)}"
    if elide is not None and value.size >= elide:
        return f"{head} elided"
    packed = zlib.compress(np.ascontiguousarray(value).tobytes(), 6)
    return f'{head} "{base64.b64encode(packed).decode()}"'


def print_function(fn: Function, elide: int | None = None) -> str:
    """A function in text."""
    printer = _Printer(elide)
    printer.function(fn)
    return "\n".join(printer.lines) + "\n"


def print_module(module: Module, elide: int | None = None) -> str:
    """A module in text: its functions in order."""
    return "\n".join(print_function(fn, elide) for fn in module.functions.values())
