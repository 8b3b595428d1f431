"""The translated trees that a daemon counts on: names of stored pages that nothing else on the disk speaks of.

A checkpoint of an older generation is translated when it is needed, and what that makes lies in the store although no
layer leads to it. The live tree may stand on it, and the next checkpoint takes it along by name: so a sweep has to
know of it as long as this daemon lives. Owns the file ``translations/trees`` that says so, as one of what vfs has under
way (docs/format.md); a daemon begins it anew, since what was translated before is translated again.

Concurrency: any thread; the caller appends inside ``Objects.sealing``, so that no sweep comes between.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import msgspec

from store.disk import GROW_FLAGS, make_directories

if TYPE_CHECKING:
    from store.home import Home, WorkspaceStore
    from vfs.live.tree import Root


class Translations:
    """The trees translated since ``begin``."""

    def __init__(self, home: Home, store: WorkspaceStore) -> None:
        self._objects = home.objects
        self._disk = store.disk
        self._directory = os.path.join(store.path, b"translations")
        self._path = os.path.join(self._directory, b"trees")
        self._guard = threading.Lock()
        self._cited: set[bytes] = set()

    def begin(self) -> None:
        """Nothing is translated yet; what an earlier daemon counted on may go. The workspace is locked."""
        self._cited.clear()
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass

    end = begin

    def keeping(self) -> AbstractContextManager[None]:
        """While this lasts no sweep takes what is put."""
        return self._objects.sealing()

    def add(self, root: Root) -> None:
        """``root`` is a tree that others build on. Raises NoSpaceError."""
        page = None if root.links is None else root.links.ref
        names = {ref for ref in (root.directory.node, page) if ref is not None}
        with self._guard:
            new = b"".join(msgspec.msgpack.encode(ref) for ref in sorted(names - self._cited))
            if not new:
                return
            make_directories(self._disk, self._directory)
            fd = os.open(self._path, GROW_FLAGS, 0o600)
            try:
                self._disk.write_all(fd, new)
            finally:
                os.close(fd)
            self._cited |= names
