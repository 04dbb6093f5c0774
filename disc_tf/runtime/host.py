"""What a run tells its host and asks of it, as a block of words: see ``disc_host.h``.

No function of Python runs inside of a run, since no exception may cross C, and the handler of a signal may raise wherever Python code
begins. The one exception is ``on_output`` of a staged run; `Run.advance` keeps it off the thread that handles signals.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from disc_tf.runtime import _capi
from disc_tf.runtime.arrays import DTYPES, address, numpy_dtype
from disc_tf.runtime.artifact import ArgSpec, ResultSpec

_HEADER, _RESULT, _INPUT = 7, 6, 3
_MADE, _VIEW, _MISFIT = 1, 2, 3
#: words of a result and of the header
_DATA, _GIVEN, _DIMS_AT, _SOURCE, _STATE = 0, 1, 2, 4, 5
_NUM_SENT, _USER, _TOLD_AT = 4, 5, 6


class Layout:
    """Where things are in the blocks of an executable; all but what a run changes is filled in.

    ``kept``: the arguments that packed constants may be made of, which outlive a run.
    """

    def __init__(self, args: Sequence[ArgSpec], results: Sequence[ResultSpec], bound: Collection[int]) -> None:
        self.results = tuple(results)
        self.kept = tuple(i for i, a in enumerate(args) if a.kind not in ("host", "device") and i not in bound)
        self.bases = [_HEADER + _RESULT * i for i in range(len(results))]
        self.inputs_at = _HEADER + _RESULT * len(results)
        self.sent_at = self.inputs_at + _INPUT * len(args)
        words = [8 * _HEADER, 8 * self.inputs_at, len(results), 8 * self.sent_at, 0, 0, 0]
        at = self.sent_at + len(results)
        self.dims_at: list[int] = []
        for r in results:
            words += [0, 0, 8 * at, len(r.dims), 0, 0]
            self.dims_at.append(at)
            at += len(r.dims)
        self.options_at = at
        words += [0] * (at - len(words)) + [ctypes.sizeof(_capi.RunOptions), 0, *_capi.callbacks()]
        at = len(words)
        self.view = (ctypes.c_int64 * at).from_address
        self.words = struct.pack(f"{at}q", *words)


class _Memory:
    """A result's memory as numpy takes it: its capsule goes with the last array."""

    __slots__ = ("__array_interface__", "_capsule")

    def __init__(self, capsule: Any, data: int, shape: tuple[int, ...], dtype: str) -> None:
        self._capsule = capsule
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype, "data": (data, False)}


