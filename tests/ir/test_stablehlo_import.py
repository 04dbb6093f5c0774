"""JAX functions exported with symbolic dims, imported, and evaluated against JAX itself."""

import itertools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import export, lax

from disc_tf.ir.builder import new_function
from disc_tf.ir.core import walk
from disc_tf.ir.interp import evaluate
from disc_tf.ir.parser import parse_module
from disc_tf.ir.printer import print_module
from disc_tf.ir.stablehlo import StableHLOError, from_stablehlo, inline_stablehlo, to_stablehlo
from disc_tf.ir.types import DType
from disc_tf.ir.verifier import verify

F, I = jnp.float32, jnp.int32  # noqa: E741


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def attention(q, k):
    scores = jnp.einsum("bsd,btd->bst", q, k) / 2.0
    return jnp.einsum("bst,btd->bsd", jax.nn.softmax(scores, -1), k)


def conditional(x, i):
    return lax.switch(i, [lambda v: v * 2, lambda v: v - 1, jnp.sin], x)


def newton(x):
    return lax.fori_loop(0, 5, lambda _, y: 0.5 * (y + (x + 1) / y), jnp.ones_like(x))


def until(x):
    return lax.while_loop(
        lambda c: c[0] < 10, lambda c: (c[0] + jnp.int32(c[1].shape[0]) + 1, c[1] * 2), (jnp.int32(0), x)
    )[1]


