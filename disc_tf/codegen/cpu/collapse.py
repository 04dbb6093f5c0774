"""Which neighbouring dims of an iteration space may be merged into one.

Two neighbouring dims can be walked as one when every access moves through them together. The analysis gives each
boundary between neighbouring dims of each value a node; ops tie boundaries of operands and results together or cut
them. Dims of static extent 1 are skipped: their index is always 0.

A merged group is walked with index 0 in its outer dims and the linear index in its last one: row-major positions come
out right without rewriting any op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc_tf.codegen.cpu import lane_ops
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.shape_env import ShapeEnv

Node = tuple[Value | str, int]
SPACE = "space"


def real(dims: Sequence[Dim]) -> list[int]:
    """Positions of the dims that are not statically 1."""
    return [k for k, d in enumerate(dims) if d != 1]


class _Boundaries:
    """Union-find over boundaries; boundary k of a value lies before its k-th real dim (k >= 1)."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env
        self.parent: dict[Node, Node] = {}
        self.cuts: set[Node] = set()

    def find(self, n: Node) -> Node:
        root = n
        while (up := self.parent.get(root, root)) != root:
            root = up
        while (up := self.parent.get(n, n)) != root:
            self.parent[n] = root
            n = up
        return root

    def tie(self, a: Node, c: Node) -> None:
        a, c = self.find(a), self.find(c)
        if a != c:
            self.parent[a] = c
            if a in self.cuts:
                self.cuts.add(c)

    def cut(self, n: Node) -> None:
        self.cuts.add(self.find(n))

    def is_cut(self, n: Node) -> bool:
        return self.find(n) in self.cuts

    def cut_all(self, v: Value | str, dims: Sequence[Dim]) -> None:
        for k in range(1, len(real(dims))):
            self.cut((v, k))

    def map(self, a: Value | str, a_dims: Sequence[Dim], c: Value | str, c_dims: Sequence[Dim],
            place: dict[int, int | None], broken: Callable[[int], bool] = lambda d: False) -> None:
        """Tie a's boundaries to c's. `place[k]` is the dim of c that follows dim k of a (None: c ignores it);
        `broken(k)`: dim k of a cannot be merged with anything."""
        ra, rc = real(a_dims), real(c_dims)
        order = {k: n for n, k in enumerate(rc)}
        used = set()
        for n in range(1, len(ra)):
            left, right = ra[n - 1], ra[n]
            pl, pr = place.get(left), place.get(right)
            if broken(left) or broken(right):
                self.cut((a, n))
            elif pl is None and pr is None:
                continue
            elif pl in order and pr in order and order[pr] == order[pl] + 1:
                self.tie((a, n), (c, order[pr]))
                used.add(order[pr])
            else:
                self.cut((a, n))
        for n in range(1, len(rc)):
            if n not in used:
                self.cut((c, n))


def _reshape_places(result: Sequence[Dim], operand: Sequence[Dim], env: ShapeEnv) -> dict[int, int | None]:
    """Dims that a reshape leaves alone: equal prefixes and suffixes. Others map to -1."""
    rs, os_ = real(result), real(operand)
    places: dict[int, int | None] = {k: -1 for k in rs}

    def same(a: Dim, c: Dim) -> bool:
        return a == c or env.is_equal(a, c) is True

    n = 0
    while n < min(len(rs), len(os_)) and same(result[rs[n]], operand[os_[n]]):
        places[rs[n]] = os_[n]
        n += 1
    rs, os_ = rs[n:], os_[n:]
    while rs and os_ and same(result[rs[-1]], operand[os_[-1]]):
        places[rs.pop()] = os_.pop()
    return places


