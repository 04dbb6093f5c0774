"""Image models: Keras applications at any batch and image size, and KerasHub's vision transformer at any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.zoo.model import Input, Model, sizes

_POINTS = sizes("B H W", (1, 224, 224), (1, 160, 192), (2, 128, 128), (4, 96, 96), (1, 97, 131), (8, 80, 80))
_ODD = sizes("B H W", (3, 113, 79), (1, 75, 240), (2, 101, 101))
_FIXED_POINTS = sizes("B", (1,), (2,), (4,), (8,))
_FIXED_ODD = sizes("B", (3,), (5,))


def _application(name: str, **options: Any) -> Callable[[], Any]:
    """A Keras application with a classifier's head that any image size feeds."""

    def build() -> Any:
        import keras

        size = options.get("size")
        image = keras.Input((size, size, 3), name="image")
        body = getattr(keras.applications, name)(
            weights=None, include_top=False, pooling="avg", input_tensor=image, **options.get("extra", {})
        )
        return keras.Model(image, keras.layers.Dense(1000, name="logits")(body.output))

    return build


def _vit() -> Any:
    import keras_hub

    return keras_hub.models.ViTBackbone(
        image_shape=(96, 96, 3), patch_size=16, num_layers=4, num_heads=4, hidden_dim=192, mlp_dim=768
    )


def models() -> list[Model]:
    image = Input("image", "float32", ("B", "H", "W", 3))
    ranges = {"B": (1, 3), "H": (75, 160), "W": (75, 160)}
    out = [
        Model(name, "Keras applications", "any image size", _application(name), (image,), _POINTS, _ODD, ranges)
        for name in (
            "MobileNetV2",
            "MobileNetV3Large",
            "MobileNetV3Small",
            "ResNet50",
            "EfficientNetB0",
            "DenseNet121",
            "InceptionV3",
            "ConvNeXtTiny",
        )
    ]
    # its cells compare image sizes while the model is made: only the batch can be unknown
    square = Input("image", "float32", ("B", 224, 224, 3))
    nasnet = _application("NASNetMobile", size=224)
    out.append(
        Model("NASNetMobile", "Keras applications", "images of 224x224", nasnet, (square,), _FIXED_POINTS, _FIXED_ODD, {"B": (1, 4)})
    )
    fixed = Input("images", "float32", ("B", 96, 96, 3))
    out.append(
        Model("ViT", "KerasHub", "4 layers, 192 wide, patches of 16", _vit, (fixed,), _FIXED_POINTS, _FIXED_ODD, {"B": (1, 6)})
    )
    return out
