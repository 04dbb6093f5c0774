"""Every option of the compiler, once. The Python API, the command line and the config file are derived from this table.

An option is a field of `Options` with its default, its type and, in `metadata`, its one-line doc. `Options.from_overrides` refuses unknown
names and values of the wrong type: a silent typo is worse than an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from disc_tf.tuning import Table, TableError, parse, shipped

#: characters of a table at most
_MOST_TABLE = 1 << 20

TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


class OptionError(ValueError):
    """An unknown option, or a value that the option does not take. The message names both and the way out."""


def _option(default: Any, doc: str, *, flag: str = "", metavar: str = "", choices: tuple[str, ...] = (), least: int = 0) -> Any:
    meta = {"doc": doc, "flag": flag, "metavar": metavar, "choices": choices, "least": least}
    return dataclasses.field(default=default, metadata=meta)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of one optimisation. Tuples of strings are repeatable flags on the command line."""

    targets: tuple[str, ...] = _option(
        ("x86-64-v2", "x86-64-v3", "x86-64-v4"),
        "instruction sets to compile for; `native` is this machine's own",
        flag="--target",
        metavar="T[,T]",
        choices=("native", *TARGETS),
    )
    min_cluster_size: int = _option(
        4,
        "leave groups of fewer compilable ops in TensorFlow; two are enough if one is a product or a convolution",
        flag="--min-cluster-size",
        metavar="N",
    )
    allow: tuple[str, ...] = _option((), "compile only these op types or node-name patterns", flag="--allow", metavar="P")
    deny: tuple[str, ...] = _option((), "never compile these op types or node-name patterns", flag="--deny", metavar="P")
    hints: tuple[str, ...] = _option(
        (), "likely dims of an input, e.g. `ids: [b<=32, s%8==0, s~128]`", flag="--hint", metavar="HINT"
    )
    fuel: int = _option(-1, "compile at most this many clusters (-1: all), for bisecting", flag="--fuel", metavar="N", least=-1)
    keep_control: bool = _option(
        False, "keep nodes that only control edges reach from the outputs' side", flag="--keep-control"
    )
    segments: str = _option(
        "auto",
        "`auto` lets parts of a stand-alone program that need only some of its inputs start before the others are there; `one` does not",
        flag="--segments",
        metavar="auto|one",
        choices=("auto", "one"),
    )
    strict: bool = _option(False, "fail if anything that should compile does not", flag="--strict")
    verify_passes: bool = _option(False, "run the IR verifier between all passes", flag="--verify-passes")
    time_budget: int = _option(
        0,
        "leave a cluster in TensorFlow if compiling it takes longer; end the proof of the result after as long (0: no limit)",
        flag="--time-budget",
        metavar="SECONDS",
    )
    dump_dir: str = _option("", "write every phase as text into this directory", flag="--dump-dir", metavar="DIR")
    tuning: tuple[str, ...] = _option(
        (),
        "a table that `disc-tf tune` wrote, in the place of the shipped one of its instruction set; kept as its content",
        flag="--tuning",
        metavar="F",
    )
    use_tf_shapes: bool = _option(
        True, "use TensorFlow's shape inference for ops that are not compiled", flag="--use-tf-shapes"
    )

    @staticmethod
    def from_overrides(base: Options | Mapping[str, Any] | None = None, **overrides: Any) -> Options:
        """`base` (an Options, a mapping or None) with ``overrides``. Raises `OptionError`."""
        values: dict[str, Any] = {}
        if isinstance(base, Options):
            values = {f.name: getattr(base, f.name) for f in dataclasses.fields(Options)}
        elif base is not None:
            overrides = {**base, **overrides}
        known = {f.name: f for f in dataclasses.fields(Options)}
        for name, value in overrides.items():
            if name not in known:
                raise unknown_option(name, known)
            values[name] = _coerce(known[name], value)
        return Options(**values)

    @property
    def tables(self) -> list[Table]:
        """What ``tuning`` says."""
        return [parse(text, "option 'tuning'") for text in self.tuning]

    @property
    def tuned(self) -> dict[str, str]:
        """Target -> digest of the table that schedules are chosen from."""
        given = {t.isa: t for t in self.tables}
        return {target: given.get(target, shipped(target)).digest for target in self.targets}

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_overrides` takes back (config files, reports)."""
        return {
            f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in dataclasses.fields(self)
        }


def make_dump_dir(options: Options) -> None:
    """Make ``dump_dir`` if it is given. `OptionError` where nothing can be written: each cluster would fail at its first phase."""
    if not options.dump_dir:
        return
    try:
        os.makedirs(options.dump_dir, exist_ok=True)
        why = "" if os.access(options.dump_dir, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as e:
        why = e.strerror or str(e)
    if why:
        raise OptionError(f"option 'dump_dir': nothing can be written into {options.dump_dir}: {why}; name another directory")


def unknown_option(name: str, known: Iterable[str]) -> OptionError:
    """The error for an option that is none of ``known``."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known options: {', '.join(sorted(known))}"
    return OptionError(f"unknown option {name!r}{hint}")


def _coerce(field: dataclasses.Field[Any], value: Any) -> Any:
    kind = type(field.default)
    if kind is tuple:
        if isinstance(value, str):
            value = [v for v in (part.strip() for part in value.split(",")) if v] if field.name == "targets" else [value]
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise OptionError(f"option {field.name!r} takes a list of strings, not {value!r}")
        value = tuple(value)
        choices = field.metadata["choices"]
        for v in value:
            if choices and v not in choices:
                raise OptionError(f"option {field.name!r}: {v!r} is not one of {', '.join(choices)}")
        if field.name == "targets":
            value = _resolve_targets(value)
        return _read_tables(value) if field.name == "tuning" else value
    if kind is bool:
        if not isinstance(value, bool):
            raise OptionError(f"option {field.name!r} is true or false, not {value!r}")
        return value
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise OptionError(f"option {field.name!r} takes an integer, not {value!r}")
        if value < (least := field.metadata["least"]):
            raise OptionError(f"option {field.name!r}: {value} is less than {least}")
        return value
    if not isinstance(value, str):
        raise OptionError(f"option {field.name!r} takes a string, not {value!r}")
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise OptionError(f"option {field.name!r}: {value!r} is not one of {', '.join(choices)}")
    return value


def _read_tables(sources: tuple[str, ...]) -> tuple[str, ...]:
    """Names of files replaced by what is in them, so that whatever is keyed by options is keyed by that. A text that begins with a brace is
    a table already."""
    found: dict[str, str] = {}
    for source in sources:
        text, name = source, "option 'tuning'"
        if not source.lstrip().startswith("{"):
            name = source
            try:
                with open(source, encoding="utf-8") as f:
                    text = f.read(_MOST_TABLE + 1)
            except (OSError, ValueError) as e:  # ValueError: no text, or no path
                why = e.strerror if isinstance(e, OSError) else "it is not text" if isinstance(e, UnicodeDecodeError) else ""
                raise OptionError(f"option 'tuning': cannot read {source}: {why or e}") from e
        if len(text) > _MOST_TABLE:
            raise OptionError(f"option 'tuning': {name} has more than {_MOST_TABLE} characters: that is no table")
        try:
            table = parse(text, name)
        except TableError as e:
            raise OptionError(str(e) if name == "option 'tuning'" else f"option 'tuning': {e}") from e
        if table.isa in found:
            raise OptionError(f"option 'tuning': two tables are for {table.isa}: give one of them")
        found[table.isa] = table.text()
    return tuple(found[isa] for isa in sorted(found))


def _resolve_targets(targets: tuple[str, ...]) -> tuple[str, ...]:
    """`native` replaced by this machine's best target; no repeats, weakest first; empty is an error."""
    if not targets:
        raise OptionError(f"option 'targets' is empty: give native or some of {', '.join(TARGETS)}")
    resolved = set()
    for t in targets:
        if t == "native":
            from disc_tf.runtime.cpu import native_target  # reads CPUID through the runtime

            t = native_target()
        resolved.add(t)
    return tuple(t for t in TARGETS if t in resolved)
