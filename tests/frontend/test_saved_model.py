"""Reading SavedModels without TensorFlow: tags, signatures, what is worth compiling, what collections name."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.frontend.graph import Graph
from disc_tf.frontend.resource_gather import read_first, updates_sparsely
from disc_tf.frontend.saved_model import (
    SavedModelError,
    choose_meta_graph,
    find_roots,
    is_saved_model,
    read_saved_model,
    signature_names,
    signature_tensors,
    write_saved_model,
)
from disc_tf.frontend.tfproto import message_class
from disc_tf.saved_model_rewrite import embedded_strings
from tests.frontend.graphs import F32, I64, G, body_node


def model(*tags: list[str]):
    message = message_class("SavedModel")(saved_model_schema_version=1)
    for each in tags:
        message.meta_graphs.add().meta_info_def.tags.extend(each)
    return message


def test_files(tmp_path):
    assert not is_saved_model(tmp_path)
    write_saved_model(tmp_path, model(["serve"]))
    assert is_saved_model(tmp_path) and read_saved_model(tmp_path) == model(["serve"])
    (tmp_path / "saved_model.pb").unlink()
    (tmp_path / "saved_model.pbtxt").write_text("saved_model_schema_version: 1 meta_graphs { meta_info_def { tags: 'serve' } }")
    assert read_saved_model(tmp_path) == model(["serve"])
    (tmp_path / "saved_model.pbtxt").write_text("nonsense: {")
    with pytest.raises(SavedModelError, match="cannot be read"):
        read_saved_model(tmp_path)


@pytest.mark.parametrize(
    ("there", "wanted", "index"),
    [
        ([["serve"]], None, 0),
        ([["train"]], None, 0),
        ([["train"], ["serve"]], None, 1),
        ([["serve"], ["serve", "gpu"]], ["gpu", "serve"], 1),
    ],
)
def test_tags(there, wanted, index):
    message = model(*there)
    assert choose_meta_graph(message, wanted) is message.meta_graphs[index]


@pytest.mark.parametrize(("there", "wanted"), [([["train"], ["eval"]], None), ([["serve"]], ["gpu"]), ([["serve"]], [])])
def test_unknown_tags(there, wanted):
    with pytest.raises(SavedModelError, match="no graph is tagged"):
        choose_meta_graph(model(*there), wanted)


def test_signatures():
    meta = model(["serve"]).meta_graphs[0]
    for name in ("z", "serving_default", "__saved_model_init_op", "a"):
        meta.signature_def[name].inputs["x"].name = "x:0"
    sparse = meta.signature_def["a"].inputs["s"].coo_sparse
    sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name = "v:0", "i:0", "d:0"
    assert signature_names(meta) == ["serving_default", "a", "z"]
    found = signature_tensors(meta.signature_def["a"], "inputs")
    assert found == {"s/values": "v:0", "s/indices": "i:0", "s/dense_shape": "d:0", "x": "x:0"}


def test_roots():
    """A signature behind an identity; methods by name and by their `training` argument."""
    g = G()
    names = ("signature", "call", "call_training", "step", "restore", "encode")
    for name in names:
        f = g.function(f"__inference_{name}_1", {"x": F32}, {"y": ("t:y:0", F32)})
        body_node(f, "t", "Tanh", ["x"], T=("type", F32))
    g.placeholder("x", [None])
    g.node("call", "StatefulPartitionedCall", ["x"], f=("func", "__inference_signature_1"), Tin=("types", [F32]), Tout=("types", [F32]))
    g.node("id", "Identity", ["call"], T=("type", F32))
    meta = model(["serve"]).meta_graphs[0]
    meta.graph_def.CopyFrom(g.proto)
    meta.signature_def["serving_default"].outputs["y"].name = "id:0"
    objects = meta.object_graph_def
    root = objects.nodes.add()
    root.user_object.SetInParent()
    methods = {"__call__": ("call", "call_training"), "train_step": ("step",), "restore": ("restore",), "encode": ("encode",)}
    for method, functions in methods.items():
        root.children.add(node_id=len(objects.nodes), local_name=method)
        node = objects.nodes.add()
        node.function.concrete_functions.extend(f"__inference_{f}_1" for f in functions)
        args = node.function.function_spec.fullargspec.named_tuple_value.values.add(key="args")
        args.value.list_value.values.add(string_value="x")
        args.value.list_value.values.add(string_value="training")
        for f in functions:
            given = objects.concrete_functions[f"__inference_{f}_1"].canonicalized_input_signature.tuple_value.values.add()
            given.tuple_value.values.add().none_value.SetInParent()
            given.tuple_value.values.add(bool_value=f == "call_training")
    roots = find_roots(meta)
    assert roots.functions == {
        "__inference_signature_1": ["signature serving_default"], "__inference_call_1": ["__call__"], "__inference_encode_1": ["encode"],
    }  # fmt: skip
    assert set(roots.skipped) == {"__inference_call_training_1", "__inference_step_1"}
    assert set(find_roots(meta, all_functions=True).functions) == {f"__inference_{n}_1" for n in names if n != "restore"}
    assert set(find_roots(meta, ["serving_default"]).functions) == {"__inference_signature_1"}


def test_lookups_in_variables_become_gathers():
    g = G()
    g.node("handle", "VarHandleOp", [], dtype=("type", F32), shape=("shape", [9, 4]))
    g.placeholder("ids", [None], I64)
    g.node("look", "ResourceGather", ["handle", "ids"], dtype=("type", F32), Tindices=("type", I64), batch_dims=0)
    g.node("look/read", "NoOp")
    g.node("nd", "ResourceGatherNd", ["handle", "ids", "^look/read"], dtype=("type", F32), Tindices=("type", I64))
    g.unary("y", "look")
    new = Graph(read_first(g.proto))
    assert new["look"].op == "GatherV2" and new["look"].inputs == [("look/read_2", 0), ("ids", 0), ("look/axis", 0)]
    assert new["nd"].op == "GatherNd" and new["nd"].controls == ["look/read"] and new["nd/read"].controls == ["look/read"]
    assert new["look/read_2"].op == "ReadVariableOp" and [n.op for n in Graph(g.proto).nodes.values()].count("ReadVariableOp") == 0
    assert new["look/axis"].attr["value"].tensor.int_val == [0]
    assert read_first(new.graph_def) is new.graph_def
    assert not updates_sparsely(g.proto.node)
    g.node("update", "ResourceScatterAdd", ["handle", "ids", "y"], dtype=("type", F32), Tindices=("type", I64))
    assert updates_sparsely(g.proto.node)


def test_strings_in_messages_of_any_type():
    meta = message_class("MetaGraphDef")()
    meta.signature_def["key"].inputs["x"].name = "some/tensor:0"
    meta.graph_def.node.add(name="node_name").attr["value"].f = np.float32(1.5)
    found = embedded_strings(meta.SerializeToString())
    assert {"some/tensor:0", "node_name", "key"} <= set(found)
    assert embedded_strings(b"") == [] and isinstance(embedded_strings(b"\xff\xff\xff"), list)
