"""Configuration files: the flags of a verb as TOML, by the names that `--print-config` prints.

    targets = ["x86-64-v3"]
    no_timing = true
    shape = ["B=1,S=7", "B=8,S=48"]

A flag on the command line wins over the file. Unknown names and values of the wrong type are errors.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Container, Sequence
from typing import Any

from disc_tf.commands.common import USAGE, CommandError
from disc_tf.options import Options
from disc_tf.spelling import close_to, did_you_mean

#: verbs that take a configuration file
VERBS = ("optimize", "inspect", "verify", "bench")
#: flags that name files of one run, or that are no setting
_NOT_SETTINGS = frozenset({"help", "config", "print_config", "output", "report", "csv", "capture", "draw", "explain", "json", "quiet"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("configuration")
    group.add_argument("--config", metavar="F", help="read flags from a TOML file; flags given here win")
    group.add_argument("--print-config", action="store_true", help="print the flags in force as such a file, and do nothing else")


def settings(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Name in the file -> flag, in the order of the help."""
    return {a.dest: a for a in parser._actions if a.option_strings and a.dest not in _NOT_SETTINGS}


def without_positionals(parser: argparse.ArgumentParser) -> None:
    """``--print-config`` needs no files: what the verb would work on may be missing."""
    for action in parser._actions:
        if not action.option_strings:
            action.nargs, action.default = "*", None
        action.required = False


def apply(parser: argparse.ArgumentParser, args: argparse.Namespace, path: str, given: Container[str]) -> None:
    """Set all but ``given`` (names of the flags on the command line) from the file ``path``. `CommandError` for a file that cannot be read
    and for what it says."""
    import tomllib

    try:
        with open(path, "rb") as f:
            content = tomllib.load(f)
    except OSError as e:
        raise CommandError(f"cannot read {path}: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:  # a number of too many digits is another ValueError than tomllib's
        raise CommandError(f"{path}: not TOML: {e}", USAGE) from e
    known = settings(parser)
    for name, value in content.items():
        action = known.get(name)
        if action is None:
            spelled = {s: d for d, a in known.items() for s in (d, *_spelled(a))}
            hint = did_you_mean(spelled[c] for c in close_to(name, spelled)) or f"; known: {', '.join(known)}"
            if isinstance(value, dict):
                hint = "; settings stand at the top of the file, not in a table" + (hint if hint.startswith("; did") else "")
            raise CommandError(f"{path}: unknown setting {name}{hint}", USAGE)
        checked = _value(path, name, action, value)
        if name not in given:
            setattr(args, name, checked)


def _spelled(action: argparse.Action) -> list[str]:
    return [s.strip("-").replace("-", "_") for s in action.option_strings]


def _value(path: str, name: str, action: argparse.Action, value: Any) -> Any:
    """``value`` as the flag would have it."""
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise CommandError(f"{path}: {name} is true or false, not {value!r}", USAGE)
        return value
    if isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*"):
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise CommandError(f"{path}: {name} is a list of strings, not {value!r}", USAGE)
        return [_converted(path, name, action.type, v) for v in value]
    kind = action.type
    if kind is None or kind is str:
        if not isinstance(value, str):
            raise CommandError(f"{path}: {name} is a string, not {value!r}", USAGE)
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(f"{path}: {name} is a number, not {value!r}", USAGE)
    return _converted(path, name, kind, str(value))


def _converted(path: str, name: str, kind: Any, text: str) -> Any:
    """``text`` as the flag's type has it."""
    if not callable(kind):
        return text
    try:
        return kind(text)
    except (ValueError, argparse.ArgumentTypeError) as e:
        raise CommandError(f"{path}: {name}: {e}", USAGE) from e


def to_toml(parser: argparse.ArgumentParser, args: argparse.Namespace, verb: str) -> str:
    """The settings in force as a file that `apply` reads back to the same."""
    options = {f.name: f for f in dataclasses.fields(Options)}
    lines = [f"# disc-tf {verb}"]
    for name, action in settings(parser).items():
        value = getattr(args, name)
        if value is None and name in options:
            value = options[name].default
        if value is None:
            lines.append(f"# {name} is not set")
            continue
        if action.help and action.help != argparse.SUPPRESS:
            lines.append(f"# {action.help.replace('%%', '%')}".partition("\n")[0])
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    # JSON's strings are TOML's, but for the character that TOML wants escaped
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
