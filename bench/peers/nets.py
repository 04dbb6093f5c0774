"""The convolution layers that `bench.layers` times: what they are, their weights and data. Needs numpy only, as every process reads it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Conv:
    """A convolution with padding SAME, a bias, and what comes after it. ``add``: the value that is added before the activation (0: the
    net's input, i: the result of convolution i from 1 on, -1: a second input)."""

    channels: int
    features: int
    window: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    depthwise: bool = False
    activation: str = ""
    add: int | None = None

    def out(self, size: tuple[int, int]) -> tuple[int, int]:
        return -(-size[0] // self.stride[0]), -(-size[1] // self.stride[1])

    def pads(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Lines before and after, on each axis."""
        found = []
        for d, o, s, k, r in zip(size, self.out(size), self.stride, self.window, self.dilation, strict=True):
            total = max((o - 1) * s + (k - 1) * r + 1 - d, 0)
            found.append((total // 2, total - total // 2))
        return found[0], found[1]

    @property
    def terms(self) -> int:
        """Products in the sum of one element."""
        return self.window[0] * self.window[1] * (1 if self.depthwise else self.channels)


@dataclasses.dataclass(frozen=True)
class Net:
    """Convolutions one after the other; most nets are one layer."""

    name: str
    batch: int
    size: tuple[int, int]
    convs: tuple[Conv, ...]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The extents before each convolution, and at the end."""
        found = [self.size]
        for conv in self.convs:
            found.append(conv.out(found[-1]))
        return found

    @property
    def flops(self) -> int:
        return sum(2 * self.batch * math.prod(o) * c.features * c.terms for c, o in zip(self.convs, self.sizes[1:], strict=True))

    @property
    def residual(self) -> bool:
        """Whether there is a second input, of the result's shape."""
        return any(c.add == -1 for c in self.convs)

    @property
    def inputs(self) -> list[tuple[int, int, int, int]]:
        """Shapes, channels last."""
        found = [(self.batch, *self.size, self.convs[0].channels)]
        return [*found, (self.batch, *self.sizes[-1], self.convs[-1].features)] if self.residual else found

    def feeds(self) -> list[np.ndarray]:
        rng = np.random.default_rng(1)
        return [rng.standard_normal(shape).astype(np.float32) for shape in self.inputs]

    def weights(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(window + channels of a group + features, bias) of each convolution; results are about as large as the data."""
        rng, found = np.random.default_rng(2), []
        for c in self.convs:
            shape = (*c.window, 1, c.channels) if c.depthwise else (*c.window, c.channels, c.features)
            w = rng.standard_normal(shape) * math.sqrt((1.5 if c.activation else 1.0) / c.terms)
            found.append((w.astype(np.float32), (0.1 * rng.standard_normal(c.features)).astype(np.float32)))
        return found


def resnet50(batch: int) -> list[Net]:
    """He et al. 2015, with strides in the first convolution of a block, and the 3x3 ones with strides of later versions."""
    nets = [Net(f"resnet50/{batch}x stem 7x7/2", batch, (224, 224), (Conv(3, 64, (7, 7), (2, 2), activation="relu"),))]

    def add(size: int, c: int, f: int, k: int, stride: int, activation: str = "relu", residual: bool = False) -> None:
        conv = Conv(c, f, (k, k), (stride, stride), activation=activation, add=-1 if residual else None)
        kind = f"{k}x{k}" + (f"/{stride}" if stride > 1 else "") + (" +res" if residual else "" if activation else " shortcut")
        nets.append(Net(f"resnet50/{batch}x {size}x{size} {c}->{f} {kind}", batch, (size, size), (conv,)))

    before = 64
    for stage, (size, width) in enumerate([(56, 64), (28, 128), (14, 256), (7, 512)]):
        stride = 2 if stage else 1
        wide = size * stride
        add(wide, before, width, 1, stride)
        add(size, width, width, 3, 1)
        if stage:
            add(wide, width, width, 3, 2)
        add(size, width, 4 * width, 1, 1, residual=True)
        add(wide, before, 4 * width, 1, stride, activation="")
        add(size, 4 * width, width, 1, 1)
        before = 4 * width
    return nets


def mobilenet_v2() -> list[Net]:
    """Sandler et al. 2018; expansions with the depthwise convolution after them as well, since engines may join these."""
    found: dict[tuple[Any, ...], Net] = {}

    def add(size: int, *convs: Conv, kind: str) -> None:
        name = f"mobilenet_v2 {size}x{size} {convs[0].channels}->{convs[-1].features} {kind}"
        found.setdefault((size, *convs), Net(name, 1, (size, size), convs))

    add(224, Conv(3, 32, (3, 3), (2, 2), activation="relu6"), kind="stem 3x3/2")
    size, before = 112, 32
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expand, features, count, first in stages:
        for i in range(count):
            stride, width = first if i == 0 else 1, expand * before
            point = Conv(before, width, (1, 1), activation="relu6")
            depth = Conv(width, width, (3, 3), (stride, stride), depthwise=True, activation="relu6")
            over = f"/{stride}" if stride > 1 else ""
            if expand > 1:
                add(size, point, kind="expand")
                add(size, point, depth, kind=f"expand + depthwise{over}")
            add(size, depth, kind=f"depthwise{over}")
            size = depth.out((size, size))[0]
            same = before == features and stride == 1
            add(size, Conv(width, features, (1, 1), add=-1 if same else None), kind="project +res" if same else "project")
            before = features
    add(size, Conv(320, 1280, (1, 1), activation="relu6"), kind="head")
    return list(found.values())


def dilated(length: int = 10_000) -> list[Net]:
    """The layers of a dilated residual net over sequences, as SpliceAI's (Jaganathan et al. 2019), and a small net of them."""
    width, blocks = 32, [(11, 1), (11, 4), (21, 10), (21, 25)]
    nets = [Net("dilated1d 4->32 k1", 1, (1, length), (Conv(4, width, (1, 1)),))]
    for k, d in blocks:
        for residual in (False, True):
            conv = Conv(width, width, (1, k), dilation=(1, d), activation="" if residual else "relu", add=-1 if residual else None)
            nets.append(Net(f"dilated1d 32->32 k{k} d{d}{' +res' if residual else ''}", 1, (1, length), (conv,)))
    whole = [Conv(4, width, (1, 1))]
    for k, d in blocks:
        whole.append(Conv(width, width, (1, k), dilation=(1, d), activation="relu"))
        whole.append(Conv(width, width, (1, k), dilation=(1, d), add=len(whole) - 1))
    return [*nets, Net("dilated1d net of 9", 1, (1, length), tuple(whole))]


def networks() -> dict[str, list[Net]]:
    return {"resnet50": resnet50(1), "resnet50x8": resnet50(8), "mobilenet_v2": mobilenet_v2(), "dilated1d": dilated()}


def to_json(net: Net) -> str:
    return json.dumps(dataclasses.asdict(net))


def from_json(text: str) -> Net:
    d = json.loads(text)
    convs = []
    for fields in d["convs"]:
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        convs.append(Conv(**plain))
    return Net(d["name"], d["batch"], tuple(d["size"]), tuple(convs))
