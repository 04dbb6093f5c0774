"""The second half of the one-op tests: the lowered function compiled and run natively, in the place of the interpreter.

`native_answer(fn, arrays)` has the signature of `tf_case.our_answer`. Wherever a check of `tf_case` runs inside `natively(...)`, its
functions are compiled by the whole pipeline and run by the runtime, so every table of cases under tests/lowering is a table of native cases
too (tests/conformance).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.compiler import CompiledCluster, compile_module
from disc_tf.ir.core import Function, Module
from disc_tf.ir.printer import print_module
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


class NativeCases:
    """Compiles and runs functions for one target. Equal functions are compiled once, so that cases of one table which only differ in
    their shapes share an executable where dims are unknown."""

    def __init__(self, target: str = TARGETS[0], keep: int = 16) -> None:
        self.target = target
        self.compiled = 0
        self._keep = keep
        self._executables: dict[str, Executable] = {}

    def answer(self, fn: Function, arrays: Sequence[np.ndarray]) -> Answer:
        """The compiled function's results, or the failed check. ``fn`` is consumed."""
        key = f"{print_module(module_of(fn))}\n{fn.args!r}\n{fn.wanted_positive!r}"
        executable = self._executables.pop(key, None)
        if executable is None:
            executable = load(compile_function(fn, self.target).executable, self.target)
            self.compiled += 1
        self._executables[key] = executable  # the last used at the end
        if len(self._executables) > self._keep:
            self._executables.pop(next(iter(self._executables))).close()
        return run_executable(executable, arrays)

    def close(self) -> None:
        while self._executables:
            self._executables.popitem()[1].close()


def native_answer(fn: Function, arrays: Sequence[np.ndarray], target: str = TARGETS[0]) -> Answer:
    """The compiled function's results, or the failed check. ``fn`` is consumed."""
    with contextlib.closing(NativeCases(target)) as cases:
        return cases.answer(fn, arrays)


@contextlib.contextmanager
def natively(target: str = TARGETS[0], modes: Sequence[str] = tf_case.MODES) -> Iterator[None]:
    """Inside, `tf_case` answers with compiled code for ``target`` instead of the interpreter. A case that is meant for several modes is
    only run in those of ``modes``, if it has any of them."""
    before = tf_case.our_answer, tf_case.run_case

    def run_case(op: str, arguments: Any, const: Any, wanted: Sequence[str], *rest: Any) -> list[str]:
        return before[1](op, arguments, const, [m for m in wanted if m in modes] or wanted, *rest)

    cases = NativeCases(target)
    tf_case.our_answer, tf_case.run_case = cases.answer, run_case
    try:
        yield
    finally:
        tf_case.our_answer, tf_case.run_case = before
        cases.close()


@dataclasses.dataclass
class NativeOp:
    """One op compiled once, to be run at many shapes. ``bodies`` is 2 where there is a uniform and a general one."""

    executable: Executable
    bodies: int

    def __call__(self, *arrays: np.ndarray, max_threads: int = 0) -> Answer:
        return run_executable(self.executable, arrays, max_threads=max_threads)


def native_op(
    op: str, arguments: Mapping[str, Any], const: Sequence[str] = (), *, mode: str = "dynamic", target: str = TARGETS[0],
    known_dims: Sequence[str] = (),
) -> NativeOp:  # fmt: skip
    """Compile ``tf.raw_ops.<op>``; the arrays of ``arguments`` (see `tf_case.check_op`) give dtypes and ranks. It is called with arrays for
    the operands that are not in ``const``, in order."""
    graph = tf_case.one_op_graph(op, arguments, const)
    compiled = compile_function(tf_case.lower_graph(graph, mode, known_dims), target)
    return NativeOp(load(compiled.executable, target), compiled.bodies)


def load(data: bytes, target: str) -> Executable:
    """Load the code for exactly ``target``."""
    set_target(target)
    try:
        executable = Executable.from_bytes(data)
    finally:
        set_target(None)
    assert executable.isa == target, f"{executable.isa} was loaded, {target} was compiled"
    return executable
