"""`Executable`: an artefact run on numpy arrays, without TensorFlow.

Dtypes: numpy's for all but bf16. A bf16 argument may be an array of any dtype named "bfloat16" (that of ml_dtypes,
say) or of uint16 with the bits; a bf16 result has ml_dtypes' dtype if the program imported ml_dtypes, else uint16.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from disc_tf.runtime import _capi
from disc_tf.runtime.arrays import DTYPES, Memrefs, address, fitting
from disc_tf.runtime.artifact import ArgSpec, Artifact, ResultSpec, pack, unpack
from disc_tf.runtime.artifact_file import read_file
from disc_tf.runtime.forks import reset_when_forked

_CODES = {
    3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION", 11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED", 13: "INTERNAL", 15: "DATA_LOSS",
}  # fmt: skip
COUNTERS = (
    "images_loaded", "images_live", "runs", "kernels", "parallel_launches", "prepared_built", "prepared_live_bytes",
    "packs_loaded", "packs_written", "packs_refused", "packs_unwritten", "packs_mapped_bytes",
    "signatures_accepted", "signatures_refused", "arena_in_use_bytes", "arena_kept_bytes", "arena_peak_bytes",
    "worker_threads",
)  # fmt: skip


class DiscError(RuntimeError):
    """A failure in the runtime: TensorFlow status code, message and, for a failed check, the original node."""

    def __init__(self, code: int, message: str, node: str = "") -> None:
        at = f" [[original node: {node}]]" if node else ""
        super().__init__(f"{_CODES.get(code, f'status {code}')}: {message}{at}")
        self.code, self.message, self.node = code, message, node


def last_error() -> DiscError:
    lib = _capi.library()
    message, node = lib.disc_last_error().decode(errors="replace"), lib.disc_last_error_node().decode(errors="replace")
    return DiscError(lib.disc_last_error_code(), message, node)


def _check(code: int) -> None:
    if code != 0:
        raise last_error()


def _path(path: str | os.PathLike[str] | None) -> bytes | None:
    """For C, which would take a path with a zero byte in it for another one."""
    data = os.fsencode(path) if path is not None else None
    if data is not None and b"\0" in data:
        raise ValueError(f"{path!r} is no path: there is a zero byte in it")
    return data


def set_num_threads(threads: int) -> None:
    """Threads for the process, callers included; 0: DISC_TF_NUM_THREADS, else CPU affinity and cgroup quota."""
    _check(_capi.library().disc_set_num_threads(max(-1, min(threads, 1 << 30))))  # ctypes would cut it off


def num_threads() -> int:
    """Threads that a run may use at most."""
    return _capi.library().disc_num_threads()


def set_target(isa: str | None) -> None:
    """Highest ISA later loads may pick ("x86-64-v2" ... or "native"); None: back to DISC_TF_TARGET. DiscError."""
    _check(_capi.library().disc_set_target(isa.encode() if isa is not None else None))


def set_loader(loader: str | None) -> None:
    """How later loads get code into memory: "auto", "memfd", "file", "mmap"; None: back to DISC_TF_LOADER."""
    _check(_capi.library().disc_set_loader(loader.encode() if loader is not None else None))


def share_packs(directory: str | os.PathLike[str] | None, *, limit_bytes: int = 0) -> None:
    """Share packed weights with the other processes of this host through files in ``directory`` (made if its parent is there).

    To be called before the first run: what was packed before stays in this process's memory. "": not shared; None: back to DISC_TF_PACKS.
    limit_bytes: what all packs in the directory may take; 0 for no limit. Raises DiscError if the directory cannot be used (it cannot be
    made, others may write into it, it is not on a local file system); what fails later fails no run, see `packs_problem` and `counters`.
    """
    _check(_capi.library().disc_share_packs(_path(directory), limit_bytes))


def packs_directory() -> str:
    """The directory that packed weights are shared in; "" if they are not."""
    return os.fsdecode(_capi.library().disc_packs_directory())


def packs_problem() -> str:
    """Why packed weights were not shared: the latest reason since the directory was chosen; "" if there was none."""
    return os.fsdecode(_capi.library().disc_packs_problem())


def host_isa() -> str:
    """The best ISA of this machine and its operating system, for example "x86-64-v3"."""
    return _capi.library().disc_host_isa().decode()


def counters() -> dict[str, int]:
    """Counters of the process's runtime: images, runs, kernels, packed constants, arena bytes, threads."""
    return {name: _capi.library().disc_counter(name.encode()) for name in COUNTERS}


