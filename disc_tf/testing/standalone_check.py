"""The differential check of a stand-alone file: the runner's answers against TensorFlow's for the graph that it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from disc_tf.report import ShapeResult
from disc_tf.runtime.executable import DiscError
from disc_tf.runtime.runner import Runner
from disc_tf.testing.differential import Check, generated
from disc_tf.testing.inputs import InputSpec
from disc_tf.testing.tf_process import TfError, TfProcess


class RunnerSide:
    """A runner as a side of a check, in this process. ``inputs``: the names of the feeds."""

    def __init__(self, runner: Runner, inputs: Sequence[str]) -> None:
        self.runner, self.inputs = runner, list(inputs)

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = dict(zip(self.inputs, feeds, strict=True))
        try:
            return list(self.runner.run({name: given[name] for name in self.runner.inputs}).values())
        except DiscError as e:
            raise TfError(e.code, str(e)) from e


def verify_runner(
    original: str | Path,
    runner: Runner,
    specs: Sequence[InputSpec],
    outputs: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    *,
    names: Mapping[str, str] | None = None,
    threads: int = 0,
    broadcast: bool = True,
    progress: Callable[[ShapeResult], None] | None = None,
) -> list[ShapeResult]:
    """Run graph and runner at every assignment of ``sizes`` (``broadcast``: and on inputs that broadcast against each other) and compare;
    where TensorFlow raises, the runner must raise the same code. ``outputs``: the graph's tensors in the order of the runner's outputs;
    ``names``: placeholder -> what the runner calls it."""
    nodes = [s.name for s in specs]
    with TfProcess(original, [f"{name}:0" for name in nodes], outputs, reference=True, threads=threads) as reference:
        candidate = RunnerSide(runner, [(names or {}).get(n, n) for n in nodes])
        return Check(nodes, outputs, reference, candidate).all(generated(specs, sizes, broadcast=broadcast), progress)
