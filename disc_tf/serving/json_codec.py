"""The REST API's JSON.

Requests to messages, results to text, with ModelServer's rules (row and column format, `b64`, no silent loss of digits).
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from disc_tf.serving.errors import NAMES, ServingError, invalid
from disc_tf.serving.protos import pool, serving
from disc_tf.serving.servable import DEFAULT_SIGNATURE, Endpoint, Signature
from disc_tf.serving.tensors import DT_STRING, numpy_type, to_numpy, to_proto, type_name

#: nesting of arrays in a request
_MAX_RANK = 32


def parse_object(body: bytes) -> dict[str, Any]:
    """A request's JSON object. INVALID_ARGUMENT."""
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        document = json.loads(body)
        if b"\\u" in body or not body.isascii():
            json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate passes json, but no message can hold it
    except (ValueError, RecursionError) as e:
        raise invalid(f"JSON Parse error: {e}") from e
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {_short(document)} Is not object")
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(f"JSON Value: {_short(document)} not formatted correctly. 'signature_name' key must be a string value.")
    return document


def fill_predict_request(request: Any, document: Mapping[str, Any], signature: Signature) -> bool:
    """Puts the tensors of ``document`` into a PredictRequest; whether it came in row format."""
    rows = "instances" in document
    if rows == ("inputs" in document):
        if rows:
            raise invalid("Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist")
        raise invalid("Missing 'inputs' or 'instances' key")
    if not signature.inputs:
        raise invalid(f"Failed to get input map for signature: {signature.name}")
    found = _from_rows(document["instances"], signature) if rows else _from_columns(document["inputs"], signature)
    for alias, value in found.items():
        array = tensor_from_json(value, signature.inputs[alias], alias)
        to_proto(array, request.inputs[alias])
    return rows


def _from_rows(instances: Any, signature: Signature) -> dict[str, Any]:
    if not isinstance(instances, list):
        raise invalid("Excepting 'instances' to be an list/array")
    if not instances:
        raise invalid("No values in 'instances' array")
    named = _is_object(instances[0])
    if not named and len(signature.inputs) > 1:
        raise invalid("instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map")
    if not named:
        if any(map(_is_object, instances)):
            raise invalid("Expecting value/list but got object in the input list")
        return {next(iter(signature.inputs)): instances}
    columns: dict[str, list[Any]] = {alias: [] for alias in instances[0]}
    required = set(signature.inputs) - set(signature.defaults)
    for i, row in enumerate(instances):
        if not _is_object(row):
            raise invalid(f"Expecting object but got list at item {i} of input list")
        if row.keys() != columns.keys() or not required <= row.keys() <= set(signature.inputs):
            raise invalid(
                f"Failed to process element: {i} of 'instances' list. JSON object: {_short(row)} "
                f"keys must be equal to: {','.join(sorted(signature.inputs))}"
            )
        for alias, value in row.items():
            columns[alias].append(value)
    return columns


def _from_columns(inputs: Any, signature: Signature) -> dict[str, Any]:
    if not _is_object(inputs):
        if len(signature.inputs) > 1:
            raise invalid("inputs is a plain value/list, but expecting an object as multiple input tensors required as per tensorinfo_map")
        return {next(iter(signature.inputs)): inputs}
    for alias in signature.inputs:
        if alias not in inputs and alias not in signature.defaults:
            raise invalid(f"Missing named input: {alias} in 'inputs' object.")
    return {alias: inputs[alias] for alias in signature.inputs if alias in inputs}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_b64(value)


