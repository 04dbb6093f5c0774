"""Publication of a directory in one step: a reader, or a process that is killed, sees the old directory or the new one, never a half.

    with staged("model/7", source="models/in") as directory:
        (directory / "saved_model.pb").write_bytes(data)

The directory is made beside the destination (same filesystem), synced and renamed; an existing destination is exchanged with it by
renameat2(2) and removed afterwards. What a killed process leaves behind (a hidden sibling) is removed by the next publication there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

#: what tells that a directory is a SavedModel
SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb")

_SUFFIX = ".disc_tf_staging"
_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
#: what a filesystem or a kernel says that does not know a flag of renameat2(2)
_UNKNOWN_FLAG = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_SYSCALL = {"x86_64": 316, "aarch64": 276}


class PublishError(Exception):
    """The directory cannot be published there. The message says what, why and the way out; the destination is as it was."""


@contextlib.contextmanager
def staged(
    destination: str | Path,
    *,
    overwrite: bool = False,
    source: str | Path | None = None,
    replaces: Sequence[str] = SAVED_MODEL_FILES,
) -> Iterator[Path]:
    """A new directory that becomes ``destination`` when the block ends, and that is removed if the block raises.

    overwrite: an existing destination is exchanged; it must be empty or hold one of the files ``replaces`` (empty: any directory is
    replaced). source: what is read meanwhile; neither of the two may lie in the other. A symbolic link stays, and what it points to is
    made or replaced. Raises `PublishError`, before the block wherever that can be known.
    """
    target = check_destination(destination, overwrite=overwrite, source=source, replaces=replaces)
    _remove_stale(target)
    directory, lock = _make(target)
    try:
        if overwrite and target.is_dir():
            _check_exchange(destination, directory)
        yield directory
        _check_source(destination, target, source)
        if overwrite and target.is_dir():
            with contextlib.suppress(OSError):
                directory.chmod(stat.S_IMODE(target.stat().st_mode))
        try:
            sync(directory)
        except OSError as e:
            raise PublishError(f"cannot write {destination}: {e.strerror or e}") from e
        _put(destination, directory, target, overwrite)
        _sync_one(target.parent)
    finally:
        # after an exchange this is the old one
        remove_tree(directory)
        os.close(lock)


def check_destination(
    destination: str | Path,
    *,
    overwrite: bool = False,
    source: str | Path | None = None,
    replaces: Sequence[str] = SAVED_MODEL_FILES,
) -> Path:
    """The directory that ``destination`` stands for, links followed, if `staged` could publish there now. `PublishError` else."""
    target = Path(os.path.realpath(destination))
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as e:
        raise PublishError(f"cannot write {destination}: {e.strerror or e}") from e
    if mode is not None and not stat.S_ISDIR(mode):
        what = "a symbolic link to itself" if stat.S_ISLNK(mode) else "a file, not a directory"
        raise PublishError(f"cannot write {destination}: it is {what}; give another name")
    _check_source(destination, target, source)
    if mode is not None:
        if not overwrite:
            raise PublishError(f"{destination} exists: give another name, or --overwrite to replace it")
        _check_replaceable(destination, target, replaces)
    if why := unwritable(target.parent):
        raise PublishError(f"cannot write {destination}: {why}")
    return target


def unwritable(directory: Path) -> str:
    """Why nothing can be made in ``directory``; empty if something can."""
    if not directory.exists():
        return f"the directory {directory} does not exist"
    if not directory.is_dir():
        return f"{directory} is not a directory"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"the directory {directory} is not writable"
    return ""


def _check_source(destination: str | Path, target: Path, source: str | Path | None) -> None:
    if source is None:
        return
    origin = Path(os.path.realpath(source))
    if origin == target:
        raise PublishError(f"{destination} is the input itself: the original would be lost; give another name")
    if target.is_relative_to(origin):
        raise PublishError(f"{destination} lies inside the input {source}: give a name outside of it")
    if origin.is_relative_to(target):
        raise PublishError(f"the input {source} lies inside {destination}: it would be lost; give another name")


def _check_replaceable(destination: str | Path, target: Path, replaces: Sequence[str]) -> None:
    try:
        names = os.listdir(target)
    except OSError as e:
        raise PublishError(f"cannot write {destination}: {e.strerror or e}") from e
    if target == target.parent or os.path.ismount(target):
        raise PublishError(f"cannot replace {destination}: a filesystem is mounted there; give the name of a directory inside of it")
    if replaces and names and not set(names) & set(replaces):
        raise PublishError(f"{destination} is not replaced: it holds other things (none of {', '.join(replaces)}); give another name")


def _prefix(target: Path) -> str:
    """How the names of staging directories for ``target`` start."""
    return f".{os.fsencode(target.name)[:100].decode(errors='replace')}."


def _make(target: Path) -> tuple[Path, int]:
    """The staging directory and a locked descriptor of it: the lock tells other processes that it is in use."""
    while True:
        path = target.parent / f"{_prefix(target)}{os.getpid()}.{secrets.token_hex(4)}{_SUFFIX}"
        try:
            path.mkdir()
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if target.parent.is_dir():
                continue  # another process took it for a stale one
            raise PublishError(f"cannot write {target}: the directory {target.parent} does not exist") from None
        except OSError as e:
            raise PublishError(f"cannot write {target}: {e.strerror or e}") from e
        if try_lock(lock) is False or not is_at(path, lock):
            os.close(lock)
            continue
        return path, lock


def is_at(path: Path, handle: int) -> bool:
    """Whether a descriptor is still that of what lies at ``path``."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def try_lock(handle: int) -> bool | None:
    """Whether the directory could be locked; None where the filesystem does not lock directories."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_stale(target: Path) -> None:
    """Remove what killed processes left for this destination: staging directories that nobody holds locked."""
    prefix = _prefix(target)
    for name in os.listdir(target.parent):
        if not (name.startswith(prefix) and name.endswith(_SUFFIX)):
            continue
        if len(name[len(prefix) : -len(_SUFFIX)].split(".")) != 2:
            continue  # of a destination whose name starts like this one
        remove_left(target.parent / name)


def remove_left(path: Path) -> None:
    """Remove a directory that a killed process left: nothing if some process holds it locked, or if it cannot be opened."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if try_lock(handle):
            remove_tree(path)
    finally:
        os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a directory, read-only parts included; nothing if another process was faster or it cannot be removed.

    Of a symbolic link only the link: what it points to is somebody else's.
    """
    if path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return
    make_writable(path)
    shutil.rmtree(path, ignore_errors=True)


def make_writable(directory: Path) -> None:
    """Let the owner work in ``directory`` and in the directories below; links are not followed. What cannot be changed stays as it is."""
    _unlock(directory)
    # `os.walk` reads a directory before it yields it: each must be readable by then
    for where, names, _ in os.walk(directory):
        for name in names:
            _unlock(os.path.join(where, name))


def _unlock(directory: str | Path) -> None:
    with contextlib.suppress(OSError):
        mode = os.lstat(directory).st_mode
        if stat.S_ISDIR(mode):
            os.chmod(directory, stat.S_IMODE(mode) | stat.S_IRWXU)


def sync(directory: Path) -> None:
    """Flush all files and directories below ``directory``, and itself, to the disk."""
    for path, _, files in os.walk(directory, topdown=False):
        for name in files:
            if not os.path.islink(file := os.path.join(path, name)):
                _sync_one(file)
        _sync_one(path)


def _sync_one(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):  # a filesystem that does not sync directories
            raise
    finally:
        os.close(handle)


def _put(destination: str | Path, directory: Path, target: Path, overwrite: bool) -> None:
    """Rename, or exchange; either may find that another process made or removed the destination meanwhile."""
    try:
        for _ in range(8):
            if overwrite and os.path.lexists(target):
                with contextlib.suppress(FileNotFoundError):
                    _exchange(directory, target)
                    return
            else:
                with contextlib.suppress(FileExistsError):
                    _rename_new(directory, target)
                    return
                if not overwrite:
                    raise PublishError(f"{destination} exists: another process made it meanwhile; give another name, or --overwrite")
    except OSError as e:
        hint = "; on this filesystem the old directory cannot be exchanged in one step: give a new name" if e.errno == errno.EXDEV else ""
        raise PublishError(f"cannot write {destination}: {e.strerror or e}{hint}") from e
    raise PublishError(f"cannot write {destination}: other processes make and remove it all the time")


def _rename_new(source: Path, target: Path) -> None:
    """Rename a directory where nothing is. FileExistsError else."""
    try:
        _renameat2(source, target, _RENAME_NOREPLACE)
    except OSError as e:
        if e.errno == errno.ENOTEMPTY:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from e
        if e.errno not in _UNKNOWN_FLAG:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from e
        # rename(2) refuses files and directories that are not empty: nothing can be lost
        try:
            os.rename(source, target)
        except OSError as e2:
            if e2.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from e2
            raise


def _exchange(source: Path, target: Path) -> None:
    if not stat.S_ISDIR(target.lstat().st_mode):
        raise OSError(errno.ENOTDIR, "it is no directory any more")
    _renameat2(source, target, _RENAME_EXCHANGE)


def _check_exchange(destination: str | Path, directory: Path) -> None:
    """`PublishError` before any work where the filesystem cannot exchange two directories: tried on two inside ``directory``."""
    ours = [directory / name for name in (".a", ".b")]
    try:
        for path in ours:
            path.mkdir()
        _exchange(*ours)
    except OSError as e:
        why = e.strerror or str(e)
        if e.errno in _UNKNOWN_FLAG:
            why = f"its filesystem cannot exchange two directories in one step ({why})"
        raise PublishError(f"cannot replace {destination}: {why}; give a new name and switch over yourself") from e
    finally:
        for path in ours:
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()


def _renameat2(source: Path, target: Path, flags: int) -> None:
    """renameat2(2), which Python lacks. OSError with its errno; ENOSYS where neither the C library nor we know it."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (_AT_FDCWD, ctypes.c_char_p(os.fsencode(source)), _AT_FDCWD, ctypes.c_char_p(os.fsencode(target)), ctypes.c_uint(flags))
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(*arguments)
    elif (number := _SYSCALL.get(platform.machine())) is not None:
        failed = libc.syscall(ctypes.c_long(number), *arguments)
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))
