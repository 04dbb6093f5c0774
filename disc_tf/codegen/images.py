"""Which code an artefact has: for every target, and for extensions of it that the program's products profit from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disc_tf.codegen.cpu.dot_choice import wanted_features
from disc_tf.codegen.cpu.target import CpuTarget, extended, target_named
from disc_tf.fusion.types import Plan
from disc_tf.runtime.artifact import PreparedSpec
from disc_tf.tuning import Table

#: code, host program and tables of one executable, all targets together (design: weights are never inside)
MAX_ARTIFACT_BYTES = 4 << 20


def targets_of(plans: Iterable[Plan], names: Sequence[str], tuning: Sequence[Table] = ()) -> list[CpuTarget]:
    """What a program of these plans is compiled for: the targets by name, each with the extensions that its products profit from."""
    wanted = wanted_features(plans)
    found = [target_named(name, tuning) for name in names]
    return [t for base in found for t in (base, *extended(base, wanted))]


def within_bounds(made: Sequence[tuple[CpuTarget, Sequence[PreparedSpec], int]]) -> list[int]:
    """Which of the (target, prepared constants, bytes of code) an artefact gets: without the code for extensions where all would be too
    large, or where that prepares other constants than the targets' own (of one weight that only some of its products read in words)."""
    plain = [i for i, (target, _, _) in enumerate(made) if not target.extension]
    wanted = [s.args for s in made[plain[0]][1]]
    same = [i for i, (target, specs, _) in enumerate(made) if not target.extension or [s.args for s in specs] == wanted]
    return same if sum(made[i][2] for i in same) <= MAX_ARTIFACT_BYTES else plain
