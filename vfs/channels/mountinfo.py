"""What is mounted where, from ``/proc/self/mountinfo``.

Owns the parsing only. Reading it touches no mounted file system, so it never hangs on a dead or slow one. Values are
immutable.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

MOUNTINFO = "/proc/self/mountinfo"
FUSE_TYPE = b"fuse.plyfs"

_OCTAL = re.compile(rb"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True):
    """One line: ``point`` is where, ``root`` which directory of the mounted file system is seen there, ``device``
    (major, minor) what st_dev says, ``source`` what was given as device (``plyfs``).
    """

    id: int
    parent: int
    device: tuple[int, int]
    root: bytes
    point: bytes
    options: bytes
    type: bytes
    source: bytes
    super_options: bytes

    @property
    def is_ours(self) -> bool:
        return self.type == FUSE_TYPE


def unescape(field: bytes) -> bytes:
    """The kernel writes space, tab, newline, backslash and ``#`` as three octal digits."""
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field)


def parse(text: bytes) -> list[Mount]:
    """All mounts, in the kernel's order: of several at one point the last is on top. Lines it cannot read it skips."""
    mounts = []
    for line in text.split(b"\n"):
        left, separator, right = line.partition(b" - ")
        fields, more = left.split(b" "), right.split(b" ")
        if not separator or len(fields) < 6 or len(more) < 3:
            continue
        try:
            major, minor = (int(part) for part in fields[2].split(b":"))
            mounts.append(
                Mount(
                    id=int(fields[0]),
                    parent=int(fields[1]),
                    device=(major, minor),
                    root=unescape(fields[3]),
                    point=unescape(fields[4]),
                    options=fields[5],
                    type=more[0],
                    source=unescape(more[1]),
                    super_options=more[2],
                )
            )
        except ValueError:
            continue
    return mounts


def mounts() -> list[Mount]:
    """All mounts of this process's mount namespace; none where the system has no such table, as all but Linux."""
    try:
        return parse(Path(MOUNTINFO).read_bytes())
    except FileNotFoundError:
        return []


def mount_at(point: bytes) -> Mount | None:
    """The mount on top at exactly ``point``, an absolute path without symlinks."""
    found = [mount for mount in mounts() if mount.point == point]
    return found[-1] if found else None


def mounts_below(point: bytes) -> list[Mount]:
    """Mounts strictly below ``point``."""
    prefix = point.rstrip(b"/") + b"/"
    return [mount for mount in mounts() if mount.point.startswith(prefix) and mount.point != point]