class Host:
    """One run's side of the language. ``inputs``: by argument, None for bound ones and for those to come; ``outputs``: arrays to write to.

    contents: of the executable: argument -> the array that was hashed, and the hash. on_output: told of each result when it is complete.
    """

    def __init__(
        self,
        layout: Layout,
        inputs: list[np.ndarray | None],
        outputs: Sequence[np.ndarray | None] | None,
        contents: dict[int, tuple[np.ndarray, int]],
        on_output: Callable[[int, np.ndarray], None] | None = None,
    ) -> None:
        self.layout, self.inputs, self.contents = layout, inputs, contents
        self.given = _fitting(layout.results, outputs)
        self.on_output = on_output
        self.error: BaseException | None = None
        self._made: list[np.ndarray | None] = [None] * len(layout.results)
        self._capsules = capsules = _capi.capsules()
        self._block = capsules.block(layout.words, len(layout.words))
        self.address = capsules.address(self._block)
        self._words = words = layout.view(self.address)
        for i, array in enumerate(self.given):
            if array is not None:
                words[layout.bases[i] + _GIVEN] = address(array)
                words[layout.dims_at[i] : layout.dims_at[i] + array.ndim] = array.shape
        for i in layout.kept:
            if inputs[i] is not None:
                self._keep(i)
        if on_output is not None:
            words[_USER], words[_TOLD_AT] = id(self), _TOLD_ADDRESS

    def options(self, max_threads: int) -> int:
        """Where the run's disc_run_options are."""
        at = self.layout.options_at
        self._words[at] += max_threads << 32  # behind the size
        self._words[at + 1] = self.address
        return self.address + 8 * at

    def set_input(self, index: int, array: np.ndarray) -> None:
        """An argument of a staged run."""
        self.inputs[index] = array
        if index in self.layout.kept:
            self._keep(index)

    def sent(self) -> list[int]:
        """The results that are complete, in order."""
        at = self.layout.sent_at
        return self._words[at : at + self._words[_NUM_SENT]]

    def result(self, index: int) -> np.ndarray | None:
        """A result as an array, None if it was not made."""
        if self._made[index] is not None:
            return self._made[index]
        words, base, at = self._words, self.layout.bases[index], self.layout.dims_at[index]
        state, spec = words[base + _STATE], self.layout.results[index]
        if state not in (_MADE, _VIEW):
            return None
        dims = tuple(words[at : at + len(spec.dims)])
        if state == _VIEW:
            source = self.inputs[words[base + _SOURCE]]
            assert source is not None
            array = source.reshape(dims)
        elif words[base + _GIVEN]:
            array = self.given[index]
        else:
            array = self._claimed(index, dims, spec.dtype)
        self._made[index] = array
        return array

    def misfit(self) -> ValueError | None:
        """The error for an array that was given and has another shape than the result."""
        for i, array in enumerate(self.given):
            if array is not None and self._words[self.layout.bases[i] + _STATE] == _MISFIT:
                at, spec = self.layout.dims_at[i], self.layout.results[i]
                dims = tuple(self._words[at : at + len(spec.dims)])
                return ValueError(f"result {spec.name}: the given array has shape {array.shape}, {dims} came out")
        return None

    def remember(self) -> None:
        """Keep the hashes that the run computed, for the next one."""
        for i in self.layout.kept:
            base, array = self.layout.inputs_at + _INPUT * i, self.inputs[i]
            if array is not None and self._words[base + 1]:
                self.contents[i] = array, self._words[base + 2]

    def _keep(self, index: int) -> None:
        # An array is known by its identity: whoever changes one in place has to give another one.
        array, known, base = self.inputs[index], self.contents.get(index), self.layout.inputs_at + _INPUT * index
        self._words[base] = id(array)
        same = known is not None and known[0] is array
        self._words[base + 1], self._words[base + 2] = int(same), known[1] if same and known else 0

    def _claimed(self, index: int, dims: tuple[int, ...], dtype: str) -> np.ndarray:
        data, kind = self._words[self.layout.bases[index] + _DATA], numpy_dtype(dtype)
        if not data:  # no elements
            return np.empty(dims, kind)
        typestr, viewed = _typestr(dtype)
        array = np.asarray(_Memory(self._capsules.claim(self.address, index), data, dims, typestr))
        return array.view(kind) if viewed else array


def _told(user: int, index: int) -> None:
    host: Host = ctypes.cast(user, ctypes.py_object).value  # alive: a run is under way
    try:
        array = host.result(index)
        if array is not None and host.on_output is not None:
            host.on_output(index, array)
    except BaseException as error:  # raised when the run has returned
        host.error = host.error or error


_TOLD = _capi.Told(_told)
_TOLD_ADDRESS = ctypes.cast(_TOLD, ctypes.c_void_p).value


def _typestr(dtype: str) -> tuple[str, bool]:
    """How numpy's array interface spells it, and whether it has to be viewed as another one."""
    return ("<u2", True) if dtype == "bf16" else (DTYPES[dtype].str, False)


def _fitting(results: Sequence[ResultSpec], outputs: Sequence[np.ndarray | None] | None) -> Sequence[np.ndarray | None]:
    """The arrays that results are to be written to. TypeError for another number, ValueError for one that cannot hold its result."""
    if outputs is None:
        return ()
    if len(outputs) != len(results):
        raise TypeError(f"{len(results)} outputs are needed, {len(outputs)} were given")
    for spec, array in zip(results, outputs, strict=True):
        if array is None:
            continue
        if array.dtype.itemsize != numpy_dtype(spec.dtype).itemsize or not array.flags.carray:
            raise ValueError(f"result {spec.name}: the given array must be writable, contiguous and of {spec.dtype}")
        if array.ndim != len(spec.dims):
            raise ValueError(f"result {spec.name}: the given array has shape {array.shape}, the result has {len(spec.dims)} dimensions")
    return outputs
