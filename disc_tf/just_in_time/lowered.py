"""`JitFunction.lower`: the clusters of a rank signature as HLO, before any pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disc_tf.just_in_time.program import Program
from disc_tf.just_in_time.work import Request


class Lowered:
    """``clusters``: name -> `disc_tf.ir.core.Module`, in graph order; ``left_out``: node -> why it stays in TensorFlow."""

    def __init__(self, signature: str, clusters: dict[str, Any], left_out: dict[str, str], compile_it: Callable[[], Any]) -> None:
        self.signature = signature
        self.clusters = clusters
        self.left_out = left_out
        self._compile = compile_it

    def as_text(self) -> str:
        """The HLO of each cluster with symbolic dims, in this project's text form."""
        from disc_tf.ir.printer import print_module

        return "\n".join(f"// {name}\n{print_module(module)}" for name, module in self.clusters.items())

    def stablehlo(self) -> str:
        """The same as StableHLO (MLIR text with dynamic dims), one module a cluster. Needs jaxlib."""
        from disc_tf.ir.stablehlo.export import to_stablehlo

        return "\n".join(f"// {name}\n{to_stablehlo(module)}" for name, module in self.clusters.items())

    def compile(self) -> Any:
        """Compile and wait: the function for this rank signature. RuntimeError with the reason if it cannot be compiled."""
        return self._compile()

    def __repr__(self) -> str:
        return f"<Lowered {self.signature}: {len(self.clusters)} clusters>"


def lower(program: Program, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    """HLO of each cluster that lowers, and what is in none, with the reason."""
    from disc_tf.frontend.importer import ImportFailed, import_cluster
    from disc_tf.optimizer import clusters_of
    from disc_tf.options import Options

    options = Options.from_overrides(dict(request.options))
    _, clustering = clusters_of(program.graph_def, program.fetches, options)
    if not clustering.clusters and request.any_size:
        _, clustering = clusters_of(program.graph_def, program.fetches, Options.from_overrides(options, min_cluster_size=1))
    left_out = {name: reason.message for name, reason in clustering.reasons.items()}
    modules: dict[str, Any] = {}
    for cluster in clustering.clusters:
        try:
            modules[cluster.name] = import_cluster(clustering, cluster).module
        except ImportFailed as e:
            left_out |= dict.fromkeys(cluster.node_names, str(e))
    return modules, left_out
