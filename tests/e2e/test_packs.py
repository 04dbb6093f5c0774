"""Shared packs inside TensorFlow: equal bits, nothing packed twice, and a graph whose weights were edited gets its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disc_tf.frontend.tfproto import serialized

#: one process with a session after the other: a closed one leaves nothing packed behind
_CHILD = """
import sys
from pathlib import Path
import numpy as np
import tensorflow as tf
import disc_tf.ops
from disc_tf.runtime import counters, packs_problem
disc_tf.ops.load_op_library()
file, packs, outputs = sys.argv[1], sys.argv[2], sys.argv[3:]

names = ["prepared_built", "packs_loaded", "packs_written", "packs_refused", "packs_unwritten"]

def run(edit):
    graph_def = tf.compat.v1.GraphDef.FromString(Path(file).read_bytes())
    def rows(n):  # of a matrix that is multiplied with; embeddings have more
        dims = [d.size for d in n.attr["value"].tensor.tensor_shape.dim]
        return dims[0] if n.op == "Const" and n.attr["dtype"].type == 1 and len(dims) == 2 and min(dims) >= 64 and dims[0] < 5000 else 0
    matrix = max(graph_def.node, key=rows)
    if edit:
        content = np.frombuffer(matrix.attr["value"].tensor.tensor_content, np.float32)
        matrix.attr["value"].tensor.tensor_content = (content * np.float32(1.5)).tobytes()
    feeds = {n.name + ":0": np.ones((2, 5), np.int32) for n in graph_def.node if n.op == "Placeholder"}
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    before = counters()
    with tf.compat.v1.Session(graph=graph) as session:
        answer = [a.tobytes() for a in session.run(outputs, feeds)]
    after = counters()
    return answer, {k: after[k] - before[k] for k in names}

alone, edited_alone = run(False), run(True)
assert alone[1]["prepared_built"] > 0 and alone[1]["packs_written"] == 0, alone[1]
assert alone[0] != edited_alone[0], "the edit must matter"
disc_tf.ops.share_packs(packs)
first, second, edited, third = run(False), run(False), run(True), run(False)
for kind, one in {"first": first, "second": second, "third": third}.items():
    assert one[0] == alone[0], kind
written = first[1]["packs_written"]
assert written > 0 and first[1]["prepared_built"] == alone[1]["prepared_built"], first[1]
small = alone[1]["prepared_built"] - written
for one in (second, third):
    assert list(one[1].values()) == [small, written, 0, 0, 0], one[1]
assert edited[0] == edited_alone[0]
assert edited[1]["packs_refused"] == 1 and edited[1]["packs_loaded"] == written - 1, edited[1]
assert "they were changed after it was compiled" in packs_problem()
print("good", written)
"""


@pytest.mark.slow
def test_tiny_bert(tiny_bert, tmp_path: Path) -> None:
    graph = tmp_path / "graph.pb"
    graph.write_bytes(serialized(tiny_bert.result))
    command = [sys.executable, "-c", _CHILD, str(graph), str(tmp_path / "packs"), *tiny_bert.outputs]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0 and done.stdout.startswith("good"), done.stdout + done.stderr[-3000:]
