"""A child process that runs one stand-alone file, without TensorFlow, and answers as `tf_worker` does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from disc_tf.testing.tf_worker import Runner, current_rss, main


class FileRunner(Runner):
    """Feeds are by name; results come in the order of the file's outputs."""

    def __init__(self, config: dict[str, Any]) -> None:
        from disc_tf.runtime.executable import DiscError
        from disc_tf.runtime.runner import load

        self.import_rss = current_rss()
        self.errors = (DiscError,)
        self.runner = load(config["path"])
        self.described = {"inputs": list(self.runner.inputs), "outputs": list(self.runner.outputs)}

    def prepare(self, argument: Any) -> Callable[[], Any]:
        return functools.partial(self.runner.run, argument)

    def results(self, found: Any) -> Any:
        return list(found.values())

    def status(self, error: Any) -> tuple[int, str]:
        return error.code, str(error)[:2000]


if __name__ == "__main__":
    main(FileRunner)
