"""Classify, Regress and MultiInference: signatures over serialized `tf.Example`s, with ModelServer's checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.serving.errors import ServingError, invalid
from disc_tf.serving.protos import serving
from disc_tf.serving.servable import CLASSIFY, REGRESS, Signature
from disc_tf.serving.tensors import MAX_TENSOR_BYTES

#: method -> (what it is called, names of its outputs: all that are there, in this order)
_KINDS = {CLASSIFY: ("classification", ("classes", "scores")), REGRESS: ("regression", ("outputs",))}


def serialized_examples(message: Any, limit: int = MAX_TENSOR_BYTES) -> np.ndarray:
    """The examples of an Input, each serialized; a context's features come first in each. RESOURCE_EXHAUSTED beyond ``limit`` bytes."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise invalid("Input is empty.")
    found = getattr(message, kind)
    context = found.context.SerializeToString() if kind == "example_list_with_context" else b""
    size = len(context) * len(found.examples) + found.ByteSize()
    if size > limit:
        raise ServingError("RESOURCE_EXHAUSTED", f"{len(found.examples)} examples with their context are over the limit of {limit} bytes")
    # two serialized messages in a row are their merge
    values = [context + e.SerializeToString() for e in found.examples]
    if not values:
        raise invalid("Input is empty.")
    out = np.empty(len(values), np.object_)
    out[:] = values
    return out


def endpoints(signature: Signature, method: str) -> tuple[str, dict[str, str]]:
    """(tensor to feed, output name -> tensor) of a signature for ``method``.

    INVALID_ARGUMENT or FAILED_PRECONDITION if it is none of that kind.
    """
    what, names = _KINDS[method]
    if signature.method != method:
        raise invalid(f"Expected {what} signature method_name to be {method}. Was: {signature.method}")
    if len(signature.inputs) != 1:
        raise invalid("Expected one input Tensor.")
    if method == REGRESS and len(signature.outputs) != 1:
        raise invalid("Expected one output Tensor.")
    if method == CLASSIFY and len(signature.outputs) not in (1, 2):
        raise invalid(f"Expected one or two output Tensors, found {len(signature.outputs)}")
    if "inputs" not in signature.inputs:
        raise ServingError("FAILED_PRECONDITION", f"No {what} inputs found in SignatureDef: {signature.name}")
    outputs = {n: signature.outputs[n].tensor for n in names if n in signature.outputs}
    if not outputs:
        raise ServingError("FAILED_PRECONDITION", f"Expected {what} signature outputs to contain at least one of {', '.join(names)}")
    return signature.inputs["inputs"].tensor, outputs


def classification(outputs: Mapping[str, np.ndarray], examples: int) -> Any:
    """A ClassificationResult of the tensors `classes` and `scores`, one of which may be missing."""
    for name, dtype, kind in (("classes", np.object_, "DT_STRING"), ("scores", np.float32, "DT_FLOAT")):
        tensor = outputs.get(name)
        if tensor is None:
            continue
        if tensor.ndim != 2:
            raise invalid(f"Expected Tensor shape: [batch_size num_classes] but got {list(tensor.shape)}")
        if tensor.dtype != dtype:
            raise invalid(f"Expected {name} Tensor of {kind}. Got: {tensor.dtype}")
        if tensor.shape[0] != examples:
            raise invalid(f"Expected {name} output batch size of {examples}. Got: {tensor.shape[0]}")
    classes, scores = outputs.get("classes"), outputs.get("scores")
    if classes is not None and scores is not None and classes.shape[1] != scores.shape[1]:
        raise invalid(f"Tensors class and score should match in dim_size(1). Got {classes.shape[1]} vs. {scores.shape[1]}")
    result = serving("ClassificationResult")
    for i in range(examples):
        row = result.classifications.add()
        labels: Sequence[Any] = classes[i] if classes is not None else [b""] * scores.shape[1]  # type: ignore[union-attr]
        for c, label in enumerate(labels):
            entry = row.classes.add()
            try:
                entry.label = label.decode() if isinstance(label, bytes) else str(label)
            except UnicodeDecodeError as e:
                raise invalid("a class label is no UTF-8 text") from e
            if scores is not None:
                entry.score = float(scores[i, c])
    return result


def regression(outputs: Mapping[str, np.ndarray], examples: int) -> Any:
    """A RegressionResult of the tensor `outputs`: `[batch]` or `[batch, 1]` of float."""
    tensor = outputs["outputs"]
    if not (tensor.ndim == 1 or (tensor.ndim == 2 and tensor.shape[1] == 1)):
        raise invalid(f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {list(tensor.shape)}")
    if tensor.shape[0] != examples:
        raise invalid(f"Input batch size did not match output batch size: {examples} vs. {tensor.shape[0]}")
    if tensor.dtype != np.float32:
        raise invalid(f"Expected output Tensor of DT_FLOAT.  Got: {tensor.dtype}")
    result = serving("RegressionResult")
    for value in tensor.reshape(-1).tolist():
        result.regressions.add(value=value)
    return result


def result_of(method: str, outputs: Mapping[str, np.ndarray], examples: int) -> Any:
    """The result message of ``method``."""
    return classification(outputs, examples) if method == CLASSIFY else regression(outputs, examples)
