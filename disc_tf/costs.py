"""The cost model: what a kernel costs, and what the compiler decides by that. All its constants, with units and how they were measured.

The time of a kernel is a launch, plus the longer of its arithmetic and its traffic, plus the hand-over to other threads where there are
any (`predict`). Arithmetic is counted in *lane operations*: one vector instruction for one 4-byte lane; a dear op counts as so many
of them as take its time (`WEIGHTS`). Traffic is what the kernel must read and write at least, at the rate of the memory that holds it.

Two users. The compiler decides with `NOMINAL` rates of each instruction set, because code is made once and runs on many machines, and
the same graph must become the same bytes wherever it is compiled: what a chunk of parallel work holds (`grain`), what is too dear to
compute twice (`is_dear`), how much of a program's work something is (`op_work`). `disc-tf inspect --kernels` and the pages of reports
predict with the rates and cache sizes of the `Machine` at hand. docs/architecture.md, section 13, says what is decided elsewhere, and why.

Measured on a Sapphire Rapids server core (3 GHz, two FMA units of 512 bits, 48 KiB and 2 MiB of cache of its own), one thread, kernels
made by this compiler over 16,384 elements, the best of 60 runs; `python -m bench.costs` measures again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim, DimLike, dmax
from disc_tf.ir.types import TensorType

# ---- constants ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rates:
    """Of one thread, in picoseconds. ``lane_ps``: a lane operation; ``mac_ps``: a multiply-add of f32 in a product; ``byte_ps``: a byte
    from or to the second-level cache."""

    lane_ps: float
    mac_ps: float
    byte_ps: float


#: by instruction set. lane_ps: loops of 1 to 16 cheap ops and of the transcendental ones; mac_ps: products of 64 x 128 x 128;
#: byte_ps: `add` of two arrays that lie in the second-level cache (12 bytes an element, 147 ps; the same with all three)
NOMINAL: Mapping[str, Rates] = {
    "x86-64-v2": Rates(45.0, 60.0, 12.5),
    "x86-64-v3": Rates(24.0, 22.0, 12.5),
    "x86-64-v4": Rates(14.0, 11.0, 12.5),
}

#: lane operations of an op for each element of its result (of a reduction: of its operand), where it is not 1: its time in a loop of its
#: own with x86-64-v4 over `lane_ps`; of a reduction over rows, with the pass over the row that it ends. Integer division goes through
#: scalar instructions on every target.
WEIGHTS: Mapping[str, float] = {
    "exponential": 17, "exponential_minus_one": 19, "log": 23, "log_plus_one": 33, "sqrt": 15, "rsqrt": 29, "cbrt": 40, "sine": 55,
    "cosine": 52, "tan": 58, "tanh": 28, "logistic": 22, "erf": 49, "erfc": 40, "asin": 19, "acos": 20, "atan": 25, "sinh": 28,
    "cosh": 23, "asinh": 69, "acosh": 56, "atanh": 52, "lgamma": 410, "digamma": 570, "divide": 12, "remainder": 73, "power": 178,
    "atan2": 42, "gather": 20, "pad": 12, "dynamic_update_slice": 10, "dynamic_slice": 4, "reverse": 4, "reduce": 10,
}  # fmt: skip
INTEGER_DIVISION = 110.0
#: of each operand of a concatenation: a loop kernel branches over them (20 for 2 of them, 62 for 8)
CONCATENATED = 8.0
#: ops that take no time of their own: the loop that reads their result reads what they are made of
FREE = frozenset(
    "constant iota disc.dim broadcast_in_dim reshape transpose slice reverse return bitcast_convert disc.bind_dim disc.create_token "
    "disc.after_all disc.check".split()
)
#: an op that weighs more is read from where it was stored rather than computed again: an element of 4 bytes takes 50 ps to load, 3.6 lane
#: operations of x86-64-v4
LOAD_WEIGHT = 5.0

#: microseconds of work that a chunk of a parallel kernel should have. A worker that is awake is handed its share in 2.5 us (`HANDOVER_US`):
#: loops of `add`, `exponential` and `erf` gain from a second thread once they take 4.5 us in all, and lose before that
CHUNK_US = 5.0
#: the same for products, convolutions and attention, whose few large tasks divide unevenly and whose operands each thread reads for
#: itself: a product of 64 x 128 x 128 (12 us) is as fast with one thread as with two, one of 96 x 128 x 128 gains 15 %, of 32 loses 11 %
PRODUCT_CHUNK_US = 12.0
#: parts that a kernel of two loops may be cut into if the loops are to run beside each other, a thread each, rather than one after the
#: other with their kernels shared out. With T threads, a kernel of time t takes t beside, and 2 (t / T + `HANDOVER_US`) in turn. So two
#: threads always win beside, and many lose from 5 us on; the number of threads is not known here, and two to four are the likeliest
BESIDE_CHUNKS = 8
#: microseconds: what the host program does for a kernel (addresses, dims, the call), and to share one out to a worker that is awake
LAUNCH_US, HANDOVER_US = 0.2, 2.5
#: share of the peak of multiply-adds that kernels reach on operands in cache: products of 192 to 1,024 rows reach 0.75 to 0.9
PRODUCT_SHARE: Mapping[str, float] = {"gemm": 0.8, "conv": 0.6, "attention": 0.6}
#: what a multiply-add's time is to a lane operation's (`NOMINAL`), to get one from the peak of the machine at hand
LANE_PER_MAC = 1.3

#: bytes that a point is taken to move at least: loops that move fewer do not take less time (`abs` of 8 bytes an element: 110 to 125 ps)
PLAIN_BYTES = 12
#: how much longer a row takes whose place only data tells, beside one that lies in a row of rows
SCATTERED = 4.0

#: what an extent is taken for that nothing is known of, and the iterations of a loop
NOMINAL_EXTENT, NOMINAL_TRIPS = 64, 16

# ---- arithmetic -----------------------------------------------------------------------------------------------------


def weight(name: str, *, integer: bool = False, operands: int = 1, wide: bool = False) -> float:
    """Lane operations for each element. ``name``: of the op, without a dialect; ``wide``: of 8 bytes, which take two lanes."""
    if name in FREE:
        return 0.0
    if name == "concatenate":
        return CONCATENATED * operands
    if integer and name in ("divide", "remainder"):
        return INTEGER_DIVISION
    return WEIGHTS.get(name, 1.0) * (2.0 if wide else 1.0)


def op_weight(op: Op) -> float:
    """`weight` of an op that has a tensor as result, or reduces one."""
    name = op.name.removeprefix("chlo.")
    first = next((v for v in (*op.results, *op.operands) if isinstance(v.type, TensorType)), None)
    if first is None:
        return 0.0
    return weight(name, integer=first.dtype.is_int, operands=len(op.operands), wide=first.dtype.bytes == 8)


def is_dear(name: str) -> bool:
    """Whether an elementwise op or a gather is too dear to be computed again where it is read."""
    return WEIGHTS.get(name, 1.0) > LOAD_WEIGHT


def op_work(name: str, size: float, macs: float = 0.0, weighs: float = 1.0) -> float:
    """Lane operations of an op in a program, its traffic included: two a loaded or stored element at least."""
    if macs:
        return macs
    return 0.0 if name in FREE else size * max(weighs, 2.0)


# ---- parallel work ----------------------------------------------------------------------------------------------------


def point_ps(isa: str, ops: Iterable[Op], moved: float) -> float:
    """Picoseconds for one point of an iteration: ``ops`` computed once each, ``moved`` bytes read and written (`PLAIN_BYTES` at least)."""
    rates = NOMINAL[isa]
    return max(sum(map(op_weight, ops)) * rates.lane_ps, max(moved, PLAIN_BYTES) * rates.byte_ps)


def plain_ps(isa: str) -> float:
    """Of a point at which little is computed."""
    return point_ps(isa, (), PLAIN_BYTES)


def mac_ps(isa: str, element_bytes: int = 4) -> float:
    """Picoseconds for one multiply-add of a product of elements of so many bytes (those of what it is summed in)."""
    return NOMINAL[isa].mac_ps * max(element_bytes, 4) / 4


def grain(points: DimLike, ps: float, chunk_us: float = CHUNK_US) -> Dim:
    """Tasks that make up a chunk, if a task has ``points`` points of ``ps`` picoseconds each (static; extents are symbolic)."""
    most = max(int(chunk_us * 1e6 / ps), 1)
    return dmax(1, most // dmax(points, 1))


# ---- prediction -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Machine:
    """``gflops``: f32 operations a nanosecond with ``threads`` threads, two a multiply-add; ``bandwidth``: (bytes in use in all up to which
    it holds, bytes a nanosecond read and written by all threads), nearest memory first; ``caches``: bytes of the levels that a core has,
    as the system says (nothing if it does not)."""

    isa: str
    threads: int
    gflops: float
    bandwidth: tuple[tuple[int, float], ...]
    caches: tuple[int, ...] = ()

    def rate(self, in_use: float) -> float:
        """Bytes a nanosecond where so many bytes are in use."""
        return next((r for size, r in self.bandwidth if in_use <= size), self.bandwidth[-1][1])

    def least_us(self, flops: float, traffic: float) -> tuple[float, str]:
        """Microseconds that this needs at least, and whether ``compute`` or ``memory`` is what holds it back."""
        compute, memory = flops / self.gflops / 1e3, traffic / self.rate(traffic) / 1e3
        return (compute, "compute") if compute > memory else (memory, "memory")

    def to_dict(self) -> dict[str, Any]:
        return {
            "isa": self.isa, "threads": self.threads, "gflops": self.gflops, "bandwidth": [list(x) for x in self.bandwidth],
            "caches": list(self.caches),
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Demand:
    """What one launch of a kernel asks for. ``flops``: of products; ``operations``: lane operations of all else; ``traffic``: bytes to
    move at least, ``weights``: those of them that are constants, ``picked``: rows or elements that other data pick; ``chunks``: parts that
    it may be cut into; ``launches``: kernels in turn."""

    kind: str
    flops: float
    operations: float
    traffic: float
    weights: float = 0.0
    picked: float = 0.0
    chunks: float = 1.0
    launches: int = 1


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Microseconds; ``bound``: what takes most of them (``compute``, ``memory`` or ``launch``); ``threads``: that share the work."""

    us: float
    bound: str
    threads: int


