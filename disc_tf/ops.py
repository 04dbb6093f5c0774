"""Registers DiscLaunch and its gradient with TensorFlow: what a program that serves an optimised graph imports.

    import tensorflow as tf
    import disc_tf.ops

    disc_tf.ops.load_op_library()

Imports no compiler: neither jax nor llvmlite nor protobuf code of ours. TensorFlow is imported when the library is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

from disc_tf.runtime._build import library_path

OP_NAME = "DiscLaunch"
_GRADIENT = "_gradient_op_type"
#: of a node in an original function: the node beside the DiscLaunch that has its gradient (see `frontend/captured.py`)
_ORIGIN = "_disc_gradient_node"


@functools.cache
def load_op_library() -> ModuleType:
    """Loads the op library and registers the gradient; the module with the op's Python function `disc_launch`.

    May be called any number of times. Raises BuildError if the library is not there, TensorFlow's NotFoundError if
    TensorFlow cannot load it, ImportError if this TensorFlow's C API lacks what the op needs.
    """
    import tensorflow as tf
    from tensorflow.python.framework.op_def_registry import get as find_op

    module = tf.load_op_library(str(library_path("disc_tf_op")))
    if find_op(OP_NAME) is None:
        raise ImportError(f"{OP_NAME} could not be registered with TensorFlow {tf.__version__}; versions 2.16 to 2.21 are supported")
    _register_gradient(tf)
    return module


def share_packs(directory: str | os.PathLike[str] | None, *, limit_bytes: int = 0) -> None:
    """Share packed weights with the other processes of this host through files in ``directory``: see `disc_tf.runtime.share_packs`.

    To be called before the first run, as any number of serving processes may do with the same directory.
    """
    from disc_tf.runtime import share_packs

    share_packs(directory, limit_bytes=limit_bytes)


def set_trust(trust_file: str | os.PathLike[str] | None) -> None:
    """From now on a DiscLaunch is made only if a key of ``trust_file`` signed its code: see `disc_tf.runtime.set_trust`.

    To be called before graphs run: a kernel that TensorFlow has made already stays. The environment variable DISC_TF_TRUST does the same
    for processes that run no Python of ours.
    """
    from disc_tf.runtime import set_trust

    set_trust(trust_file)


def _register_gradient(tf: Any) -> None:
    with contextlib.suppress(KeyError):  # another copy of this module did
        tf.RegisterGradient(OP_NAME)(_gradient)


def _graphs(made_in: Any) -> Iterator[Any]:
    """Where a library function may be: in an op's own graph ``made_in`` (None for an op that ran eagerly), where the gradient is being
    built, in graphs around these."""
    import tensorflow as tf

    for start in (made_in, None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()):
        graph = start
        while graph is not None:
            yield graph
            graph = getattr(graph, "outer_graph", None)


def _find_function(name: str, made_in: Any) -> tuple[Any, Any]:
    """A library function as its graph has it (None if only the eager context has it), and its FunctionDef."""
    from tensorflow.python.eager import context

    for graph in _graphs(made_in):
        # Not through as_graph_def: that copies the weights.
        function = graph._get_function(name)
        for attribute in ("function_def", "definition"):
            if hasattr(function, attribute):
                return function, getattr(function, attribute)
    try:
        return None, cast(Any, context.context()).get_function_def(name)
    except Exception as error:
        raise LookupError(
            f"the gradient of {OP_NAME} needs the cluster's original function {name!r}, which is not in the graph's library"
        ) from error


def _called(definition: Any, made_in: Any) -> list[Any]:
    """Functions of graphs that a FunctionDef calls, directly or not: bodies of its loops and branches."""
    found: dict[str, Any] = {}
    todo = [definition]
    while todo:
        for node in todo.pop().node_def:
            for value in node.attr.values():
                for name in [value.func.name, *(f.name for f in value.list.func)]:
                    if name and name not in found:
                        found[name], inner = _find_function(name, made_in)
                        todo.append(inner)
    return [f for f in found.values() if f is not None]


def _own_gradient(node: Any, made_in: Any) -> bytes:
    """The name under which the gradient of a node is registered in this process."""
    name = node.attr[_ORIGIN].s.decode()
    for graph in _graphs(made_in):
        with contextlib.suppress(KeyError, ValueError):
            return graph.get_operation_by_name(name).get_attr(_GRADIENT)
    raise LookupError(f"the gradient of {OP_NAME} needs node {name!r}, which has a gradient of its own and is not in its function")


def _call_original(definition: Any, called: list[Any], inputs: list[Any], made_in: Any) -> list[Any]:
    """Puts the original's nodes, and the functions that they call, into the current graph."""
    import tensorflow as tf
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

    graph: Any = tf.compat.v1.get_default_graph()
    for function in called:
        graph._add_function_recursive(function)
    graph_def, names = function_def_to_graph_def(definition)
    for node in graph_def.node:
        if _ORIGIN in node.attr:
            node.attr[_GRADIENT].s = _own_gradient(node, made_in)
            del node.attr[_ORIGIN]
    args = [arg.name for arg in definition.signature.input_arg]
    returns = [names[definition.ret[out.name]] for out in definition.signature.output_arg]
    # Arguments come back as placeholders of their names; identities keep the results apart from them.
    feeds = {f"{name}:0": tf.identity(value) for name, value in zip(args, inputs, strict=True)}
    return [tf.identity(t) for t in tf.import_graph_def(graph_def, feeds, returns, name="disc_original")]


def _gradient(op: Any, *grads: Any) -> list[Any]:
    """Gradient of DiscLaunch: that of the function it was compiled from (attribute `original`), computed again."""
    import tensorflow as tf

    made_in = getattr(op, "graph", None)
    definition = _find_function(op.get_attr("original").name, made_in)[1]
    called = _called(definition, made_in)
    inputs, n = list(op.inputs), len(op.inputs)
    given = [i for i, g in enumerate(grads) if g is not None]
    wanted = [i for i, x in enumerate(inputs) if x.dtype.is_floating or x.dtype.is_complex]

    @tf.function(autograph=False)
    def backward(*values: Any) -> list[Any]:
        xs = [tf.identity(v) for v in values[:n]]
        ys = _call_original(definition, called, xs, made_in)
        found = tf.gradients([ys[i] for i in given], [xs[i] for i in wanted], list(values[n:]), unconnected_gradients="zero")
        # Rows that were looked up stay rows: the gradient of a lookup must not be as large as the table.
        return [g if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g) for g in found]

    result: list[Any] = [None] * n
    if given and wanted:
        found = backward(*inputs, *(tf.convert_to_tensor(grads[i]) for i in given))
        for i, g in zip(wanted, found, strict=True):
            result[i] = g
    return result


load_op_library()
