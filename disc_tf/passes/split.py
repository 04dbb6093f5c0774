"""Partial execution: a program cut into segments that wait for only some of the inputs.

Every op depends on a set of run-time inputs, by its operands and by the dims that it mentions. Ops of one set can start when that set is
there, so a set that is worth it becomes a segment, and a segment comes after all those whose sets are inside its own: that order costs no
earliness, and what a check protects comes after the check, since it reads what the check reads.

A set is worth a segment if a result needs no more inputs than those, or if much of the work can be done before the others are there. Ops
of other sets go into a segment that all their readers can wait for. Each segment is a function of its own: bodies are specialised, planned
and compiled one by one, and their entry predicates look at nothing but the inputs that are there. What one segment makes for another is a
parameter of kind ``kept`` there.

Sets are bit masks over the positions of the function's parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from disc_tf.ir.core import ArgInfo, Function, Module, Op, Value, clone_block, outer_values, walk
from disc_tf.ir.types import TOKEN, TensorType
from disc_tf.passes.placement import can_host
from disc_tf.passes.rewriter import dims_of_op, words
from disc_tf.passes.specialize import resolve_bound_dims
from disc_tf.passes.work import rough_work

MAX_SEGMENTS = 8
#: a set is worth a segment from this share on of the work that needs more inputs, and of all work
_WORTH, _LEAST = 0.25, 0.02
#: made again where they are read: cheaper than memory
_CLONED = words("constant iota disc.dim broadcast_in_dim")
#: what reads memory that only a check vouches for, or runs for as long as its operands say: after every check on its inputs
_CAREFUL = words("gather dynamic_slice while case disc.bind_dim")


@dataclasses.dataclass
class Part:
    """One segment. ``module``: its function as "main", and "prepare" with the first one. The function has the parameters of the whole in
    the same places (those that it does not wait for in ``main.absent``), then one of kind ``kept`` for each of ``kept_in``; its results
    are the program's results ``outputs``, then the values ``kept_out``. inputs: positions of the run-time parameters that it waits for.
    depends: earlier parts."""

    module: Module
    inputs: list[int]
    depends: list[int]
    outputs: list[int]
    kept_in: list[int] = dataclasses.field(default_factory=list)
    kept_out: list[int] = dataclasses.field(default_factory=list)


class _NotHere(Exception):
    """The program has something that is not cut."""


def split_segments(module: Module) -> list[Part]:
    """The parts of ``module`` in order; one part, the module itself, where nothing is worth a cut. Run after `outline_prepare`."""
    main = module.main
    resolve_bound_dims(main)
    runtime = [i for i, info in enumerate(main.args) if info.kind in ("host", "device")]
    whole = [Part(module, runtime, [], list(range(sum(isinstance(v.type, TensorType) for v in main.results))))]
    if len(runtime) < 2:
        return whole
    try:
        found = _Split(module).run()
    except _NotHere:
        return whole
    return found if len(found) > 1 else whole


class _Split:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.main = module.main
        self.results = [v for v in self.main.results if isinstance(v.type, TensorType)]
        self.ops = [op for op in self.main.body.ops if op.name != "return"]
        #: position of a parameter that has the symbol as a dim; None: of one that is there from the start
        self.binders: dict[str, int | None] = {}
        self.mask: dict[Value, int] = {}
        for i, (p, info) in enumerate(zip(self.main.params, self.main.args, strict=True)):
            late = info.kind in ("host", "device")
            self.mask[p] = 1 << i if late else 0
            for s in (d.symbol for d in p.tensor.dims if d.symbol):
                bits = self.binders.get(s, 0)
                self.binders[s] = None if bits is None or not late else bits | 1 << i
        self.bound = {str(op.attrs["symbol"]): op for op in self.ops if op.name == "disc.bind_dim"}
        self.symbols = {op: _symbols(op) for op in self.ops}
        self.need: dict[Op, int] = {}
        self.part: dict[Op, int] = {}

    def run(self) -> list[Part]:
        self._masks()
        sets = self._worth()
        while True:  # a set that turns out to be needed may change where others go
            count = len(sets)
            self._assign(sets)
            if len(sets) > 2 * MAX_SEGMENTS:
                raise _NotHere
            if len(sets) == count:
                break
        used = {self.part[op] for op in self.part} | {self._of_result(v) for v in self.results}
        return _Builder(self, sorted(used, key=lambda m: (m.bit_count(), self._first(m)))).parts

    def _first(self, m: int) -> int:
        return next((i for i, op in enumerate(self.ops) if self.part.get(op) == m), len(self.ops))

    # ---- what each op needs -------------------------------------------------------------------------------------

    def _masks(self) -> None:
        """The set of every op. All that mentions a data-dependent dim has one set: such dims and values do not leave their segment."""
        floor: dict[Op, int] = {}
        readers: dict[str, list[Op]] = {s: [] for s in self.bound}
        for op in self.ops:
            for s in self.symbols[op] & readers.keys():
                readers[s].append(op)
        for _ in range(16):
            self._walk(floor)
            changed = False
            for s, bind in self.bound.items():
                users = readers[s]
                union = self.need[bind]
                for op in users:
                    union |= self.need[op]
                for op in (bind, *users):
                    if self.need[op] != union:
                        floor[op], changed = union, True
            if not changed:
                return
        raise _NotHere

    def _walk(self, floor: dict[Op, int]) -> None:
        checks: dict[int, None] = {}
        for op in self.ops:
            m = floor.get(op, 0)
            if any(not isinstance(v.type, TensorType) for v in op.operands) and op.name not in ("disc.check", "disc.after_all"):
                raise _NotHere
            for v in _operands(op):
                m |= self.mask.get(v, 0) if isinstance(v.type, TensorType) else 0
            for s in sorted(self.symbols[op]):
                if s in self.bound:
                    if self.bound[s] in self.need:
                        m |= self.need[self.bound[s]]
                elif s not in self.binders:
                    raise _NotHere
                elif (bits := self.binders[s]) is not None and not bits & m:
                    m |= bits & -bits
            if op.name in _CAREFUL:
                while more := next((c for c in checks if c & m and c | m != m), 0):
                    m |= more
            if op.name == "disc.check":
                checks[m] = None
            self.need[op] = m
            for r in op.results:
                self.mask[r] = m

    # ---- which sets become segments -----------------------------------------------------------------------------

    def _worth(self) -> set[int]:
        work: dict[int, float] = {}
        for op in self.ops:
            work[self.need[op]] = work.get(self.need[op], 0.0) + rough_work(op, self.main.env)
        total = sum(work.values())
        sets = {self.mask[v] for v in self.results}
        sets |= {self.need[op] for op in self.bound.values()}
        for m, own in sorted(work.items(), key=lambda x: -x[1]):
            if len(sets) >= MAX_SEGMENTS or own <= 0 or own < _LEAST * total:
                break
            if own >= _WORTH * sum(w for other, w in work.items() if other != m and other & m == m):
                sets.add(m)
        return sets

    # ---- where each op goes -------------------------------------------------------------------------------------

    def cloned(self, op: Op) -> bool:
        """Whether the op is made again in each segment that reads it."""
        return (op.name in _CLONED or can_host(op)) and not any(s in self.bound for s in self.symbols[op])

    def _of_result(self, v: Value) -> int:
        return self.part[v.op] if v.op is not None and v.op in self.part else self.mask[v]

    def _assign(self, sets: set[int]) -> None:
        """The segment of every op that is not cloned; sets without which that cannot be are added."""
        self.part = {}
        wanted: dict[Op, int] = {}  # what all readers so far wait for

        def read(v: Value, m: int) -> None:
            op = v.op
            if op is None or op not in self.need:
                return
            wanted[op] = wanted.get(op, m) & m

        for v in self.results:
            read(v, self.mask[v])
        for op in reversed(self.ops):
            m = self.need[op]
            if self.cloned(op):
                # its operands are wanted where its readers are
                at = wanted.get(op)
                if at is None:
                    continue
            else:
                at = self._choose(op, m, wanted.get(op), sets)
                if at is None:
                    sets.add(m)
                    at = m
                self.part[op] = at
            for v in _operands(op):
                read(v, at)

    def _choose(self, op: Op, m: int, readers: int | None, sets: set[int]) -> int | None:
        if m in sets:
            return m
        above = [s for s in sets if s & m == m]
        if op.name == "disc.check" or op.name == "disc.bind_dim" or readers is None:
            # before whatever may read what it looks at
            least = min(above, key=lambda s: (s.bit_count(), s), default=None)
            return least if least is not None and all(s & least == least for s in above) else None
        fits = [s for s in above if s & readers == s]
        return max(fits, key=lambda s: (s.bit_count(), s), default=None)


def _operands(op: Op) -> Iterator[Value]:
    """What an op reads, in its regions too (values made inside are among them)."""
    yield from op.operands
    for r in op.regions:
        for inner in walk(r):
            yield from inner.operands


def _symbols(op: Op) -> set[str]:
    """The symbols of every dim that an op mentions or reads under, but those bound in its regions."""
    found: set[str] = set()
    inside: set[str] = set()
    for o in (op, *(inner for r in op.regions for inner in walk(r))):
        if o is not op and o.name == "disc.bind_dim":
            inside.add(str(o.attrs["symbol"]))
        dims = [*dims_of_op(o), *(d for v in o.operands if isinstance(v.type, TensorType) for d in v.tensor.dims)]
        found.update(s for d in dims for s in d.symbols())
    return found - inside


class _Builder:
    """The functions of the segments ``order``."""

    def __init__(self, split: _Split, order: list[int]) -> None:
        self.split = split
        self.order = order
        self.main = split.main
        self.kept: dict[Value, int] = {}
        self.parts: list[Part] = []
        self.maps: list[dict[Value, Value]] = []
        self.tokens: list[Value | None] = []
        for k, m in enumerate(order):
            self.parts.append(self._empty(k, m))
            self.maps.append(dict(zip(self.main.params, self.parts[k].module.main.params, strict=True)))
            self.tokens.append(None)
        at = {m: k for k, m in enumerate(order)}
        for op in split.ops:
            if op in split.part and op.name not in ("disc.create_token", "disc.after_all"):
                self._place(at[split.part[op]], op)
        for i, v in enumerate(split.results):
            k = at[split._of_result(v)]
            self._resolve(k, v)
            self.parts[k].outputs.append(i)
        for k in range(len(order)):
            self._finish(k)

    def _empty(self, k: int, m: int) -> Part:
        fn = Function("main")
        fn.env = self.main.env.child()
        fn.wanted_positive = list(self.main.wanted_positive)
        for p, info in zip(self.main.params, self.main.args, strict=True):
            fn.add_arg(p.tensor, dataclasses.replace(info)).hint = p.hint
        late = [i for i, info in enumerate(self.main.args) if info.kind in ("host", "device")]
        fn.absent = frozenset(i for i in late if not m >> i & 1)
        module = Module()
        module.add(fn)
        if k == 0:
            module.functions.update((name, f) for name, f in self.split.module.functions.items() if f is not self.main)
        depends = [j for j in range(k) if self.order[j] & m == self.order[j]]
        return Part(module, [i for i in late if m >> i & 1], depends, [])

    def _resolve(self, k: int, v: Value) -> Value:
        """The value in part ``k``: there already, made again, or kept by an earlier part."""
        mapping, fn = self.maps[k], self.parts[k].module.main
        work = [v]
        while work:
            x = work[-1]
            op = x.op
            if x in mapping:
                work.pop()
            elif op is not None and self.split.cloned(op):
                missing = [y for y in op.operands if y not in mapping]
                if missing:
                    work += missing
                else:
                    work.pop()
                    self._append(k, op)
            else:
                assert op in self.split.part, f"{x!r} is in no segment"
                mapping[x] = self._keep(k, fn, x)
                work.pop()
        return mapping[v]

    def _keep(self, k: int, fn: Function, v: Value) -> Value:
        number = self.kept.setdefault(v, len(self.kept))
        maker = self.order.index(self.split.part[v.op])  # type: ignore[index]
        assert maker in self.parts[k].depends, f"segment {k} reads what segment {maker} makes and does not come after it"
        if number not in self.parts[maker].kept_out:
            self.parts[maker].kept_out.append(number)
        self.parts[k].kept_in.append(number)
        return fn.add_arg(v.tensor, ArgInfo(f"kept{number}", "kept"))

    def _place(self, k: int, op: Op) -> None:
        for v in (*op.operands, *(x for r in op.regions for x in outer_values(r))):
            if isinstance(v.type, TensorType):
                self._resolve(k, v)
        self._append(k, op)

    def _append(self, k: int, op: Op) -> None:
        mapping, fn = self.maps[k], self.parts[k].module.main
        operands = []
        for v in op.operands:
            if isinstance(v.type, TensorType):
                operands.append(mapping[v])
            else:
                if self.tokens[k] is None:
                    self.tokens[k] = fn.body.append(Op("disc.create_token", [], [TOKEN])).result
                operands.append(self.tokens[k])
        copy = Op(op.name, operands, [r.type for r in op.results], dict(op.attrs), [clone_block(r, mapping) for r in op.regions], op.loc)
        for old, new in zip(op.results, copy.results, strict=True):
            new.hint = old.hint
            mapping[old] = new
            if not isinstance(old.type, TensorType):
                self.tokens[k] = new
        fn.body.append(copy)

    def _finish(self, k: int) -> None:
        part, mapping = self.parts[k], self.maps[k]
        fn = part.module.main
        by_number = {n: v for v, n in self.kept.items()}
        returned = [mapping[self.split.results[i]] for i in part.outputs] + [mapping[by_number[n]] for n in part.kept_out]
        names = self.main.result_names
        fn.result_names = [names[i] if i < len(names) else f"result{i}" for i in part.outputs]
        fn.result_names += [f"kept{n}" for n in part.kept_out]
        token = self.tokens[k]
        fn.body.append(Op("return", [*returned, *([token] if token is not None else [])]))


__all__ = ["MAX_SEGMENTS", "Part", "split_segments"]
