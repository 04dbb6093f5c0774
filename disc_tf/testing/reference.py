"""`docs/reference.md`, made from the code: commands, flags, options, reasons.

    python -m disc_tf.testing.reference        # writes it
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"

_HEAD = """# Reference

Made from the code by `python -m disc_tf.testing.reference`. [The command](cli.md) explains how the verbs work together.
"""


def reference() -> str:
    """The page."""
    return "\n".join([_HEAD, *_commands(), *_options(), *_reasons()]) + "\n"


def _commands() -> Iterator[str]:
    from disc_tf.cli import build_parser

    for words, parser in _walk(build_parser(), ()):
        if not words:
            continue
        yield f"## disc-tf {' '.join(words)}\n"
        yield f"{parser.description or ''}\n"
        rows = [_row(a) for a in parser._actions if a.help != argparse.SUPPRESS and "--help" not in a.option_strings]
        rows = [r for r in rows if r]
        if rows:
            yield "| flag | |\n| --- | --- |"
            yield from rows
            yield ""
        if parser.epilog and parser.epilog.startswith("examples:"):
            yield "```\n" + "\n".join(line.strip() for line in parser.epilog.splitlines()[1:]) + "\n```\n"


def _walk(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from _walk(child, (*words, name))


def _row(action: argparse.Action) -> str:
    if isinstance(action, argparse._SubParsersAction):
        return ""
    value = ""
    if action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction):
        value = f" {action.metavar or (action.dest.upper() if action.option_strings else '')}".rstrip()
        if action.choices:
            value = f" {'|'.join(map(str, action.choices))}"
    names = ", ".join(action.option_strings) if action.option_strings else action.dest
    text = (action.help or "").replace("%%", "%")
    if "%(default)" in text:
        text = text.replace("%(default)s", str(action.default)).replace("%(default)d", str(action.default))
    return f"| `{_cell(names + value)}` | {_cell(text)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _options() -> Iterator[str]:
    from disc_tf.options import Options

    yield "## Options\n"
    yield "Of the Python API (`optimize_graph_def(graph_def, **options)`), of configuration files, and as flags.\n"
    yield "| option | flag | default | |\n| --- | --- | --- | --- |"
    for f in dataclasses.fields(Options):
        default = list(f.default) if isinstance(f.default, tuple) else f.default
        yield f"| `{f.name}` | `{f.metadata['flag'] or '(none)'}` | `{default!r}` | {_cell(f.metadata['doc'])} |"
    yield ""


def _reasons() -> Iterator[str]:
    from disc_tf.frontend.errors import REASON_ADVICE, REASON_TEXT

    yield "## Reasons\n"
    yield "Why a node stays in TensorFlow: the codes of reports.\n"
    yield "| code | meaning | way out |\n| --- | --- | --- |"
    for code, meaning in REASON_TEXT.items():
        yield f"| `{code}` | {_cell(meaning)} | {_cell(REASON_ADVICE[code])} |"
    yield "| `COMPILE` | compiling its cluster failed, for the reason given | please report it; `--dump-dir` writes what to send |"


def main() -> None:
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
