"""What the kernel says is mounted where, from /proc alone: asking the mounts themselves could hang.

Owns nothing; pure reading.
"""

from __future__ import annotations

import re

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MOUNTINFO = "/proc/self/mountinfo"
PLYFS_TYPES = ("fuse.plyfs",)
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount:
    """One line of mountinfo: where, of which type, and the id that later mounts on top have greater."""

    __slots__ = ("kind", "point", "source")

    def __init__(self, point: str, kind: str, source: str) -> None:
        self.point = point
        self.kind = kind
        self.source = source

    def is_ours(self) -> bool:
        """True for a mount that some plyfs made."""
        return self.kind in PLYFS_TYPES


def mounts(path: str = MOUNTINFO) -> list[Mount]:
    """All mounts, in the order in which they lie on each other; none where the system has no mountinfo."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return list(_parse(file.read()))
    except FileNotFoundError:
        return []


def _parse(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, source = [*rest.split(" "), "", ""][:2]
        yield Mount(_unescape(fields.split(" ")[4]), kind, _unescape(source))


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal (proc_pid_mountinfo(5))."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def mount_over(path: str, among: list[Mount]) -> Mount | None:
    """The mount that ``path`` lies on: the last made of those with the longest mount point above it."""
    best: Mount | None = None
    for mount in among:
        if is_below(path, mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def is_below(path: str, directory: str) -> bool:
    """True if ``path`` is ``directory`` or lies in it. Both absolute and normal; nothing is looked at."""
    return path == directory or path.startswith(directory if directory == "/" else directory + "/")
