"""Small files that are replaced as one and must be whole: frames, so that damage is told and never believed.

Owns reading and writing them. Does not own what is in them. Concurrency: whoever has the workspace's lock.
"""

from __future__ import annotations

import os

from store.disk import Disk, read_file
from store.errors import DamagedError
from store.frames import frame, scan

PIECE_BYTES = 1 << 27
"""What is longer is several frames: a frame has a greatest length."""


def read_whole(path: bytes, what: str = "", hint: str = "put that file back from a copy") -> bytes:
    """What was written to ``path``. Raises FileNotFoundError, or DamagedError, which tells ``what`` the file is for."""
    data = read_file(path)
    frames = scan(data)
    if not frames.payloads or frames.marks or frames.end != len(data):
        raise DamagedError(f"{os.fsdecode(path)} is damaged" + (f": {what}" if what else ""), hint=hint)
    return b"".join(frames.payloads)


def write_whole(disk: Disk, path: bytes, data: bytes, sync: bool) -> None:
    """Replace ``path`` by ``data``. Raises NoSpaceError."""
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    disk.replace(path, b"".join(map(frame, pieces)), sync=sync)
