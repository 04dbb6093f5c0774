"""What a compile child may do: compute, read the code that it is made of, and talk on the one socket that it was given.

Linux only, by the system calls themselves (no package needed). `enter` is one way: nothing of it can be undone by the process.

* seccomp: a list of allowed system calls (x86-64); all others fail with EPERM. No files for writing, no sockets, no processes, no signals
  to others.
* Landlock (kernel 5.13 on): files under the given roots can be read, all other files cannot; no TCP.
* resource limits, no capabilities, no_new_privs, no core dumps, the first choice of the kernel where memory ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: what a child may write to its standard error (an anonymous file) in all
STDERR_BYTES = 64 << 10
_OPEN_FILES = 64

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CLONE_THREAD = 0x10000
_O_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000  # the last: O_TMPFILE alone


class SandboxError(RuntimeError):
    """The kernel refused a part of the sandbox that it has."""


@dataclass(frozen=True)
class Facts:
    """What is in force. seccomp: system calls are filtered. landlock: version of the interface, 0: the kernel has none."""

    seccomp: bool
    landlock: int

    @property
    def whole(self) -> bool:
        """Whether neither files can be written nor the network be reached, and only code can be read."""
        return self.seccomp and self.landlock > 0


_libc = ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *args: int | ctypes.c_void_p | bytes | None) -> int:
    _libc.syscall.restype = ctypes.c_long
    return _libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise SandboxError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when its parent (its process id) ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# ---- seccomp ----

_READ_ONLY = [(16 + 8 * 2, _O_WRITES, 0)]
#: system call -> (number on x86-64, conditions: (offset in seccomp_data, mask, value), all of which must hold)
_ALLOWED: dict[str, tuple[int, list[tuple[int, int, int]]]] = {
    "read": (0, []), "write": (1, []), "close": (3, []), "readv": (19, []), "writev": (20, []), "pread64": (17, []), "lseek": (8, []),
    "poll": (7, []), "fstat": (5, []), "stat": (4, []), "lstat": (6, []), "newfstatat": (262, []), "statx": (332, []), "access": (21, []),
    "faccessat": (269, []), "faccessat2": (439, []), "readlink": (89, []), "readlinkat": (267, []), "getdents64": (217, []),
    "getcwd": (79, []), "open": (2, [(16 + 8 * 1, _O_WRITES, 0)]), "openat": (257, _READ_ONLY),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL: others may send signals
    "fcntl": (72, [(16 + 8 * 1, 0xFFFFFFFC, 0)]),
    "mmap": (9, []), "mprotect": (10, []), "munmap": (11, []), "brk": (12, []), "mremap": (25, []), "madvise": (28, []),
    "futex": (202, []), "clone": (56, [(16, _CLONE_THREAD, _CLONE_THREAD)]), "set_robust_list": (273, []), "set_tid_address": (218, []),
    "rseq": (334, []), "membarrier": (324, []), "sched_yield": (24, []), "sched_getaffinity": (204, []), "sched_getparam": (143, []),
    "sched_getscheduler": (145, []), "getcpu": (309, []), "arch_prctl": (158, []), "exit": (60, []), "exit_group": (231, []),
    "rt_sigaction": (13, []), "rt_sigprocmask": (14, []), "rt_sigreturn": (15, []), "sigaltstack": (131, []), "restart_syscall": (219, []),
    "nanosleep": (35, []), "clock_nanosleep": (230, []), "clock_gettime": (228, []), "clock_getres": (229, []), "gettimeofday": (96, []),
    "time": (201, []), "getrandom": (318, []), "uname": (63, []), "sysinfo": (99, []), "getrusage": (98, []), "times": (100, []),
    "getpid": (39, []), "gettid": (186, []), "getppid": (110, []), "getuid": (102, []), "geteuid": (107, []), "getgid": (104, []),
    "getegid": (108, []), "getpgrp": (111, []), "getrlimit": (97, []),
    # reading limits only: the pointer to new ones is null
    "prlimit64": (302, [(16 + 8 * 2, 0xFFFFFFFF, 0), (16 + 8 * 2 + 4, 0xFFFFFFFF, 0)]),
}  # fmt: skip
_TGKILL, _CLONE3 = 234, 435
_LD, _AND, _JEQ, _JGE, _RET = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_ARCH_X86_64 = 0xC000003E


def _filter(pid: int) -> bytes:
    """The BPF program."""

    def op(code: int, k: int, true: int = 0, false: int = 0) -> bytes:
        return struct.pack("<HBBI", code, true, false, k)

    program = [op(_LD, 4), op(_JEQ, _ARCH_X86_64, 1, 0), op(_RET, _KILL), op(_LD, 0)]
    program += [op(_JGE, 0x40000000, 0, 1), op(_RET, _KILL)]  # the x32 calls
    program += [op(_JEQ, _CLONE3, 0, 1), op(_RET, _ERRNO | errno.ENOSYS)]  # libc takes clone then, whose flags can be seen
    # abort() sends a signal to its own process
    rules = [*_ALLOWED.values(), (_TGKILL, [(16, 0xFFFFFFFF, pid)])]
    for number, conditions in rules:
        block = []
        for at, mask, value in conditions:
            block += [op(_LD, at), op(_AND, mask), op(_JEQ, value, 1, 0), op(_RET, _ERRNO | errno.EPERM)]
        block.append(op(_RET, _ALLOW))
        program += [op(_JEQ, number, 0, len(block)), *block]
    program.append(op(_RET, _ERRNO | errno.EPERM))
    return b"".join(program)


def seccomp_available() -> bool:
    """Whether this kernel filters system calls, and the list above is this machine's."""
    if platform.machine() != "x86_64":
        return False
    action = ctypes.c_uint32(_ERRNO)
    return _syscall(317, 2, 0, ctypes.addressof(action)) == 0


