"""Methods of a SavedModel's root object as something that can be run, for functions that no signature runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
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
    outputs = tuple(f"output_{i}" for i in range(len(signature.output_arg)))
    leaves = list(_leaves(meta.object_graph_def.concrete_functions[signature.name].canonicalized_input_signature))
    if sum(leaf.flat for leaf in leaves) != count:  # written by something that does not say
        leaves = [_Leaf() for _ in range(count)]
    inputs, specs, reason, place = [], [], "", 0
    for leaf in leaves:
        arg = signature.input_arg[place]
        inputs.append(arg.name)
        number, shape = leaf.dtype or arg.type, leaf.shape
        if shape is None:
            known = list(function.arg_attr[place].attr["_output_shapes"].list.shape) if place in function.arg_attr else []
            shape = known[0] if known else nodes[place].attr["shape"].shape
        if leaf.kind not in _MADE:
            reason = reason or f"argument {arg.name}: values of a {leaf.kind} cannot be made up"
        elif not can_be_made(number) or shape.unknown_rank:
            reason = reason or f"argument {arg.name}: {why_not(number, shape)}"
        else:
            learned = learn(flow, flow.root, (nodes[place + (leaf.kind == _SPARSE)].name, 0))
            specs.append(make_spec(arg.name, number, [int(d.size) for d in shape.dim], learned))
        place += leaf.flat
    plan = SignaturePlan(title, tuple(inputs), outputs, () if reason else tuple(share_dims(specs)), reason)
    return plan.running(ops, run)


_TENSOR, _RAGGED, _SPARSE = "TensorSpec", "RaggedTensorSpec", "SparseTensorSpec"
#: what arguments are made of dense values by `tf_worker`
_MADE = (_TENSOR, _RAGGED, _SPARSE)


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """An argument that the function is called with. flat: how many tensors it is; shape: None where only the function says."""

    kind: str = _TENSOR
    flat: int = 1
    dtype: int = 0
    shape: Any = None


def _leaves(value: Any) -> Iterator[_Leaf]:
    """The tensors and composites in a StructuredValue, in the order of `tf.nest.flatten`."""
    kind = value.WhichOneof("kind")
    if kind in ("tensor_spec_value", "bounded_tensor_spec_value"):
        spec = getattr(value, kind)
        yield _Leaf(dtype=spec.dtype, shape=spec.shape)
    elif kind == "type_spec_value":
        spec = value.type_spec_value
        name = spec.type_spec_class_name.rpartition(".")[2]
        state = spec.type_state.tuple_value.values
        if name in (_RAGGED, _SPARSE) and len(state) >= 2:
            yield _Leaf(name, spec.num_flat_components, state[1].tensor_dtype_value, state[0].tensor_shape_value)
        else:
            yield _Leaf(name or "composite", spec.num_flat_components)
    elif kind in ("list_value", "tuple_value"):
        for part in getattr(value, kind).values:
            yield from _leaves(part)
    elif kind == "dict_value":
        for key in sorted(value.dict_value.fields):
            yield from _leaves(value.dict_value.fields[key])
    elif kind == "named_tuple_value":
        for pair in value.named_tuple_value.values:
            yield from _leaves(pair.value)
