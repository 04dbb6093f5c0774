"""The differential check of a stand-alone file: its answers in a fresh process against TensorFlow's for what it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from disc_tf.report import ShapeResult
from disc_tf.testing.differential import Check, generated
from disc_tf.testing.inputs import InputSpec
from disc_tf.testing.originals import Answers
from disc_tf.testing.tf_process import Child


class FileProcess(Child):
    """A stand-alone file in a process of its own. ``info`` has its ``inputs`` and ``outputs``."""

    def __init__(self, path: str | Path, *, threads: int = 0) -> None:
        super().__init__({"path": str(path)}, threads=threads, module="disc_tf.testing.disc_worker")

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs in the file's order. Raises `TfError` with the code, which is TensorFlow's for the same error."""
        return self._ask("run", dict(feeds))


class FileSide:
    """A file as a side of a check. ``inputs``: the names of the feeds; those that the file does not have are left out."""

    def __init__(self, process: FileProcess, inputs: Sequence[str]) -> None:
        self.process, self.inputs = process, list(inputs)

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = dict(zip(self.inputs, feeds, strict=True))
        return self.process.run({name: given[name] for name in self.process.info["inputs"]})


def verify_file(
    reference: Answers,
    process: FileProcess,
    specs: Sequence[InputSpec],
    outputs: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    *,
    names: Mapping[str, str] | None = None,
    random: bool = False,
    progress: Callable[[ShapeResult], None] | None = None,
) -> list[ShapeResult]:
    """Run both at every assignment of ``sizes``, and on inputs that broadcast against each other, and compare; where TensorFlow raises, the
    file must raise the same code. ``outputs``: the reference's, in the order of the file's; ``names``: input -> what the file calls it."""
    nodes = [s.name for s in specs]
    check = Check(nodes, outputs, reference, FileSide(process, [(names or {}).get(n, n) for n in nodes]), random=random)
    return check.all(generated(specs, sizes, broadcast=True), progress)
