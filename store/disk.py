"""The file system below the store: every effect that the store has on it, the clock, and new names.

Owns the primitives (create, append, rename, sync, ...) and nothing about what is written. All effects of the store
go through one ``Disk``, so that a test can stop after any of them. A full file system is NoSpaceError; every other
failure stays the OSError that it is.

Concurrency: no state; any thread.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, Protocol, TypeVar

from store.errors import NoSpaceError
from store.refs import CheckpointId

P = ParamSpec("P")
T = TypeVar("T")

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700

_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
READ_FLAGS = os.O_RDONLY | _CLOEXEC
CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | _CLOEXEC
APPEND_FLAGS = os.O_RDWR | os.O_APPEND | _CLOEXEC
GROW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _CLOEXEC
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | _CLOEXEC

_ALWAYS = stat.S_IWRITE if sys.platform == "win32" else 0
"""Windows removes and replaces no file that is read-only."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Clock(Protocol):
    """Where times come from."""

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        ...


class SystemClock:
    """The machine's clock; it may jump."""

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        return time.time_ns()


class Ids(Protocol):
    """Where new names come from."""

    def checkpoint(self) -> CheckpointId:
        """A checkpoint id that nobody else has been given."""
        ...


class RandomIds:
    """Names from the kernel's random numbers."""

    def checkpoint(self) -> CheckpointId:
        """12 random hexadecimal digits."""
        return CheckpointId(os.urandom(6).hex())


def no_space(error: OSError, doing: str) -> NoSpaceError:
    """The typed error for a full file system."""
    where = error.filename
    name = os.fsdecode(where) if isinstance(where, str | bytes) else ""
    quota = "the disk quota is used up" if error.errno == errno.EDQUOT else "no space left on the file system"
    return NoSpaceError(
        f"{quota}: cannot {doing}{' ' + name if name else ''}",
        hint="free some space and try again; `plyfs gc` drops what no checkpoint needs",
    )


def _typed(effect: Callable[P, T]) -> Callable[P, T]:
    """``effect`` raising NoSpaceError where the file system is full."""
    doing = effect.__name__.replace("_", " ")

    @wraps(effect)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return effect(*args, **kwargs)
        except OSError as error:
            if error.errno in FULL:
                raise no_space(error, doing) from error
            raise

    return call


