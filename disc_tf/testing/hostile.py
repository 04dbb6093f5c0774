"""Broken, odd and huge GraphDefs, for the public API and the command: what they must survive.

`CASES` maps a name to a function that builds the bytes of a GraphDef. The answer to each may be an error that says what is wrong
(`GraphError`, `OptionError`) or a graph that TensorFlow would still take; never a crash, a hang or another exception. `python -m
disc_tf.testing.hostile NAME...` optimises the named cases in this process and prints one line for each.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from disc_tf.frontend.tensor_proto import fill_tensor
from disc_tf.frontend.tfproto import graph_from_bytes, message_class, serialized
from disc_tf.ir.types import DType

F32, I32 = 1, 3
Case = Callable[[], bytes]
CASES: dict[str, Case] = {}


class Maker:
    """Builds a GraphDef with few words: ``attrs`` are (kind, value) pairs of AttrValue fields, or arrays."""

    def __init__(self) -> None:
        self.graph = message_class("GraphDef")()
        self.graph.versions.producer = 2000

    def node(self, name: str, op: str, inputs: Sequence[str] = (), **attrs: Any) -> str:
        n = self.graph.node.add(name=name, op=op)
        n.input.extend(inputs)
        set_attrs(n.attr, attrs)
        return name

    def input(self, name: str = "x", dims: Sequence[int] = (-1, 8)) -> str:
        self.node(name, "Placeholder", dtype=("type", F32))
        shape = self.graph.node[-1].attr["shape"].shape
        shape.SetInParent()
        for d in dims:
            shape.dim.add().size = d
        return name

    def const(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        array = np.asarray(value, dtype)
        return self.node(name, "Const", dtype=("type", DType.from_np(array.dtype).tf_enum), value=array)

    def unary(self, name: str, x: str, op: str = "Tanh", *controls: str) -> str:
        return self.node(name, op, [x, *(f"^{c}" for c in controls)], T=("type", F32))

    def binary(self, name: str, x: str, y: str, op: str = "AddV2") -> str:
        return self.node(name, op, [x, y], T=("type", F32))

    def chain(self, x: str, n: int, prefix: str = "c") -> str:
        for i in range(n):
            x = self.unary(f"{prefix}{i}", x, ("Tanh", "Exp", "Neg", "Sigmoid")[i % 4])
        return x

    def bytes(self) -> bytes:
        return serialized(self.graph)


def set_attrs(target: Any, attrs: dict[str, Any]) -> None:
    for key, value in attrs.items():
        if isinstance(value, np.ndarray):
            fill_tensor(target[key].tensor, value)
        elif value[0] == "types":
            target[key].list.SetInParent()
            target[key].list.type.extend(value[1])
        elif value[0] == "func":
            target[key].func.name = value[1]
        else:
            setattr(target[key], value[0], value[1])


def base() -> Maker:
    """A small good graph: a product, a chain, a reshape and a reduction."""
    m = Maker()
    m.input()
    m.const("w", np.ones((8, 40)))
    m.node("m", "MatMul", ["x", "w"], T=("type", F32), transpose_a=("b", False), transpose_b=("b", False))
    m.chain("m", 5)
    m.node("r", "Reshape", ["c4", m.const("s", [-1, 4], np.int32)], T=("type", F32), Tshape=("type", I32))
    m.node("q", "Sum", ["r", m.const("a", [1], np.int32)], T=("type", F32), Tidx=("type", I32), keep_dims=("b", True))
    return m


def case(fn: Callable[[], Maker | bytes]) -> Callable[[], Maker | bytes]:
    """Register a function as a case of its name."""

    def run() -> bytes:
        made = fn()
        return made if isinstance(made, bytes) else made.bytes()

    CASES[fn.__name__] = run
    return fn


def _changed(name: str, change: Callable[[Maker], Any]) -> None:
    def run() -> bytes:
        m = base()
        change(m)
        return m.bytes()

    CASES[name] = run


# ---- bytes --------------------------------------------------------------------------------------------------------------


def _cut(share: int) -> Case:
    return lambda: (data := base().bytes())[: len(data) * share // 100]


def _flipped(seed: int) -> Case:
    def run() -> bytes:
        rng = random.Random(seed)
        data = bytearray(base().bytes())
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)

    return run


def _shuffled(seed: int) -> Case:
    """Random edits of names, inputs, types and attributes."""

    def run() -> bytes:
        rng = random.Random(seed)
        graph = base().graph
        nodes = list(graph.node)
        for _ in range(rng.randrange(1, 5)):
            a, b = rng.choice(nodes), rng.choice(nodes)
            kind = rng.randrange(7)
            if kind == 0:
                a.op = b.op
            elif kind == 1 and a.input:
                a.input[rng.randrange(len(a.input))] = b.name + rng.choice(["", ":0", ":1", ":9"])
            elif kind == 2:
                a.input.append(rng.choice(["^" + b.name, b.name]))
            elif kind == 3 and a.attr and b.attr:
                a.attr[rng.choice(sorted(a.attr))].CopyFrom(b.attr[rng.choice(sorted(b.attr))])
            elif kind == 4:
                for key in a.attr:
                    if a.attr[key].WhichOneof("value") == "type":
                        a.attr[key].type = rng.choice([0, 1, 2, 3, 7, 9, 14, 19, 20, 101, 99999])
            elif kind == 5 and a.attr:
                a.attr.pop(rng.choice(sorted(a.attr)))
            else:
                a.name = b.name if rng.random() < 0.3 else a.name + "_"
        return serialized(graph)

    return run


CASES.update({f"cut_{share}": _cut(share) for share in range(0, 100, 7)})
CASES.update({f"flipped_{seed}": _flipped(seed) for seed in range(60)})
CASES.update({f"shuffled_{seed}": _shuffled(seed) for seed in range(60)})


# ---- structure ----------------------------------------------------------------------------------------------------------

_changed("two_nodes_of_a_name", lambda m: m.unary("c1", "x"))
_changed("input_of_itself", lambda m: m.unary("z", "z"))
_changed("control_cycle", lambda m: (m.unary("y", "x", "Tanh", "z"), m.unary("z", "x", "Tanh", "y")))
_changed("data_cycle", lambda m: (m.unary("y", "z"), m.unary("z", "y")))
_changed("dangling_input", lambda m: m.unary("z", "nowhere"))
_changed("too_many_inputs", lambda m: m.graph.node[-1].input.append("x"))
_changed("too_few_inputs", lambda m: m.graph.node[-1].input.pop())
_changed("unknown_op", lambda m: m.node("z", "NoSuchOp", ["q", "x"], T=("type", F32)))
_changed("wrong_dtype", lambda m: m.node("z", "Tanh", ["q"], T=("type", I32)))
_changed("huge_dims", lambda m: m.binary("z", m.input("h", (1 << 62, 1 << 62)), "q"))
_changed("overflowing_shape", lambda m: m.node(
    "z", "BroadcastTo", ["q", m.const("d", [1 << 62, 1 << 62], np.int64)], T=("type", F32), Tidx=("type", 9)))  # fmt: skip
_changed("negative_dims", lambda m: m.binary("z", m.input("h", (-5, -7)), "q"))
_changed("rank_200", lambda m: m.unary("z", m.input("h", (-1,) * 200)))
_changed("missing_function", lambda m: m.node(
    "z", "PartitionedCall", ["q"], f=("func", "gone"), Tin=("types", [F32]), Tout=("types", [F32])))  # fmt: skip


def _call(m: Maker, name: str, body: str, again: int = 1) -> None:
    f = m.graph.library.function.add()
    f.signature.name = name
    f.signature.input_arg.add(name="a", type=F32)
    f.signature.output_arg.add(name="o", type=F32)
    last = "a"
    for i in range(again):
        n = f.node_def.add(name=f"n{i}", op="PartitionedCall")
        n.input.append(last)
        set_attrs(n.attr, {"f": ("func", body), "Tin": ("types", [F32]), "Tout": ("types", [F32])})
        last = f"n{i}:output:0"
    f.ret["o"] = last


def _use(m: Maker, name: str) -> Maker:
    m.node("call", "PartitionedCall", ["q"], f=("func", name), Tin=("types", [F32]), Tout=("types", [F32]))
    m.chain("call", 4, "after")
    return m


@case
def recursive_function() -> Maker:
    m = base()
    _call(m, "f", "f")
    return _use(m, "f")


@case
def mutual_recursion() -> Maker:
    m = base()
    _call(m, "f", "g")
    _call(m, "g", "f")
    return _use(m, "f")


@case
def exponential_functions() -> Maker:
    m = base()
    for i in range(40):
        _call(m, f"f{i}", f"f{i + 1}", again=2)
    _call(m, "f40", "gone")
    return _use(m, "f0")


@case
def deep_functions() -> Maker:
    m = base()
    for i in range(1000):
        _call(m, f"f{i}", f"f{i + 1}")
    return _use(m, "f0")


@case
def ill_typed_attributes() -> Maker:
    m = base()
    for n in m.graph.node:
        for key in n.attr:
            n.attr[key].s = b"\xff\xfe"
    return m


@case
def splat_of_a_terabyte() -> Maker:
    m = base()
    m.const("big", 1.0)
    shape = m.graph.node[-1].attr["value"].tensor.tensor_shape
    for d in (1 << 20, 1 << 20):
        shape.dim.add().size = d
    m.node("spread", "Mul", ["q", "big"], T=("type", F32))
    m.node("total", "Sum", ["big", m.const("all", [0, 1], np.int32)], T=("type", F32), Tidx=("type", I32), keep_dims=("b", False))
    m.unary("out", "big")
    return m


@case
def fill_of_a_terabyte() -> Maker:
    m = base()
    m.node("big", "Fill", [m.const("d", [1 << 20, 1 << 20], np.int32), m.const("v", 1.0)], T=("type", F32), index_type=("type", I32))
    m.binary("z", "big", m.input("y", (1 << 20, 1 << 20)))
    return m


@case
def range_of_two_billion() -> Maker:
    m = base()
    m.node("z", "Range", [m.const(f"r{i}", v, np.int32) for i, v in enumerate((0, 2**31 - 1, 1))], Tidx=("type", I32))
    m.node("sum", "Sum", ["z", m.const("all", [0], np.int32)], T=("type", I32), Tidx=("type", I32), keep_dims=("b", False))
    return m


@case
def thousand_way_concat() -> Maker:
    m = base()
    parts = [m.unary(f"p{i}", "q") for i in range(1000)]
    m.node("z", "ConcatV2", [*parts, m.const("axis", 0, np.int32)], N=("i", 1000), T=("type", F32), Tidx=("type", I32))
    return m


@case
def many_unrelated_broadcasts() -> Maker:
    m = base()
    last = "q"
    for i in range(60):
        last = m.binary(f"d{i}", last, m.input(f"p{i}", (-1, -1)))
    return m


@case
def nested_splits() -> Maker:
    m = base()
    last = "q"
    for i in range(40):
        m.node(f"s{i}", "Split", [m.const(f"ax{i}", 0, np.int32), last], T=("type", F32), num_split=("i", 2))
        last = m.binary(f"j{i}", f"s{i}", f"s{i}:1")
    return m


@case
def strange_names() -> Maker:
    m = base()
    for i, name in enumerate(("\u2603", "a b", "'\"\\", "%s%n", "x" * 5000, "define void @f()", "../../etc", "-", "a//b")):
        m.unary(name, "q" if i == 0 else "x")
    m.graph.node[-1].device = "/device:\u2603:0"
    return m


@case
def own_op_with_garbage() -> Maker:
    m = base()
    m.node("l", "DiscLaunch", ["q"], executable=("s", b"\x00" * 100), abi=("i", -5), Tconst=("types", []), Thost=("types", []))
    m.chain("q", 6, "more")
    return m


@case
def own_op_twice() -> bytes:
    """A graph that was optimised before."""
    from disc_tf.optimizer import optimize_graph_def

    return serialized(optimize_graph_def(base().graph, targets=("x86-64-v2",)).graph_def)


@case
def hundred_thousand_nodes() -> Maker:
    m = Maker()
    last = m.input()
    for i in range(50_000):
        m.const(f"k{i}", 1.0 + i)
        last = m.binary(f"n{i}", last, f"k{i}")
    return m


# ---- running ------------------------------------------------------------------------------------------------------------


def optimise(data: bytes, *, dry_run: bool = False) -> str:
    """What the public API says of the bytes: "error: ..." for a clear error, else how much was compiled. Anything else is raised."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.graph import Graph
    from disc_tf.frontend.rewrite import restore
    from disc_tf.optimizer import optimize_graph_def

    try:
        graph = graph_from_bytes(data)
        before = serialized(graph)
        result = optimize_graph_def(graph, targets=("x86-64-v2",), min_cluster_size=1, use_tf_shapes=False, dry_run=dry_run)
    except GraphError as e:
        assert str(e).strip()
        return f"error: {e}"
    assert serialized(graph) == before, "the graph that was given has changed"
    Graph(result.graph_def)
    if result.report.compiled_clusters and not dry_run:
        assert serialized(restore(result.graph_def)) == before
    unclear = [c.reason for c in result.report.clusters if c.status == "failed" and not c.reason]
    assert not unclear
    defects = [d.text for c in result.report.clusters for d in c.defects]
    assert not defects, defects
    failed = [c.reason for c in result.report.clusters if c.status == "failed"]
    return f"{len(result.report.compiled_clusters)} compiled, {len(failed)} failed {failed[:1]}"


def main(names: Sequence[str]) -> int:
    code = 0
    for name in names:
        start = time.perf_counter()
        print(f"{name}: ", end="", flush=True)
        try:
            said = optimise(CASES[name](), dry_run=name == "hundred_thousand_nodes")
        except Exception as e:
            said, code = f"FAULT {type(e).__name__}: {e}", 1
        print(f"{said[:300]!r} ({time.perf_counter() - start:.1f} s)", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(CASES)))
