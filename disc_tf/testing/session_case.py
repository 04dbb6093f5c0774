"""Graphs made by hand, optimised and run in TensorFlow sessions of this process: the original against the optimised graph.

    case = SessionCase(lambda tf: ..., outputs)      # the function builds the graph
    case.check({"x:0": array})                       # same results, or the same status code, grappler on and off

TensorFlow is imported once with the reference settings (`tf_case.tensorflow`); the original runs with grappler off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.optimizer import OptimizeResult, optimize_graph_def
from disc_tf.testing.compare import compare
from disc_tf.testing.tf_case import Failure, tensorflow

Feeds = Mapping[str, Any]


def session_config(tf: Any, *, grappler: bool) -> Any:
    """A one-threaded ConfigProto with grappler's meta optimizer on or off."""
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    if not grappler:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
    else:
        config.graph_options.rewrite_options.min_graph_nodes = -1  # small graphs too
    return config


class GraphSession:
    """A graph in a session of its own."""

    def __init__(self, graph_def: Any, *, grappler: bool, init: Sequence[str] = ()) -> None:
        tf = tensorflow()
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(graph_def, name="")
        self.session = tf.compat.v1.Session(graph=self.graph, config=session_config(tf, grappler=grappler))
        for op in init:
            self.session.run(op)

    def run(self, fetches: Sequence[str], feeds: Feeds) -> list[np.ndarray] | Failure:
        """Values of the fetched tensors or operations (None), or the status."""
        tf = tensorflow()
        try:
            return self.session.run(list(fetches), dict(feeds))
        except tf.errors.OpError as e:
            return Failure(e.error_code, e.message)

    def close(self) -> None:
        self.session.close()


class SessionCase:
    """A graph built by ``build(tf)``, its optimised form, and sessions on both."""

    def __init__(
        self,
        build: Callable[[Any], Any],
        outputs: Sequence[str] | None,
        *,
        init: Sequence[str] = (),
        min_clusters: int = 1,
        grappler: Sequence[bool] = (False, True),
        **options: Any,
    ) -> None:
        tf = tensorflow()
        import disc_tf.ops  # noqa: F401  registers DiscLaunch

        with tf.Graph().as_default() as graph:
            build(tf)
        self.graph_def = graph.as_graph_def()
        settings = {"min_cluster_size": 1, "targets": ("native",), "verify_passes": True, **options}
        self.result: OptimizeResult = optimize_graph_def(self.graph_def, outputs, settings)
        self.outputs = [n for n in (self.result.report.outputs if outputs is None else outputs) if not n.startswith("^")]
        report = self.result.report
        failed = [f"{c.name}: {c.reason}" for c in report.clusters if c.status == "failed"]
        failed += [d.text for c in report.clusters for d in c.defects]
        assert not failed, failed
        assert len(report.compiled_clusters) >= min_clusters, report.to_text()
        self.reference = GraphSession(self.graph_def, grappler=False, init=init)
        self.ours = [GraphSession(self.result.graph_def, grappler=g, init=init) for g in grappler]

    @property
    def ops(self) -> list[str]:
        """Op types of the optimised graph."""
        return [n.op for n in self.result.graph_def.node]

    def check(self, feeds: Feeds, fetches: Sequence[str] | None = None) -> list[np.ndarray] | Failure:
        """The reference's answer, once the optimised graph has given the same."""
        fetches = self.outputs if fetches is None else fetches
        want = self.reference.run(fetches, feeds)
        for session in self.ours:
            assert_same_answer(want, session.run(fetches, feeds), feeds)
        return want


def assert_same_answer(want: list[Any] | Failure, got: list[Any] | Failure, about: object = "") -> None:
    """Equal status codes, or results that `compare` takes for equal."""
    if isinstance(want, Failure) or isinstance(got, Failure):
        assert isinstance(want, Failure), f"ours fails: {got}; {about}"
        assert isinstance(got, Failure), f"TensorFlow fails: {want}, ours does not; {about}"
        assert want.code == got.code, (want, got, about)
        return
    assert len(want) == len(got)
    for i, (w, g) in enumerate(zip(want, got, strict=True)):
        if w is None:
            assert g is None
            continue
        if isinstance(w, bytes) or np.asarray(w).dtype == object:
            assert np.array_equal(w, g), (i, w, g)
            continue
        found = compare(np.asarray(w), np.asarray(g))
        assert found.ok, f"output {i}: {found.message}; {about}"