class Disk:
    """The real file system. Paths are bytes; directories are made 0700 and files 0600 unless said otherwise."""

    append = staticmethod(os.write)
    """Write to a descriptor at its end; returns the number of bytes taken. Raises plain OSError: it is the hot path
    of the journal, whose writer has to mend the file before it can say NoSpaceError."""

    @_typed
    def create(self, path: bytes, mode: int = PRIVATE_FILE) -> int:
        """A descriptor of a new empty file, open for reading and writing. Raises FileExistsError."""
        return os.open(path, CREATE_FLAGS, mode | _ALWAYS)

    @_typed
    def open_append(self, path: bytes) -> int:
        """A descriptor of an existing file that writes at its end and may be read."""
        return os.open(path, APPEND_FLAGS)

    def write_all(self, fd: int, data: bytes | memoryview) -> None:
        """Write all of ``data`` at the descriptor's place."""
        try:
            written = self.append(fd, data)
            while written < len(data):
                written += self.append(fd, memoryview(data)[written:])
        except OSError as error:
            if error.errno in FULL:
                raise no_space(error, "write") from error
            raise

    def write_new(self, path: bytes, data: bytes | memoryview, mode: int = PRIVATE_FILE, sync: bool = False) -> None:
        """A new file with ``data``; nothing is left behind if that fails. Raises FileExistsError."""
        fd = self.create(path, mode)
        try:
            self.write_all(fd, data)
            if sync:
                self.sync_file(fd)
        except Exception:
            self.unlink(path)
            raise
        finally:
            os.close(fd)

    def replace(self, path: bytes, data: bytes, sync: bool) -> None:
        """Put a file with ``data`` in the place of ``path``, by rename: readers see the old or the new one.

        With ``sync`` it has reached the device on return. One writer at a time: the file is prepared as ``path.new``.
        """
        prepared = path + b".new"
        try:
            self.write_new(prepared, data, sync=sync)
        except FileExistsError:  # a writer was killed here before
            self.unlink(prepared)
            self.write_new(prepared, data, sync=sync)
        self.rename(prepared, path)
        if sync:
            self.sync_dir(os.path.dirname(path))

    @_typed
    def rename(self, old: bytes, new: bytes, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        """Move ``old`` over ``new``."""
        os.replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    @_typed
    def link(self, old: bytes, new: bytes) -> None:
        """Give the file ``old`` the further name ``new``. Raises FileExistsError."""
        os.link(old, new, follow_symlinks=False)

    @_typed
    def unlink(self, path: bytes, dir_fd: int | None = None) -> None:
        """Remove a file."""
        os.unlink(path, dir_fd=dir_fd)

    @_typed
    def mkdir(self, path: bytes, mode: int = PRIVATE_DIRECTORY) -> None:
        """Make a directory. Raises FileExistsError."""
        os.mkdir(path, mode)

    @_typed
    def rmdir(self, path: bytes, dir_fd: int | None = None) -> None:
        """Remove an empty directory."""
        os.rmdir(path, dir_fd=dir_fd)

    @_typed
    def chmod(self, path: bytes, mode: int, dir_fd: int | None = None) -> None:
        """Set the permission bits of a file or directory that is not a symbolic link."""
        os.chmod(path, mode | _ALWAYS, dir_fd=dir_fd)

    @_typed
    def touch(self, path: bytes) -> None:
        """Set the file's times to now."""
        os.utime(path)

    @_typed
    def truncate(self, fd: int, length: int) -> None:
        """Cut the file to ``length`` bytes."""
        os.ftruncate(fd, length)

    @_typed
    def sync_file(self, fd: int) -> None:
        """Return when the file's content, and its length, are on the device."""
        if sys.platform == "linux":
            os.fdatasync(fd)
        elif sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync(2) of macOS leaves it in the drive's cache
        else:
            os.fsync(fd)

    @_typed
    def sync_dir(self, path: bytes) -> None:
        """Return when the names in the directory are on the device."""
        if sys.platform == "win32":  # directories cannot be opened, and NTFS journals names by itself
            return
        fd = os.open(path, READ_FLAGS)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @_typed
    def syncfs(self, fd: int) -> None:
        """Return when all that was written to the file system of ``fd`` is on the device."""
        call = _syncfs()
        if call is None:
            if sys.platform != "win32":
                os.sync()
            return
        code = call(fd)
        if code:
            raise OSError(code, os.strerror(code))


@cache
def _syncfs() -> Callable[[int], int] | None:
    """syncfs(2) as a function giving an errno, None where the C library has none."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None

    def call(fd: int) -> int:
        return ctypes.get_errno() if function(fd) else 0

    return call


_KEEP_SIZE, _PUNCH_HOLE = 1, 2


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """fallocate(2) as a function giving an errno, None where there is none."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate64
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def call(fd: int, mode: int, offset: int, length: int) -> int:
        return ctypes.get_errno() if function(fd, mode, offset, length) else 0

    return call


def reserve_space(fd: int, offset: int, length: int) -> bool:
    """Set space aside for ``length`` bytes at ``offset``, without changing the file's size. False if there is none;
    True, too, where the system cannot set space aside.
    """
    call = _fallocate()
    return call is None or call(fd, _KEEP_SIZE, offset, length) not in FULL


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Give back the space of a range, which reads as zeros then; nothing happens where that cannot be done."""
    call = _fallocate()
    if call is not None:
        call(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length)


@cache
def boot_id() -> str:
    """A word that names this run of the kernel: page cache written in another one may not have reached the device."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        import psutil

        return f"booted-{int(psutil.boot_time())}"


def make_directories(disk: Disk, path: bytes) -> None:
    """Make the directory ``path`` and those above it that are missing; what is there stays as it is."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        above = os.path.dirname(path)
        if above == path:
            break
        path = above
    for directory in reversed(missing):
        try:
            disk.mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise


def _read_at(fd: int, length: int, offset: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, length)


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> int:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.write(fd, data)


read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_at)
"""pread(2). Where there is none, the descriptor's place moves, so that one thread at a time may use it."""
write_at: Callable[[int, bytes | memoryview, int], int] = getattr(os, "pwrite", _write_at)
"""pwrite(2), with the same reserve."""


def read_file(path: bytes) -> bytes:
    """All bytes of a file. Raises FileNotFoundError."""
    fd = os.open(path, READ_FLAGS)
    try:
        return read_descriptor(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def read_descriptor(fd: int, expected: int) -> bytes:
    """All bytes from the descriptor's place to the end, in one call if there are no more than ``expected``."""
    data = os.read(fd, expected + 1)
    if len(data) == expected:
        return data
    parts = [data]
    while data:
        data = os.read(fd, 1 << 20)
        parts.append(data)
    return b"".join(parts)
