"""What lies among the objects of a store, for those who look after it: the sweep, the check, and who asks for its size.

Owns the walk over files and packs. Nothing here changes anything or looks at the bytes.

Concurrency: objects may come and go meanwhile; what does may be missed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from store.disk import READ_FLAGS
from store.lock import flock, process_start
from store.packs import Packs

TEMPORARY_NS = 3600 * 1_000_000_000
"""A temporary file of a process that seems to be alive is left alone for this long."""

_FANOUT = re.compile(rb"[0-9a-f]{2}")
_REST = re.compile(rb"[0-9a-f]{62}")


class Found(NamedTuple):
    """An object as a walk over the store finds it: its name, its length in bytes, when it was put last (ns), and the
    file that it is in.
    """

    ref: bytes
    size: int
    put_ns: int
    path: bytes


class Inventory:
    """Lists what is in the directory ``root``, whose packs are ``packs``."""

    def __init__(self, root: bytes, packs: Packs) -> None:
        self._root = root
        self._packs = packs

    def walk(self) -> Iterator[Found]:
        """Every object, in no particular order but file by file. One may be there twice: in a file of its own and in a
        pack, or in two packs.
        """
        for directory in self._fanout():
            with os.scandir(os.path.join(self._root, directory)) as rows:
                for row in rows:
                    if _REST.fullmatch(row.name):
                        try:
                            status = row.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        ref = bytes.fromhex((directory + row.name).decode())
                        yield Found(ref, status.st_size, status.st_mtime_ns, row.path)
        for path in self._packs.paths():
            yield from self.in_pack(path)

    def in_pack(self, path: bytes) -> Iterator[Found]:
        """The objects of one pack; none if it is gone."""
        put_ns = put_at(path)
        return (Found(ref, place.size or 0, put_ns, path) for ref, place in self._packs.objects(path))

    def is_pack(self, path: bytes) -> bool:
        """True for a file that holds many objects."""
        return os.path.dirname(path) == self._packs.directory

    def damaged_packs(self) -> dict[bytes, int]:
        """Packs whose index is damaged, and how many objects can be read in each all the same."""
        return self._packs.damaged()

    def bytes_used(self) -> int:
        """How many bytes the objects hold, as far as their sizes tell."""
        return sum(found.size for found in self.walk())

    def temporaries(self) -> list[bytes]:
        """Paths of files that were being written, by a living process or a dead one."""
        directory = os.path.join(self._root, b"tmp")
        return [os.path.join(directory, name) for name in os.listdir(directory)]

    def abandoned(self, least_age_ns: int = 0) -> list[bytes]:
        """Those whose writer is gone, or has taken impossibly long, and that have not been changed for so long (ns)."""
        return [path for path in self.temporaries() if _is_abandoned(path, least_age_ns)]

    def strays(self) -> list[bytes]:
        """Paths among the objects that are no objects."""
        known = {b"tmp", b"packs", *self._fanout()}
        found = [os.path.join(self._root, name) for name in os.listdir(self._root) if name not in known]
        for name in self._fanout():
            directory = os.path.join(self._root, name)
            found += [os.path.join(directory, inner) for inner in os.listdir(directory) if not _REST.fullmatch(inner)]
        packs = set(self._packs.paths())
        there = (os.path.join(self._packs.directory, name) for name in os.listdir(self._packs.directory))
        return found + [path for path in there if path not in packs]

    def _fanout(self) -> list[bytes]:
        return sorted(name for name in os.listdir(self._root) if _FANOUT.fullmatch(name))


def _is_abandoned(path: bytes, least_age_ns: int) -> bool:
    pid = os.path.basename(path).partition(b"-")[0]
    try:
        age_ns = time.time_ns() - os.stat(path).st_mtime_ns
        if age_ns < least_age_ns:
            return False
        if age_ns < TEMPORARY_NS and pid.isdigit() and process_start(int(pid)) is not None:
            return False
        fd = os.open(path, READ_FLAGS)
    except FileNotFoundError:
        return False
    try:  # processes of another container, whose ids say nothing here, hold a lock while they write a pack
        return flock(fd, exclusive=True, wait=False)
    finally:
        os.close(fd)


def put_at(path: bytes) -> int:
    """When what is in a file of objects was put last, also if it was there already (ns since 1970); 0 if it is gone."""
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
