"""The fuzzer meets every op that is compiled, or it is named here with the reason."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from disc_tf.testing import fuzz_generator
from disc_tf.testing.fuzz_program import STRUCTURED, build_graph

#: ops that random programs cannot hold
LEFT_OUT = {
    "HostConst": "made by grappler only",
    "NoOp": "has no result",
    "OptimizationBarrier": "made by other compilers only",
    "ResourceGather": "reads a variable",
    "Assert": "has no result",
    "PartitionedCall": "inlined when a graph is loaded",
    "StatefulPartitionedCall": "inlined when a graph is loaded",
    **dict.fromkeys(("BatchMatrixDiag", "BatchMatrixDiagPart", "BatchMatrixSetDiag"), "has no kernel any more"),
    "DeepCopy": "no raw op gives it to a graph", "TensorListConcat": "an older TensorListConcatV2",
    **dict.fromkeys(("TensorListConcatV2", "TensorListElementShape", "TensorListScatter", "TensorListSplit"), "tests/lowering has them"),
    **dict.fromkeys((
        "CheckNumericsV2", "InTopK", "MaxPoolGradGradV2", "NonMaxSuppression", "NonMaxSuppressionWithOverlaps", "RaggedBincount",
        "StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg", "StatelessTruncatedNormal", "UniqueWithCountsV2",
    ), "another form of an op that is met; tests/lowering has it"),
    "BlockLSTM": "BlockLSTMV2 with another order of gates", "BiasAddV1": "BiasAdd without a layout",
    "RandomGammaGrad": "its operand is a random number",
    "If": "StatelessIf with another name", "While": "StatelessWhile with another name", "Case": "StatelessCase with another name",
}  # fmt: skip


class Curious(fuzz_generator.Generator):
    """Prefers ops that were not met yet."""

    unmet: ClassVar[set[str]] = set()

    def choice(self, items: Sequence[Any]) -> Any:
        new = [i for i in items if isinstance(i, str) and i in self.unmet]
        return super().choice(new or items)


@pytest.mark.slow
def test_every_op_is_met() -> None:
    from disc_tf.lowering import all_rules
    from disc_tf.lowering.registry import RULES

    all_rules()
    fuzz_generator.load_generators()
    wanted = {op for op in RULES if not op.startswith("_") and op not in LEFT_OUT}
    met: Counter[str] = Counter()
    #: generator -> seeds since it made something new; one that has nothing more to give, and names nothing that is wanted, is called rarely
    idle: Counter[Any] = Counter()
    named = {generate: set(re.findall(r'"(\w+)"', inspect.getsource(generate))) for generate in fuzz_generator.GENERATORS}
    for seed in range(800):
        Curious.unmet = wanted - set(met)
        g = Curious(seed, 1)
        for generate in dict.fromkeys(fuzz_generator.GENERATORS):
            if idle[generate] > 12 and seed % 4 and Curious.unmet.isdisjoint(named[generate]):
                continue
            first = len(g.program.steps)
            generate(g)
            made = [s.op for s in g.program.steps[first:]]
            idle[generate] = 0 if Curious.unmet.intersection(made) else idle[generate] + 1
            met.update(made)
        met.update(s.op for s in g.program.steps)
        if seed % 8 == 0:  # control flow and lists are ops of the graph only
            g.program.outputs = [ref for ref in g.refs() if g.program.steps[ref[0]].op in STRUCTURED]
            graph = build_graph(g.program)
            met.update(n.op for n in graph.node)
            met.update(n.op for f in graph.library.function for n in f.node_def)
        if wanted <= set(met):
            break
    missing = sorted(wanted - set(met))
    assert not missing, ", ".join(missing)