def predict(demand: Demand, machine: Machine, all_weights: float = 0.0) -> Prediction:
    """The time of a launch. ``all_weights``: bytes of constants that a whole run reads: they are in the memory that holds that many,
    however few one kernel reads of them, since all the others come between two runs of it. Tables that are picked from are there too."""
    threads = max(1, min(machine.threads, int(demand.chunks)))
    share = threads / machine.threads
    peak = machine.gflops * share  # flops a nanosecond
    compute = demand.flops / (peak * PRODUCT_SHARE.get(demand.kind, 1.0)) + demand.operations * LANE_PER_MAC / (peak / 2)
    near = max(demand.traffic - demand.weights - demand.picked, 0.0)
    far = demand.weights + demand.picked * SCATTERED
    memory = near / machine.rate(demand.traffic) + far / machine.rate(max(all_weights, demand.traffic))
    memory /= share
    overhead = (LAUNCH_US + (HANDOVER_US if threads > 1 else 0.0)) * demand.launches
    work = max(compute, memory) / 1e3
    bound = "launch" if overhead > work else "compute" if compute > memory else "memory"
    return Prediction(overhead + work, bound, threads)


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Spearman's: how far the order of the predictions is that of the measurements (1: wholly, 0: not at all); None of fewer than 3, or
    where all are equal. Source: Spearman 1904, by Pearson's formula on ranks."""
    n = len(predicted)
    if n < 3:
        return None
    a, b = _ranks(predicted), _ranks(measured)
    mean = (n - 1) / 2
    up = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    down = (sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)) ** 0.5
    return up / down if down else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in ascending order; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    out = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for k in order[start : end + 1]:
            out[k] = (start + end) / 2
        start = end + 1
    return out
