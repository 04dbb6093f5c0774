"""`disc_tf.saved_model_files.Tools` in a process that has imported TensorFlow already: this one need not."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from disc_tf.saved_model_files import Tools
from disc_tf.testing.tf_process import ONEDNN, Child, Hosts, ProcessFailed, TfError


class FilesProcess(Child):
    """A child that is asked of graphs and files."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__({"files": True}, ops=True, env={ONEDNN: "0"}, hosts=hosts)

    def ask(self, what: str, of: Any) -> bytes | None:
        return self._ask("run", (what, of))


@contextlib.contextmanager
def tools_of(hosts: Hosts) -> Iterator[Tools]:
    """Its child is forked when something is first asked; what it cannot answer is asked here."""
    with contextlib.ExitStack() as stack:
        process = functools.cache(lambda: stack.enter_context(FilesProcess(hosts)))

        def there(what: str, of: Any, here: Callable[[], bytes | None]) -> bytes | None:
            try:
                return process().ask(what, of)
            except (ProcessFailed, TfError):
                return here()

        local = Tools()
        yield Tools(
            lambda graph: there("op_list", graph, lambda: local.op_list(graph)),
            lambda path: there("fingerprint", str(Path(path)), lambda: local.fingerprint(path)),
        )
