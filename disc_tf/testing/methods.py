"""Methods of a SavedModel's root object as something that can be run, for functions that no signature runs."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from disc_tf.frontend.saved_model import root_methods
from disc_tf.frontend.tfproto import message_class
from disc_tf.testing.inputs import make_spec, share_dims, why_not
from disc_tf.testing.signatures import SignaturePlan, reached_from
from disc_tf.testing.strings import can_be_made
from disc_tf.testing.value_flow import Flow
from disc_tf.testing.value_ranges import learn

_RESOURCE = 20


def plan_methods(meta: Any, functions: Collection[str]) -> dict[str, SignaturePlan]:
    """``method#index`` (of its concrete functions) -> plan, for methods that run one of ``functions``."""
    library = {f.signature.name: f for f in meta.graph_def.library.function}
    wanted, found, counts = set(functions), {}, {}
    for method, name in root_methods(meta):
        index = counts[method] = counts.get(method, -1) + 1
        if name not in library:
            continue
        call = message_class("NodeDef")(name="call", op="StatefulPartitionedCall")
        call.attr["f"].func.name = name
        ops, run = reached_from([call], library)
        if run & wanted:
            found[f"{method}#{index}"] = _plan(meta, f"{method}#{index}", library[name], call, ops, run)
            wanted -= run
    return found


def _plan(meta: Any, title: str, function: Any, call: Any, ops: Collection[str], run: Collection[str]) -> SignaturePlan:
    """Placeholders and variables around one call of the function: what a signature's wrapper has in the main graph."""
    signature = function.signature
    captured = list(meta.object_graph_def.concrete_functions[signature.name].bound_inputs)
    count = len(signature.input_arg) - len(captured)
    nodes = []
    for i, arg in enumerate(signature.input_arg):
        node = message_class("NodeDef")(name=f"argument_{i}", op="Placeholder")
        node.attr["dtype"].type = arg.type
        node.attr["shape"].shape.unknown_rank = True
        if i >= count and arg.type == _RESOURCE:
            owner = meta.object_graph_def.nodes[captured[i - count]]
            if owner.WhichOneof("kind") == "variable":
                node.op = "VarHandleOp"
                node.attr["shape"].shape.MergeFromString(owner.variable.shape.SerializeToString())
                node.attr["shape"].shape.unknown_rank = owner.variable.shape.unknown_rank
        nodes.append(node)
        call.input.append(node.name)
    flow = Flow(SimpleNamespace(node=[*nodes, call], library=meta.graph_def.library))
    inputs = tuple(arg.name for arg in signature.input_arg[:count])
    outputs = tuple(f"output_{i}" for i in range(len(signature.output_arg)))
    reason, specs = "", []
    for i, arg in enumerate(signature.input_arg[:count]):
        shapes = list(function.arg_attr[i].attr["_output_shapes"].list.shape) if i in function.arg_attr else []
        shape = shapes[0] if shapes else nodes[i].attr["shape"].shape
        if not can_be_made(arg.type) or shape.unknown_rank:
            reason = f"argument {arg.name}: {why_not(arg.type, shape)}"
            break
        specs.append(make_spec(arg.name, arg.type, [int(d.size) for d in shape.dim], learn(flow, flow.root, (nodes[i].name, 0))))
    plan = SignaturePlan(title, inputs, outputs, () if reason else tuple(share_dims(specs)), reason)
    return plan.running(ops, run)
