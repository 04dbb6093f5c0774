"""The file that `disc-tf optimize` makes of a graph: complete beside its destination, proved as it is there, then renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disc_tf.commands.common import CommandError, check_output, graph_bytes
from disc_tf.frontend.external import External, externalize, prune, withdraw
from disc_tf.scratch import scratch


class Output:
    """``write`` may be called several times, for one graph after the other; ``publish`` puts the last file in its place."""

    def __init__(self, name: str, target: Path, directory: Path, external: bool) -> None:
        self.name, self.target, self.external = name, target, external
        self.path = directory / target.name
        self._weights: External | None = None
        self._made: dict[str, bool] = {}

    def write(self, graph: Any) -> Path:
        """The file's final content. Weights that go to files of their own are in their final place before: nodes name them by path."""
        try:
            if self.external:
                self._weights = externalize(graph, f"{self.name}.weights", known=self._made)
                graph = self._weights.graph_def
            with open(self.path, "wb") as file:
                file.write(graph_bytes(graph, self.name))
                file.flush()
                os.fsync(file.fileno())
        except OSError as e:
            where = f"{self.name}.weights" if self.external and self._weights is None else self.name
            raise CommandError(f"cannot write {where}: {e.strerror or e}") from e
        return self.path

    def publish(self) -> None:
        """A reader sees the old file or the new one; weights that only the old one used go last."""
        try:
            os.replace(self.path, self.target)
            if self._weights is not None:
                self._made.clear()
                prune(self._weights)
        except OSError as e:
            raise CommandError(f"cannot write {self.name}: {e.strerror or e}") from e

    def close(self) -> None:
        """Remove weights that no published graph uses."""
        if self.external:
            withdraw(f"{self.name}.weights", [name for name, made in self._made.items() if made])


@contextlib.contextmanager
def staged_file(name: str, *, external: bool) -> Iterator[Output]:
    """The output called ``name``, links followed. external: with large weights in ``NAME.weights``. `CommandError`."""
    target = check_output(name)
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(scratch(f".{target.name}.", target.parent))
        except OSError as e:
            raise CommandError(f"cannot write {name}: {e.strerror or e}") from e
        output = Output(name, target, directory, external)
        stack.callback(output.close)
        yield output