def _visit(bounds: _Boundaries, op: Op) -> None:
    env = bounds.env
    v = op.results[0]
    name = op.name
    if name in lane_ops.ELEMENTWISE or (name == "bitcast_convert" and v.rank == op.operands[0].rank):
        for x in op.operands:
            if x.rank:
                bounds.map(v, v.dims, x, x.dims, {k: k for k in range(v.rank)})
    elif name == "constant":
        return  # the same everywhere, or a table in memory like a buffer
    elif name == "broadcast_in_dim":
        (x,) = op.operands
        places: dict[int, int | None] = dict.fromkeys(range(v.rank))
        unsure = set()
        for j, r in enumerate(op.attrs["broadcast_dimensions"]):
            if x.dims[j] == 1 or env.is_equal(x.dims[j], 1) is True:
                continue
            places[r] = j
            low, _ = env.bounds(x.dims[j])
            if env.is_equal(x.dims[j], v.dims[r]) is not True and not (low is not None and low >= 2):
                unsure.add(r)
        bounds.map(v, v.dims, x, x.dims, places, unsure.__contains__)
    elif name == "transpose":
        (x,) = op.operands
        bounds.map(v, v.dims, x, x.dims, dict(enumerate(op.attrs["permutation"])))
    elif name == "reshape":
        (x,) = op.operands
        bounds.map(v, v.dims, x, x.dims, _reshape_places(v.dims, x.dims, env))
    elif name in ("slice", "reverse", "concatenate", "pad"):
        _visit_axis_op(bounds, op, v)
    elif name == "iota":
        axis = op.attrs["dimension"]
        for n, (left, right) in enumerate(zip(real(v.dims), real(v.dims)[1:], strict=False), 1):
            if axis in (left, right):
                bounds.cut((v, n))
    elif name == "gather" and op.attrs["index_vector_dim"] == op.operands[1].rank:
        indices = op.operands[1]
        batch = [k for k in range(v.rank) if k not in op.attrs["offset_dims"]]
        windows = [k for k in range(v.rank) if k in op.attrs["offset_dims"]]
        # A batching dim's own index is a coordinate of the operand.
        coordinates = {batch[i] for i in op.attrs["start_indices_batching_dims"]}
        places: dict[int, int | None] = {k: batch.index(k) if k in batch else None for k in range(v.rank)}
        bounds.map(v, v.dims, indices, indices.dims, places, coordinates.__contains__)
        # A window dim that takes the whole of its dim of the operand is walked as that is; where a window is placed hangs on the index.
        x, hidden = op.operands[0], {*op.attrs["collapsed_slice_dims"], *op.attrs["operand_batching_dims"]}
        rest = [k for k in range(x.rank) if k not in hidden]
        places = {k: None for k in batch} | dict(zip(windows, rest, strict=True))
        sizes, starts = op.attrs["slice_sizes"], op.attrs["start_index_map"]
        parts = {
            k for k, d in zip(windows, rest, strict=True) if d in starts or env.is_equal(sizes[d], x.dims[d]) is not True
        }
        bounds.map(v, v.dims, x, x.dims, places, parts.__contains__)
    else:
        for r in op.results:
            bounds.cut_all(r, r.dims)
        for x in op.operands:
            bounds.cut_all(x, x.dims)


def _visit_axis_op(bounds: _Boundaries, op: Op, v: Value) -> None:
    attrs = op.attrs
    if op.name == "concatenate":
        touched, sources = {attrs["dimension"]}, op.operands
    elif op.name == "reverse":
        touched, sources = set(attrs["dimensions"]), op.operands
    elif op.name == "slice":
        (x,) = op.operands
        touched = {k for k in range(v.rank) if bounds.env.is_equal(x.dims[k], v.dims[k]) is not True
                   or attrs["starts"][k] != 0}
        sources = op.operands
    else:
        touched = {k for k in range(v.rank) if any(attrs[n][k] != 0 for n in ("low", "high", "interior"))}
        sources = op.operands[:1]
    for x in sources:
        bounds.map(v, v.dims, x, x.dims, {k: k for k in range(v.rank)}, touched.__contains__)


def groups(space: Sequence[Dim], ops: Sequence[Op], roots: Sequence[Value], env: ShapeEnv,
           keep: Sequence[int] = ()) -> list[list[int]]:
    """Partition the real dims of `space` into runs that may be walked as one.

    `roots` are values evaluated over the space: of its own dims, or of a reshape of them. `keep` lists dims before
    which a cut is wanted anyway (the boundary between outer and reduced dims).
    """
    bounds = _Boundaries(env)
    for v in roots:
        if len(v.dims) == len(space) and all(env.is_equal(a, c) is True for a, c in zip(v.dims, space, strict=True)):
            places: dict[int, int | None] = {k: k for k in range(len(space))}
        else:
            places = _reshape_places(space, v.dims, env)
        bounds.map(SPACE, space, v, v.dims, places)
    for op in reversed(ops):
        _visit(bounds, op)
    out: list[list[int]] = []
    for n, k in enumerate(real(space)):
        if n == 0 or bounds.is_cut((SPACE, n)) or k in keep:
            out.append([k])
        else:
            out[-1].append(k)
    return out
