"""One version of one model in this process: a SavedModel in a session, its signatures, and who uses it.

A SavedModel of either generation is loaded as ModelServer does: its serving graph into a session, run by the tensor names of its
signatures.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.serving.errors import ServingError, from_exception, invalid
from disc_tf.serving.protos import message_class
from disc_tf.serving.streaming import Streamers

DEFAULT_SIGNATURE = "serving_default"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
#: not for requests: it only says which op to run when the model is loaded
_INIT_OP = "__saved_model_init_op"


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A named input or output of a signature."""

    tensor: str
    dtype: int
    dims: tuple[int, ...] | None  # -1: unknown; None: unknown rank


@dataclasses.dataclass(frozen=True)
class Signature:
    """A signature of a SavedModel. ``message``: its SignatureDef, serialized. ``defaults``: values of inputs that may be left out."""

    name: str
    method: str
    inputs: Mapping[str, Endpoint]
    outputs: Mapping[str, Endpoint]
    message: bytes
    defaults: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    #: why it cannot be served (sparse or composite tensors), empty if it can
    unusable: str = ""


def parse_signature(name: str, message: bytes) -> Signature:
    """A Signature from a serialized SignatureDef."""
    from disc_tf.serving.tensors import to_numpy

    definition = message_class("SignatureDef").FromString(message)
    unusable = ""
    sides: list[dict[str, Endpoint]] = []
    for side in (definition.inputs, definition.outputs):
        found: dict[str, Endpoint] = {}
        for alias, info in side.items():
            if info.WhichOneof("encoding") not in ("name", None):
                unusable = f"{alias!r} is no dense tensor"
            shape = info.tensor_shape
            dims = None if shape.unknown_rank else tuple(d.size for d in shape.dim)
            found[alias] = Endpoint(info.name, info.dtype, dims)
        sides.append(found)
    defaults = {alias: to_numpy(value) for alias, value in definition.defaults.items()}
    return Signature(name, definition.method_name, sides[0], sides[1], message, defaults, unusable)


