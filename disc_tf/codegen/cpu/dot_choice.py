"""Which products are summed by words (`dots.py`), and for which a program has code for more instructions than its targets'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from disc_tf.codegen.cpu.dots import BF16_PAIRS, Dot, dot_of
from disc_tf.codegen.cpu.product_frame import extent_of
from disc_tf.codegen.cpu.target import BF16_DOT, VNNI
from disc_tf.codegen.cpu.tiles import acc_dtype
from disc_tf.fusion.conv import is_depthwise
from disc_tf.fusion.types import Fusion, Plan
from disc_tf.fusion.views import merge_axes
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import DType

#: features up to which a convolution sums them one at a time
FEW_FEATURES = 2


def least_rows(dot: Dot) -> int:
    """Rows from which on it pays to cut a right operand that is not prepared into words, for one product alone: at 8 rows bf16 gains 20 %
    or loses 15, by N and K; words of bytes gain from 4 on."""
    return 12 if dot is BF16_PAIRS else 4


def is_prepared(fusion: Fusion) -> bool:
    """Whether the right operand of a gemm is packed before any run."""
    return fusion.attrs.get("pack") == "rhs" and not fusion.attrs["axes"][0]


def product_dot(fusion: Fusion, features: frozenset[str], env: ShapeEnv) -> Dot | None:
    """How a gemm is summed by words where the CPU has ``features``. None where it is not: by its types, or since the right operand is no
    matrix, or is cut into words for this product alone, which few rows do not repay."""
    dot = fusion.attrs["dot"]
    lhs, rhs = (x.dtype for x in dot.operands)
    if dot.result.dtype.is_bool or lhs.bits > 16:
        return None
    found = dot_of(features, lhs, rhs, acc_dtype(dot.result.dtype))
    nb, nm, _, nk = fusion.attrs["axes"]
    axes, rows = fusion.attrs["rhs"].axes, extent_of(fusion.attrs["lhs"].axes[nb : nb + nm])
    if found is None or any(len(merge_axes(part, env)) > 1 for part in (axes[nb : nb + nk], axes[nb + nk :])):
        return None
    return None if not is_prepared(fusion) and rows.is_static and int(rows) < least_rows(found) else found


def conv_dot(fusion: Fusion, features: frozenset[str], env: ShapeEnv) -> Dot | None:
    """How a convolution is summed by words where the CPU has ``features``: pairs of bf16, of constant weights, where channels are pairs
    wherever pixels lie (TensorFlow has no convolution of bytes); None where it is not."""
    op = fusion.attrs["conv"]
    x, w = op.operands
    if x.dtype is not DType.BF16 or dot_of(features, x.dtype, w.dtype, acc_dtype(op.result.dtype)) is not BF16_PAIRS:
        return None
    if fusion.attrs.get("pack") != "rhs" or "before" in fusion.attrs or is_depthwise(op):
        return None
    groups, channels, columns = op.attrs["feature_group_count"], w.dims[-2], w.dims[-1]
    if groups > 1 or (columns.is_static and int(columns) <= FEW_FEATURES) or len(merge_axes(fusion.attrs["rhs"].axes[:-1], env)) > 1:
        return None
    pitches = [axis.stride for axis in fusion.attrs["lhs"].axes[1:-1]]
    return BF16_PAIRS if all(env.divides(BF16_PAIRS.group, d) is True for d in (channels, *pitches)) else None


def attention_dot(fusion: Fusion, features: frozenset[str], _env: ShapeEnv) -> Dot | None:
    """How both products of an attention are summed by words where the CPU has ``features``: pairs of bf16; None where they are not."""
    qk, pv, probs = fusion.attrs["qk"], fusion.attrs["pv"], fusion.attrs["probs"]
    if any(v.dtype is not DType.BF16 for v in (*qk.operands, *pv.operands, probs)):
        return None
    found = {dot_of(features, DType.BF16, DType.BF16, acc_dtype(op.result.dtype)) for op in (qk, pv)}
    return BF16_PAIRS if found == {BF16_PAIRS} else None


def wanted_features(plans: Iterable[Plan]) -> frozenset[str]:
    """The CPU features for which products in the plans have code of their own."""
    every = frozenset({VNNI, BF16_DOT})
    chosen = {"gemm": product_dot, "conv": conv_dot, "attention": attention_dot}
    found = (chosen[f.kind](f, every, plan.function.env) for plan in _with_regions(plans) for f in plan.fusions if f.kind in chosen)
    return frozenset(dot.needs for dot in found if dot is not None and dot.needs)


def _with_regions(plans: Iterable[Plan]) -> Iterator[Plan]:
    """The plans, and those of loops and branches in them."""
    work = list(plans)
    while work:
        plan = work.pop()
        yield plan
        work += [inner for f in plan.fusions for _, inner in f.attrs.get("regions", ())]
