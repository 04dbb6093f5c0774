"""The command's argument parser: errors in the command's own form, with a suggestion for what is misspelled."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from disc_tf.commands.common import USAGE
from disc_tf.spelling import close_to, did_you_mean


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` whose errors are a line ``disc-tf: ...`` and one that names the help; subparsers are such, too."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"disc-tf: {message}\nsee {self.prog} --help\n")

    def inner(self) -> dict[str, Parser]:
        """The parsers of what comes next on the command line, by name."""
        return next((a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)), {})

    def refuse_unknown(self, unknown: Sequence[str], chosen: Sequence[str]) -> NoReturn:
        """Ends the command for arguments that were left over. ``chosen``: the verb, and its action if it has any."""
        parser = self
        for name in chosen:
            parser = parser.inner()[name]
        flags = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
        hints = [close for text in unknown if text.startswith("--") for close in close_to(text.partition("=")[0], flags)]
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(hints)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            names = list(action.choices)
            way_out = did_you_mean(close_to(value, names)) or f"; there are {', '.join(names)}"
            raise argparse.ArgumentError(None, f"there is no {str(action.metavar or 'verb').lower()} {value!r}{way_out}")
        super()._check_value(action, value)
