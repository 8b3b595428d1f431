"""A file's content between its freezing and its sealing: what bytes it has, not yet what they are called.

A value, but for ``content``, which the sealer sets once; it may be shared by entries that differ in attributes only.
"""

from __future__ import annotations

from store.format import Content
from vfs.live.extents import Run


class Pending:
    """``size`` bytes made of ``runs``; ``content`` is their stored form once the sealer has made it."""

    __slots__ = ("content", "runs", "size")

    def __init__(self, size: int, runs: tuple[Run, ...]) -> None:
        self.size = size
        self.runs = runs
        self.content: Content | None = None
