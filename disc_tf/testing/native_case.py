"""The second half of the one-op tests: the lowered function compiled and run natively, in the place of the interpreter.

`native_answer(fn, arrays)` has the signature of `tf_case.our_answer`. Wherever a check of `tf_case` runs inside `natively(...)`, its
functions are compiled by the whole pipeline and run by the runtime, so every table of cases under tests/lowering is a table of native cases
too (tests/conformance).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from disc_tf.compiler import CompiledCluster, compile_module
from disc_tf.ir.core import Function, Module
from disc_tf.runtime.executable import DiscError, Executable, set_target
from disc_tf.testing import tf_case
from disc_tf.testing.tf_case import Answer, Failure

#: instruction sets in the order of preference
TARGETS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")


def module_of(fn: Function) -> Module:
    """A module whose main is ``fn``."""
    module = Module()
    module.add(fn)
    return module


def compile_function(fn: Function, target: str = TARGETS[0]) -> CompiledCluster:
    """Compile for one target. ``fn`` is consumed."""
    return compile_module(module_of(fn), [target])


def run_executable(executable: Executable, arrays: Sequence[np.ndarray], *, max_threads: int = 0) -> Answer:
    """The results as arrays of their own, or the failure with TF's code."""
    try:
        return [np.array(r) for r in executable.run(list(arrays), max_threads=max_threads)]
    except DiscError as e:
        return Failure(e.code, e.message)


def native_answer(fn: Function, arrays: Sequence[np.ndarray], target: str = TARGETS[0]) -> Answer:
    """The compiled function's results, or the failed check. ``fn`` is consumed."""
    compiled = compile_function(fn, target)
    set_target(target)
    try:
        with Executable.from_bytes(compiled.executable) as executable:
            assert executable.isa == target, f"{executable.isa} was loaded, {target} was compiled"
            return run_executable(executable, arrays)
    finally:
        set_target(None)


@contextlib.contextmanager
def natively(target: str = TARGETS[0]) -> Iterator[None]:
    """Inside, `tf_case` answers with compiled code for ``target`` instead of the interpreter."""
    before = tf_case.our_answer
    tf_case.our_answer = lambda fn, arrays: native_answer(fn, arrays, target)
    try:
        yield
    finally:
        tf_case.our_answer = before