def trim() -> None:
    """Gives arena memory that no run uses back to the system."""
    _capi.library().disc_trim()


def numpy_dtype(dtype: str) -> np.dtype:
    """numpy's dtype for an artefact's dtype name; bf16 as the module's docstring says."""
    if dtype != "bf16":
        return DTYPES[dtype]
    ml_dtypes = sys.modules.get("ml_dtypes")
    return np.dtype(ml_dtypes.bfloat16 if ml_dtypes is not None else np.uint16)


@dataclass(slots=True)
class _State:
    """What the callbacks of one run work on."""

    results: tuple[ResultSpec, ...]
    inputs: list[np.ndarray | None]
    given: Sequence[np.ndarray | None]
    made: list[np.ndarray | None] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    #: told of each result when it is complete, in the run's thread
    on_output: Callable[[int, np.ndarray], None] | None = None
    error: Exception | None = None
    #: of the executable: argument -> the array that was hashed, and the hash
    contents: dict[int, tuple[np.ndarray | None, int]] = field(default_factory=dict)

    def allocate(self, index: int, dims: tuple[int, ...]) -> np.ndarray:
        spec = self.results[index]
        given = self.given[index] if self.given else None
        if given is None:
            return np.empty(dims, numpy_dtype(spec.dtype))
        if given.shape != dims:
            raise ValueError(f"result {spec.name}: the given array has shape {given.shape}, {dims} came out")
        if given.dtype.itemsize != numpy_dtype(spec.dtype).itemsize or not given.flags.carray:
            raise ValueError(f"result {spec.name}: the given array must be writable, contiguous and of {spec.dtype}")
        return given


_states: dict[int, _State] = {}  # runs that are under way, by the callbacks' `user`
_held: dict[int, np.ndarray] = {}  # arrays that packed constants were made from, by handle
_keys = itertools.count(1)


def _guarded(state: _State, action, failed):
    """Exceptions cannot cross C: kept in the state, raised when the run has returned."""
    try:
        return action()
    except Exception as error:  # whatever it is, it is raised later
        state.error = state.error or error
        return failed


@_capi.AllocOutput
def _alloc_output(user, index, rank, dims, _bytes):
    state = _states[user]

    def make():
        array = state.allocate(index, tuple(dims[:rank]))
        state.made[index] = array
        return address(array)

    return _guarded(state, make, None)


@_capi.AliasOutput
def _alias_output(user, index, source, rank, dims):
    state = _states[user]

    def make():
        view = state.inputs[source].reshape(tuple(dims[:rank]))
        if state.given and state.given[index] is not None:
            target = state.allocate(index, view.shape)
            target[...] = view
            view = target
        state.made[index] = view
        return 0

    return _guarded(state, make, 13)


@_capi.SendOutput
def _send_output(user, index):
    state = _states[user]
    state.sent.append(index)
    made = state.made[index]
    if state.on_output is None or made is None:
        return 0
    tell = state.on_output

    def told() -> int:
        tell(index, made)
        return 0

    return _guarded(state, told, 13)


@_capi.RetainInput
def _retain_input(user, index):
    handle = next(_keys)
    _held[handle] = _states[user].inputs[index]
    return handle


@_capi.ReleaseInput
def _release_input(handle):
    _held.pop(handle, None)


@_capi.Content
def _content(user, index, data, size):
    # an array is known by its identity: whoever changes one in place has to give another one
    state = _states[user]
    array, known = state.inputs[index], state.contents.get(index)
    if known is None or known[0] is not array:
        known = state.contents[index] = array, _capi.library().disc_content_hash(data, size)
    return known[1]


def set_trust(trust_file: str | os.PathLike[str] | None) -> None:
    """From now on this process loads code only if a key of ``trust_file`` signed it (docs/service.md, signing).

    "": any code is loaded; None: back to DISC_TF_TRUST. The file is read again for each load: a new key or a revocation needs no restart.
    Code that is loaded stays. Raises DiscError if the file or libcrypto cannot be used; the policy is in force all the same, and nothing
    loads until it can be. Loads of code that is not trusted fail with PERMISSION_DENIED.
    """
    _check(_capi.library().disc_set_trust(_path(trust_file)))