class Servable:
    """A loaded version. Thread-safe; `close` only once nobody uses it (the manager counts)."""

    def __init__(
        self, name: str, version: int, path: str | Path, *, threads: tuple[int, int] = (0, 0), tags: Sequence[str] = ("serve",)
    ) -> None:
        """Loads.

        ``threads``: intra-op and inter-op threads of the session (0: TensorFlow's choice). Raises `ServingError` with the reason.
        """
        self.name, self.version, self.path = name, version, Path(path)
        self.users = 0
        #: where the version was found, and what to call once it is closed: the manager's
        self.origin: Any = self.path
        self.on_closed: Callable[[], object] = lambda: None
        #: signature -> why its requests do not share batches, "" if they may; empty: not judged
        self.not_batched: dict[str, str] = {}
        self._calls: dict[tuple[tuple[str, ...], tuple[str, ...]], Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._extensions = 0
        self.tags = tuple(tags)
        self._session, self.signatures = _load(str(path), threads, tags)
        #: what gives outputs as they come to exist, where that can be
        self.streamers = Streamers(self)

    def signature(self, name: str) -> Signature | None:
        """The signature of that name, the default one for ``""``."""
        return self.signatures.get(name or DEFAULT_SIGNATURE)

    def run(self, feeds: Mapping[str, np.ndarray], fetches: Sequence[str], deadline: float | None = None) -> list[np.ndarray]:
        """Values of the tensors ``fetches`` for tensors fed by name.

        ``deadline``: on `time.monotonic`. `ServingError` with TensorFlow's status.
        """
        unique = tuple(sorted(set(fetches)))  # one callable whatever the order that a request asks in
        by_name = dict(zip(unique, self._run(feeds, unique, deadline), strict=True))
        return [np.asarray(by_name[f]) for f in fetches]

    def _run(self, feeds: Mapping[str, np.ndarray], fetches: tuple[str, ...], deadline: float | None) -> Sequence[Any]:
        """Values of tensors, None for ops."""
        import tensorflow as tf

        names = tuple(sorted(feeds))
        options = None
        if deadline is not None:
            left = int((deadline - time.monotonic()) * 1000)
            if left <= 0:
                raise ServingError("DEADLINE_EXCEEDED", "the deadline passed before the model could run")
            options = tf.compat.v1.RunOptions(timeout_in_ms=left)
        try:
            return self._callable(names, fetches)(*(feeds[n] for n in names), options=options)
        except (tf.errors.OpError, ValueError, TypeError, KeyError) as e:
            raise _run_error(e) from e

    def extend(
        self, before: Any, present: Collection[str], tensors: Sequence[tuple[str, int]], targets: Sequence[str]
    ) -> Callable[[Mapping[str, np.ndarray], float | None], list[np.ndarray]]:
        """A function of feeds (by tensor name) and deadline that gives ``tensors`` and runs ``targets`` besides.

        ``before``: a GraphDef of nodes that are put into the session's graph; ``present``: nodes that they need and that are there.
        """
        import tensorflow as tf

        graph, added = self._session.graph, {n.name for n in before.node}
        definition = tf.compat.v1.GraphDef.FromString(before.SerializeToString())
        mapped: dict[str, Any] = {}
        for node in definition.node:
            node.attr.pop("_class", None)  # the places that it names may not be there
            for text in node.input:
                name, _, port = text.removeprefix("^").partition(":")
                if name in present:
                    mapped[text] = graph.get_tensor_by_name(f"{name}:{0 if text.startswith('^') else port or 0}")
        with self._lock:
            self._extensions += 1
            scope = f"disc_tf_before_{self._extensions}"
            if added:
                with graph.as_default():
                    tf.import_graph_def(definition, mapped, name=scope)

        def placed(name: str) -> str:
            return f"{scope}/{name}" if name in added else name

        fetches = tuple([f"{placed(name)}:{port}" for name, port in tensors] + [placed(name) for name in targets])
        return lambda feeds, deadline: [np.asarray(v) for v in self._run(feeds, fetches, deadline)[: len(tensors)]]

    def session_run(self, feeds: Mapping[str, np.ndarray], fetches: Sequence[str], targets: Sequence[str]) -> None:
        """Run by raw tensor and op names, results dropped (warm-up records of SessionRun)."""
        import tensorflow as tf

        try:
            graph = self._session.graph
            self._session.run([*fetches, *(graph.get_operation_by_name(t) for t in targets)], dict(feeds))
        except (tf.errors.OpError, ValueError, TypeError, KeyError) as e:
            raise _run_error(e) from e

    def _callable(self, names: tuple[str, ...], fetches: tuple[str, ...]) -> Callable[..., Any]:
        key = (names, fetches)
        with self._lock:
            call = self._calls.get(key)
            if call is None:
                # the session extends and prunes the graph for each set of feeds and fetches: kept, and bounded by the signatures' subsets
                if len(self._calls) >= 256:
                    self._calls.pop(next(iter(self._calls)))
                call = self._session.make_callable(list(fetches), list(names), accept_options=True)
                self._calls[key] = call
        return call

    def close(self) -> None:
        """Frees the session, its variables and compiled code."""
        self.streamers.close()
        with self._lock:
            self._calls.clear()
        self._session.close()


def _run_error(error: Exception) -> ServingError:
    found = from_exception(error)
    # the Python layer's own checks (names, types, shapes of feeds) are the request's fault
    return found if found.code != "INTERNAL" or hasattr(error, "error_code") else invalid(str(error))


def _load(path: str, threads: tuple[int, int], tags: Sequence[str]) -> tuple[Any, dict[str, Signature]]:
    import tensorflow as tf

    import disc_tf.ops  # noqa: F401  registers DiscLaunch

    if Path(path, "saved_model.cpb").exists() and not Path(path, "saved_model.pb").exists():
        raise ServingError(
            "UNIMPLEMENTED", f"{path}: a split SavedModel (saved_model.cpb); save it again without experimental_image_format"
        )
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads[0], inter_op_parallelism_threads=threads[1])
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph, config=config)
    try:
        with graph.as_default():
            meta = tf.compat.v1.saved_model.loader.load(session, list(tags), path)
        signatures = {
            name: parse_signature(name, definition.SerializeToString())
            for name, definition in meta.signature_def.items()
            if name != _INIT_OP
        }
        if not _has_launches(meta.graph_def):  # else what streams outputs may add to it
            graph.finalize()
    except Exception as e:
        session.close()
        message = getattr(e, "message", None) or str(e)
        if "Op type not registered" in message:
            message += " (the model needs an op library that this server does not load)"
        raise ServingError(_load_code(e), f"cannot load {path}: {message}") from e
    return session, signatures


def _has_launches(graph_def: Any) -> bool:
    """Whether anything is compiled."""
    bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
    return any(node.op == "DiscLaunch" for body in bodies for node in body)


def _load_code(error: Exception) -> str:
    code = from_exception(error).code
    return code if code != "INTERNAL" else "FAILED_PRECONDITION"
