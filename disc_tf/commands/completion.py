"""`disc-tf completion SHELL`: a completion script, made of the flags that the parser has."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

from disc_tf.commands.common import OK

SHELLS = ("bash", "zsh", "fish")
#: metavars of flags that do not take a file
_NO_FILE = frozenset({"N", "X", "T", "P", "DIMS", "HINT", "NODE", "SECONDS", "T[,T]"})


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag: its spellings, help, the values that it may have, whether it takes a value and whether that is a file."""

    names: tuple[str, ...]
    help: str
    choices: tuple[str, ...]
    takes_value: bool
    takes_file: bool


@dataclasses.dataclass(frozen=True)
class Command:
    """A verb (``words``: with its sub-verb) and its flags; ``inner``: its sub-verbs."""

    words: tuple[str, ...]
    help: str
    flags: tuple[Flag, ...]
    inner: tuple[str, ...]
    choices: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def run(args: argparse.Namespace) -> int:
    from disc_tf.cli import build_parser

    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](list(commands(build_parser()))), end="")
    return OK


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = (), help: str = "") -> Iterator[Command]:
    """The command itself, then its verbs, each followed by its own."""
    inner = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    choices = [str(c) for a in parser._actions if not a.option_strings and a is not inner and a.choices for c in a.choices]
    flags = tuple(_flag(a) for a in parser._actions if a.option_strings and a.help != argparse.SUPPRESS)
    yield Command(words, help, flags, tuple(inner.choices) if inner is not None else (), tuple(choices))
    if inner is not None:
        helps = {a.dest: a.help or "" for a in inner._choices_actions}
        for name, child in inner.choices.items():
            yield from commands(child, (*words, name), helps.get(name, ""))


def _flag(action: argparse.Action) -> Flag:
    from disc_tf.options import Options

    named: dict[str, Any] = {f.name: f.metadata["choices"] for f in dataclasses.fields(Options)}
    choices = tuple(map(str, action.choices or named.get(action.dest) or ()))
    takes_value = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    file = takes_value and not choices and action.type is None and action.metavar not in _NO_FILE
    return Flag(tuple(action.option_strings), " ".join((action.help or "").replace("%%", "%").split()), choices, takes_value, file)


def bash(found: list[Command]) -> str:
    """The longest known words decide which flags there are; the word before decides which values."""
    lines = ["# bash completion for disc-tf: eval \"$(disc-tf completion bash)\"", "_disc_tf() {",
             "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" verb=\"\" word flags=\"\" words=\"\"",
             "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do", "    case \"$verb $word\" in"]  # fmt: skip
    for c in found[1:]:
        parent = " ".join(c.words[:-1])
        lines.append(f"      {shlex.quote(f'{parent} {c.words[-1]}')}) verb={shlex.quote(' '.join(c.words))} ;;")
    lines += ["    esac", "  done", "  case \"$verb:$prev\" in"]
    for c in found:
        verb = " ".join(c.words)
        for f in c.flags:
            patterns = "|".join(shlex.quote(f"{verb}:{n}") for n in f.names)
            if f.choices:
                lines.append(f"    {patterns}) COMPREPLY=($(compgen -W {shlex.quote(' '.join(f.choices))} -- \"$cur\")); return ;;")
            elif f.takes_file:
                lines.append(f"    {patterns}) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return ;;")
            elif f.takes_value:
                lines.append(f"    {patterns}) COMPREPLY=(); return ;;")
    lines += ["  esac", "  case \"$verb\" in"]
    for c in found:
        names = " ".join(n for f in c.flags for n in f.names)
        words = " ".join([*c.inner, *c.choices])
        lines.append(f"    {shlex.quote(' '.join(c.words))}) flags={shlex.quote(names)} words={shlex.quote(words)} ;;")
    lines += ["  esac", "  if [[ \"$cur\" == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))",
              "  elif [[ -n \"$words\" ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))",
              "  else mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); fi",
              "}", "complete -o filenames -F _disc_tf disc-tf", ""]  # fmt: skip
    return "\n".join(lines)


def zsh(found: list[Command]) -> str:
    lines = ["#compdef disc-tf", "# zsh completion for disc-tf: put it into a directory of $fpath as _disc-tf", "_disc_tf() {",
             "  local verb=\"\" word", "  for word in \"${(@)words[2,CURRENT-1]}\"; do", "    case \"$verb $word\" in"]  # fmt: skip
    for c in found[1:]:
        parent = " ".join(c.words[:-1])
        lines.append(f"      {shlex.quote(f'{parent} {c.words[-1]}')}) verb={shlex.quote(' '.join(c.words))} ;;")
    lines += ["    esac", "  done", "  case \"$verb\" in"]
    for c in found:
        lines.append(f"    {shlex.quote(' '.join(c.words))})")
        specs = []
        for f in c.flags:
            known = f":value:({' '.join(f.choices)})"
            value = known if f.choices else ":file:_files" if f.takes_file else ":value:" if f.takes_value else ""
            specs += [shlex.quote(f"*{n}[{_zsh_text(f.help)}]{value}") for n in f.names]
        words = " ".join([*c.inner, *c.choices])
        specs.append(shlex.quote(f"*:what:({words})" if words else "*:file:_files"))
        lines += [f"      _arguments {specs[0]}", *(f"        {s}" for s in specs[1:])] if len(specs) == 1 else [
            "      _arguments \\", *(f"        {s} \\" for s in specs[:-1]), f"        {specs[-1]}"]  # fmt: skip
        lines.append("      ;;")
    return "\n".join([*lines, "  esac", "}", "compdef _disc_tf disc-tf", ""])


def _zsh_text(text: str) -> str:
    for c in "\\[]:'":
        text = text.replace(c, f"\\{c}" if c != "'" else "")
    return text


def fish(found: list[Command]) -> str:
    lines = ["# fish completion for disc-tf: disc-tf completion fish > ~/.config/fish/completions/disc-tf.fish"]
    for c in found:
        verbs = " ".join(found[0].inner)
        outside = f"not __fish_seen_subcommand_from {verbs}"
        at = " ; and ".join(f"__fish_seen_subcommand_from {w}" for w in c.words) if c.words else outside
        if c.words and c.inner:
            at += f" ; and not __fish_seen_subcommand_from {' '.join(c.inner)}"
        for child in found:
            if child.words[:-1] == c.words and child.words:
                lines.append(f"complete -c disc-tf -f -n {shlex.quote(at)} -a {shlex.quote(child.words[-1])} -d {shlex.quote(child.help)}")
        if c.choices:
            lines.append(f"complete -c disc-tf -f -n {shlex.quote(at)} -a {shlex.quote(' '.join(c.choices))}")
        for f in c.flags:
            spelled = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in f.names)
            if f.choices:
                value = f" -x -a {shlex.quote(' '.join(f.choices))}"
            else:
                value = " -r -F" if f.takes_file else " -x" if f.takes_value else ""
            lines.append(f"complete -c disc-tf -n {shlex.quote(at)} {spelled}{value} -d {shlex.quote(f.help)}")
    return "\n".join(lines) + "\n"
