"""TensorProtos and JSON, both ways."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from disc_tf.serving.errors import ServingError
from disc_tf.serving.examples import serialized_examples
from disc_tf.serving.json_codec import fill_examples, parse_object, predict_json, tensor_from_json
from disc_tf.serving.protos import message_class, serving
from disc_tf.serving.servable import Endpoint
from disc_tf.serving.tensors import to_numpy, to_proto

KINDS = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
]
KINDS += [np.bool_, np.complex64, np.complex128]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)])
def test_values_go_over_the_wire(kind: Any, shape: tuple[int, ...]) -> None:
    array = np.array(np.random.default_rng(0).standard_normal(shape) * 50).astype(kind)
    back = to_numpy(message_class("TensorProto").FromString(to_proto(array).SerializeToString()))
    assert back.dtype == array.dtype and back.shape == array.shape
    np.testing.assert_array_equal(back, array)


def proto(dtype: int, shape: tuple[int, ...], **fields: Any) -> Any:
    made = message_class("TensorProto")(dtype=dtype, **fields)
    for d in shape:
        made.tensor_shape.dim.add(size=d)
    return made


def test_the_last_value_fills_the_rest() -> None:
    assert to_numpy(proto(1, (2, 2), float_val=[1, 2])).tolist() == [[1, 2], [2, 2]]
    assert to_numpy(proto(3, (2,))).tolist() == [0, 0]
    assert to_numpy(proto(7, (2,), string_val=[b"a"])).tolist() == [b"a", b"a"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (proto(1, (2,), float_val=[1, 2, 3]), "INVALID_ARGUMENT"),
        (proto(1, (2,), tensor_content=b"1234"), "INVALID_ARGUMENT"),
        (proto(1, (-1,)), "INVALID_ARGUMENT"),
        (proto(7, (1,), tensor_content=b"1234"), "INVALID_ARGUMENT"),
        (proto(1, (1 << 40,), float_val=[1]), "RESOURCE_EXHAUSTED"),
        (proto(8, (1,), scomplex_val=[1]), "INVALID_ARGUMENT"),
        (proto(20, ()), "UNIMPLEMENTED"),
        (proto(7, (1 << 20,), string_val=[b"x" * (1 << 20)]), "RESOURCE_EXHAUSTED"),
        (proto(7, (1 << 27,)), "RESOURCE_EXHAUSTED"),
        (proto(1, (0, 1 << 62, 4)), "INVALID_ARGUMENT"),
    ],
)
def test_hostile_tensors_are_refused(message: Any, code: str) -> None:
    with pytest.raises(ServingError) as caught:
        to_numpy(message)
    assert caught.value.code == code


JSON_VALUES: list[tuple[int, Any, list[Any] | str]] = [
    (1, [[1, 2.5], [0, -3]], [[1, 2.5], [0, -3]]),
    (1, [float("inf"), float("-inf")], [float("inf"), float("-inf")]),
    (1, [1e39], "range of float32"),
    (1, [16777217], "loss of precision"),
    (1, ["1"], "expected type: float"),
    (1, [None], "expected type: float"),
    (3, [1.0], "expected type: int32"),
    (3, [1 << 31], "expected type: int32"),
    (4, [256], "expected type: uint8"),
    (9, [1 << 62], [1 << 62]),
    (10, [True, False], [True, False]),
    (10, [1], "expected type: bool"),
    (7, ["é", {"b64": "AAE="}], ["é".encode(), b"\0\1"]),
    (7, [{"b64": "?"}], "base64 decode"),
    (7, [{"x": "y"}], "expected type: string"),
    (1, [[1], 2], "size 1 at level 1"),
    (1, [1, [2]], "expected type: float"),
    (1, [[], []], [[], []]),
]


@pytest.mark.parametrize(("dtype", "value", "expected"), JSON_VALUES)
def test_values_from_json(dtype: int, value: Any, expected: list[Any] | str) -> None:
    endpoint = Endpoint("x:0", dtype, None)
    if isinstance(expected, str):
        with pytest.raises(ServingError, match=expected) as caught:
            tensor_from_json(value, endpoint, "x")
        assert caught.value.code == "INVALID_ARGUMENT"
    else:
        np.testing.assert_array_equal(tensor_from_json(value, endpoint, "x").astype(object), np.array(expected, object))


def test_scalars_and_deep_lists() -> None:
    assert tensor_from_json(2, Endpoint("x:0", 3, ()), "x").shape == ()
    value: Any = 1
    for _ in range(40):
        value = [value]
    with pytest.raises(ServingError, match="deep"):
        tensor_from_json(value, Endpoint("x:0", 3, None), "x")


def response(**arrays: Any) -> Any:
    made = serving("PredictResponse")
    for name, value in arrays.items():
        to_proto(np.asarray(value), made.outputs[name])
    return made


@pytest.mark.parametrize(
    ("arrays", "rows", "expected"),
    [
        ({"y": np.float32([0.2, 1e20])}, True, {"predictions": [0.2, 1e20]}),
        ({"y": np.float32([[1, 2]]), "z": np.int32([3])}, True, {"predictions": [{"y": [1.0, 2.0], "z": 3}]}),
        ({"y": np.zeros((2, 0), np.float32)}, True, {"predictions": [[], []]}),
        ({"y": np.zeros((0, 2), np.float32)}, False, {"outputs": []}),
        ({"y": np.float64(0.1)}, False, {"outputs": 0.1}),
        (
            {"y": np.arange(8).reshape(2, 2, 2), "b": np.array([True])},
            False,
            {"outputs": {"b": [True], "y": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]}},
        ),
        ({"y_bytes": np.array([b"\xff"], object)}, False, {"outputs": [{"b64": "/w=="}]}),
    ],
)
def test_results_as_json(arrays: dict[str, Any], rows: bool, expected: Any) -> None:
    assert json.loads(predict_json(response(**arrays), rows)) == expected


def test_a_context_counts_for_each_example() -> None:
    given = serving("Input")
    given.example_list_with_context.context.features.feature["x"].bytes_list.value.append(b"x" * 1000)
    for _ in range(10):
        given.example_list_with_context.examples.add()
    assert serialized_examples(given, 20_000).shape == (10,)
    with pytest.raises(ServingError) as caught:
        serialized_examples(given, 9_000)
    assert caught.value.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("body", [rb'{"signature_name": "\ud800"}', rb'{"inputs": {"\ud800x": 1}}', b'{"inputs": "\xed\xa0\x80"}', b"\xff"])
def test_text_that_is_no_unicode_is_refused(body: bytes) -> None:
    with pytest.raises(ServingError, match="JSON Parse error"):
        parse_object(body)
    assert parse_object(rb'{"signature_name": "\u00e9"}') == {"signature_name": "é"}


def test_numbers_are_written_with_the_digits_they_need() -> None:
    assert predict_json(response(y=np.float32([0.2, 1, np.nan, -np.inf])), False) == '{"outputs": [0.2, 1.0, NaN, -Infinity]}'


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.float32(1)}, "no shape information"),
        ({"y": np.ones(2, np.float32), "z": np.ones(3, np.float32)}, "inconsistent batch sizes"),
        ({"y": np.array([b"\xff"], object)}, "_bytes"),
    ],
)
def test_results_that_have_no_rows(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ServingError, match=message):
        predict_json(response(**arrays), True)


def test_examples_from_json() -> None:
    request = serving("RegressionRequest")
    fill_examples(request, {"examples": [{"a": [1, 2], "b": 0.5, "c": "x", "d": {"b64": "AA=="}, "e": True}]})
    feature = request.input.example_list.examples[0].features.feature
    assert list(feature["a"].int64_list.value) == [1, 2] and list(feature["b"].float_list.value) == [0.5]
    assert list(feature["c"].bytes_list.value) == [b"x"] and list(feature["d"].bytes_list.value) == [b"\0"]
    assert list(feature["e"].int64_list.value) == [1]
    for bad, message in (({"a": [1, 0.5]}, "mixed"), ({"a": [None]}, "unexpected JSON type"), ([], "must be JSON object")):
        with pytest.raises(ServingError, match=message):
            fill_examples(serving("RegressionRequest"), {"examples": [bad]})
