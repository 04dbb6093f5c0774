"""Passes and the manager that runs them: by name with options in text, timed, dumped, verified between.

A pass is a frozen dataclass whose fields are its options:

    @dataclasses.dataclass(frozen=True)
    class CSE(Pass):
        '''Merge equal ops.'''
        max_rounds: int = 3
        name = "cse"
        def run(self, module, ctx): ...

    PassManager.parse("cse{max_rounds=5},dce", {"cse": CSE, "dce": DCE}).run(module)
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import time
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from disc_tf.budget import Budget
from disc_tf.ir.core import Module, walk
from disc_tf.ir.printer import print_module
from disc_tf.ir.verifier import verify


class PassError(ValueError):
    """An unknown pass or option, an ill-typed option value, or a pass that failed (the message names it)."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """Base of all passes. Subclasses set `name` and implement `run`; options are dataclass fields of type int, float, bool or str."""

    name: ClassVar[str] = ""

    def run(self, module: Module, ctx: PassContext) -> None:
        """Change `module` in place. Failures raise."""
        raise NotImplementedError

    def spec(self) -> str:
        """Name and non-default options, as `PassManager.parse` reads them."""
        changed = [
            f"{f.name}={_option_text(getattr(self, f.name))}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"{self.name}{{{', '.join(changed)}}}" if changed else self.name


@dataclasses.dataclass
class PassStat:
    """One run of one pass: wall seconds and op counts (all regions included)."""

    spec: str
    seconds: float
    ops_before: int
    ops_after: int


@dataclasses.dataclass
class PassContext:
    """What passes share in one run. data: results of passes by key. notes: remarks for reports. budget: asked between passes."""

    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    stats: list[PassStat] = dataclasses.field(default_factory=list)
    budget: Budget = dataclasses.field(default_factory=Budget)


@dataclasses.dataclass(frozen=True)
class PassManager:
    """Runs passes in order.

    verify_each: run the verifier before the first pass and after each (a failure names the pass). dump_dir: write
    `<prefix>NN_<pass>.txt` after each pass; constants of `elide` or more elements are left out of dumps.
    """

    passes: tuple[Pass, ...]
    verify_each: bool = False
    dump_dir: pathlib.Path | None = None
    dump_prefix: str = ""
    elide: int = 64

    @staticmethod
    def parse(
        text: str, known: Mapping[str, type[Pass]] | Iterable[type[Pass]], **options: Any
    ) -> PassManager:
        """Passes from text: names separated by commas, options in braces, e.g. `cse{max_rounds=5},dce`.

        Raises PassError for unknown passes, options and values.
        """
        table: Mapping[str, type[Pass]] = (
            typing.cast(Any, known) if isinstance(known, Mapping) else {cls.name: cls for cls in known}
        )
        return PassManager(tuple(_parse(text, table)), **options)

    def spec(self) -> str:
        """The pipeline in text."""
        return ",".join(p.spec() for p in self.passes)

    def run(self, module: Module, ctx: PassContext | None = None) -> PassContext:
        """Run all passes on `module` in place; `stats` of the returned context has the times."""
        ctx = ctx if ctx is not None else PassContext()
        if self.verify_each:
            self._verify(module, "before the first pass")
        self._dump(module, 0, "input")
        before = count_ops(module)
        for i, p in enumerate(self.passes, 1):
            ctx.budget.check(f"pass {p.name}")
            start = time.perf_counter()
            p.run(module, ctx)
            seconds = time.perf_counter() - start
            after = count_ops(module)
            ctx.stats.append(PassStat(p.spec(), seconds, before, after))
            before = after
            self._dump(module, i, p.name)
            if self.verify_each:
                self._verify(module, f"after pass {i}, {p.spec()}")
        return ctx

    def _verify(self, module: Module, when: str) -> None:
        try:
            verify(module)
        except ValueError as e:
            raise PassError(f"invalid IR {when}: {e}") from e

    def _dump(self, module: Module, index: int, name: str) -> None:
        if self.dump_dir is None:
            return
        self.dump_dir.mkdir(parents=True, exist_ok=True)
        path = self.dump_dir / f"{self.dump_prefix}{index:02d}_{name}.txt"
        path.write_text(print_module(module, self.elide))


def count_ops(module: Module) -> int:
    """The number of ops, regions included."""
    return sum(1 for fn in module.functions.values() for _ in walk(fn.body))


def format_stats(stats: Sequence[PassStat]) -> str:
    """A table of times and op counts."""
    width = max((len(s.spec) for s in stats), default=4)
    lines = [
        f"{s.spec:<{width}}  {s.seconds * 1e3:9.2f} ms  {s.ops_before:6d} -> {s.ops_after} ops" for s in stats
    ]
    return "\n".join(lines)


_ITEM = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(?:\{([^{}]*)\})?\s*(,|$)")
_OPTION = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*("(?:[^"\\]|\\.)*"|[^,"]+?)\s*(,|$)')


def _parse(text: str, known: Mapping[str, type[Pass]]) -> Iterable[Pass]:
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise PassError(f"bad pass list at {text[position:]!r}: expected name{{option=value,...}}")
        name, options = match.group(1), match.group(2) or ""
        if name not in known:
            raise PassError(f"unknown pass {name!r} (known: {', '.join(sorted(known))})")
        yield known[name](**_parse_options(known[name], options))
        position = match.end()


def _parse_options(cls: type[Pass], text: str) -> dict[str, Any]:
    types = typing.get_type_hints(cls)
    fields = {f.name: types[f.name] for f in dataclasses.fields(cls)}
    found: dict[str, Any] = {}
    position = 0
    while text[position:].strip():
        match = _OPTION.match(text, position)
        if match is None:
            raise PassError(f"pass {cls.name}: bad options {text!r}: expected option=value")
        key, value = match.group(1), match.group(2)
        if key not in fields:
            raise PassError(f"pass {cls.name}: unknown option {key!r} (known: {', '.join(fields) or 'none'})")
        found[key] = _option_value(cls.name, key, fields[key], value)
        position = match.end()
    return found


def _option_value(name: str, key: str, type: Any, text: str) -> Any:
    try:
        if type is bool:
            return {"true": True, "false": False}[text]
        if type is int or type is float:
            return type(text)
        if type is str:
            return json.loads(text) if text.startswith('"') else text
    except (KeyError, ValueError):
        raise PassError(f"pass {name}: option {key} must be of type {type.__name__}, is {text!r}") from None
    raise PassError(f"pass {name}: option {key} cannot be given in text")


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else str(value)
