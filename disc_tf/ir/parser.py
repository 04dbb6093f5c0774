"""Reads the text of `printer` back. Attribute values are read by the types that the op set declares."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from disc_tf.ir.core import ArgInfo, Block, Function, Module, Op, Value
from disc_tf.ir.dims import Dim, parse_dim
from disc_tf.ir.opset import IRError, op_def
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import TOKEN, DType, TensorType, Type

T = TypeVar("T")
_MAX_NESTING = 200
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_VALUE = re.compile(r"%[A-Za-z0-9_.]+")
_NUMBER = re.compile(r"-?(?:inf|nan|\d[0-9.]*(?:e[-+]?\d+)?)|true|false")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_FACT = re.compile(r"(?:(-?\d+) <= )?(.+?)(?: <= (-?\d+))?")


class ParseError(IRError):
    """Bad text; the message gives the line."""


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.values: dict[str, Value] = {}
        self.nesting = 0

    # ---- scanning --------------------------------------------------------------------------------------------

    def fail(self, message: str) -> ParseError:
        line = self.text.count("\n", 0, self.at) + 1
        return ParseError(f"line {line}: {message}")

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def peek(self, literal: str) -> bool:
        self.skip()
        return self.text.startswith(literal, self.at)

    def accept(self, literal: str) -> bool:
        if self.peek(literal):
            self.at += len(literal)
            return True
        return False

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            raise self.fail(f"expected {literal!r}, found {self.text[self.at : self.at + 20]!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.fail(f"expected {what}, found {self.text[self.at : self.at + 20]!r}")
        self.at = match.end()
        return match.group(0)

    def string(self) -> str:
        return json.loads(self.match(_STRING, "a string"))

    def listed(self, item: Callable[[], T], open: str, close: str) -> list[T]:
        """Items between brackets, separated by commas."""
        self.expect(open)
        found: list[T] = []
        while not self.accept(close):
            if found:
                self.expect(",")
            found.append(item())
        return found

    def dim(self) -> Dim:
        """A dim up to a comma or bracket that is not inside its own parentheses."""
        self.skip()
        depth, start = 0, self.at
        while self.at < len(self.text):
            c = self.text[self.at]
            if depth == 0 and c in ",])}:\n":
                break
            depth += (c == "(") - (c == ")")
            self.at += 1
        try:
            return parse_dim(self.text[start : self.at])
        except ValueError as e:
            raise self.fail(str(e)) from None

    # ---- types and attributes -----------------------------------------------------------------------------------

    def type(self) -> Type:
        word = self.match(_WORD, "a type")
        if word == "token":
            return TOKEN
        return TensorType(self.dtype(word), tuple(self.listed(self.dim, "[", "]")))

    def dtype(self, word: str) -> DType:
        try:
            return DType.from_name(word)
        except KeyError:
            raise self.fail(f"unknown dtype {word!r}") from None

    def integer(self) -> int:
        text = self.match(_NUMBER, "an integer")
        try:
            return int(text)
        except ValueError:
            raise self.fail(f"not an integer: {text}") from None

    def attribute(self, kind: str) -> Any:
        if kind == "int":
            return self.integer()
        if kind == "bool":
            return self.match(_WORD, "true or false") == "true"
        if kind == "str":
            return self.string()
        if kind == "dim":
            return self.dim()
        if kind == "ints":
            return tuple(self.listed(self.integer, "[", "]"))
        if kind == "dims":
            return tuple(self.listed(self.dim, "[", "]"))
        return self.array()

    def element(self, dtype: DType) -> Any:
        text = self.match(_NUMBER, "a number")
        try:
            if dtype.is_bool:
                return text == "true"
            return float(text) if dtype.is_float else int(text)
        except ValueError:
            raise self.fail(f"not a {dtype}: {text}") from None

    def array(self) -> np.ndarray:
        dtype = self.dtype(self.match(_WORD, "a dtype"))
        shape = tuple(self.listed(self.integer, "[", "]"))
        if self.accept("elided"):
            raise self.fail("the content of this constant was left out when the text was printed")
        if self.accept("splat"):
            return np.broadcast_to(_cast(self.element(dtype), dtype), shape)
        if self.peek('"'):
            raw = zlib.decompress(base64.b64decode(self.string()))
            if len(raw) != math.prod(shape) * dtype.bytes:
                raise self.fail("wrong number of bytes in a constant")
            return np.frombuffer(raw, dtype.np).reshape(shape)
        if not shape:
            return _cast(self.element(dtype), dtype)
        elements = self.listed(lambda: self.element(dtype), "[", "]")
        if len(elements) != math.prod(shape):
            raise self.fail(f"{len(elements)} elements for shape {list(shape)}")
        return _cast(elements, dtype).reshape(shape)

    # ---- structure -----------------------------------------------------------------------------------------------

    def module(self) -> Module:
        module = Module()
        while not self.done():
            fn = self.function()
            if fn.name in module.functions:
                raise self.fail(f"function {fn.name} is defined twice")
            module.add(fn)
        return module

    def done(self) -> bool:
        self.skip()
        return self.at == len(self.text)

    def function(self) -> Function:
        self.values = {}
        self.expect("func")
        fn = Function(self.match(_WORD, "a name"))
        for name, type, info in self.listed(self.parameter, "(", ")"):
            value = fn.body.add_param(type, name)
            fn.args.append(ArgInfo(info.get("name", name), info.get("kind", "device")))
            fn.args[-1].tensor = info.get("tensor", "")
            fn.args[-1].digest = bytes.fromhex(info.get("digest", ""))
            self.define(name, value)
        if self.accept("facts"):
            for text in self.listed(self.string, "[", "]"):
                self.fact(fn.env, text)
        self.block(fn.body, fn.result_names)
        return fn

    def fact(self, env: ShapeEnv, text: str) -> None:
        for separator, assume in ((" == ", env.assume_eq), (" divides ", env.assume_divides)):
            if separator in text:
                a, b = text.split(separator, 1)
                assume(parse_dim(a), parse_dim(b))
                return
        match = _FACT.fullmatch(text)
        if match is None:
            raise self.fail(f"not a fact: {text!r}")
        low, high = (None if g is None else int(g) for g in (match.group(1), match.group(3)))
        env.set_range(parse_dim(match.group(2)), low, high)

    def parameter(self) -> tuple[str, Type, dict[str, str]]:
        name = self.match(_VALUE, "a value name")[1:]
        self.expect(":")
        type = self.type()
        info: dict[str, str] = {}
        if self.peek("{"):
            for key, value in self.listed(self.info, "{", "}"):
                info[key] = value
        return name, type, info

    def info(self) -> tuple[str, str]:
        key = self.match(_WORD, "a key")
        self.expect("=")
        return key, self.string()

    def define(self, name: str, value: Value) -> None:
        if name in self.values:
            raise self.fail(f"%{name} is defined twice")
        if not name.isdigit():
            value.hint = name
        else:
            value.hint = ""
        self.values[name] = value

    def use(self) -> Value:
        name = self.match(_VALUE, "a value name")[1:]
        if name not in self.values:
            raise self.fail(f"%{name} is not defined")
        return self.values[name]

    def block(self, block: Block, result_names: list[str] | None = None) -> None:
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            raise self.fail("regions are nested too deeply")
        self.expect("{")
        while not self.accept("}"):
            self.op(block, result_names)
        self.nesting -= 1

    def op(self, block: Block, result_names: list[str] | None) -> None:
        names: list[str] = []
        while self.peek("%"):
            names.append(self.match(_VALUE, "a value name")[1:])
            if not self.accept(","):
                self.expect("=")
                break
        name = self.match(_WORD, "an op name")
        try:
            definition = op_def(name)
            operands = self.listed(self.use, "(", ")")
            attrs: dict[str, Any] = {}
            if self.peek("{"):
                kinds = {key: spec.type for key, spec in definition.attrs.items()}
                attrs = dict(self.listed(lambda: self.keyed(kinds), "{", "}"))
            if name == "return" and self.peek("[") and result_names is not None:
                result_names += self.listed(self.string, "[", "]")
            types: list[Type] = []
            if self.accept(":"):
                types = self.listed(self.type, "(", ")") if self.peek("(") else [self.type()]
            loc = tuple(self.listed(self.string, "(", ")")) if self.accept("loc") else ()
            regions = [self.region()] if self.peek("(") else []
            while regions and self.peek("("):
                regions.append(self.region())
            op = Op(name, operands, types, definition.attributes(attrs), regions, loc)
        except ParseError:
            raise
        except IRError as e:
            raise self.fail(str(e)) from None
        if len(names) != len(op.results):
            raise self.fail(f"{len(names)} names for {len(op.results)} results")
        for result_name, result in zip(names, op.results, strict=True):
            self.define(result_name, result)
        block.append(op)

    def keyed(self, kinds: dict[str, str]) -> tuple[str, Any]:
        key = self.match(_WORD, "an attribute name")
        self.expect("=")
        if key not in kinds:
            raise self.fail(f"unknown attribute {key!r} (known: {', '.join(kinds) or 'none'})")
        return key, self.attribute(kinds[key])

    def region(self) -> Block:
        block = Block()
        for name, type, _ in self.listed(self.parameter, "(", ")"):
            self.define(name, block.add_param(type, name))
        self.block(block)
        return block


def _cast(value: Any, dtype: DType) -> np.ndarray:
    return np.asarray(value, np.float64 if dtype.is_float else dtype.np).astype(dtype.np)


def parse_module(text: str) -> Module:
    """Parse a module. Raises ParseError with the line. The result is not verified: see `verifier.verify`."""
    return _Parser(text).module()


def parse_function(text: str) -> Function:
    """Parse a single function. Raises ParseError."""
    parser = _Parser(text)
    fn = parser.function()
    if not parser.done():
        raise parser.fail("text after the function")
    return fn
