"""What each RPC does, on messages, whichever way they came in.

Checks and error messages are ModelServer's (docs/serving.md has the table).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from disc_tf.serving import examples
from disc_tf.serving.config import ConfigError, models_from_message
from disc_tf.serving.errors import CODES, ServingError, invalid
from disc_tf.serving.manager import ModelManager, label_or_version
from disc_tf.serving.protos import message_class, serving
from disc_tf.serving.servable import CLASSIFY, DEFAULT_SIGNATURE, REGRESS, Servable, Signature
from disc_tf.serving.sources import below
from disc_tf.serving.stores import is_remote, local_path
from disc_tf.serving.streaming import Cancellation
from disc_tf.serving.tensors import MAX_TENSOR_BYTES, to_numpy, to_proto, type_name

_STATES = {"START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50}


class Runner(Protocol):
    """Runs a Predict: directly, or in a batch with others."""

    def __call__(
        self, servable: Servable, signature: Signature, feeds: Mapping[str, np.ndarray], outputs: tuple[str, ...], deadline: float | None
    ) -> list[np.ndarray]: ...


def run_directly(
    servable: Servable, signature: Signature, feeds: Mapping[str, np.ndarray], outputs: tuple[str, ...], deadline: float | None
) -> list[np.ndarray]:
    """Values of the signature's ``outputs`` (names) for its inputs ``feeds`` (by name)."""
    tensors = {signature.inputs[alias].tensor: value for alias, value in feeds.items()}
    return servable.run(tensors, [signature.outputs[o].tensor for o in outputs], deadline)