def _is_b64(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def tensor_from_json(value: Any, endpoint: Endpoint, alias: str) -> np.ndarray:
    """A dense tensor of nested lists. INVALID_ARGUMENT for ragged lists, values of another type, and numbers that would lose digits."""
    shape: list[int] = []
    level = [value]
    while level and isinstance(level[0], list):
        if len(shape) == _MAX_RANK:
            raise invalid(f"input {alias!r}: arrays nest more than {_MAX_RANK} deep")
        size = len(level[0])
        for item in level:
            if not isinstance(item, list) or len(item) != size:
                what = f"a list of {len(item)}" if isinstance(item, list) else _short(item)
                raise invalid(f"input {alias!r}: expecting lists of size {size} at level {len(shape)}, found {what}")
        shape.append(size)
        level = list(itertools.chain.from_iterable(level))
    return _leaves(level, endpoint.dtype, alias).reshape(shape)


_INTEGERS = {"i", "u"}


def _leaves(values: list[Any], dtype: int, alias: str) -> np.ndarray:
    kind = numpy_type(dtype)
    if dtype == DT_STRING:
        out = np.empty(len(values), np.object_)
        out[:] = [_string(v, alias) for v in values]
        return out
    types = set(map(type, values))
    allowed: set[type]
    if kind.kind == "b":
        allowed = {bool}
    elif kind.kind in _INTEGERS:
        allowed = {int}
    elif kind.kind == "f" or kind == ml_dtypes.bfloat16:
        allowed = {int, float}
    else:
        raise ServingError("UNIMPLEMENTED", f"Conversion of JSON Value: {_short(values)} to type: {type_name(dtype)}")
    if not types <= allowed:
        wrong = next(v for v in values if type(v) not in allowed)
        raise invalid(f"input {alias!r}: JSON Value: {_short(wrong)} is not of expected type: {type_name(dtype)}")
    if kind.kind in _INTEGERS:
        limits = np.iinfo(kind)
        for v in (min(values, default=0), max(values, default=0)):
            if not limits.min <= v <= limits.max:
                raise invalid(f"input {alias!r}: JSON Value: {v} is not of expected type: {type_name(dtype)}")
        return np.array(values, kind)
    if kind.kind == "b":
        return np.array(values, kind)
    return _decimals(values, types, kind, alias)


def _decimals(values: list[Any], types: set[type], kind: np.dtype, alias: str) -> np.ndarray:
    info = ml_dtypes.finfo(kind)
    if int in types:
        exact = 1 << (info.nmant + 1)
        for v in values:
            if type(v) is int and abs(v) >= exact:
                raise invalid(f"input {alias!r}: Cannot convert JSON value: {v} to {kind} without loss of precision.")
    wide = np.array(values, np.float64)
    finite = np.isfinite(wide)
    if (np.abs(wide[finite]) > float(info.max)).any():
        raise invalid(f"input {alias!r}: a number is beyond the range of {kind}")
    return wide.astype(kind)


def _string(value: Any, alias: str) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if _is_b64(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as e:
            raise invalid(f"input {alias!r}: Unable to base64 decode") from e
    raise invalid(f"input {alias!r}: JSON Value: {_short(value)} is not of expected type: string")


def fill_examples(request: Any, document: Mapping[str, Any]) -> None:
    """Puts `examples` and `context` of ``document`` into a ClassificationRequest or RegressionRequest."""
    rows = document.get("examples")
    if rows is None:
        raise invalid("When method is classify, key 'examples' is expected and was not found")
    if not isinstance(rows, list):
        raise invalid("Expecting 'examples' value to be an list/array")
    if not rows:
        raise invalid("'examples' value is an empty array")
    if "context" in document:
        target = request.input.example_list_with_context
        _fill_example(target.context, document["context"])
    else:
        target = request.input.example_list
    for row in rows:
        _fill_example(target.examples.add(), row)


def _fill_example(example: Any, value: Any) -> None:
    if not isinstance(value, dict):
        raise invalid(f"Example must be JSON object but got JSON {_short(value)}")
    for name, content in value.items():
        items = content if isinstance(content, list) else [content]
        feature = example.features.feature[name]
        kinds = {_feature_kind(name, v) for v in items}
        if len(kinds) > 1:
            raise invalid(f"Unexpected element type in feature: {name}: {' and '.join(sorted(kinds))} are mixed")
        for v in items:
            if isinstance(v, (str, dict)):
                feature.bytes_list.value.append(_string(v, name))
            elif isinstance(v, float):
                if abs(v) > np.finfo(np.float32).max and np.isfinite(v):
                    raise invalid(f"Cannot convert JSON value: {v} to float without loss of precision.")
                feature.float_list.value.append(v)
            else:
                if not -(1 << 63) <= v < 1 << 63:
                    raise invalid(f"Feature: {name} has an element beyond int64. Only int64 is supported.")
                feature.int64_list.value.append(int(v))


def _feature_kind(name: str, value: Any) -> str:
    if isinstance(value, str) or _is_b64(value):
        return "bytes"
    if isinstance(value, (bool, int)):
        return "int64"
    if isinstance(value, float):
        return "float"
    raise invalid(f"Feature: {name} has element with unexpected JSON type: {_short(value)}")


# ---- results ----


def predict_json(response: Any, rows: bool) -> str:
    """The JSON text of a PredictResponse, in the format that the request came in."""
    arrays = {alias: to_numpy(proto) for alias, proto in sorted(response.outputs.items())}
    if not arrays:
        raise invalid("Cannot convert empty tensor map to JSON")
    if not rows:
        columns = {alias: _text(array, alias) for alias, array in arrays.items()}
        return f'{{"outputs": {_object(columns) if len(columns) > 1 else next(iter(columns.values()))}}}'
    sizes = set()
    for alias, array in arrays.items():
        if not array.ndim:
            raise invalid(f"Tensor name: {alias} has no shape information")
        sizes.add(array.shape[0])
    if len(sizes) > 1:
        raise invalid(
            f"Tensors have inconsistent batch sizes: {', '.join(f'{a}: {x.shape[0]}' for a, x in arrays.items())}; use the column format"
        )
    parts = {alias: _row_texts(array, alias) for alias, array in arrays.items()}
    if len(parts) == 1:
        items: Iterable[str] = next(iter(parts.values()))
    else:
        items = (_object({alias: texts[i] for alias, texts in parts.items()}) for i in range(sizes.pop()))
    return f'{{"predictions": [{", ".join(items)}]}}'


def outputs_json(response: Any) -> str:
    """A PredictResponse as one line of JSON: its outputs by name, each as a whole."""
    return f'{{"outputs": {_object({alias: _text(to_numpy(proto), alias) for alias, proto in sorted(response.outputs.items())})}}}'


def _object(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in members.items()) + "}"


def _row_texts(array: np.ndarray, alias: str) -> list[str]:
    scalars = _scalar_texts(array, alias)
    return _nest(scalars, array.shape[1:], array.shape[0])


def _text(array: np.ndarray, alias: str) -> str:
    return _nest(_scalar_texts(array, alias), array.shape, 1)[0]


def _nest(texts: list[str], shape: tuple[int, ...], count: int) -> list[str]:
    """``count`` texts of arrays of ``shape`` from the texts of their elements."""
    for axis in reversed(range(len(shape))):
        size = shape[axis]
        outer = count * int(np.prod(shape[:axis], dtype=np.int64))
        texts = ["[" + ", ".join(texts[i * size : (i + 1) * size]) + "]" for i in range(outer)]
    return texts


_SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _scalar_texts(array: np.ndarray, alias: str) -> list[str]:
    flat = array.reshape(-1)
    if flat.dtype == np.object_:
        return [_string_text(v, alias) for v in flat]
    if flat.dtype.kind == "b":
        return ["true" if v else "false" for v in flat.tolist()]
    if flat.dtype.kind in _INTEGERS:
        return [str(v) for v in flat.tolist()]
    if flat.dtype == np.float64:
        texts = [repr(v) for v in flat.tolist()]
    elif flat.dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        # shortest digits that give the same float32 again: 0.2, not 0.20000000298023224
        texts = flat.astype(np.float32).astype(str).tolist()
    else:
        raise invalid(f"Failed to write JSON value for tensor {alias!r} of type {flat.dtype}")
    return [_SPECIAL.get(t, t) for t in texts]


def _string_text(value: bytes, alias: str) -> str:
    if alias.endswith("_bytes"):
        return json.dumps({"b64": base64.b64encode(value).decode()})
    try:
        return json.dumps(value.decode())
    except UnicodeDecodeError as e:
        raise invalid(f"output {alias!r} is no UTF-8 text: outputs whose names end in _bytes are sent as base64") from e


def results_json(response: Any) -> str:
    """The JSON text of a ClassificationResponse or RegressionResponse."""
    if response.DESCRIPTOR.name == "ClassificationResponse":
        rows = [
            "[" + ", ".join(f"[{json.dumps(c.label)}, {_float_text(c.score)}]" for c in row.classes) + "]"
            for row in response.result.classifications
        ]
    else:
        rows = [_float_text(r.value) for r in response.result.regressions]
    return f'{{"results": [{", ".join(rows)}]}}'


def _float_text(value: float) -> str:
    return _scalar_texts(np.array([value], np.float32), "")[0]


def metadata_json(response: Any) -> str:
    """The JSON text of a GetModelMetadataResponse."""
    definitions = serving("SignatureDefMap")
    definitions.ParseFromString(response.metadata["signature_def"].value)
    spec = {"name": response.model_spec.name, "signature_name": "", "version": str(response.model_spec.version.value)}
    return json.dumps({"model_spec": spec, "metadata": {"signature_def": _as_dict(definitions)}}, indent=1)


def _as_dict(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    options: dict[str, Any] = {"preserving_proto_field_name": True, "descriptor_pool": pool()}
    try:
        return json_format.MessageToDict(message, always_print_fields_with_no_presence=True, **options)
    except TypeError:  # protobuf before 26
        return json_format.MessageToDict(message, including_default_value_fields=True, **options)  # type: ignore[call-arg]


def status_json(response: Any) -> str:
    """The JSON text of a GetModelStatusResponse."""
    names = {v.number: v.name for v in serving("ModelVersionStatus").DESCRIPTOR.fields_by_name["state"].enum_type.values}
    entries = [
        {
            "version": str(s.version),
            "state": names[s.state],
            "status": {"error_code": NAMES[s.status.error_code], "error_message": s.status.error_message},
        }
        for s in response.model_version_status
    ]
    return json.dumps({"model_version_status": entries}, indent=1)


def error_json(message: str) -> str:
    """How the REST API reports an error."""
    return json.dumps({"error": message})


def default_signature_name(document: Mapping[str, Any]) -> str:
    """The signature that a request names, or the default."""
    return document.get("signature_name") or DEFAULT_SIGNATURE


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."
