"""Embedding lookups as tf.nn builds them: one cluster, TensorFlow's answers and errors at many shapes, and none of the work that fusion
does away with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.testing.session_case import SessionCase
from disc_tf.testing.tf_case import Failure, tensorflow

ROWS = 997
INVALID = 3


def feeds(
    lengths: list[int], seed: int = 0, *, weighted: bool = False, bad: float = 0.0, width: int | None = None, rank: int = 2,
) -> dict[str, Any]:  # fmt: skip
    """A sparse batch of rows of these lengths, ids below ``ROWS`` (a share of ``bad`` negative), as the graphs' placeholders."""
    rng = np.random.default_rng(seed)
    pairs = [(i, k) for i, n in enumerate(lengths) for k in range(n)]
    indices = np.array(pairs, np.int64).reshape(-1, 2)
    shape = [len(lengths), max([*lengths, 1]) if width is None else width]
    if rank == 3:  # a batch of pairs of rows
        indices = np.stack([indices[:, 0] // 2, indices[:, 0] % 2, indices[:, 1]], 1)
        shape = [(shape[0] + 1) // 2, 2, shape[1]]
    ids = rng.integers(0, ROWS, len(pairs))
    ids = np.where(rng.random(len(pairs)) < bad, -ids - 1, ids)
    out: dict[str, Any] = {"indices:0": indices, "ids:0": ids.astype(np.int64), "shape:0": np.array(shape, np.int64)}
    if weighted:
        out["weights:0"] = np.round(rng.uniform(-0.3, 1, len(pairs)), 2).astype(np.float32)
    return out


def safe_lookup(
    combiner: str, *, weighted: bool = False, max_norm: float | None = None, dim: int = 16, rank: int = 2, default_id: int | None = None,
    safe: bool = True, dtype: str = "float32", fast: bool = False, parts: int = 1,
) -> Any:  # fmt: skip
    """The builder of a graph of one lookup."""

    def build(tf: Any) -> None:
        v1 = tf.compat.v1
        rng = np.random.default_rng(5)
        rows = -(-ROWS // parts)
        tables = [tf.constant(rng.normal(size=(min(rows, ROWS - k * rows), dim)), dtype) for k in range(parts)]
        indices = v1.placeholder(tf.int64, [None, rank], "indices")
        shape = v1.placeholder(tf.int64, [rank], "shape")
        ids = tf.SparseTensor(indices, v1.placeholder(tf.int64, [None], "ids"), shape)
        weights = tf.SparseTensor(indices, v1.placeholder(tf.float32, [None], "weights"), shape) if weighted else None
        if parts > 1:
            found = v1.nn.safe_embedding_lookup_sparse(tables, ids, weights, combiner=combiner, max_norm=max_norm, default_id=default_id)
        elif safe:
            found = tf.nn.safe_embedding_lookup_sparse(
                tables[0], ids, weights, combiner=combiner, max_norm=max_norm, default_id=default_id, allow_fast_lookup=fast
            )
        else:
            found = tf.nn.embedding_lookup_sparse(
                tables[0], ids, weights, combiner=combiner, max_norm=max_norm, allow_fast_lookup=fast
            )
        tf.identity(found, "out")

    return build


def one_cluster(build: Any, outputs: tuple[str, ...] = ("out:0",)) -> SessionCase:
    case = SessionCase(build, list(outputs))
    report = case.result.report
    assert len(report.clusters) == 1, report.to_text()
    assert report.coverage == 1.0, report.to_text()
    assert set(case.ops) <= {"Const", "Placeholder", "Identity", "DiscLaunch", "NoOp"}
    return case


def kernels(case: SessionCase) -> list[str]:
    """The ops of library kernels: what the lookup is made of."""
    return [k.symbol for k in case.result.report.kernels if k.kind == "library"]


OTHER_LOOKUPS = [("sum", False), ("sqrtn", False), ("sum", True), ("mean", True)]
BATCHES = [[1], [0], [3, 0, 2], [0, 0, 0], [1] * 64, [7, 1, 0, 13, 0, 0, 2, 50], [], [0, 1], [40] * 37]


@pytest.mark.parametrize(
    ("combiner", "weighted"),
    [("mean", False), ("sqrtn", True), *(pytest.param(c, w, marks=pytest.mark.slow) for c, w in OTHER_LOOKUPS)],
)
def test_safe_lookup(combiner: str, weighted: bool) -> None:
    """Empty rows, empty batches, ids and weights that are pruned."""
    case = one_cluster(safe_lookup(combiner, weighted=weighted))
    for i, lengths in enumerate(BATCHES):
        for bad in (0.0, 0.3, 1.0):
            case.check(feeds(lengths, i, weighted=weighted, bad=bad))
    wide = feeds([2, 0, 1], weighted=weighted, width=4000)
    assert not isinstance(case.check(wide), Failure)


VARIANTS: list[dict[str, Any]] = [{"max_norm": 1.0, "weighted": True}, {"rank": 3}, {"dtype": "float16", "dim": 7}]
OTHER_VARIANTS: list[dict[str, Any]] = [
    {"max_norm": 1.0}, {"default_id": 3}, {"dim": 1}, {"dim": 130}, {"dtype": "float64"}, {"fast": True}, {"fast": True, "weighted": True}
]  # fmt: skip


@pytest.mark.parametrize("options", [*VARIANTS, *(pytest.param(v, marks=pytest.mark.slow) for v in OTHER_VARIANTS)], ids=str)
def test_variants(options: dict[str, Any]) -> None:
    if options.get("weighted") and options.get("dtype", "float32") != "float32":
        pytest.skip("weights are f32")
    case = one_cluster(safe_lookup("mean", **options))
    rank, weighted = options.get("rank", 2), options.get("weighted", False)
    for i, lengths in enumerate(BATCHES):
        if rank == 3 and len(lengths) % 2:
            lengths = [*lengths, 0]
        case.check(feeds(lengths, i, weighted=weighted, bad=0.2, rank=rank))


def test_plain_lookup() -> None:
    """Without "safe": every row up to the last must have an id, and the order of rows is the caller's promise."""
    for combiner, weighted in (("sum", False), ("mean", True), ("sqrtn", True)):
        case = one_cluster(safe_lookup(combiner, weighted=weighted, safe=False))
        for lengths in ([1], [2, 3, 1], [1, 0, 4], []):
            case.check(feeds(lengths, weighted=weighted))
        swapped = feeds([1, 1, 1], weighted=weighted)
        swapped["indices:0"] = swapped["indices:0"][::-1].copy()
        found = case.check(swapped)
        assert isinstance(found, Failure) and found.code == INVALID


def test_errors() -> None:
    """Ids beyond the table, rows beyond the shape, values that are too few: TensorFlow's status each time."""
    case = one_cluster(safe_lookup("mean", weighted=True))
    good = feeds([2, 0, 3], weighted=True)
    good["weights:0"] = np.abs(good["weights:0"]) + 0.1
    assert not isinstance(case.check(good), Failure)
    for name, value in {
        "ids:0": good["ids:0"] + ROWS, "shape:0": np.array([2, 3], np.int64), "indices:0": good["indices:0"] - 1,
        "weights:0": good["weights:0"][:-1],
    }.items():  # fmt: skip
        found = case.check({**good, name: value})
        assert isinstance(found, Failure), name
        assert found.code == INVALID, (name, found)
    found = case.check({**good, "shape:0": np.array([-3, 3], np.int64)})
    assert isinstance(found, Failure) and found.code == INVALID


def test_fused() -> None:
    """No distinct ids are sought, no row of the table is copied, and no index that an op made is checked."""
    for weighted in (False, True):
        case = one_cluster(safe_lookup("mean", weighted=weighted))
        names = kernels(case)
        assert not any("unique" in n for n in names), names
        assert sum("segment" in n for n in names) == (2 if weighted else 1), names
        assert not any("gather" in n and "f32" in n for n in names)
        shapes = [k.symbol for k in case.result.report.kernels]
        assert len(shapes) <= (18 if weighted else 13), shapes


def test_sharded_tables() -> None:
    """Two tables: DynamicPartition and DynamicStitch where they compile, clusters around them where not; the answers are the same."""
    case = SessionCase(safe_lookup("mean", parts=2), ["out:0"])
    for i, lengths in enumerate(BATCHES):
        case.check(feeds(lengths, i, bad=0.2))


def test_several_features() -> None:
    """Lookups of several features and a dense layer over them are one cluster."""

    def build(tf: Any) -> None:
        v1 = tf.compat.v1
        rng = np.random.default_rng(5)
        indices, values = v1.placeholder(tf.int64, [None, 2], "indices"), v1.placeholder(tf.int64, [None], "ids")
        ids = tf.SparseTensor(indices, values, v1.placeholder(tf.int64, [2], "shape"))
        parts = [
            tf.nn.safe_embedding_lookup_sparse(tf.constant(rng.normal(size=(ROWS, dim)), tf.float32), ids, combiner=combiner)
            for dim, combiner in ((8, "mean"), (16, "sum"), (4, "sqrtn"))
        ]
        joined = tf.concat(parts, 1)
        tf.identity(tf.nn.relu(tf.matmul(joined, tf.constant(rng.normal(size=(28, 10)), tf.float32))), "out")

    case = one_cluster(build)
    for i, lengths in enumerate(BATCHES):
        case.check(feeds(lengths, i, bad=0.1))


def test_feature_columns() -> None:
    """A frozen input layer of embedded, bucketised and indicator columns over dense features is one cluster."""

    def build(tf: Any) -> None:
        v1, column = tf.compat.v1, tf.feature_column
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            features = {"x": v1.placeholder(tf.int64, [None, 5], "x"), "num": v1.placeholder(tf.float32, [None, 3], "num")}
            ids = column.categorical_column_with_identity("x", 50, default_value=0)
            buckets = column.bucketized_column(column.numeric_column("num", shape=(3,)), [0.0, 0.5, 1.0])
            columns = [column.embedding_column(ids, 16, combiner="mean"), buckets, column.indicator_column(ids)]
            tf.identity(v1.feature_column.input_layer(features, columns), "out")
            session.run(v1.global_variables_initializer())
            frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["out"])
        tf.import_graph_def(frozen, name="")

    case = one_cluster(build)
    rng = np.random.default_rng(0)
    for batch in (1, 0, 7, 64):
        case.check({"x:0": rng.integers(-1, 60, (batch, 5)), "num:0": rng.random((batch, 3)).astype(np.float32)})


def test_tensorflow_has_the_form() -> None:
    """The graphs above hold what they are about: what TensorFlow builds has not changed under us."""
    tf = tensorflow()
    with tf.Graph().as_default() as graph:
        safe_lookup("mean", weighted=True)(tf)
    ops = {n.op for n in graph.as_graph_def().node}
    assert {"SparseReshape", "Where", "SparseFillEmptyRows", "Unique", "SegmentSum", "GatherV2"} <= ops