def _enter_seccomp() -> None:
    code = _filter(os.getpid())
    buffer = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer)))
    # for all threads of the process (TSYNC): there is one, but a library may have started another
    if _syscall(317, 1, 1, ctypes.addressof(program)):
        raise SandboxError(f"seccomp: {os.strerror(ctypes.get_errno())}")


# ---- Landlock ----

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3


def landlock_version() -> int:
    """Version of the kernel's interface; 0: none."""
    return max(_syscall(_LANDLOCK_CREATE, None, 0, 1), 0)


def _enter_landlock(version: int, roots: Iterable[str]) -> None:
    files = (1 << 13) - 1
    files |= 1 << 13 if version >= 2 else 0
    files |= 1 << 14 if version >= 3 else 0
    files |= 1 << 15 if version >= 5 else 0
    net = 3 if version >= 4 else 0
    scoped = 3 if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = ctypes.create_string_buffer(struct.pack("<QQQ", files, net, scoped)[:size])
    ruleset = _syscall(_LANDLOCK_CREATE, ctypes.addressof(attributes), size, 0)
    if ruleset < 0:
        raise SandboxError(f"Landlock: {os.strerror(ctypes.get_errno())}")
    try:
        for root in roots:
            try:
                handle = os.open(root, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # what is not there cannot be read
            rights = _READ_FILE | (_READ_DIR if os.path.isdir(root) else 0)
            rule = ctypes.create_string_buffer(struct.pack("<Qi", rights, handle))
            try:
                if _syscall(_LANDLOCK_ADD, ruleset, 1, ctypes.addressof(rule), 0):
                    raise SandboxError(f"Landlock: {root}: {os.strerror(ctypes.get_errno())}")
            finally:
                os.close(handle)
        if _syscall(_LANDLOCK_RESTRICT, ruleset, 0):
            raise SandboxError(f"Landlock: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(ruleset)


def code_roots(modules: Iterable[object]) -> list[str]:
    """Where the code of a process lies: the interpreter's library, installed packages, the given top-level modules, shared libraries."""
    import sysconfig

    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for module in modules:
        paths: Sequence[str] = list(getattr(module, "__path__", None) or [])
        file = getattr(module, "__file__", None)
        roots.update(paths or ([file] if file else []))
    roots |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/sys/devices/system/cpu"}
    return sorted(os.path.realpath(r) for r in roots if r)


# ---- all of it ----


def available() -> Facts:
    """What this machine has."""
    return Facts(seccomp_available(), landlock_version())


def _limit(which: int, value: int, hard: int | None = None) -> None:
    _, most = resource.getrlimit(which)
    hard = value if hard is None else hard
    if most != resource.RLIM_INFINITY:
        value, hard = min(value, most), min(hard, most)
    resource.setrlimit(which, (value, hard))


def limit_resources(cpu_s: float, data_bytes: int) -> None:
    """Limits that the kernel keeps, as a second line behind the watchdog. cpu_s: from now. data_bytes: writable memory, resident or not."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = int(used.ru_utime + used.ru_stime + cpu_s) + 2
    _limit(resource.RLIMIT_CPU, end, end + 2)
    _limit(resource.RLIMIT_DATA, data_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, STDERR_BYTES)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)


def _drop_capabilities() -> None:
    head = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0))
    none = ctypes.create_string_buffer(24)
    if _syscall(126 if platform.machine() == "x86_64" else 91, ctypes.addressof(head), ctypes.addressof(none)):
        raise SandboxError(f"capset: {os.strerror(ctypes.get_errno())}")


def enter(roots: Iterable[str]) -> Facts:
    """Shuts this process in. ``roots``: what it may read (without Landlock: everything that its user can). Returns what is in force.

    SandboxError where the kernel has a part but refuses it: the process must end then.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    _drop_capabilities()
    facts = available()
    if facts.landlock:
        _enter_landlock(facts.landlock, roots)
    if facts.seccomp:
        _enter_seccomp()
    return facts