CASES = [
    ("softmax", softmax, [("b, s", F)]),
    ("attention", attention, [("b, s, 4", F), ("b, t, 4", F)]),
    ("gelu", lambda x: jax.nn.gelu(x, approximate=False), [("b, s", F)]),
    ("layer_norm", lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5), [("b, s", F)]),
    ("reshape", lambda x: x.reshape(x.shape[0] * x.shape[1], -1), [("b, s, 6", F)]),
    ("split_heads", lambda x: x.reshape(x.shape[0], -1, 2, 3).transpose(0, 2, 1, 3), [("b, s, 6", F)]),
    ("slices", lambda x: (x[:, ::2], x[1:], x[::-1, :-1]), [("b, s", F)]),
    ("half", lambda x: x[: x.shape[0] // 2], [("b, s", F)]),
    ("pad_concat", lambda x: jnp.concatenate([jnp.pad(x, ((0, 0), (1, 2))), x], axis=1), [("b, s", F)]),
    ("cumsum", lambda x: jnp.cumsum(x, axis=1), [("b, 7", F)]),
    ("sort_argmax", lambda x: (jnp.sort(x, 0), jnp.argmax(x, 1), jnp.argsort(x, 1)), [("b, s", F)]),
    ("top_k", lambda x: lax.top_k(x, 2), [("b, 5", F)]),
    ("take", lambda x, i: jnp.take(x, i, axis=0), [("b, s", F), ("n", I)]),
    ("scatter_add", lambda x, i: x.at[i].add(1.0), [("b, s", F), ("n", I)]),
    ("one_hot", lambda i: jax.nn.one_hot(i, 5), [("n, s", I)]),
    ("where_iota", lambda x: jnp.where(jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)), 1.0, 2.0), [("b, s", F)]),
    ("erf_family", lambda x: (lax.erf(x), lax.erfc(x), lax.lgamma(x + 5), lax.digamma(x + 5), jnp.sinh(x), jnp.arctan(x)), [("b, s", F)]),
    ("ints", lambda i: (i // 3, i % 3, jnp.bitwise_xor(i, 5), i << 2, -i), [("n, s", I)]),
    ("switch", conditional, [("b, s", F), ("", I)]),
    ("fori", newton, [("b, s", F)]),
    ("while", until, [("b", F)]),
    ("max_pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"), [("b, s", F)]),
    (
        "convolution",
        lambda x, w: lax.conv_general_dilated(x, w, (1, 2), ((1, 0), (2, 1)), rhs_dilation=(2, 1), feature_group_count=2),
        [("b, 4, 6, 5", F), ("6, 2, 2, 3", F)],
    ),
    ("mean", lambda x: x.sum() / x.size + x.shape[0], [("b, s", F)]),
    ("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, i), (1, 2)), [("b, 5", F), ("", I)]),
    ("bf16", lambda x: x + jnp.array([1, np.inf, 3], jnp.bfloat16), [("b, 3", jnp.bfloat16)]),
    (
        "bf16_big",
        lambda x: x
        + jnp.arange(300).astype(jnp.bfloat16)[None, :3].astype(F)
        + np.linspace(0, 1, 300).astype(jnp.bfloat16)[7:10].astype(F),
        [("b, 3", F)],
    ),
    ("uint8", lambda x: (jnp.abs(x) * 10).astype(jnp.uint8) + jnp.array([250, 7, 1], jnp.uint8), [("b, 3", F)]),
    ("is_inf", lambda x: (jnp.isinf(x), jnp.isnan(x), jnp.isposinf(x / 0)), [("b, s", F)]),
    ("einsum_many", lambda a, b: jnp.einsum("bij,bjk,k->bi", a, b, b[0, 0]), [("b, s, t", F), ("b, t, s", F)]),
]  # fmt: skip


def exported(fn, specs):
    scope = export.SymbolicScope()
    shapes = [jax.ShapeDtypeStruct(export.symbolic_shape(s, scope=scope) if s else (), d) for s, d in specs]
    return export.export(jax.jit(fn))(*shapes)


def dims_of(specs):
    return [
        [int(x) if x.strip().isdigit() else x.strip() for x in s.split(",")] if s else [] for s, _ in specs
    ]


@pytest.mark.parametrize("name, fn, specs", CASES, ids=[c[0] for c in CASES])
def test_import_agrees_with_jax(name, fn, specs):
    dims = dims_of(specs)
    module = from_stablehlo(exported(fn, specs).mlir_module(), dims)
    verify(module)
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    to_stablehlo(module)
    rng = np.random.default_rng(5)
    symbols = sorted({d for shape in dims for d in shape if isinstance(d, str)})
    for values in itertools.islice(itertools.product((3, 1, 4), repeat=len(symbols)), 4):
        if name in ("slices", "max_pool") and 1 in values:
            continue
        size = dict(zip(symbols, values, strict=True))
        args = []
        for shape, (_, dtype) in zip(dims, specs, strict=True):
            extents = [size.get(d, d) for d in shape]
            data = rng.integers(0, 3, size=extents) if dtype == I else rng.normal(size=extents)
            args.append(np.asarray(data).astype(dtype))
        got = evaluate(module, args)
        want = jax.tree.leaves(jax.jit(fn)(*args))
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype and g.shape == w.shape
            np.testing.assert_allclose(
                g.astype(np.float64), np.asarray(w).astype(np.float64), rtol=2e-5, atol=2e-5
            )


@pytest.mark.parametrize(
    "name", ["softmax", "attention", "split_heads", "half", "pad_concat", "take", "layer_norm"]
)
def test_shapes_come_back_as_dims(name):
    """No shape is bound from data where JAX's came from argument dims."""
    _, fn, specs = next(c for c in CASES if c[0] == name)
    module = from_stablehlo(exported(fn, specs).mlir_module(), dims_of(specs))
    assert "disc.bind_dim" not in {op.name for op in walk(module.main.body)}


def test_growing_loop_and_data_dependent_shapes():
    text = """
    module {
      func.func public @main(%x: tensor<?xf32>, %n: tensor<i32>) -> (tensor<?xf32>, tensor<?xi32>) {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<?xf32>
          cond {
            %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1>
          } do {
            %j = stablehlo.add %i, %one : tensor<i32>
            %w = stablehlo.concatenate %v, %v, dim = 0 : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
            stablehlo.return %j, %w : tensor<i32>, tensor<?xf32>
          }
        %s = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
        %iota = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
        return %r#1, %iota : tensor<?xf32>, tensor<?xi32>
      }
    }"""
    module = from_stablehlo(text, [["n"], []])
    verify(module)
    v, iota = evaluate(module, [np.ones(3, np.float32), np.int32(2)])
    assert v.shape == (12,) and iota.tolist() == [0, 1]


def test_inline_into_a_function():
    text = exported(softmax, [("b, s", F)]).mlir_module()
    fn, b = new_function("main", {"x": (DType.F32, ["n", 4])})
    (out,) = inline_stablehlo(b, fn.env, text, fn.params, iter(()))
    b.return_([b.add(out, out)])
    verify(fn)
    assert [str(d) for d in out.dims] == ["n", "4"]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_allclose(evaluate(fn, [x])[0], 2 * np.asarray(jax.nn.softmax(x)), rtol=1e-6)


@pytest.mark.parametrize(
    "text, message",
    [
        ("nonsense", "not StableHLO"),
        ("module {}", "no function main"),
        (
            "module { func.func @main(%x: tensor<*xf32>) -> tensor<*xf32> { return %x : tensor<*xf32> } }",
            "not a ranked tensor",
        ),
        (
            "module { func.func @main(%x: tensor<2xcomplex<f32>>) { return } }",
            "complex<f32> is not supported",
        ),
        (
            """module { func.func @main(%x: tensor<f32>) -> tensor<f32> {
              %y = "stablehlo.custom_call"(%x) {call_target_name = "foo"} : (tensor<f32>) -> tensor<f32>
              return %y : tensor<f32> } }""",
            "custom call 'foo'",
        ),
    ],
)
def test_errors(text, message):
    with pytest.raises(StableHLOError, match=message):
        from_stablehlo(text)
