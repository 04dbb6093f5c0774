"""What is equal for the kernel cache and what is not, and that its answers are those of the emitter."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from disc_tf.codegen import program
from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.emit import emit_fusion
from disc_tf.codegen.cpu.target import V2, V3
from disc_tf.codegen.kernel import Kernel, Variant
from disc_tf.codegen.kernel_cache import AskedEnv, CacheMismatch, KernelCache
from disc_tf.fusion.plan import make_plan
from disc_tf.fusion.types import Fusion
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Value
from disc_tf.ir.dims import sym
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import DType, TensorType

Build = Callable[[Builder, Sequence[Value]], Value]


def function(build: Build, types: Sequence[TensorType], kinds: Sequence[str] = ()) -> Function:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    args = [fn.add_arg(t, ArgInfo(f"a{i}", kinds[i] if kinds else "device")) for i, t in enumerate(types)]
    b.return_([build(b, args)])
    return fn


def context(fn: Function, target=V3) -> EmitContext:
    return EmitContext(target, fn.env, {p: i for i, p in enumerate(fn.params)})


def emit(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    return emit_fusion(fusion, ctx.target, ctx)


def cached(cache: KernelCache, fn: Function, target=V3) -> list[list[Variant]]:
    ctx = context(fn, target)
    return [cache.variants(f, ctx, emit) for f in make_plan(fn).kernels()]


def kernels(variants: Sequence[Sequence[Variant]]) -> list[Kernel]:
    return [k for vs in variants for v in vs for k in v.kernels if isinstance(k, Kernel)]


F32 = TensorType.of(DType.F32, ["n", "m"])


def const(b: Builder, value: float, like: Value) -> Value:
    return b.broadcast_in_dim(b.constant(np.asarray(value, like.dtype.np)), like.dims, [])


def scaled(value: float, op: str = "multiply") -> Build:
    return lambda b, a: b.tanh(getattr(b, op)(a[0], const(b, value, a[0])))


def test_every_question_is_noted() -> None:
    """A method of `ShapeEnv` is either a question that `AskedEnv` notes or one that adds facts or is of the search itself."""
    not_asked = {
        "child", "prefer", "assume_eq", "assume_divides", "set_range", "set_likely", "facts",  # facts
        "known_factor", "rebuild", "absorb_divisions", "is_multiple",  # the search
    }  # fmt: skip
    public = {n for n, _ in inspect.getmembers(ShapeEnv, inspect.isfunction) if not n.startswith("_")}
    assert public - set(vars(AskedEnv)) == not_asked
    env = AskedEnv(ShapeEnv())
    with pytest.raises(AttributeError):  # what is not noted cannot be asked
        env.assume_divides(2, "n")


def test_answers_are_those_of_the_environment() -> None:
    env = ShapeEnv()
    env.assume_eq("n", "m")
    env.set_range("n", 2, 9)
    env.set_likely("n", [4])
    asked = AskedEnv(env)
    questions = [
        ("is_equal", "n", "m"), ("divides", 2, "n"), ("is_nonneg", "n"), ("is_positive", sym("n")), ("low_bound", sym("n")),
        ("at_least", sym("n"), sym("m")), ("bounds", "m"), ("same_elements", ["n", 2], [2, "m"]), ("likely", "n"), ("representative", "m"),
        ("simplify", "m"),
    ]  # fmt: skip
    for name, *args in questions:
        assert getattr(asked, name)(*args) == getattr(env, name)(*args), name
    assert {name for name, _ in asked.asked} == {q[0] for q in questions}


def test_equal_layers_are_emitted_once() -> None:
    def layers(b: Builder, a: Sequence[Value]) -> Value:
        x = a[0]
        for w in a[1:]:
            x = b.tanh(b.dot_general(x, w, [1], [0]))
        return x  # the first layer reads a parameter, which is not the same as what another kernel made

    w = TensorType.of(DType.F32, [16, 16])
    fn = function(layers, [TensorType.of(DType.F32, ["n", 16]), w, w, w, w], ["device", *["const"] * 4])
    plan = make_plan(fn).kernels()
    assert len(plan) == 4
    cache = KernelCache()
    ctx = context(fn)
    found = [cache.variants(f, ctx, emit) for f in plan]
    assert (cache.hits, cache.misses) == (2, 2)
    assert len({k.llvm for k in kernels(found)}) == len(kernels(found)) // 4
    plain = context(fn)
    for fusion, variants in zip(plan, found, strict=True):
        for ours, again in zip(kernels([variants]), kernels([emit(fusion, plain)]), strict=True):
            assert ours.llvm == again.llvm
            assert ours.scalars == again.scalars and ours.tasks == again.tasks and ours.grain == again.grain
            for x, y in zip(ours.buffers, again.buffers, strict=True):  # its own values, its own prepared weights
                if isinstance(x, Value):
                    assert x is y
                else:
                    assert x.view == y.view and x.index == y.index
    assert [e.view for e in ctx.prepare.entries] == [e.view for e in plain.prepare.entries]
    assert len(ctx.prepare.entries) == 4


def test_equal_products_before_depthwise_convolutions_are_emitted_once() -> None:
    """Blocks that differ in a window or stride alone are not shared."""

    def blocks(b: Builder, a: Sequence[Value]) -> Value:
        x = a[0]
        for stride, window in [(1, 3), (1, 3), (1, 3), (2, 3), (1, 5)]:
            y = b.dot_general(x, a[1], [3], [0])
            pad = (window // 2,) * 2
            x = b.convolution(y, a[2 if window == 3 else 3], strides=(stride,) * 2, padding_low=pad, padding_high=pad, groups=16)
        return x

    dims = (["n", "h", "w", 16], [16, 16], [3, 3, 1, 16], [5, 5, 1, 16])
    fn = function(blocks, [TensorType.of(DType.F32, d) for d in dims], ["device", *["const"] * 3])
    plan = make_plan(fn).kernels()
    assert [(f.kind, "before" in f.attrs) for f in plan] == [("conv", True)] * 5
    cache = KernelCache(verify=True)
    ctx = context(fn)
    found = [cache.variants(f, ctx, emit) for f in plan]
    assert (cache.hits, cache.misses) == (1, 4)  # the first one reads a parameter
    assert len({k.llvm for k in kernels(found)}) == 3


#: pairs of functions that look alike: (build, types, kinds) each
DIFFERENT = {
    "op": (scaled(2.0), scaled(2.0, "add")),
    "constant": (scaled(2.0), scaled(3.0)),
    "sign of zero": (scaled(0.0, "add"), scaled(-0.0, "add")),
    "nan": (scaled(1.0), scaled(float("nan"))),
    "wiring": (lambda b, a: b.subtract(b.tanh(a[0]), a[0]), lambda b, a: b.subtract(a[0], b.tanh(a[0]))),
    "attribute": (
        lambda b, a: b.select(b.compare(a[0], b.tanh(a[0]), "LT"), a[0], b.negate(a[0])),
        lambda b, a: b.select(b.compare(a[0], b.tanh(a[0]), "LE"), a[0], b.negate(a[0])),
    ),
    "axis": (
        lambda b, a: b.reduce(b.tanh(a[0]), [0], "add"),
        lambda b, a: b.reduce(b.tanh(a[0]), [1], "add"),
    ),
    "monoid": (
        lambda b, a: b.reduce(b.tanh(a[0]), [0], "add"),
        lambda b, a: b.reduce(b.tanh(a[0]), [0], "max"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_not_shared(name: str) -> None:
    cache = KernelCache(verify=True)
    for build in DIFFERENT[name]:
        cached(cache, function(build, [F32]))
    assert cache.hits == 0
    for build in DIFFERENT[name]:
        cached(cache, function(build, [F32]))
    assert cache.hits > 0


TYPES = [F32, TensorType.of(DType.F64, ["n", "m"]), TensorType.of(DType.F32, ["n", 8]), TensorType.of(DType.F32, ["n", "k"]),
         TensorType.of(DType.F32, ["n"]), TensorType.of(DType.F32, [8, 8])]  # fmt: skip


def test_types_and_dims_are_in_the_key() -> None:
    cache = KernelCache(verify=True)
    for t in TYPES:
        cached(cache, function(scaled(2.0), [t]))
    assert (cache.hits, cache.misses) == (0, len(TYPES))


def test_constants_to_be_packed_are_in_the_key() -> None:
    cache = KernelCache(verify=True)
    types = [TensorType.of(DType.F32, ["n", 16]), TensorType.of(DType.F32, [16, 16])]
    for kind in ("const", "device"):
        cached(cache, function(lambda b, a: b.dot_general(a[0], a[1], [1], [0]), types, ["device", kind]))
    assert (cache.hits, cache.misses) == (0, 2)


def test_answers_of_another_environment_are_compared() -> None:
    """The same ops over the same dims: what is known of the dims decides whether the code is shared."""
    types = [TensorType.of(DType.F32, ["n", "m"]), TensorType.of(DType.F32, ["p", "m"])]

    def build(b: Builder, a: Sequence[Value]) -> Value:
        return b.add(a[0], b.broadcast_in_dim(a[1], a[0].dims, [0, 1]))

    def learn(fn: Function, *facts: tuple[str, object]) -> Function:
        for a, c in facts:
            fn.env.assume_eq(a, c)
        return fn

    cache = KernelCache(verify=True)
    texts = []
    cases = [(), (), (("n", "p"),), (("n", "p"),), (("p", 1),), ()]
    for facts in cases:
        texts.append([k.llvm for k in kernels(cached(cache, learn(function(build, types), *facts)))])
    assert (cache.hits, cache.misses) == (3, 3)
    assert texts[0] == texts[1] == texts[5] and texts[2] == texts[3]
    assert texts[0] != texts[2] != texts[4]


def test_targets_have_their_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[KernelCache] = []

    class Noted(KernelCache):
        def __init__(self, verify: bool = False) -> None:
            super().__init__(verify)
            made.append(self)

    monkeypatch.setattr(program, "KernelCache", Noted)
    fn = function(scaled(2.0), [F32])
    program.compile_program(program.ProgramInput([program.ProgramPart(make_plan(fn))]), [V2.name, V3.name])
    assert [c.misses for c in made] == [1, 1]


def test_verification_finds_a_wrong_hit() -> None:
    """An emitter that looks at what is not in the key."""
    count = iter(range(100))

    def moody(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
        ((variant,),) = [emit(fusion, ctx)]
        (kernel,) = variant.kernels
        assert isinstance(kernel, Kernel)
        return [Variant(None, (dataclasses.replace(kernel, llvm=f"{kernel.llvm}; {next(count)}"),))]

    cache = KernelCache(verify=True)
    fn = function(scaled(2.0), [F32])
    (fusion,) = make_plan(fn).kernels()
    cache.variants(fusion, context(fn), moody)
    with pytest.raises(CacheMismatch, match="loop"):
        cache.variants(fusion, context(fn), moody)
