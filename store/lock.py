"""A lock that one living process holds, and which process that is.

Owns flock(2) on a file and the owner's name in it. The kernel gives the lock back when its holder dies; the name in
the file is for messages, and to tell a dead owner from a living one when a child of it has inherited the descriptor.

Concurrency: a ``Lock`` belongs to one thread; different ``Lock`` objects exclude each other, in one process too.
"""

from __future__ import annotations

import json
import os
import sys
from types import TracebackType

import msgspec

from store.disk import LOCK_FLAGS, boot_id, write_at
from store.errors import LockedError


class Owner(msgspec.Struct, frozen=True):
    """A process: its id, a word for when it started, and where that id is valid."""

    pid: int
    start: str
    boot: str
    namespace: int

    def is_alive(self) -> bool:
        """False if the process is certainly gone. A process that cannot be seen from here counts as alive."""
        if (self.boot, self.namespace) != (boot_id(), _pid_namespace()):
            return True
        return process_start(self.pid) == self.start


def flock(fd: int, exclusive: bool, wait: bool) -> bool:
    """Lock the open file until it is closed; False if it is held by another and ``wait`` is False."""
    if sys.platform == "win32":
        return _lock_file_ex(fd, exclusive, wait)
    import fcntl

    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_LOCKED_BYTE = 1 << 40
"""Windows keeps others from reading what is locked: so it is a byte that no lock file has."""


def _lock_file_ex(fd: int, exclusive: bool, wait: bool) -> bool:
    """``flock`` by LockFileEx: ``msvcrt.locking`` has no shared locks, and gives up waiting after ten seconds."""
    import ctypes
    import msvcrt

    class Overlapped(ctypes.Structure):
        _fields_ = (
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("offset", ctypes.c_uint32),
            ("offset_high", ctypes.c_uint32),
            ("event", ctypes.c_void_p),
        )

    fail_immediately, exclusive_lock = 1, 2
    kernel32 = getattr(ctypes, "windll").kernel32  # noqa: B009 - only Windows has it
    handle = ctypes.c_void_p(getattr(msvcrt, "get_osfhandle")(fd))  # noqa: B009
    where = Overlapped(None, None, _LOCKED_BYTE & 0xFFFFFFFF, _LOCKED_BYTE >> 32, None)
    flags = (exclusive_lock if exclusive else 0) | (0 if wait else fail_immediately)
    return bool(kernel32.LockFileEx(handle, flags, 0, 1, 0, ctypes.byref(where)))


def process_start(pid: int) -> str | None:
    """A word for when process ``pid`` started, that no other process of that id has; None if there is none."""
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # Field 22 of proc_pid_stat(5), in ticks since boot: not moved by changes of the clock. A zombie is dead.
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def this_process() -> Owner:
    """The process that asks."""
    pid = os.getpid()
    return Owner(pid, process_start(pid) or "", boot_id(), _pid_namespace())


class Lock:
    """The lock at ``path``, held from ``acquire`` to ``release``."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """True while this object holds the lock."""
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock. Raises LockedError, naming the owner, if a living process holds it."""
        assert self._fd is None, "a lock is taken once"
        fd = self._try()
        if fd is None:
            owner = self.owner()
            if owner is None or owner.is_alive():
                who = "another process" if owner is None else f"process {owner.pid}"
                raise LockedError(
                    f"{who} owns {os.fsdecode(self.path)}",
                    hint="stop that process, or use the mount that it serves",
                )
            fd = self._take_over(owner)
        record = json.dumps(msgspec.to_builtins(this_process())).encode()
        os.ftruncate(fd, 0)
        write_at(fd, record, 0)
        self._fd = fd

    def _try(self) -> int | None:
        """The locked file, None if it is held. The name may be given to another file by a take-over meanwhile."""
        while True:
            fd = os.open(self.path, LOCK_FLAGS, 0o600)
            if not flock(fd, exclusive=True, wait=False):
                os.close(fd)
                return None
            if self._names(fd):
                return fd
            os.close(fd)

    def _names(self, fd: int) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(fd), there)

    def _take_over(self, dead: Owner) -> int:
        """Put a new file in the place of one that a descendant of its dead owner keeps locked."""
        guard = os.open(self.path + b".guard", LOCK_FLAGS, 0o600)
        try:
            flock(guard, exclusive=True, wait=True)
            if self.owner() == dead:  # else another has taken it over before us
                os.unlink(self.path)
            fd = self._try()
        finally:
            os.close(guard)
        if fd is None:
            raise LockedError(f"another process has just taken {os.fsdecode(self.path)}", hint="try again")
        return fd

    def owner(self) -> Owner | None:
        """Who wrote its name into the lock last, whether it still holds it or not; None if nobody, or it left."""
        try:
            with open(self.path, "rb") as file:
                return msgspec.json.decode(file.read(), type=Owner)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Lock:
        if self._fd is None:
            self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