def trust_file() -> str:
    """The trust file in force; "" if there is none."""
    return os.fsdecode(_capi.library().disc_trust_file())


class Executable:
    """A loaded artefact. Thread-safe: any number of runs at a time.

    `args` and `results` are its signature in order, `isa` is the code that was picked; `bound` are the positions of arguments whose values
    its file has: they are never given. Code stays loaded while a run is inside, whatever `close` does.
    """

    def __init__(self, handle: int, artifact: Artifact) -> None:
        self._handle = handle
        self.reset_locks()
        self._inside = 0  # calls that hold the handle; the last one out closes it after `close`
        self._closed = False
        self._lib = _capi.library()
        self._contents: dict[int, tuple[np.ndarray | None, int]] = {}
        self.artifact = artifact
        self.args: tuple[ArgSpec, ...] = artifact.args
        self.results: tuple[ResultSpec, ...] = artifact.results
        self.isa: str = self._lib.disc_isa(handle).decode()
        self.loader: str = self._lib.disc_loader(handle).decode()
        self.bound = frozenset(i for i in range(len(self.args)) if self._lib.disc_arg_bound(handle, i))
        self._wanted = [(i, a.dtype, a.name) for i, a in enumerate(self.args) if i not in self.bound]
        reset_when_forked(self)

    def reset_locks(self) -> None:
        """Also in a forked process: what threads that are not there had entered stays loaded."""
        self._lock = threading.Lock()

    @classmethod
    def from_bytes(cls, data: bytes) -> Executable:
        """Loads artefact bytes. DiscError: corrupt, no code for this machine, code may not be loaded here."""
        handle = _capi.library().disc_load(data, len(data))
        if not handle:
            raise last_error()
        return cls(handle, unpack(data))

    @classmethod
    def from_file(cls, path: str | Path) -> Executable:
        """Maps and loads a stand-alone file. DiscError as `from_bytes`, and if the file cannot be opened."""
        handle = _capi.library().disc_load_file(_path(path))
        if not handle:
            raise last_error()
        return cls(handle, read_file(path))

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> Executable:
        """Loads an Artifact; errors of `pack` and `from_bytes`."""
        return cls.from_bytes(pack(artifact))

    def run(
        self,
        args: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray | None] | None = None,
        *,
        max_threads: int = 0,
    ) -> list[np.ndarray]:
        """Runs with all arguments (but the `bound` ones) in the order of `self.args` and gives the results in the order of `self.results`.

        outputs: arrays to write results to (None where one is to be made). A result that is only a view of an argument
        shares its memory unless an array was given. Arrays of const arguments must not be changed between runs: what is
        packed from them is kept by identity. Raises DiscError with status code and original node, TypeError for a dtype.
        """
        if len(args) != len(self._wanted):
            raise TypeError(f"{len(self._wanted)} arguments are needed, {len(args)} were given")
        inputs: list[np.ndarray | None] = [None] * len(self.args)
        for (i, dtype, name), value in zip(self._wanted, args, strict=True):
            inputs[i] = fitting(dtype, name, value)
        memrefs = Memrefs(inputs)
        key, options = self._begin(inputs, outputs, max_threads)
        try:
            handle = self._enter()
            try:
                code = self._lib.disc_execute(handle, memrefs.address, options)
            finally:
                self._leave()
            return self._results(key, code)
        finally:
            del _states[key]

    def start(
        self,
        outputs: Sequence[np.ndarray | None] | None = None,
        *,
        max_threads: int = 0,
        on_output: Callable[[int, np.ndarray], None] | None = None,
    ) -> Run:
        """A staged run: arguments one by one, results as soon as they are there. ``on_output`` is told of each complete result by the
        thread that is in `Run.advance`; the array must not be changed before the run has ended."""
        return Run(self, outputs, max_threads, on_output)

    def close(self) -> None:
        """Drops the code; later runs raise. Runs under way end well."""
        with self._lock:
            self._closed = True
            handle = self._idle()
        if handle:
            self._lib.disc_close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0) and not sys.is_finalizing():
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enter(self) -> int:
        """The handle, good until `_leave`."""
        with self._lock:
            if self._closed:
                raise ValueError("the executable was closed")
            self._inside += 1
            return self._handle

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            handle = self._idle()
        if handle:
            self._lib.disc_close(handle)

    def _idle(self) -> int:
        """The handle for the caller to close, 0 if that is not its business. The lock is held."""
        if not self._closed or self._inside:
            return 0
        handle, self._handle = self._handle, 0
        return handle

    def _begin(
        self, inputs: list, outputs: Sequence | None, max_threads: int, on_output: Callable[[int, np.ndarray], None] | None = None
    ) -> tuple[int, _capi.RunOptions]:
        if outputs is not None and len(outputs) != len(self.results):
            raise TypeError(f"{len(self.results)} outputs are needed, {len(outputs)} were given")
        key = next(_keys)
        _states[key] = _State(self.results, inputs, outputs or (), [None] * len(self.results), on_output=on_output, contents=self._contents)
        options = _capi.RunOptions(
            ctypes.sizeof(_capi.RunOptions), max_threads, key,
            _alloc_output, _alias_output, _send_output, _retain_input, _release_input, _content,
        )  # fmt: skip
        return key, options

    def _results(self, key: int, code: int) -> list[np.ndarray]:
        state = _states[key]
        if state.error is not None:
            raise state.error
        _check(code)
        return [array for array in state.made if array is not None]


