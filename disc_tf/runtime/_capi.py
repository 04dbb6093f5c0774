"""ctypes declarations of ``disc_ral.h`` and the one library of the process that serves them."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p, py_object
from typing import Any

from disc_tf.runtime._build import library_path

Told = CFUNCTYPE(None, c_void_p, c_int32)


class RunOptions(ctypes.Structure):
    """disc_run_options."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("max_threads", c_int32),
        ("user", c_void_p),
        ("alloc_output", c_void_p),
        ("alias_output", c_void_p),
        ("send_output", c_void_p),
        ("retain_input", c_void_p),
        ("release_input", c_void_p),
        ("content", c_void_p),
    ]


class Event(ctypes.Structure):
    """disc_event."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("thread", c_int32),
        ("axis", c_int32),
        ("run", c_int64),
        ("executable", c_char_p),
        ("name", c_char_p),
        ("begin_ns", c_int64),
        ("end_ns", c_int64),
        ("processor_ns", c_int64),
        ("first", c_int64),
        ("second", c_int64),
    ]


_SIGNATURES: dict[str, tuple[type | None, list]] = {
    "disc_load": (c_void_p, [c_char_p, c_size_t]),
    "disc_load_file": (c_void_p, [c_char_p]),
    "disc_arg_bound": (c_int32, [c_void_p, c_int32]),
    "disc_close": (None, [c_void_p]),
    "disc_isa": (c_char_p, [c_void_p]),
    "disc_loader": (c_char_p, [c_void_p]),
    "disc_execute": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "disc_run_set_input": (c_int32, [c_void_p, c_int32, c_void_p]),
    "disc_run_advance": (c_int32, [c_void_p, POINTER(c_int32)]),
    "disc_host_set_python": (None, [c_void_p]),
    "disc_host_advance": (c_int32, [c_void_p, POINTER(c_int32)]),
    "disc_host_end": (c_int32, [c_void_p]),
    "disc_set_num_threads": (c_int32, [c_int32]),
    "disc_num_threads": (c_int32, []),
    "disc_set_target": (c_int32, [c_char_p]),
    "disc_host_isa": (c_char_p, []),
    "disc_set_loader": (c_int32, [c_char_p]),
    "disc_share_packs": (c_int32, [c_char_p, c_int64]),
    "disc_packs_directory": (c_char_p, []),
    "disc_packs_problem": (c_char_p, []),
    "disc_set_trust": (c_int32, [c_char_p]),
    "disc_trust_file": (c_char_p, []),
    "disc_counter": (c_int64, [c_char_p]),
    "disc_trim": (None, []),
    "disc_profile": (c_int32, [c_int32]),
    "disc_profile_event": (c_int64, [c_int64, POINTER(Event)]),
    "disc_profile_dropped": (c_int64, []),
    "disc_last_error_code": (c_int32, []),
    "disc_last_error": (c_char_p, []),
    "disc_last_error_node": (c_char_p, []),
}


def _loaded(path: str) -> ctypes.CDLL | None:
    """The library if it is in the process already."""
    try:
        return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None


@functools.cache
def library() -> ctypes.CDLL:
    """The RAL of this process, with argument types set.

    The op library has a RAL of its own inside and takes libdisc_ral.so's if that was loaded first; we do the same the
    other way round, so that a process never has two thread pools.
    """
    lib = _loaded("libdisc_ral.so")
    if lib is None:
        lib = _loaded(str(library_path("disc_tf_op"))) or ctypes.CDLL(str(library_path("disc_ral")))
    for name, (restype, argtypes) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes
    names = "Py_IncRef Py_DecRef PyGILState_Ensure PyGILState_Release Py_IsInitialized PyCapsule_New PyCapsule_GetPointer".split()
    lib.disc_host_set_python((c_void_p * len(names))(*(ctypes.cast(getattr(ctypes.pythonapi, n), c_void_p).value for n in names)))
    return lib


class Capsules:
    """Functions of ``disc_host.h`` that give capsules: called with the interpreter's lock."""

    def __init__(self) -> None:
        lib = ctypes.PyDLL(library()._name, handle=library()._handle)
        self.block: Callable[[bytes, int], Any] = _giving(lib.disc_host_block, c_char_p, c_int64)
        self.claim: Callable[[int, int], Any] = _giving(lib.disc_host_claim, c_void_p, c_int64)
        self.executable: Callable[[int], Any] = _giving(lib.disc_host_executable, c_void_p)
        self.run: Callable[[int, int], Any] = _giving(lib.disc_host_run, c_void_p, c_void_p)
        pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
        self.address: Callable[[Any], int] = lambda capsule: pointer(capsule, None)


def _giving(function: Any, *argtypes: Any) -> Any:
    function.restype, function.argtypes = py_object, argtypes
    return function


@functools.cache
def capsules() -> Capsules:
    library()
    return Capsules()


@functools.cache
def callbacks() -> tuple[int | None, ...]:
    """The callbacks of `RunOptions`, in its order: functions of the library, since no exception may cross C (``disc_host.h``)."""
    names = ("alloc_output", "alias_output", "send_output", "retain_input", "release_input", "content")
    return tuple(ctypes.cast(getattr(library(), f"disc_host_{name}"), c_void_p).value for name in names)
