"""The least time that a machine needs for a run of a model: its kernels' operations and bytes, as the compiler counts them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bench.engines import Compiled
from disc_tf.costs import Machine
from disc_tf.insight.profile import evaluate, shape_dims


def least_seconds(compiled: Compiled, feeds: Mapping[str, np.ndarray], flops: float, machine: Machine) -> float:
    """The sum over the launches of the least time of each (`Machine.least_us`), but not less than ``flops``, those of the whole model's
    products, at the peak: kernels in loops run more often than they are counted."""
    names = [a.name.removesuffix(":0") for a in compiled.args]
    symbols = shape_dims(
        [np.shape(feeds[n]) if n in feeds else tuple(d or 0 for d in a.dims) for n, a in zip(names, compiled.args, strict=True)]
    )
    total = 0.0
    for cluster in compiled.report["clusters"]:
        for kernel in cluster["kernels"] if cluster["status"] == "compiled" else ():
            work = evaluate([kernel["flops"]] if kernel["flops"] else [], symbols)
            traffic = evaluate(kernel["traffic"], symbols)
            total += machine.least_us(work or 0.0, traffic or 0.0)[0] / 1e6
    return max(total, flops / machine.gflops / 1e9)
