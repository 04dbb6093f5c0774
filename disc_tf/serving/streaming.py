"""Outputs of a request as they come to exist.

A signature that is one compiled artefact (`launches`) is driven by the artefact's own runner, which tells of each output when it is
complete. Any other runs in TensorFlow, which gives all outputs at once.
"""

from __future__ import annotations

import concurrent.futures
import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from disc_tf.runtime.artifact import KINDS, ArtifactError, unpack
from disc_tf.runtime.executable import DiscError, Executable
from disc_tf.runtime.runner import Job, Runner
from disc_tf.serving.errors import NAMES, ServingError, from_exception
from disc_tf.serving.launches import Launch, NotOne, find_launch
from disc_tf.serving.tensors import numpy_type

if TYPE_CHECKING:
    from disc_tf.serving.servable import Servable, Signature

log = logging.getLogger("disc_tf.serving")

#: outputs that came together, by name
Outputs = dict[str, np.ndarray]


class Cancellation:
    """Whether the client is gone. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._actions: list[Callable[[], object]] = []

    def set(self) -> None:
        """The client is gone."""
        with self._lock:
            self._set = True
            actions, self._actions = self._actions, []
        for action in actions:
            action()

    def then(self, action: Callable[[], object]) -> None:
        """Call ``action`` once the client is gone; at once if it is."""
        with self._lock:
            if not self._set:
                self._actions.append(action)
                return
        action()


class Stream:
    """Outputs on their way from the thread that makes them to the one that sends them."""

    def __init__(self, wanted: Sequence[str], deadline: float | None) -> None:
        self._missing = set(wanted)
        self._deadline = deadline
        self._queue: queue.SimpleQueue[tuple[str, np.ndarray] | ServingError] = queue.SimpleQueue()

    def put(self, name: str, value: np.ndarray) -> None:
        """An output is complete. Called in the thread that runs the model: what comes later waits for it."""
        self._queue.put((name, value))

    def fail(self, error: ServingError) -> None:
        """Outputs that are not there yet will not come."""
        self._queue.put(error)

    def __iter__(self) -> Iterator[Outputs]:
        """Each wanted output once, with those that are there at the same time. Raises what the stream failed with, DEADLINE_EXCEEDED."""
        while self._missing:
            found: Outputs = {}
            error = self._take(found, wait=True)
            while error is None and self._missing and not self._queue.empty():
                error = self._take(found, wait=False)
            if found:
                yield found
            if error is not None and self._missing:
                raise error

    def _take(self, into: Outputs, wait: bool) -> ServingError | None:
        try:
            item = self._queue.get(wait, None if self._deadline is None or not wait else max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            return ServingError("DEADLINE_EXCEEDED", "the deadline passed before all outputs were there") if wait else None
        if isinstance(item, ServingError):
            return item
        if item[0] in self._missing:
            self._missing.remove(item[0])
            into[item[0]] = item[1]
        return None


class Streamer:
    """Runs one signature of a servable output by output. Thread-safe. `NotOne` if it cannot be done."""

    def __init__(self, servable: Servable, signature: Signature, meta: Any) -> None:
        self._launch = launch = find_launch(meta, signature.name)
        if not launch.executable:
            raise NotOne("the model lacks the artefact")
        try:
            self._runner = _load(launch)
        except (DiscError, ArtifactError) as e:
            raise NotOne(f"the artefact cannot be loaded: {e}") from e
        for alias, result in launch.results.items():
            made, declared = self._runner.outputs[str(result)].numpy_dtype, signature.outputs[alias].dtype
            if made != numpy_type(declared):
                raise NotOne(f"output {alias!r} is declared as another type than the artefact makes")
        found = [v for v in (*launch.inputs, *launch.others.values()) if isinstance(v, tuple)]
        refs = list(dict.fromkeys(found))
        self._position = {ref: i for i, ref in enumerate(refs)}
        self._before = servable.extend(launch.before, launch.present, refs, launch.targets) if refs or launch.targets else None
        self._feeds = {alias: endpoint.tensor for alias, endpoint in signature.inputs.items()}

    def start(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str], deadline: float | None, cancellation: Cancellation
    ) -> Generator[Outputs, None, None]:
        """The ``outputs`` (names) for ``feeds`` (by name). What the run still does when the caller stops is abandoned."""
        stream = Stream(outputs, deadline)
        cancellation.then(lambda: stream.fail(ServingError("CANCELLED", "the client cancelled the request")))
        launch = self._launch
        tensors = self._before({self._feeds[a]: v for a, v in feeds.items()}, deadline) if self._before is not None else []

        def value(of: str | np.ndarray | tuple[str, int]) -> np.ndarray:
            if isinstance(of, str):
                return feeds[of]
            return tensors[self._position[of]] if isinstance(of, tuple) else of

        wanted: dict[int, list[str]] = {}
        for alias in outputs:
            if alias in launch.results:
                wanted.setdefault(launch.results[alias], []).append(alias)
            else:
                stream.put(alias, value(launch.others[alias]))

        def came(name: str, array: np.ndarray) -> None:
            for alias in wanted.get(int(name), ()):
                stream.put(alias, array)

        job = self._begin([value(v) for v in launch.inputs], came) if wanted else None
        if job is not None:
            job.on_failure(lambda error: stream.fail(_error(error)))
        try:
            yield from stream
        finally:
            if job is not None:
                job.cancel()  # nothing if it has ended

    def _begin(self, inputs: Sequence[np.ndarray], came: Callable[[str, np.ndarray], None]) -> Job:
        try:
            return self._runner.run_async({str(i): v for i, v in enumerate(inputs)}, on_output=came)
        except (DiscError, ValueError) as e:  # the version is being unloaded
            raise _error(e) from e

    def close(self) -> None:
        """Drop the code; what runs ends well."""
        self._runner.close()


def _load(launch: Launch) -> Runner:
    """A runner whose inputs and outputs have the numbers of the op's inputs and outputs as names."""
    artifact = unpack(launch.executable)
    # as the op has them: arguments by kind, results by where they lie
    inputs = sorted(range(len(artifact.args)), key=lambda i: KINDS.index(artifact.args[i].kind))
    outputs = sorted(range(len(artifact.results)), key=lambda i: not artifact.results[i].host)
    if len(inputs) != len(launch.inputs):
        raise NotOne("the launch and its artefact have different inputs")
    executable = Executable.from_bytes(launch.executable)
    return Runner(
        executable,
        input_names={i: str(port) for port, i in enumerate(inputs)},
        output_names={i: str(port) for port, i in enumerate(outputs)},
    )


