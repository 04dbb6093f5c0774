"""`freeze`: the values of the variables are constants, and only the signatures are left."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from disc_tf.frontend.saved_model import SavedModelError, choose_meta_graph, read_saved_model
from disc_tf.saved_model import optimize_saved_model
from tests.saved_model.models import feeds

pytestmark = pytest.mark.slow  # processes and models of their own: minutes on a busy machine


@pytest.mark.parametrize("name", ["keras3", "words", "tf1", "estimator"])
def test_the_answers_stay_and_the_variables_go(name, original, tmp_path):
    result = optimize_saved_model(original(name), tmp_path / "out", freeze=True, targets=("native",), verify=False)
    assert result.report.compiled_clusters
    meta = choose_meta_graph(read_saved_model(tmp_path / "out"), None)
    everywhere = (meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function))
    ops = {n.op for nodes in everywhere for n in nodes if n.attr["dtype"].type != tf.string.as_datatype_enum}  # not the path of an asset
    assert not ops & {"VarHandleOp", "VariableV2", "ReadVariableOp", "RestoreV2"} and "DiscLaunch" in ops
    assert not (tmp_path / "out" / "variables").exists()
    a, b = tf.saved_model.load(str(original(name))), tf.saved_model.load(str(tmp_path / "out"))
    assert set(a.signatures) == set(b.signatures)
    for key in a.signatures:
        for size in (1, 5, 0):
            given = feeds(a.signatures[key], size)
            x, y = a.signatures[key](**given), b.signatures[key](**given)
            assert x.keys() == y.keys()
            for k in x:
                if x[k].dtype.is_floating:
                    np.testing.assert_allclose(y[k], x[k], rtol=1e-5, atol=1e-6)
                else:
                    np.testing.assert_array_equal(y[k], x[k])


def test_a_signature_that_changes_a_variable(original, tmp_path):
    with pytest.raises(SavedModelError, match=r"cannot freeze: bump .* changes a variable"):
        optimize_saved_model(original("tf1_two"), tmp_path / "out", freeze=True)
    assert not (tmp_path / "out").exists()
    result = optimize_saved_model(
        original("tf1_two"), tmp_path / "out", freeze=True, signatures=["other"], targets=("native",), verify=False
    )  # fmt: skip
    assert result.report.compiled_clusters and set(tf.saved_model.load(str(tmp_path / "out")).signatures) == {"other"}