class Handlers:
    """The RPCs over a `ModelManager`.

    ``reload_roots``: directories, and URLs of object stores, below which a reload request may name base paths.
    ``observe(model, seconds)``: time in TensorFlow. Every method raises `ServingError`.
    """

    def __init__(
        self,
        manager: ModelManager,
        *,
        run: Runner = run_directly,
        reload_roots: tuple[Path | str, ...] = (),
        max_tensor_bytes: int = MAX_TENSOR_BYTES,
        observe: Callable[[str, float], object] = lambda model, seconds: None,
    ) -> None:
        self.manager = manager
        self._run = run
        self._roots = reload_roots
        self._limit = max_tensor_bytes
        self._observe = observe

    # ---- PredictionService ----

    def predict(self, request: Any, deadline: float | None = None) -> Any:
        with self._lease(request) as servable:
            response = self.predict_on(servable, request, deadline)
        response.model_spec.name = request.model_spec.name
        return response

    def predict_on(self, servable: Servable, request: Any, deadline: float | None = None) -> Any:
        """`predict` on a given version (warm-up)."""
        return self._at_once(servable, *self._checked(servable, request), deadline)

    def predict_streamed(
        self, request: Any, deadline: float | None = None, cancellation: Cancellation | None = None
    ) -> Generator[Any, None, None]:
        """The answer to a Predict in parts: each PredictResponse has outputs that have come to exist, each output comes once."""
        with self._lease(request) as servable, contextlib.closing(
            self.predict_streamed_on(servable, request, deadline, cancellation)
        ) as responses:
            for response in responses:
                response.model_spec.name = request.model_spec.name
                yield response

    def predict_streamed_on(
        self, servable: Servable, request: Any, deadline: float | None = None, cancellation: Cancellation | None = None
    ) -> Generator[Any, None, None]:
        """`predict_streamed` on a given version."""
        options = request.predict_streamed_options
        if options.request_state or options.split_dimensions:
            raise ServingError("UNIMPLEMENTED", "requests whose tensors come in several messages are not supported")
        signature, feeds, outputs = self._checked(servable, request)
        streamer = None if options.return_single_response else servable.streamers.of(signature)
        if streamer is None:
            yield self._at_once(servable, signature, feeds, outputs, deadline)
            return
        with self._timed(servable.name), contextlib.closing(
            streamer.start(feeds, outputs, deadline, cancellation or Cancellation())
        ) as parts:
            for found in parts:
                yield _response(servable, signature, found)

    def _at_once(
        self, servable: Servable, signature: Signature, feeds: Mapping[str, np.ndarray], outputs: tuple[str, ...], deadline: float | None
    ) -> Any:
        """A PredictResponse with all outputs that are wanted."""
        with self._timed(servable.name):
            values = self._run(servable, signature, feeds, outputs, deadline)
        return _response(servable, signature, dict(zip(outputs, values, strict=True)))

    def _checked(self, servable: Servable, request: Any) -> tuple[Signature, dict[str, np.ndarray], tuple[str, ...]]:
        """The signature of a PredictRequest, its inputs and the outputs that are wanted, by name."""
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        signature = servable.signature(name)
        if signature is None:
            raise ServingError("FAILED_PRECONDITION", f'Serving signature key "{name}" not found.')
        if signature.unusable:
            raise ServingError("UNIMPLEMENTED", f'Serving signature "{name}": {signature.unusable}')
        return signature, self._feeds(signature, request.inputs), _outputs(signature, list(request.output_filter))

    def _feeds(self, signature: Signature, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        given, known = set(inputs), set(signature.inputs)
        extra, missing = given - known, known - given - set(signature.defaults)
        if extra or missing:
            raise invalid(
                f"input size does not match signature: {len(given)}!={len(known)} len({{{','.join(sorted(given))}}}) != "
                f"len({{{','.join(sorted(known))}}}). Sent extra: {{{','.join(sorted(extra))}}}. "
                f"Missing but required: {{{','.join(sorted(missing))}}}."
            )
        feeds = {alias: value for alias, value in signature.defaults.items() if alias not in given}
        for alias, proto in inputs.items():
            endpoint = signature.inputs[alias]
            if proto.dtype != endpoint.dtype:
                raise invalid(f"input {alias!r}: expected {type_name(endpoint.dtype)}, got {type_name(proto.dtype)}")
            feeds[alias] = to_numpy(proto, self._limit)
        return feeds

    def classify(self, request: Any, deadline: float | None = None) -> Any:
        return self._examples(request, CLASSIFY, "ClassificationResponse", deadline)

    def regress(self, request: Any, deadline: float | None = None) -> Any:
        return self._examples(request, REGRESS, "RegressionResponse", deadline)

    def _examples(self, request: Any, method: str, response_name: str, deadline: float | None) -> Any:
        with self._lease(request) as servable:
            name = request.model_spec.signature_name or DEFAULT_SIGNATURE
            signature = servable.signature(name)
            if signature is None:
                raise invalid(f"No signature was found with the name: {name}")
            tensor, outputs = examples.endpoints(signature, method)
            values = examples.serialized_examples(request.input, self._limit)
            with self._timed(servable.name):
                found = servable.run({tensor: values}, list(outputs.values()), deadline)
            response = serving(response_name)
            response.result.CopyFrom(examples.result_of(method, dict(zip(outputs, found, strict=True)), len(values)))
            _fill_spec(response, request.model_spec.name, name, servable.version)
            return response

    def multi_inference(self, request: Any, deadline: float | None = None) -> Any:
        """All tasks in one run of the graph, over the same examples."""
        names = [task.model_spec.name for task in request.tasks]
        if not names:
            raise invalid("MultiInferenceRequest has no tasks")
        if not all(names):
            raise invalid("Found ModelSpec with an empty model name.")
        if len(set(names)) != 1:
            raise invalid("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
        # ModelServer takes the version of the first task for all
        with self._lease(request.tasks[0]) as servable:
            tasks: list[tuple[Any, str, dict[str, str]]] = []
            feed, seen = "", set()
            for task in request.tasks:
                name = task.model_spec.signature_name or DEFAULT_SIGNATURE
                if name in seen:
                    raise invalid(f"Duplicate evaluation of signature: {name}")
                seen.add(name)
                signature = servable.signature(name)
                if signature is None:
                    raise invalid(f"Requested signature not found in model graph: {name}")
                if task.method_name not in (CLASSIFY, REGRESS):
                    raise ServingError("UNIMPLEMENTED", f"Unsupported signature method_name: {task.method_name}")
                tensor, outputs = examples.endpoints(signature, task.method_name)
                if feed and tensor != feed:
                    raise invalid("Input tensor must be the same for all Signatures.")
                feed = tensor
                tasks.append((task, name, outputs))
            values = examples.serialized_examples(request.input, self._limit)
            fetches = list(dict.fromkeys(t for _, _, outputs in tasks for t in outputs.values()))
            with self._timed(servable.name):
                found = dict(zip(fetches, servable.run({feed: values}, fetches, deadline), strict=True))
            response = serving("MultiInferenceResponse")
            for task, name, outputs in tasks:
                result = response.results.add()
                made = examples.result_of(task.method_name, {alias: found[t] for alias, t in outputs.items()}, len(values))
                (result.classification_result if task.method_name == CLASSIFY else result.regression_result).CopyFrom(made)
                _fill_spec(result, task.model_spec.name, name, servable.version)
            return response

    def get_model_metadata(self, request: Any, deadline: float | None = None) -> Any:
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid(f"Metadata field {field} is not supported")
        with self._lease(request) as servable:
            definitions = serving("SignatureDefMap")
            for name, signature in servable.signatures.items():
                definitions.signature_def[name].ParseFromString(signature.message)
            response = serving("GetModelMetadataResponse")
            response.model_spec.name = servable.name
            response.model_spec.version.value = servable.version
            packed = response.metadata["signature_def"]
            packed.type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
            packed.value = definitions.SerializeToString(deterministic=True)
            return response

    # ---- ModelService ----

    def get_model_status(self, request: Any, deadline: float | None = None) -> Any:
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        spec = request.model_spec
        response = serving("GetModelStatusResponse")
        for version, state in sorted(self.manager.status(spec.name, *label_or_version(spec)).items(), reverse=True):
            entry = response.model_version_status.add(version=version, state=_STATES[state.state])
            entry.status.error_code = CODES[state.code]
            entry.status.error_message = state.message
        return response

    def reload_config(self, request: Any, deadline: float | None = None) -> Any:
        """The call itself succeeds; ``status`` in the response says whether the configuration does, as ModelServer has it."""
        response = serving("ReloadConfigResponse")
        try:
            self._reload(request)
        except ServingError as e:
            response.status.error_code = CODES[e.code]
            response.status.error_message = e.message
        else:
            response.status.SetInParent()
        return response

    def _reload(self, request: Any) -> None:
        if request.config.WhichOneof("config") is None:
            raise invalid("ReloadConfigRequest has no config: give a model_config_list")
        try:
            models = models_from_message(request.config, "ReloadConfigRequest")
        except ConfigError as e:
            raise invalid(str(e)) from e
        known = {m.base_path for m in self.manager.settings()}
        for m in models:
            if m.base_path not in known and not self._allowed(m.base_path):
                raise ServingError(
                    "PERMISSION_DENIED",
                    f"model {m.name}: {m.base_path} is not below a directory that this server may load from; start it with --reload-root",
                )
        self.manager.configure(models)
        missing = [m.name for m in models if not self.manager.models().get(m.name)]
        if missing:
            raise ServingError("UNKNOWN", f"Some models did not become available: {', '.join(missing)}")

    def _allowed(self, path: str) -> bool:
        if is_remote(path):
            return any(below(path, root) for root in self._roots if isinstance(root, str))
        real = local_path(path).resolve()
        return any(real.is_relative_to(root) for root in self._roots if isinstance(root, Path))

    # ---- shared ----

    def _lease(self, request: Any) -> contextlib.AbstractContextManager[Servable]:
        spec = request.model_spec
        return self.manager.lease(spec.name, *label_or_version(spec))

    @contextlib.contextmanager
    def _timed(self, model: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._observe(model, time.perf_counter() - start)


def _outputs(signature: Signature, wanted: list[str]) -> tuple[str, ...]:
    for i, alias in enumerate(wanted):
        if alias not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {alias} Outputs expected to be in the set "
                f"{{{','.join(sorted(signature.outputs))}}}."
            )
        if alias in wanted[:i]:
            raise invalid(f"duplicate output tensor alias: {alias}")
    return tuple(wanted) or tuple(sorted(signature.outputs))


def _response(servable: Servable, signature: Signature, outputs: Mapping[str, np.ndarray]) -> Any:
    """A PredictResponse; the model's name is left out."""
    response = serving("PredictResponse")
    _fill_spec(response, "", signature.name, servable.version)
    for alias, value in outputs.items():
        to_proto(value, response.outputs[alias])
    return response


def _fill_spec(message: Any, name: str, signature: str, version: int) -> None:
    message.model_spec.name = name
    message.model_spec.signature_name = signature
    message.model_spec.version.value = version


#: service -> method -> (request, response, attribute of `Handlers`)
SERVICES: dict[str, dict[str, tuple[str, str, str]]] = {
    "tensorflow.serving.PredictionService": {
        "Predict": ("PredictRequest", "PredictResponse", "predict"),
        "Classify": ("ClassificationRequest", "ClassificationResponse", "classify"),
        "Regress": ("RegressionRequest", "RegressionResponse", "regress"),
        "MultiInference": ("MultiInferenceRequest", "MultiInferenceResponse", "multi_inference"),
        "GetModelMetadata": ("GetModelMetadataRequest", "GetModelMetadataResponse", "get_model_metadata"),
    },
    "tensorflow.serving.ModelService": {
        "GetModelStatus": ("GetModelStatusRequest", "GetModelStatusResponse", "get_model_status"),
        "HandleReloadConfigRequest": ("ReloadConfigRequest", "ReloadConfigResponse", "reload_config"),
    },
}

#: the same for methods whose answer is a stream of responses (proto/disc_tf/streaming.proto)
STREAMS: dict[str, dict[str, tuple[str, str, str]]] = {
    "disc_tf.serving.StreamedPrediction": {"PredictStreamed": ("PredictRequest", "PredictResponse", "predict_streamed")},
}


def request_class(service: str, method: str) -> Any:
    """The class of a method's request."""
    return message_class(f"serving.{(SERVICES | STREAMS)[service][method][0]}")
