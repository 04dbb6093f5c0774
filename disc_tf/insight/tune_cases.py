"""What `disc-tf tune` measures: products and convolutions as small programs, the usual ones or those that graphs contain."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.types import DType, TensorType
from disc_tf.tuning import Table

#: rows of a product where a graph does not say how many: a token, short and long sentences, batches of them
USUAL_ROWS = (1, 16, 64, 128, 400)
#: what an extent is taken for that a graph does not fix: of an image's side, of a sequence, of a product's N and K
_SIDE, _LENGTH, _EXTENT = 28, 256, 64
MOST_ROWS = 4096
#: of a graph, those with the most work
MOST_CASES = 16


@dataclasses.dataclass(frozen=True)
class Product:
    """``x[m, k] w[k, n]`` for each of ``rows`` as m. ``weights``: w is a constant, packed before; else it lies as it comes."""

    n: int
    k: int
    rows: tuple[int, ...] = USUAL_ROWS
    weights: bool = True

    @property
    def work(self) -> int:
        return max(self.rows, default=0) * self.n * self.k

    def at(self, rows: int) -> str:
        return f"M={rows} N={self.n} K={self.k}{'' if self.weights else ', not packed before'}"

    def build(self, fn: Function, b: Builder) -> Value:
        x = _arg(fn, ("m", self.k))
        return b.dot_general(x, _arg(fn, (self.k, self.n), "const" if self.weights else "device"), [1], [0])

    def shapes(self, rows: int) -> list[tuple[int, ...]]:
        return [(rows, self.k), (self.k, self.n)]


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution with padding as in "SAME" over ``image`` (batch, then spatial extents); ``rows``: batches, for each of which it is
    measured."""

    image: tuple[int, ...]
    window: tuple[int, ...]
    channels: int
    features: int
    strides: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    rows: tuple[int, ...] = (1,)
    weights = True

    @property
    def n(self) -> int:
        return self.features

    @property
    def k(self) -> int:
        return int(np.prod(self.window)) * self.channels

    @property
    def work(self) -> int:
        return int(np.prod(self.image)) * self.n * self.k // int(np.prod(self.strides or (1,)))

    def at(self, rows: int) -> str:
        spelled = "x".join(map(str, self.image[1:]))
        return f"{rows} x {spelled} x {self.channels} by {'x'.join(map(str, self.window))} x {self.features}"

    def build(self, fn: Function, b: Builder) -> Value:
        axes = len(self.window)
        dilation, strides = self.dilation or (1,) * axes, self.strides or (1,) * axes
        x = _arg(fn, ("m", *self.image[1:], self.channels))
        w = _arg(fn, (*self.window, self.channels, self.features), "const")
        low = [(n - 1) * d // 2 for n, d in zip(self.window, dilation, strict=True)]
        high = [(n - 1) * d - pad for n, d, pad in zip(self.window, dilation, low, strict=True)]
        return b.convolution(x, w, strides=strides, padding_low=low, padding_high=high, rhs_dilation=dilation)

    def shapes(self, rows: int) -> list[tuple[int, ...]]:
        return [(rows, *self.image[1:], self.channels), (*self.window, self.channels, self.features)]


Case = Product | Convolution

#: products of transformers (768 and 3,072; 256 and 1,024), of a ranking model (64 and 128), of a network of 1x1 convolutions (96 to 1,280);
#: right operands that are computed, as in attention; convolutions of image and audio networks
USUAL: tuple[Case, ...] = (
    Product(64, 128), Product(256, 256), Product(128, 768), Product(1024, 256), Product(768, 768), Product(768, 3072, (1, 64, 400)),
    Product(3072, 768, (1, 64, 400)), Product(1280, 320, (1, 49, 400)), Product(2304, 256, (16, 128)), Product(96, 576, (49, 196)),
    Product(128, 64, (4, 12, 20, 48), weights=False), Product(64, 128, (4, 12, 20, 48), weights=False),
    Convolution((1, 28, 28), (3, 3), 32, 64), Convolution((1, 14, 14), (3, 3), 128, 128), Convolution((1, 1000), (11,), 32, 32),
    Convolution((1, 28, 28), (1, 1), 64, 256, (2, 2)),
)  # fmt: skip


def _arg(fn: Function, dims: Sequence[Any], kind: str = "device") -> Value:
    return fn.add_arg(TensorType.of(DType.F32, dims), ArgInfo(f"x{len(fn.args)}", kind))


def program(case: Case, isa: str, table: Table) -> bytes:
    """The case compiled with a table, so that its launches can be timed."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    b.return_([case.build(fn, b)])
    module = Module()
    module.add(fn)
    return compile_module(module, [isa], profile=True, tuning=(table,)).executable


def arguments(case: Case, rows: int) -> list[np.ndarray]:
    """Values in order of the program's parameters; weights are the same array each time (what is packed is kept by identity)."""
    rng = np.random.default_rng(rows)
    return [rng.standard_normal(s, np.float32) for s in case.shapes(rows)]


def cases_of(plans: Iterable[Any]) -> list[Case]:
    """The products and convolutions of plans (`fusion.plan.Plan`), those with the most work, at most `MOST_CASES`. Extents that a graph
    does not fix are taken for usual ones; products of other types than f32 count as products of f32."""
    found: dict[Case, int] = {}
    for plan in plans:
        for fusion in plan.kernels():
            case = _product(fusion) if fusion.kind == "gemm" else _convolution(fusion) if fusion.kind == "conv" else None
            if case is not None and case.work:
                found[case] = found.get(case, 0) + case.work
    return sorted(found, key=lambda case: -found[case])[:MOST_CASES]


def _known(dims: Iterable[Any], otherwise: int) -> int:
    out = 1
    for d in dims:
        out *= int(d) if d.is_static else otherwise
    return out


def _product(fusion: Any) -> Case | None:
    nb, nm, _, nk = fusion.attrs["axes"]
    lhs, rhs = ([a.extent for a in fusion.attrs[side].axes] for side in ("lhs", "rhs"))
    rows, n, k = lhs[nb : nb + nm], _known(rhs[nb + nk :], _EXTENT), _known(lhs[nb + nm :], _EXTENT)
    return Product(n, k, _rows(rows), weights=fusion.attrs.get("pack") == "rhs" and not nb)


def _rows(extents: Sequence[Any]) -> tuple[int, ...]:
    """M of a product: as it is known; of so many rows for each of an unknown number (the points of an image, say) those of 1 and 4."""
    each = 1
    for d in extents:
        each *= int(d) if d.is_static else max(d.content(), 1)
    if all(d.is_static for d in extents):
        return (each,)
    return tuple(sorted({min(each, MOST_ROWS), min(4 * each, MOST_ROWS)})) if each > 1 else USUAL_ROWS


def _convolution(fusion: Any) -> Case | None:
    op = fusion.attrs["conv"]
    x, w, a = op.operands[0], op.operands[1], op.attrs
    if a["feature_group_count"] > 1 or any(d != 1 for d in a["lhs_dilation"]):
        return None  # of depthwise ones the rows are what is tuned, and those of others serve for them
    spatial = [_known([d], _LENGTH if x.rank == 3 else _SIDE) for d in x.dims[1:-1]]
    window = tuple(_known([d], 1) for d in w.dims[:-2])
    channels, features = _known([w.dims[-2]], _EXTENT), _known([w.dims[-1]], _EXTENT)
    return Convolution((1, *spatial), window, channels, features, tuple(a["window_strides"]), tuple(a["rhs_dilation"]))