def _error(error: BaseException) -> ServingError:
    if isinstance(error, DiscError):
        node = f" [[original node: {error.node}]]" if error.node else ""
        return ServingError(NAMES.get(error.code, "INTERNAL"), error.message + node)
    if isinstance(error, concurrent.futures.CancelledError):
        return ServingError("CANCELLED", "the request was cancelled")
    return from_exception(error)


class Streamers:
    """The streamers of a servable, made when first asked for. Thread-safe."""

    def __init__(self, servable: Servable) -> None:
        self._servable = servable
        self._lock = threading.Lock()
        self._made: dict[str, Streamer | None] = {}
        self._closed = False

    def of(self, signature: Signature) -> Streamer | None:
        """None for a signature whose outputs come all at once: the log says why, once."""
        with self._lock:
            if self._closed:
                return None
            if signature.name not in self._made:
                self._made[signature.name] = self._make(signature)
            return self._made[signature.name]

    def _make(self, signature: Signature) -> Streamer | None:
        from disc_tf.frontend.errors import GraphError
        from disc_tf.frontend.saved_model import choose_meta_graph, read_saved_model

        servable = self._servable
        try:
            return Streamer(servable, signature, choose_meta_graph(read_saved_model(servable.path), servable.tags))
        except (NotOne, GraphError, ServingError) as e:
            why = str(e)
        except Exception as e:  # whatever the graph does to the analysis: outputs come at once
            log.exception("model %s signature %s cannot be analysed", servable.name, signature.name)
            why = f"{type(e).__name__}: {e}"
        log.warning("model %s version %d signature %s: outputs come at once, %s", servable.name, servable.version, signature.name, why)
        return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for streamer in self._made.values():
                if streamer is not None:
                    streamer.close()
            self._made.clear()


__all__ = ["Cancellation", "Outputs", "Stream", "Streamer", "Streamers"]
