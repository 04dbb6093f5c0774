"""Messages of run-time checks have numbers and ``?``, never the compiler's own names of dims."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.lower import lower_nodes
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from tests.lowering.test_context import scratch

LOWERING = Path(__file__).parents[2] / "disc_tf" / "lowering"
A, B = Dim.of("a0d0"), Dim.of("a1d0")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Dim.of(7), "7"),
        (A * 2 + 1, "?"),
        ((A, Dim.of(12)), "[?,12]"),
        ([], "[]"),
        (TensorType.of(DType.F32, (A, Dim.of(0))), "[?,0]"),
        (5, "5"),
        ("name", "name"),
    ],
)
def test_plain(value: object, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("AddV2", [(A, 12), (B, 12)], {}, "Incompatible shapes: [?,12] vs. [?,12]"),
        ("MatMul", [(2, A), (B, 4)], {}, "Matrix size-incompatible: In[0]: [2,?], In[1]: [?,4]"),
        ("BatchMatMulV2", [(A, 2, 3), (B, 3, 4)], {}, "In[0] and In[1] must have compatible batch dimensions: [?,2,3] vs. [?,3,4]"),
        ("Pack", [(A,), (B,)], {"axis": 0}, "Shapes of all inputs must match: values[0].shape = [?], [1] [?]"),
        ("Unpack", [(A, 2)], {"num": 3, "axis": 0}, "Input shape axis 0 must equal 3, got shape [?,2]"),
    ],
)
def test_messages_of_checks(op: str, shapes: list[tuple], attrs: dict, message: str) -> None:
    fn, ctx, args = scratch(*shapes)
    names = [f"x{i}" for i in range(len(args))]
    lower_nodes(ctx, [NodeView("n", op, names, {"T": 1, "N": len(args), **attrs})], {(n, 0): v for n, v in zip(names, args, strict=True)})
    assert [o.attrs["message"] for o in fn.body.ops if "message" in o.attrs] == [message]


def raw(tree: ast.Module) -> Iterator[str]:
    """Types and dims that messages of checks have as the compiler spells them."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name.startswith(("check", "require", "bcast", "broadcast_dims")):
            for text in [*node.args, *(k.value for k in node.keywords)]:
                for part in text.values if isinstance(text, ast.JoinedStr) else ():
                    spelled = ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ""
                    if not spelled.startswith(("plain(", "' vs. '.join(map(plain")) and (spelled.endswith(".type") or ".dims" in spelled):
                        yield spelled


@pytest.mark.parametrize("file", sorted(LOWERING.glob("*.py")), ids=lambda p: p.stem)
def test_no_rule_spells_dims_itself(file: Path) -> None:
    assert not list(raw(ast.parse(file.read_text())))


def test_the_scan_finds_what_it_looks_for() -> None:
    assert list(raw(ast.parse('ctx.check_dims_eq(a, b, message=f"{x.type} {y.dims[0]} {plain(z)} {n}")'))) == ["x.type", "y.dims[0]"]