class Run:
    """A staged run of an Executable; one thread at a time. Use it as a context manager or call `finish`."""

    def __init__(
        self,
        executable: Executable,
        outputs: Sequence[np.ndarray | None] | None,
        max_threads: int,
        on_output: Callable[[int, np.ndarray], None] | None = None,
    ) -> None:
        self._handle = 0
        self._executable = executable
        self._lib = _capi.library()
        self._key, options = executable._begin([None] * len(executable.args), outputs, max_threads, on_output)
        try:
            handle = executable._enter()
            try:
                self._handle = self._lib.disc_run_begin(handle, options) or 0
            finally:
                executable._leave()
            if not self._handle:
                raise last_error()
        except BaseException:
            del _states[self._key]
            raise
        self._seen = 0
        #: segments that still waited after the latest `advance`; -1 before the first
        self.remaining = -1

    def set_input(self, index: int, value: np.ndarray) -> None:
        """Gives argument `index`; runs nothing yet. Raises DiscError for a shape that does not fit."""
        if not 0 <= index < len(self._executable.args):
            raise IndexError(f"there is no argument {index}")
        spec = self._executable.args[index]
        array = fitting(spec.dtype, spec.name, value)
        memrefs = Memrefs([array])  # as long as the call takes
        _check(self._lib.disc_run_set_input(self._live(), index, memrefs.address))
        _states[self._key].inputs[index] = array

    def advance(self) -> dict[int, np.ndarray]:
        """Runs the segments that are ready; the results that came out now, by index."""
        handle, state = self._live(), _states[self._key]
        remaining = ctypes.c_int32(-1)
        code = self._lib.disc_run_advance(handle, remaining)
        self.remaining = remaining.value
        if state.error is not None:
            raise state.error
        _check(code)
        fresh = {i: array for i in state.sent[self._seen :] if (array := state.made[i]) is not None}
        self._seen = len(state.sent)
        return fresh

    def finish(self) -> list[np.ndarray]:
        """Ends the run and gives all results. DiscError FAILED_PRECONDITION if an input is missing."""
        handle, self._handle = self._handle, 0
        if not handle:
            raise ValueError("the run has ended")
        try:
            return self._executable._results(self._key, self._lib.disc_run_end(handle))
        finally:
            del _states[self._key]

    def __enter__(self) -> Self:
        return self

    def abandon(self) -> None:
        """Ends the run whatever state it is in and frees what it holds; nothing if it has ended."""
        handle, self._handle = self._handle, 0
        if handle:
            self._lib.disc_run_end(handle)
            del _states[self._key]

    def _live(self) -> int:
        if not self._handle:
            raise ValueError("the run has ended")
        return self._handle

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.abandon()
