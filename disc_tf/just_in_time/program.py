"""A trace as a GraphDef whose names do not depend on the process, and an optimised GraphDef as a TensorFlow function again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from disc_tf.frontend.functions import every_node
from disc_tf.frontend.opdefs import CALL_OPS

GRADIENT = "_gradient_op_type"


class ProgramError(ValueError):
    """The trace cannot be compiled as a whole; the message says why."""


@dataclasses.dataclass
class Program:
    """``graph_def``: of the trace ``concrete``; ``inputs``: its placeholders in order, the tensors of a call first, then what it captures;
    ``outputs``: fetched tensors, ``controls``: nodes with effects."""

    concrete: Any
    graph_def: Any
    inputs: list[str]
    outputs: list[str]
    controls: list[str]

    @property
    def fetches(self) -> list[str]:
        """As `optimize_graph_def` takes them. A function without results is run for its effects."""
        return [*self.outputs, *(f"^{c}" for c in self.controls)]

    @property
    def custom_gradient(self) -> bool:
        """Whether a gradient given by the program (`tf.custom_gradient`) refers to tensors of the trace itself."""
        return any(GRADIENT in n.attr and n.op not in CALL_OPS for n in every_node(self.graph_def))


def export(concrete: Any, n_tensors: int) -> Program:
    """The graph of a ConcreteFunction with ``n_tensors`` arguments. `ProgramError` for what a GraphDef cannot say."""
    graph = concrete.graph
    if getattr(graph, "deferred_external_captures", None):
        raise ProgramError("it captures values that are only known at a call")
    try:
        graph_def = graph.as_graph_def(add_shapes=True)
    except ValueError as e:  # over 2 GiB
        raise ProgramError(f"its graph cannot be written: {e}") from e
    names: dict[str, str] = {}
    for i, t in enumerate(concrete.inputs):
        names[t.op.name] = f"arg{i}" if i < n_tensors else f"capture{i - n_tensors}"
    taken = {n.name for n in graph_def.node} - names.keys()
    for old, new in names.items():
        while new in taken:
            new += "_"
        names[old] = new
    _rename(graph_def, names)
    return Program(
        concrete,
        graph_def,
        [names[t.op.name] for t in concrete.inputs],
        [renamed(t.name, names) for t in concrete.outputs],
        sorted({renamed(o.name, names) for o in graph.control_outputs}),
    )


def _rename(graph_def: Any, names: Mapping[str, str]) -> None:
    for node in graph_def.node:
        node.name = names.get(node.name, node.name)
        for i, text in enumerate(node.input):
            new = renamed(text, names)
            if new != text:
                node.input[i] = new
        classes: Any = node.attr["_class"].list.s if "_class" in node.attr else ()
        for i, text in enumerate(classes):
            prefix, _, target = text.decode().partition("@")
            if target in names:
                classes[i] = f"{prefix}@{names[target]}".encode()


def renamed(text: str, names: Mapping[str, str]) -> str:
    """An input's or a result's text with the node or argument that it names renamed."""
    control = "^" if text.startswith("^") else ""
    name, colon, port = text[len(control) :].partition(":")
    return f"{control}{names.get(name, name)}{colon}{port}"


def build(program: Program, optimized: Any) -> Any:
    """A ConcreteFunction of the call's tensors that runs ``optimized`` (a GraphDef) with the captures of the trace.

    Variables are the same objects, watched by gradient tapes; the results have the structure of the trace's. Functions of ``optimized``
    must be named after their content (`canonical`): the process keeps them.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow.python.ops.resource_variable_ops import variable_accessed

    import disc_tf.ops  # registers the op and its gradient

    disc_tf.ops.load_op_library()
    concrete = program.concrete
    n = len(program.inputs) - len(concrete.captured_inputs)
    used = {text.lstrip("^").partition(":")[0] for node in optimized.node for text in node.input}
    # What feeds a result directly stays as a node, everything else that is fed goes.
    fed = {name for name in program.inputs if name in used}
    body = type(optimized)()
    body.CopyFrom(optimized)
    keep = [node for node in optimized.node if node.name not in fed or node.op != "Placeholder"]
    del body.node[:]
    body.node.extend(keep)
    library = tf.compat.v1.GraphDef.FromString(body.SerializeToString())
    structure = concrete.structured_outputs
    runtime: Any = context.context()
    for function in library.library.function:  # an import tells only the graph of them, and bodies of branches are looked up here
        if not runtime.has_function(function.signature.name):
            runtime.add_function_def(function)

    def compiled(*tensors: Any) -> Any:
        graph: Any = tf.compat.v1.get_default_graph()
        for v in concrete.graph.variables:
            variable_accessed(v)
        values = dict(zip(program.inputs, [*tensors, *map(graph.capture, concrete.captured_inputs)], strict=True))
        outputs = tf.import_graph_def(library, {f"{k}:0": values[k] for k in program.inputs if k in fed}, program.outputs, name="")
        return _pack(tf, structure, outputs or ())

    specs = [tf.TensorSpec(t.shape, t.dtype, name=f"arg{i}") for i, t in enumerate(concrete.inputs[:n])]
    with tf.init_scope():
        return tf.function(compiled, autograph=False).get_concrete_function(*specs)


def _pack(tf: Any, structure: Any, outputs: Sequence[Any]) -> Any:
    """The results in the trace's structure, in which None stands for itself."""
    leaves = tf.nest.flatten(structure, expand_composites=True)
    found = iter(outputs)
    values = [None if leaf is None else next(found) for leaf in leaves]
    return tf.nest.pack_sequence_as(structure, values, expand_composites=True)
