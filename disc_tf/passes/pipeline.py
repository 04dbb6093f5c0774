"""The HLO pipeline: all passes by name, the default order, and `optimize` from one module to its bodies."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Module
from disc_tf.ir.pass_manager import Pass, PassContext, PassManager
from disc_tf.passes.canonicalize import Canonicalize
from disc_tf.passes.constant_folding import ConstantFolding
from disc_tf.passes.conv_rules import ConvToDot
from disc_tf.passes.cse import CSE
from disc_tf.passes.dce import DCE
from disc_tf.passes.dot_rules import DotCanonicalize, DotMerge
from disc_tf.passes.fold_norms import FoldNorms
from disc_tf.passes.loop_facts import LoopFacts
from disc_tf.passes.loops import HoistLoops
from disc_tf.passes.outline_prepare import OutlinePrepare
from disc_tf.passes.shape_simplifier import ShapeSimplifier
from disc_tf.passes.specialize import SpecializedModule, specialize_broadcast
from disc_tf.passes.split import Part, split_segments
from disc_tf.passes.spread_splats import SpreadSplats
from disc_tf.passes.wide_concats import WideConcats

PASSES: dict[str, type[Pass]] = {
    p.name: p
    for p in (
        Canonicalize, ConstantFolding, ConvToDot, CSE, DCE, DotCanonicalize, DotMerge, FoldNorms, HoistLoops, LoopFacts,
        OutlinePrepare, ShapeSimplifier, SpreadSplats, WideConcats,
    )
}  # fmt: skip

#: before the bodies are split: everything that both share, "prepare" included
SHARED: tuple[Pass, ...] = (
    DCE(),
    ShapeSimplifier(),
    ConstantFolding(),
    Canonicalize(),
    ConstantFolding(),
    CSE(),
    ConvToDot(),
    HoistLoops(),
    LoopFacts(),
    DotCanonicalize(),
    FoldNorms(),
    DotMerge(),
    Canonicalize(),
    CSE(),
    DCE(),
    OutlinePrepare(),
)

#: for each body
BODY: tuple[Pass, ...] = (
    ShapeSimplifier(),
    Canonicalize(),
    ConstantFolding(),
    ShapeSimplifier(),
    Canonicalize(),
    CSE(),
    WideConcats(),
    SpreadSplats(),
    DCE(),
)


def optimize(
    module: Module,
    ctx: PassContext | None = None,
    shared: Sequence[Pass] = SHARED,
    body: Sequence[Pass] = BODY,
    **options: object,
) -> SpecializedModule:
    """Run the pipeline on ``module`` (which is consumed). ``options`` go to `PassManager` (``verify_each``, ``dump_dir`` ...)."""
    ctx = ctx or PassContext()
    prefix = str(options.pop("dump_prefix", ""))
    PassManager(tuple(shared), dump_prefix=prefix, **options).run(module, ctx)  # type: ignore[arg-type]
    return _bodies(module, ctx, body, prefix, options)


def _bodies(module: Module, ctx: PassContext, body: Sequence[Pass], prefix: str, options: dict[str, object]) -> SpecializedModule:
    special = specialize_broadcast(module, ctx)
    for name, m in zip(("uniform", "general"), special.modules, strict=False):
        PassManager(tuple(body), dump_prefix=f"{prefix}{name}_", **options).run(m, ctx)  # type: ignore[arg-type]
    return special


def optimize_segments(
    module: Module, ctx: PassContext | None = None, *, dump_prefix: str = "", **options: object
) -> list[tuple[Part, SpecializedModule]]:
    """As `optimize`, for a program that is cut where that lets parts of it start earlier (`split`): each part with its bodies."""
    ctx = ctx or PassContext()
    PassManager(SHARED, dump_prefix=dump_prefix, **options).run(module, ctx)  # type: ignore[arg-type]
    parts = split_segments(module)
    prefixes = [f"{dump_prefix}segment{k}_" if len(parts) > 1 else dump_prefix for k in range(len(parts))]
    return [(part, _bodies(part.module, ctx, BODY, prefix, options)) for part, prefix in zip(parts, prefixes, strict=True)]
