"""Looking at all files of a directory at once: whether anything is other than it was, as cheaply as Python can ask.

Owns the form in which what is known and what is there are compared: columns of numbers, so that a directory is one
comparison of bytes. On Linux statx(2) fills the columns itself; what os.lstat makes of each answer costs as much again
as the question. Elsewhere os.lstat is asked.

Concurrency: any thread; each has a buffer of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from array import array
from collections.abc import Iterable

from vfs.libc import libc

SECOND_NS = 1_000_000_000
SLOT_BYTES = 256
"""The length of struct statx."""
WORDS = SLOT_BYTES // 8
SLOTS = 256
"""Files that are asked about before they are compared."""
COLUMNS = (4, 5, 12, 13, 14, 15)
"""Words of struct statx: stx_ino, stx_size, seconds and nanoseconds of stx_ctime and of stx_mtime (statx(2))."""
_AT_SYMLINK_NOFOLLOW = 0x100
_BASIC_STATS = 0x7FF


def columns(rows: Iterable[tuple[int, int, int, int]]) -> bytes:
    """What ``glance`` finds where files have these inodes, sizes, change times and modification times (ns)."""
    parts = []
    listed = list(rows)
    for at in range(0, len(listed), SLOTS):
        some = listed[at : at + SLOTS]
        parts.append(array("Q", [row[0] for row in some]).tobytes())
        parts.append(array("Q", [row[1] for row in some]).tobytes())
        for which in (2, 3):
            times = [divmod(row[which], SECOND_NS) for row in some]
            parts.append(array("q", [seconds for seconds, _ in times]).tobytes())
            parts.append(array("Q", [ns for _, ns in times]).tobytes())
    return b"".join(parts)


def glance(directory: int, names: list[bytes]) -> bytes:
    """The columns of what is there under ``names``; links are not followed. Raises OSError, also if one is gone."""
    statx = _mine.statx
    if statx is None:
        found = [os.stat(name, dir_fd=directory, follow_symlinks=False) for name in names]
        return columns((one.st_ino, one.st_size, one.st_ctime_ns, one.st_mtime_ns) for one in found)
    return statx.columns(directory, names)


class _Statx:
    def __init__(self, function: ctypes._NamedFuncPointer) -> None:
        self._call = function
        buffer = (ctypes.c_char * (SLOT_BYTES * SLOTS))()
        self._words = memoryview(buffer).cast("B").cast("Q")
        start = ctypes.addressof(buffer)
        self._slots = [ctypes.c_void_p(start + SLOT_BYTES * slot) for slot in range(SLOTS)]
        self._flags = ctypes.c_int(_AT_SYMLINK_NOFOLLOW)
        self._mask = ctypes.c_uint(_BASIC_STATS)

    def columns(self, directory: int, names: list[bytes]) -> bytes:
        """See ``glance``."""
        call, flags, mask = self._call, self._flags, self._mask
        parts = []
        for at in range(0, len(names), SLOTS):
            some = names[at : at + SLOTS]
            for name, slot in zip(some, self._slots, strict=False):
                if call(directory, name, flags, mask, slot):
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), os.fsdecode(name))
            end = len(some) * WORDS
            parts += [self._words[word:end:WORDS].tobytes() for word in COLUMNS]
        return b"".join(parts)


class _Mine(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.statx = _statx()


def _statx() -> _Statx | None:
    if sys.platform != "linux" or sys.byteorder != "little":
        return None
    try:
        return _Statx(libc.statx)
    except AttributeError:
        return None


_mine = _Mine()
