"""String values for inputs: words and keys, numbers, small pictures and sounds, serialized Examples."""

from __future__ import annotations

import base64
import dataclasses
import io
import struct
import wave
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from disc_tf.frontend.tfproto import message_class, serialized
from disc_tf.ir.types import DType
from disc_tf.testing.value_ranges import Feature, Learned

_WORDS = b"the a of and in to is was it for on with as his they at be this from have or by one had not but what all were when".split()
_DT_INT64, _DT_STRING = 9, 7


@dataclasses.dataclass(frozen=True)
class Strings:
    """How the strings of an input are made: see `value_ranges.Learned`."""

    keys: tuple[bytes, ...] = ()
    texts: frozenset[str] = frozenset()
    features: tuple[Feature, ...] = ()

    @staticmethod
    def of(learned: Learned) -> Strings:
        return Strings(tuple(k for k in learned.keys if isinstance(k, bytes)), learned.texts, learned.features)

    def make(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
        """An object array of bytes."""
        out = np.empty(tuple(shape), object)
        for i in range(out.size):
            out.flat[i] = self._one(rng)
        return out

    def _one(self, rng: np.random.Generator) -> bytes:
        value = self._plain(rng)
        return base64.urlsafe_b64encode(value).rstrip(b"=") if "base64" in self.texts else value

    def _plain(self, rng: np.random.Generator) -> bytes:
        if self.features:
            return example(self.features, rng)
        if "image" in self.texts:
            return png(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8))
        if "audio" in self.texts:
            return wav(rng.integers(-(1 << 12), 1 << 12, 1600).astype(np.int16))
        if "number" in self.texts:
            return b"%d" % rng.integers(0, 100)
        words = self.keys or _WORDS
        count = int(rng.integers(1, 9)) if "sentence" in self.texts else 1
        return b" ".join(words[int(rng.integers(len(words)))] for _ in range(count))


def png(pixels: np.ndarray) -> bytes:
    """A PNG file of u8[height, width, 3]."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1).tobytes()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def wav(samples: np.ndarray, rate: int = 16000) -> bytes:
    """A WAV file of i16[samples], one channel."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(rate)
        f.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def example(features: Sequence[Feature], rng: np.random.Generator) -> bytes:
    """A serialized tf.Example with these features; sparse ones and dense ones of any length get one to four values."""
    message: Any = message_class("Example")()
    for f in features:
        if f.shape is None:
            count = int(rng.integers(1, 5))
        else:
            count = int(np.prod([d if d >= 0 else int(rng.integers(1, 5)) for d in f.shape], dtype=np.int64))
        values = message.features.feature[f.name.decode(errors="replace")]
        if f.dtype == _DT_STRING:
            values.bytes_list.value.extend(Strings.of(f.learned).make([count], rng).tolist())
        elif f.dtype == _DT_INT64:
            values.int64_list.value.extend(int(v) for v in integers(f.learned, [count], rng))
        else:
            values.float_list.value.extend(numbers(f.learned, [count], np.dtype(np.float32), rng).tolist())
    return serialized(message)


def integers(learned: Learned, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """int64 values that the graph accepts."""
    keys = [k for k in learned.keys if isinstance(k, int)]
    if keys:
        return np.array(keys, np.int64)[rng.integers(0, len(keys), tuple(shape))]
    low, high = bounds(learned)
    return rng.integers(low, high, tuple(shape))


def bounds(learned: Learned) -> tuple[int, int]:
    """The least value and the one after the greatest."""
    if learned.high is not None:
        return learned.low, learned.high
    return (1, 9) if learned.size else (0, 2)


def numbers(learned: Learned, shape: Sequence[int], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Floats; whole numbers where they become row numbers."""
    if learned.high is not None or any(isinstance(k, int) for k in learned.keys):
        return integers(learned, shape, rng).astype(dtype)
    return rng.standard_normal(tuple(shape)).astype(np.float32).astype(dtype)


def can_be_made(tf_type: int) -> bool:
    """Whether values of a DataType can be made up."""
    return tf_type == _DT_STRING or DType.from_tf(tf_type) is not None
