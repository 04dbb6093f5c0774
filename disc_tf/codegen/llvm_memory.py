"""Memory, vectors and calls of `FnBuilder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc_tf.codegen.llvm_arith import Arithmetic
from disc_tf.codegen.llvm_core import Operand
from disc_tf.codegen.llvm_types import (
    I1,
    I64,
    PTR,
    VOID,
    Number,
    Ty,
    V,
    const,
    const_vector,
    int_ty,
    poison,
    scalar_text,
    vec,
)


class Memory(Arithmetic):
    """Loads and stores, lanes, calls."""

    # -- memory -----------------------------------------------------------------------------------------------

    def gep(self, p: V, index: Operand, elem: Ty) -> V:
        """Address of element `index` (of type `elem`) from `p`; a vector index gives a vector of pointers."""
        index = self.i64(index)
        if index.const == 0 and index.ty.lanes == 1:
            return p
        if index.ty.lanes > 1:
            ty = vec(PTR, index.ty.lanes)
            return self._pure(ty, f"getelementptr {elem.text}, ptr {p.name}, {index.ty.text} {index.name}")
        return self._pure(PTR, f"getelementptr inbounds {elem.text}, ptr {p.name}, i64 {index.name}")

    def load(self, ty: Ty, p: V, align: int | None = None, *, invariant: bool = False) -> V:
        """Load `ty`; the default alignment is one element (inputs have no wider one).

        `invariant` promises that nothing in this function stores there, and lets an earlier load be reused.
        """
        text = f"load {ty.text}, ptr {p.name}, align {align or ty.bytes}"
        if invariant:
            return self._pure(ty, text, speculate=False)
        return self._emit(ty, text)

    def store(self, value: V, p: V, align: int | None = None) -> None:
        self._effect(f"store {value.ty.text} {value.name}, ptr {p.name}, align {align or value.ty.bytes}")

    def masked_load(self, ty: Ty, p: V, mask: V, passthru: V | None = None, align: int | None = None,
                    *, invariant: bool = False) -> V:
        """Lanes whose mask is false read nothing and give `passthru` (default 0). `invariant` as in `load`."""
        passthru = passthru or const(0, ty)
        name = f"llvm.masked.load.{ty.suffix}.p0"
        self._declare(name, f"declare {ty.text} @{name}(ptr, i32, {mask.ty.text}, {ty.text})")
        text = f"call {ty.text} @{name}(ptr {p.name}, i32 {align or ty.bytes}, {mask!r}, {passthru!r})"
        return self._pure(ty, text, speculate=False) if invariant else self._emit(ty, text)

    def first_lanes(self, count: V, width: int) -> V:
        """The mask of lanes 0 .. count-1: vector tails.

        A known single lane is hidden from LLVM: it would turn a masked store of a truncated vector into a scalar store of the *untruncated*
        element, which overwrites its neighbours (LLVM, reduceMaskedStoreToScalarStore).
        """
        if count.const == 1:
            count = self._emit(count.ty, f'call {count.ty.text} asm "", "=r,0"({count!r})')
        return self.icmp("slt", self.iota(width), self.splat(count, width))

    def masked_store(self, value: V, p: V, mask: V, align: int | None = None) -> None:
        ty = value.ty
        name = f"llvm.masked.store.{ty.suffix}.p0"
        self._declare(name, f"declare void @{name}({ty.text}, ptr, i32, {mask.ty.text})")
        self._effect(f"call void @{name}({value!r}, ptr {p.name}, i32 {align or ty.bytes}, {mask!r})")

    def gather(self, elem: Ty, p: V, index: V, mask: V | None = None, passthru: V | None = None,
               *, invariant: bool = False) -> V:
        """Lane i loads `elem` at p + index[i]; masked-off lanes read nothing. `invariant` as in `load`."""
        lanes = index.ty.lanes
        if lanes == 1:
            return self.load(elem, self.gep(p, index, elem), invariant=invariant)
        ty = vec(elem, lanes)
        mask = mask or const(1, vec(I1, lanes))
        passthru = passthru or const(0, ty)
        ptrs = self.gep(p, index, elem)
        name = f"llvm.masked.gather.{ty.suffix}.v{lanes}p0"
        self._declare(name, f"declare {ty.text} @{name}({ptrs.ty.text}, i32, {mask.ty.text}, {ty.text})")
        text = f"call {ty.text} @{name}({ptrs!r}, i32 {elem.bytes}, {mask!r}, {passthru!r})"
        return self._pure(ty, text, speculate=False) if invariant else self._emit(ty, text)

    def scatter(self, value: V, p: V, index: V, mask: V | None = None) -> None:
        """Lane i stores value[i] at p + index[i], in lane order."""
        ty, lanes = value.ty, value.ty.lanes
        if lanes == 1:
            self.store(value, self.gep(p, index, ty))
            return
        mask = mask or const(1, vec(I1, lanes))
        ptrs = self.gep(p, index, ty.elem)
        name = f"llvm.masked.scatter.{ty.suffix}.v{lanes}p0"
        self._declare(name, f"declare void @{name}({ty.text}, {ptrs.ty.text}, i32, {mask.ty.text})")
        self._effect(f"call void @{name}({value!r}, {ptrs!r}, i32 {ty.bytes}, {mask!r})")

    def alloca(self, ty: Ty, count: int = 1, align: int = 64) -> V:
        """Fixed-size stack space in the entry block. Frames stay under 16 KiB; larger needs use scratch."""
        name = self._fresh()
        self._allocas.append(f"  {name} = alloca {ty.text}, i32 {count}, align {align}")
        return V(name, PTR)

    def prefetch(self, p: V, *, write: bool = False, locality: int = 3) -> None:
        name = "llvm.prefetch.p0"
        self._declare(name, f"declare void @{name}(ptr, i32, i32, i32)")
        self._effect(f"call void @{name}(ptr {p.name}, i32 {int(write)}, i32 {locality}, i32 1)")

    # -- vectors ----------------------------------------------------------------------------------------------

    def splat(self, x: V, lanes: int) -> V:
        """The scalar in every lane; a vector of that many lanes is returned as it is."""
        if lanes == 1 or x.ty.lanes == lanes:
            return x
        if x.ty.lanes != 1:
            raise TypeError(f"cannot splat {x.ty} to {lanes} lanes")
        ty = vec(x.ty, lanes)
        if x.const is not None:
            return const(x.const, ty)
        one = self._pure(ty, f"insertelement {ty.text} poison, {x!r}, i64 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self._pure(ty, f"shufflevector {one!r}, {ty.text} poison, {mask}")

    def iota(self, lanes: int, elem: Ty = I64) -> V:
        """0, 1, 2, ... as constants."""
        return const_vector(range(lanes), elem)

    def shuffle(self, x: V, y: V | None, index: Sequence[int]) -> V:
        """Lanes of x (0..n-1) and y (n..2n-1) picked by `index`; -1 is don't-care."""
        y = y or poison(x.ty)
        ty = vec(x.ty, len(index))
        if len(index) == 1:
            n = x.ty.lanes
            return self.extract(x, index[0]) if index[0] < n else self.extract(y, index[0] - n)
        if y.name == "poison" and tuple(index) == tuple(range(x.ty.lanes)):
            return x
        mask = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in index)
        return self._pure(ty, f"shufflevector {x!r}, {y!r}, <{len(index)} x i32> <{mask}>")

    def extract(self, x: V, lane: Operand) -> V:
        if x.ty.lanes == 1:
            return x
        if x.const is not None:
            return const(x.const, x.ty.elem)
        return self._pure(x.ty.elem, f"extractelement {x!r}, i64 {self.i64(lane).name}")

    def insert(self, x: V, value: V, lane: Operand) -> V:
        if x.ty.lanes == 1:
            return value
        return self._pure(x.ty, f"insertelement {x!r}, {value!r}, i64 {self.i64(lane).name}")

    def concat(self, x: V, y: V) -> V:
        """The lanes of x followed by those of y (equal types)."""
        if x.ty.lanes == 1:
            both = vec(x.ty, 2)
            return self.insert(self.insert(poison(both), x, 0), y, 1)
        return self.shuffle(x, y, range(2 * x.ty.lanes))

    def low_half(self, x: V) -> V:
        return self.shuffle(x, None, range(x.ty.lanes // 2))

    def high_half(self, x: V) -> V:
        return self.shuffle(x, None, range(x.ty.lanes // 2, x.ty.lanes))

    def hreduce(self, x: V, op: Callable[[V, V], V]) -> V:
        """Combine all lanes (a power of two) in the fixed tree lane i with lane i + n/2."""
        while x.ty.lanes > 1:
            x = op(self.low_half(x), self.high_half(x))
        return x

    def any_lane(self, mask: V) -> V:
        """i1: whether any lane of an i1 vector is set."""
        if mask.ty.lanes == 1:
            return mask
        bits = self.bitcast(mask, int_ty(mask.ty.lanes))
        return self.icmp("ne", bits, 0)

    # -- calls ------------------------------------------------------------------------------------------------

    def table(self, symbol: str, elem: Ty, values: Sequence[Number]) -> V:
        """Address of a constant array in the module; equal symbols must have equal contents."""
        body = ", ".join(f"{elem.text} {scalar_text(v, elem)}" for v in values)
        self._declare(symbol, f"@{symbol} = internal unnamed_addr constant [{len(values)} x {elem.text}] [{body}], align 64")
        return V(f"@{symbol}", PTR)

    def call(self, symbol: str, ret: Ty, args: Sequence[V], *, declare: bool = True) -> V | None:
        """Call a function of this module by name. Returns its result, or None for void."""
        if declare:
            self.declare(symbol, ret, [a.ty for a in args])
        text = f"call {ret.text} @{symbol}({', '.join(map(repr, args))})"
        if ret is VOID:
            self._effect(text)
            return None
        return self._emit(ret, text)

    def call_ptr(self, fn: V, ret: Ty, args: Sequence[V]) -> V | None:
        """Call through a pointer."""
        text = f"call {ret.text} {fn.name}({', '.join(map(repr, args))})"
        if ret is VOID:
            self._effect(text)
            return None
        return self._emit(ret, text)

    def ret(self, value: V | None = None) -> None:
        self._effect("ret void" if value is None else f"ret {value!r}")
        self._open = False

    def unreachable(self) -> None:
        self._effect("unreachable")
        self._open = False
