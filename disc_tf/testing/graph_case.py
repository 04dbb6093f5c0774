"""Differential tests of whole TF functions: one cluster of all their nodes, on the interpreter and compiled.

``check_graph(case(fn, spec("float32", None, 3)), inputs, targets)`` traces ``fn``, requires that every node is in the cluster, and
compares results and error codes with TensorFlow's at every list of arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from disc_tf.compiler import compile_module
from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import make_clusters
from disc_tf.frontend.importer import Imported, import_cluster
from disc_tf.frontend.load import load
from disc_tf.ir.interp import evaluate
from disc_tf.ir.opset.control import CheckFailed
from disc_tf.ir.verifier import verify
from disc_tf.testing.native_case import load as load_executable
from disc_tf.testing.native_case import run_executable
from disc_tf.testing.tf_case import Failure, Tolerance, difference, tensorflow


@dataclasses.dataclass
class Case:
    """A TF function of tensors with unknown dims, compiled as one cluster."""

    concrete: Any
    imported: Imported
    #: for each argument of the cluster the number of the placeholder, or the content of the constant
    sources: list[int | np.ndarray]
    outputs: list[int]

    def tf(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | Failure:
        tf = tensorflow()
        try:
            out = self.concrete(*(tf.constant(a) for a in arrays))
        except tf.errors.OpError as e:
            return Failure(e.error_code, e.message)
        return [np.asarray(v) for v in tf.nest.flatten(out)]

    def feeds(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [arrays[s] if isinstance(s, int) else s for s in self.sources]


def case(fn: Callable[..., Any], *specs: Any) -> Case:
    """The case of a Python function of tensors."""
    return case_of(tensorflow().function(fn).get_concrete_function(*specs))


def case_of(concrete: Any) -> Case:
    """The case of a concrete function without variables."""
    outputs = [t.name for t in concrete.outputs]
    loaded = load(concrete.graph.as_graph_def(), outputs, verify=True)
    analysis = analyse(loaded.graph, [name for name, _ in loaded.fetches])
    clustering = make_clusters(analysis, loaded.fetches, min_cluster_size=1)
    left = {n: str(r) for n, r in clustering.reasons.items() if loaded.graph[n].op not in ("Identity", "NoOp")}
    assert len(clustering.clusters) == 1, left
    assert not left, left
    imported = import_cluster(clustering, clustering.clusters[0])
    verify(imported.module)
    names = [t.name.split(":")[0] for t in concrete.inputs]
    sources: list[int | np.ndarray] = []
    for name, _ in imported.args:
        constant = loaded.graph.constant(name)
        sources.append(names.index(name) if constant is None else constant.array())
    through = {ref: i for i, ref in enumerate(imported.results)}
    order = []
    for ref in loaded.fetches:
        while ref not in through:  # an Identity that only passes the result on
            ref = loaded.graph[ref[0]].inputs[0]
        order.append(through[ref])
    return Case(concrete, imported, sources, order)


def same_answer(expected: list[np.ndarray] | Failure, found: Any, what: str, tol: Tolerance) -> None:
    """Assert that an answer is TF's, within ``tol``; failures must agree in their code."""
    if isinstance(expected, Failure) or isinstance(found, Failure):
        assert isinstance(expected, Failure), f"{what}: {found}"
        assert isinstance(found, Failure), f"{what}: TF fails with {expected}"
        assert expected.code == found.code, what
        return
    for i, (e, f) in enumerate(zip(expected, found, strict=True)):
        problem = difference(e, np.asarray(f), tol)
        assert not problem, f"{what}, result {i}: {problem}"


def check_graph(
    c: Case, inputs: Sequence[Sequence[np.ndarray]], targets: Sequence[str], tol: Tolerance | None = None, *, isas: Sequence[str] = ()
) -> None:
    """Assert that interpreter and compiled code (for the last of ``targets``, or for each of ``isas``) agree with TF."""
    tol = tol or Tolerance()
    expected = [c.tf(arrays) for arrays in inputs]
    for arrays, e in zip(inputs, expected, strict=True):
        try:
            found: Any = evaluate(c.imported.module, c.feeds(arrays))
            found = [found[i] for i in c.outputs]
        except CheckFailed as failed:
            found = Failure(failed.code, failed.message)
        same_answer(e, found, f"interpreter at {[a.shape for a in arrays]}", tol)
    data = compile_module(c.imported.module, list(targets)).executable
    for isa in isas or targets[-1:]:
        with load_executable(data, isa) as executable:
            for arrays, e in zip(inputs, expected, strict=True):
                found = run_executable(executable, c.feeds(arrays))
                if not isinstance(found, Failure):
                    found = [found[i] for i in c.outputs]
                same_answer(e, found, f"{isa} at {[a.shape for a in arrays]}", tol)


def spec(dtype: str, *dims: int | None) -> Any:
    """A ``tf.TensorSpec``."""
    tf = tensorflow()
    return tf.TensorSpec(dims, getattr(tf, dtype))
