"""Loops that do not wait for each other stand beside each other in the plan, so that two threads can run them at the same time.

A bidirectional recurrent layer is two loops of many small kernels: too small to share out, and there are threads to spare. The second loop
of a pair has ``attrs["beside"]``: memory is planned as if both ran at once (`buffers.liveness`), and the host program decides at run time
(`codegen.host_beside`).
"""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Value, may_fail

#: what the body of such a loop may hold: launches, and host code that cannot fail
_PLAIN = frozenset({"loop", "rows", "reduce", "gemm", "conv", "attention", "view", "constant", "host", "update"})
#: fusions between two loops that may change places with them
_MOST_BETWEEN = 64


def beside(fusions: Sequence[Fusion], results: Sequence[Value]) -> list[Fusion]:
    """The fusions, each plain loop with the next one that does not need it right behind it, which is marked. What lies between them and
    does not need the first comes before both, the rest after them. Loops that make results of the function stay: nobody waits for
    them longer than before."""
    out = list(fusions)
    made = set(results)
    at = 0
    while at < len(out):
        found = _partner(out, at, made) if _plain(out[at], made) else None
        if found is None:
            at += 1
            continue
        second, needing = found
        between = out[at + 1 : second]
        before = [f for f in between if id(f) not in needing]
        after = [f for f in between if id(f) in needing]
        out[second].attrs["beside"] = True
        out[at : second + 1] = [*before, out[at], out[second], *after]
        at += len(before) + 2
    return out


def _plain(fusion: Fusion, results: set[Value]) -> bool:
    """Whether nothing in the loop can fail or needs the runtime, and none of what it makes is a result of the function."""
    if fusion.kind != "while" or any(v in results for v in fusion.outputs):
        return False
    inner = [f for _, plan in fusion.attrs["regions"] for f in plan.fusions]
    return all(f.kind in _PLAIN for f in inner) and not any(may_fail(op) for f in inner for op in f.ops)


def _partner(fusions: Sequence[Fusion], at: int, results: set[Value]) -> tuple[int, set[int]] | None:
    """The next plain loop, and `_needing` of what lies between, if it does not need the one ``at``, and if what does may wait until it has
    run: nothing that binds a dim, tests something or is a result."""
    for k in range(at + 1, min(at + 1 + _MOST_BETWEEN, len(fusions))):
        if fusions[k].kind != "while":
            continue
        needing = _needing(fusions, at, k)
        waiting = [f for f in fusions[at + 1 : k] if id(f) in needing]
        if id(fusions[k]) in needing or not _plain(fusions[k], results):
            return None
        held = any(f.kind in ("host", "case") or any(v in results for v in f.outputs) for f in waiting)
        return None if held else (k, needing)
    return None


def _needing(fusions: Sequence[Fusion], first: int, last: int) -> set[int]:
    """The ids of those after ``first``, up to ``last``, that read what it makes, directly or not."""
    made = set(fusions[first].outputs)
    out: set[int] = set()
    for f in fusions[first + 1 : last + 1]:
        if any(v in made for v in f.inputs):
            out.add(id(f))
            made.update(f.outputs)
    return out
