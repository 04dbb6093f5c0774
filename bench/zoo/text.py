"""KerasHub's transformer backbones in small configurations, at any batch and length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.zoo.model import Input, Model, sizes

VOCABULARY = 4000
LAYERS, HEADS, HIDDEN, INTERMEDIATE, LENGTH = 4, 4, 256, 1024, 512

_POINTS = sizes("B S", (1, 8), (1, 32), (1, 128), (2, 61), (4, 100), (8, 64), (1, 384))
_ODD = sizes("B S", (1, 1), (3, 13), (7, 29), (1, 113), (2, 257))
_RANGES = {"B": (1, 8), "S": (1, 200)}
_IDS = {"kind": "ids", "lo": 0, "hi": VOCABULARY}
_MASK = {"kind": "mask"}
_TYPES = {"kind": "ids", "lo": 0, "hi": 2}


def _backbone(name: str, **config: Any) -> Callable[[], Any]:
    def build() -> Any:
        import keras_hub

        return getattr(keras_hub.models, name)(vocabulary_size=VOCABULARY, **config)

    return build


def _input(name: str, gen: dict[str, Any], length: str = "S") -> Input:
    return Input(name, "int32", ("B", length), gen)


def models() -> list[Model]:
    ids, mask = _input("token_ids", _IDS), _input("padding_mask", _MASK)
    usual: dict[str, Any] = {"num_layers": LAYERS, "num_heads": HEADS, "hidden_dim": HIDDEN, "intermediate_dim": INTERMEDIATE}
    place = {"max_sequence_length": LENGTH}
    short = f"{LAYERS} layers, {HIDDEN} wide"

    def model(name: str, build: Callable[[], Any], inputs: tuple[Input, ...] = (ids, mask), config: str = short, **kw: Any) -> Model:
        return Model(name, "KerasHub", config, build, inputs, **{"points": _POINTS, "odd": _ODD, "ranges": _RANGES, **kw})

    bert_inputs = (ids, mask, _input("segment_ids", _TYPES))
    t5_inputs = tuple(_input(f"{side}_{what}", gen, length) for side, length in (("encoder", "S"), ("decoder", "T"))
                      for what, gen in (("token_ids", _IDS), ("padding_mask", _MASK)))
    t5_sizes = {
        "points": sizes("B S T", (1, 8, 4), (1, 32, 16), (1, 128, 32), (2, 61, 37), (4, 100, 50), (1, 384, 64)),
        "odd": sizes("B S T", (1, 1, 1), (3, 13, 29), (2, 113, 7)),
        "ranges": {"B": (1, 6), "S": (1, 150), "T": (1, 80)},
    }
    whisper_inputs = (
        Input("encoder_features", "float32", ("B", "S", 80)),
        _input("decoder_token_ids", _IDS, "T"),
        _input("decoder_padding_mask", _MASK, "T"),
    )
    # the encoder's position table has to fit: the convolution halves the number of frames
    whisper_sizes = {
        "points": sizes("B S T", (1, 200, 4), (1, 200, 16), (1, 200, 64), (2, 200, 37), (4, 200, 50)),
        "odd": sizes("B S T", (1, 200, 1), (3, 200, 13), (7, 200, 29)),
        "ranges": {"B": (1, 6), "S": (200, 200), "T": (1, 80)},
    }
    gemma = {
        "num_layers": LAYERS,
        "num_query_heads": HEADS,
        "num_key_value_heads": 1,
        "hidden_dim": HIDDEN,
        "intermediate_dim": 2 * INTERMEDIATE,
        "head_dim": HIDDEN // HEADS,
    }
    return [
        model("BERT", _backbone("BertBackbone", **usual, **place), bert_inputs),
        model("RoBERTa", _backbone("RobertaBackbone", **usual, **place)),
        model("DistilBERT", _backbone("DistilBertBackbone", **usual, **place)),
        model("ALBERT", _backbone("AlbertBackbone", **usual, **place, embedding_dim=128), bert_inputs),
        model("DeBERTaV3", _backbone("DebertaV3Backbone", **usual, **place, bucket_size=64)),
        model("GPT-2", _backbone("GPT2Backbone", **usual, **place)),
        model("T5", _backbone("T5Backbone", **usual), t5_inputs, **t5_sizes),
        model(
            "Whisper",
            _backbone("WhisperBackbone", **usual, max_encoder_sequence_length=200, max_decoder_sequence_length=128),
            whisper_inputs,
            **whisper_sizes,
        ),
        model("Gemma", _backbone("GemmaBackbone", **gemma), config=f"{short}, one key head"),
    ]
