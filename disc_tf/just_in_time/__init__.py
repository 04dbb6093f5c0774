"""`disc_tf.jit`: a function of a program is compiled while it runs (docs/jit.md).

    function.py     JitFunction: which version answers a call
    signature.py    arguments -> rank signature (structure, dtypes, ranks, Python values) and flat tensors
    identity.py     objects as keys, not kept alive
    version.py      one rank signature: TensorFlow's trace, then the compiled function
    program.py      a trace as a GraphDef, and an optimised GraphDef as a TensorFlow function again
    canonical.py    a graph without what differs between two processes: what the cache is keyed by
    cache.py        results on disk
    background.py   the queue of compilations; child.py, worker.py: the process that does them
    work.py         graph bytes in, optimised graph bytes and report out
    lowered.py      `.lower()`; reports.py: `.report()`; settings.py: every option
"""

from __future__ import annotations

from disc_tf.just_in_time.function import JitFunction, jit
from disc_tf.just_in_time.lowered import Lowered
from disc_tf.just_in_time.reports import JitReport, JitWarning, SignatureReport
from disc_tf.just_in_time.settings import JitOptions

__all__ = ["JitFunction", "JitOptions", "JitReport", "JitWarning", "Lowered", "SignatureReport", "jit"]
