"""Whether a directory's file system tells names apart that differ in case only: found out by asking it.

Concurrency: one thread.
"""

from __future__ import annotations

import os
from itertools import islice

from vfs.scan.platform import Handle, Platform

LOOKED_AT = 200


def ignores_case(platform: Platform, top: Handle) -> bool:
    """True if another spelling of a name in ``top`` finds the same file. Makes a file for a moment if none tells."""
    for entry in islice(platform.entries(top), LOOKED_AT):
        found = _asked(platform, top, entry.name)
        if found is not None:
            return found
    probe = f".plyfs-case-{os.urandom(6).hex()}"
    try:
        os.close(platform.create(top, probe))
    except OSError:  # nothing can be made here, so nothing can collide
        return False
    try:
        return _asked(platform, top, probe) is True
    finally:
        platform.unlink(top, probe)


def _asked(platform: Platform, top: Handle, name: str) -> bool | None:
    """Does another spelling of ``name`` find it? None if it has none, or if both may be there."""
    other = name.swapcase()
    if other == name or len(other) != len(name):
        return None
    try:
        here, there = platform.stat(top, name), platform.stat(top, other)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    # Two names of one inode may be hard links where case counts.
    return True if os.path.samestat(here, there) and here.st_nlink == 1 else None
