"""Warm-up records for a SavedModel that has none: requests that its signatures accept, at likely shapes.

    python -m disc_tf.serving.warmup_writer ORIGINAL MADE [--name MODEL] [--shapes N]

A process of its own: it loads the model. What is written was run on MADE first, since ModelServer refuses a model whose warm-up fails.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.serving.errors import ServingError
from disc_tf.serving.examples import endpoints
from disc_tf.serving.handlers import run_directly
from disc_tf.serving.protos import message_class, serving
from disc_tf.serving.servable import CLASSIFY, REGRESS, Servable, Signature
from disc_tf.serving.tensors import to_proto
from disc_tf.serving.warmup import MAX_RECORDS, WARMUP_FILE, replay

#: a record larger than this would only make loading slow
MAX_RECORD_BYTES = 16 << 20

Feeds = Mapping[str, np.ndarray]


def likely_requests(original: Path, shapes: int) -> Iterator[tuple[str, Feeds]]:
    """(signature, inputs) of requests that the graph is likely to accept, ``shapes`` of each signature at most."""
    from disc_tf.testing.inputs import make_feeds, sample_sizes
    from disc_tf.testing.signatures import plan_model

    for name, plan in plan_model(original).signatures.items():
        if not plan.specs or plan.stateful:  # what changes the model is not for warming up
            continue
        seen = set()
        for seed, sizes in enumerate(sample_sizes(plan.specs, shapes)):
            feeds = make_feeds(plan.specs, sizes, seed)
            key = tuple(f.shape for f in feeds)
            if key not in seen:
                seen.add(key)
                yield name, dict(zip(plan.inputs, feeds, strict=True))


#: (original, shapes of each signature) -> requests
Requests = Callable[[Path, int], Iterator[tuple[str, Feeds]]]


def record(model: str, signature: Signature, feeds: Feeds) -> bytes:
    """A serialized PredictionLog of one request: Classify or Regress where the signature is of that kind, else Predict."""
    log = serving("PredictionLog")
    if signature.method in (CLASSIFY, REGRESS):
        target = log.classify_log if signature.method == CLASSIFY else log.regress_log
        example = message_class("Example")
        target.request.input.example_list.examples.extend(example.FromString(bytes(v)) for v in feeds["inputs"].reshape(-1))
    else:
        target = log.predict_log
        for name, value in feeds.items():
            to_proto(value, target.request.inputs[name])
    target.request.model_spec.name = model
    target.request.model_spec.signature_name = signature.name
    return log.SerializeToString(deterministic=True)


def accepted(servable: Servable, requests: Iterator[tuple[str, Feeds]], model: str) -> Iterator[bytes]:
    """Records of the ``requests`` that the servable answers."""
    for name, feeds in requests:
        signature = servable.signature(name)
        if signature is None or signature.unusable:
            continue
        try:
            if signature.method in (CLASSIFY, REGRESS):
                tensor, outputs = endpoints(signature, signature.method)
                servable.run({tensor: feeds["inputs"]}, list(outputs.values()))
            else:
                run_directly(servable, signature, feeds, tuple(signature.outputs), None)
        except (ServingError, KeyError):
            continue
        data = record(model, signature, feeds)
        if len(data) <= MAX_RECORD_BYTES:
            yield data


def write_warmup(original: Path, made: Path, model: str, shapes: int, requests: Requests = likely_requests) -> int:
    """Write the warm-up file of ``made``; how many records (0: no file). A file that is there stays.

    Raises `ServingError` if ``made`` does not load, or not with the records, as a server loads it; then there is no file.
    """
    target = made / WARMUP_FILE
    if target.exists():
        return 0
    servable = Servable(model, 1, made)
    try:
        records: list[Any] = []
        for data in accepted(servable, requests(original, shapes), model):
            records.append(data)
            if len(records) == MAX_RECORDS:
                break
    finally:
        servable.close()
    if records:
        import tensorflow as tf

        target.parent.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(target)) as writer:
            for data in records:
                writer.write(data)
        _check(model, made, target)
    return len(records)


def _check(model: str, made: Path, file: Path) -> None:
    """Load the directory as it is published. `ServingError`, and the file is removed."""
    try:
        servable = Servable(model, 1, made)
        try:
            replay(servable)
        finally:
            servable.close()
    except BaseException:
        file.unlink()
        raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("made", type=Path)
    parser.add_argument("--name", default="model")
    parser.add_argument("--shapes", type=int, default=6)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    try:
        print(json.dumps({"records": write_warmup(args.original, args.made, args.name, args.shapes)}))
    except (ServingError, ValueError, OSError) as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
