"""Models whose parts can start or end early: towers, chains of inputs, early exits, checks on both sides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.runtime import Runner, load
from disc_tf.standalone import compile_graph_def
from tests.frontend.graphs import I32, G

QUICK: dict[str, Any] = {"targets": "native", "use_tf_shapes": False}


class Model(G):
    """Layers of width 32 with weights from one generator."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.layers = 0

    def layer(self, x: str, n: int = 3, width: int = 32) -> str:
        for _ in range(n):
            self.layers += 1
            name = f"l{self.layers}"
            self.const(f"{name}_w", self.rng.standard_normal((width, width)) / np.sqrt(width))
            x = self.unary(name, self.matmul(f"{name}_m", x, f"{name}_w"))
        return x


def towers(m: Model) -> list[str]:
    """Two towers, a result of the first, and the joined one; rows may broadcast where they join."""
    for name in "ab":
        m.placeholder(name, [None, 32])
    a, b = m.layer("a"), m.layer("b")
    m.unary("early", a, "Neg")
    m.unary("joined", m.layer(m.binary("sum", a, b), 1), "Identity")
    return ["joined", "early"]


def chain(m: Model) -> list[str]:
    """Each input adds to what came before; a result for each prefix."""
    for name in "abc":
        m.placeholder(name, [None, 32])
    first = m.layer("a")
    second = m.layer(m.binary("ab", first, "b"))
    third = m.layer(m.binary("abc", second, "c"))
    return [third, first, second]


def early_exit(m: Model) -> list[str]:
    """One input; a result after a tenth of the work."""
    m.placeholder("a", [None, 32])
    x = m.layer("a", 1)
    m.unary("exit", x, "Neg")
    m.unary("final", m.layer(x, 9), "Identity")
    return ["final", "exit"]


def checked(m: Model) -> list[str]:
    """Rows picked by each input: either may be out of range."""
    m.const("axis", 0, np.int32)
    picked = {}
    for name, rows in (("a", 10), ("b", 20)):
        m.placeholder(name, [None], I32)
        m.const(f"{name}_table", m.rng.standard_normal((rows, 32)))
        types = {"Tparams": ("type", 1), "Tindices": ("type", I32), "Taxis": ("type", I32)}
        m.node(f"{name}_pick", "GatherV2", [f"{name}_table", name, "axis"], batch_dims=0, **types)
        picked[name] = m.layer(f"{name}_pick")
    m.binary("sum", picked["a"], picked["b"])
    return [m.layer("sum", 1), picked["a"]]


def build(make: Callable[[Model], list[str]], path: Path, **options: Any) -> Runner:
    m = Model()
    compile_graph_def(m.proto, make(m), path, **{**QUICK, **options})
    return load(path)
