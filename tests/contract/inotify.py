"""An inotify watcher, by system calls: what an editor, a dev server or a language server sees."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

NAMES = {
    0x2: "MODIFY",
    0x4: "ATTRIB",
    0x8: "CLOSE_WRITE",
    0x40: "MOVED_FROM",
    0x80: "MOVED_TO",
    0x100: "CREATE",
    0x200: "DELETE",
    0x400: "DELETE_SELF",
}
MASK = sum(NAMES)


class Inotify:
    """Watches on paths; events are (path watched, event, name)."""

    def __init__(self, *paths: Path) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: dict[int, Path] = {}
        for path in paths:
            number = _libc.inotify_add_watch(self._fd, os.fsencode(path), MASK)
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._watched[number] = path

    def events(self, seconds: float = 0.2) -> list[tuple[str, str, str]]:
        """Everything so far; waits up to ``seconds`` for the first."""
        found: list[tuple[str, str, str]] = []
        while select.select([self._fd], [], [], 0 if found else seconds)[0]:
            data = os.read(self._fd, 1 << 16)
            at = 0
            while at < len(data):
                number, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
                found += [(self._watched[number].name, NAMES[bit], name) for bit in NAMES if mask & bit]
                at += 16 + length
        return found

    def close(self) -> None:
        os.close(self._fd)
