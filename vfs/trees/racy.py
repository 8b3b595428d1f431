"""When the times of a file say nothing of whether it was changed.

Owns one rule, by which git calls an index entry racy: two changes within the kernel's clock tick can leave a file with
the same times, so a signature tells changes only if the file was already older than that when it was taken.
"""

from __future__ import annotations

import os

RACY_NS = 25_000_000
"""Two changes within the kernel's clock tick (1 to 10 ms) can leave a file with the same times."""

COARSE_RACY_NS = 2_100_000_000
"""As long as that on file systems that keep whole seconds (FAT: two)."""


def is_racy(status: os.stat_result, looked_ns: int) -> bool:
    """True if a change after ``looked_ns`` could leave the times as they are: they are too young, or in the future."""
    coarse = not (status.st_ctime_ns % 1_000_000_000 or status.st_mtime_ns % 1_000_000_000)
    return status.st_ctime_ns >= looked_ns - (COARSE_RACY_NS if coarse else RACY_NS)
