"""FnBuilder, compile and the ELF writer: text in, callable code out."""

import ctypes

import numpy as np
import pytest

from disc_tf.codegen import elf
from disc_tf.codegen.compile import CompileError, compile_image, compile_object
from disc_tf.codegen.cpu.target import TARGETS, V2, V3
from disc_tf.codegen.llvm import F32, F64, I1, I8, I32, I64, PTR, FnBuilder, ModuleText, const, vec

ALL = list(TARGETS.values())


def load(tmp_path, target, *fns):
    module = ModuleText()
    for fn in fns:
        module.add(fn)
    image = compile_image(module.text(), target, [fns[0].name])
    path = tmp_path / "k.so"
    path.write_bytes(image)
    return getattr(ctypes.CDLL(str(path)), fns[0].name)


def ptr(a):
    return ctypes.c_void_p(a.ctypes.data)


@pytest.mark.parametrize("target", ALL, ids=lambda t: t.name)
@pytest.mark.parametrize("elem,dtype", [(F32, np.float32), (F64, np.float64)])
@pytest.mark.parametrize("n", [0, 1, 7, 16, 37])
def test_masked_sum_and_scale(tmp_path, target, elem, dtype, n):
    w = target.width(elem.bytes)
    ty = vec(elem, w)
    b = FnBuilder("k", [("x", PTR), ("y", PTR), ("n", I64)], fma=target.fma, attrs=target.fn_attrs)
    x, y, count = b.params

    def body(i, carried):
        lane = b.add(b.splat(i, w), b.iota(w))
        mask = b.icmp("slt", lane, b.splat(count, w))
        v = b.masked_load(ty, b.gep(x, i, elem), mask)
        b.masked_store(b.fma(v, 2.0, v), b.gep(y, i, elem), mask)
        return [b.fadd(carried[0], v)]

    (acc,) = b.loop(0, count, w, [const(0.0, ty)], body)
    b.store(b.hreduce(acc, b.fadd), b.gep(y, count, elem))
    b.ret()
    k = load(tmp_path, target, b)
    data = np.arange(n, dtype=dtype)
    out = np.full(n + 2, -1, dtype)
    k(ptr(data), ptr(out), ctypes.c_int64(n))
    np.testing.assert_array_equal(out[:n], data * 3)
    assert out[n] == data.sum() and out[n + 1] == -1


def test_control_flow_and_gather(tmp_path):
    b = FnBuilder("k", [("x", PTR), ("i", I64)], I64)
    x, i = b.params
    (a,) = b.if_else(b.icmp("sgt", i, 2), lambda: [b.mul(i, 10)], lambda: [b.sub(i, 1)])
    (s,) = b.switch(i, {1: lambda: [b.i64(100)], 3: lambda: [b.add(i, 200)]}, lambda: [b.i64(0)])
    p, _ = b.while_loop([b.i64(1), i], lambda c: b.icmp("sgt", c[1], 0), lambda c: [b.mul(c[0], 2), b.sub(c[1], 1)])
    g = b.gather(I64, x, b.add(b.iota(4), b.splat(i, 4)))
    b.ret(b.add(b.add(b.add(a, s), p), b.hreduce(g, b.add)))
    k = load(tmp_path, V3, b)
    k.restype = ctypes.c_int64
    data = np.arange(16, dtype=np.int64) * 1000
    for i in (0, 1, 3, 5):
        expected = (i * 10 if i > 2 else i - 1) + {1: 100, 3: 203}.get(i, 0) + 2**i + data[i:i + 4].sum()
        assert k(ptr(data), ctypes.c_int64(i)) == expected


def test_folding_and_reuse():
    b = FnBuilder("k", [("i", I64)], I64)
    (i,) = b.params
    assert b.add(i, 0) is i and b.mul(i, 1) is i and b.mul(i, 0).const == 0
    assert b.mul(b.i64(6), 7).const == 42
    assert b.mul(i, 5) is b.mul(i, 5)
    inner = []
    b.if_then(b.icmp("sgt", i, 0), lambda: inner.append(b.mul(i, 9)))
    assert b.mul(i, 9) is not inner[0], "a value of a branch does not dominate the code after it"


def test_types_are_checked():
    b = FnBuilder("k", [("i", I64), ("f", F32)])
    with pytest.raises(TypeError, match="differ"):
        b.add(*b.params)
    with pytest.raises(ValueError, match="allow-list"):
        b.intrinsic("exp", b.params[1])
    with pytest.raises(ValueError, match="terminator"):
        b.text()


def test_undefined_symbols_are_refused():
    b = FnBuilder("k", [("x", F64)], F64)
    b.ret(b.call("cos", F64, [b.params[0]]))
    module = ModuleText()
    module.add(b)
    with pytest.raises(elf.LinkError, match="undefined symbol cos"):
        compile_image(module.text(), V2, ["k"])


def test_writable_data_and_bad_input_are_refused():
    module = ModuleText()
    module.add_global("g", "@g = global i32 5")
    b = FnBuilder("k", [])
    b.ret()
    module.add(b)
    with pytest.raises(elf.LinkError, match="writable"):
        compile_image(module.text(), V2, ["k"])
    with pytest.raises(elf.LinkError, match="not defined: nope"):
        elf.link(compile_object("define void @k() { ret void }", V2), ["nope"])
    with pytest.raises(elf.LinkError, match="ELF"):
        elf.link(b"garbage", [])
    with pytest.raises(CompileError):
        compile_object("define void @k() { ret i32 0 }", V2)


def test_image_is_wx_clean_and_identified():
    image = compile_image("define i32 @k() { ret i32 7 }", V3, ["k"])
    again = compile_image("define i32 @k() { ret i32 8 }", V3, ["k"])
    assert elf.build_id(image) != elf.build_id(again) and len(elf.build_id(image)) == 20
    count = int.from_bytes(image[56:58], "little")
    for i in range(count):
        flags = int.from_bytes(image[64 + 56 * i + 4:64 + 56 * i + 8], "little")
        assert flags & 3 != 3, "a segment is writable and executable"


def test_internal_calls_and_bool_masks(tmp_path):
    f = FnBuilder("twice", [("x", I32)], I32, linkage="internal")
    f.ret(f.mul(f.params[0], 2))
    b = FnBuilder("k", [("x", I32)], I32)
    m = b.icmp("sgt", b.splat(b.params[0], 8), b.iota(8, I32))
    any_set = b.zext(b.any_lane(m), I32)
    bits = b.hreduce(b.zext(m, I8), b.add)
    r = b.call("twice", I32, [b.params[0]])
    b.ret(b.add(b.add(r, b.sext(bits, I32)), any_set))
    assert m.ty is vec(I1, 8)
    k = load(tmp_path, V3, b, f)
    assert k(3) == 6 + 3 + 1 and k(0) == 0
