"""`Executable`: an artefact run on numpy arrays, without TensorFlow.

Dtypes: numpy's for all but bf16. A bf16 argument may be an array of any dtype named "bfloat16" (that of ml_dtypes,
say) or of uint16 with the bits; a bf16 result has ml_dtypes' dtype if the program imported ml_dtypes, else uint16.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from disc_tf.runtime import _capi
from disc_tf.runtime.arrays import Memrefs, fitting
from disc_tf.runtime.artifact import ArgSpec, Artifact, ResultSpec, pack, unpack
from disc_tf.runtime.artifact_file import read_file
from disc_tf.runtime.host import Host, Layout

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
        #: the handle's capsule: the code is dropped with the last reference to it, that of a run under way included
        self._loaded: Any = _capi.capsules().executable(handle)
        self._lib = _capi.library()
        self._contents: dict[int, tuple[np.ndarray, int]] = {}
        self.artifact = artifact
        self.args: tuple[ArgSpec, ...] = artifact.args
        self.results: tuple[ResultSpec, ...] = artifact.results
        self.isa: str = self._lib.disc_isa(handle).decode()
        self.loader: str = self._lib.disc_loader(handle).decode()
        self.bound = frozenset(i for i in range(len(self.args)) if self._lib.disc_arg_bound(handle, i))
        self._wanted = [(i, a.dtype, a.name) for i, a in enumerate(self.args) if i not in self.bound]
        self._layout = Layout(self.args, self.results, self.bound)

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
        host = Host(self._layout, inputs, outputs, self._contents)
        _loaded, handle = self._open()
        code = self._lib.disc_execute(handle, memrefs.address, host.options(max_threads))
        return finished(host, code)

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
        self._loaded = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> tuple[Any, int]:
        """What keeps the code loaded as long as it is referred to, and the handle."""
        loaded = self._loaded
        if loaded is None:
            raise ValueError("the executable was closed")
        return loaded, _capi.capsules().address(loaded)


def finished(host: Host, code: int) -> list[np.ndarray]:
    """The results of a run that has ended with ``code``."""
    host.remember()
    if host.error is not None:
        raise host.error
    if (misfit := host.misfit()) is not None:
        raise misfit
    _check(code)
    return [array for i in range(len(host.layout.results)) if (array := host.result(i)) is not None]


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
        self._place: Any = None  # ends the run with the last reference: the first attribute to go
        self._executable = executable
        self._lib = _capi.library()
        self._host = Host(executable._layout, [None] * len(executable.args), outputs, executable._contents, on_output)
        _loaded, handle = executable._open()
        self._place = _capi.capsules().run(handle, self._host.options(max_threads))
        self._handle = ctypes.c_void_p.from_address(_capi.capsules().address(self._place)).value or 0
        if not self._handle:
            raise last_error()
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
        self._host.set_input(index, array)

    def advance(self) -> dict[int, np.ndarray]:
        """Runs the segments that are ready; the results that came out now, by index."""
        handle, host = self._live(), self._host
        remaining = ctypes.c_int32(-1)
        # Python is told of results: never on the thread whose signal handlers may raise there
        apart = host.on_output is not None and threading.current_thread() is threading.main_thread()
        code = (self._lib.disc_host_advance if apart else self._lib.disc_run_advance)(handle, remaining)
        self.remaining = remaining.value
        if host.error is not None:
            raise host.error
        if (misfit := host.misfit()) is not None:
            raise misfit
        _check(code)
        sent = host.sent()
        fresh = {i: array for i in sent[self._seen :] if (array := host.result(i)) is not None}
        self._seen = len(sent)
        return fresh

    def finish(self) -> list[np.ndarray]:
        """Ends the run and gives all results. DiscError FAILED_PRECONDITION if an input is missing."""
        self._live()
        return finished(self._host, self._end())

    def __enter__(self) -> Self:
        return self

    def abandon(self) -> None:
        """Ends the run whatever state it is in and frees what it holds; nothing if it has ended."""
        if self._handle:
            self._end()

    def _end(self) -> int:
        self._handle = 0
        return self._lib.disc_host_end(_capi.capsules().address(self._place))

    def _live(self) -> int:
        if not self._handle:
            raise ValueError("the run has ended")
        return self._handle

    def __exit__(self, *_: object) -> None:
        self.abandon()
