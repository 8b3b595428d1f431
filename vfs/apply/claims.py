"""Which path of a tree gets which object of the base.

Owns one question: where does the file or directory that the base has at a path go when the tree is written into the
base? An object stays where its parent directory goes, unless the tree says otherwise of its name; then the one place
that cites it as its own gets it, and what nobody cites is displaced. A tree may cite one object at several places
(parts of it were restored beside what had been renamed); one of them gets it, the others will be copies.

Concurrency: made for one plan and used by one thread.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from store.format import Chunked, Content, Directory, Entry, Linked, Origin, Original, OriginPiece, Regular
from vfs.errors import FsError
from vfs.trees.host import parent
from vfs.trees.view import View, join

if TYPE_CHECKING:
    import os

    from store.refs import Ino
    from vfs.trees.contents import Contents
    from vfs.trees.host import Host

_UNKNOWN = object()


class Claims:
    """The claims of ``view`` on the base. Reading them costs the overrides of the whole tree."""

    def __init__(self, view: View, host: Host, contents: Contents) -> None:
        self._view = view
        self._host = host
        self._contents = contents
        self._available: dict[Content, bool] = {}
        self.directories: dict[bytes, Directory] = {}
        """The directories that the tree itself names, by path."""
        self.linked: dict[Ino, list[bytes]] = {}
        """The paths that the tree itself names as rows of its link table."""
        self._claimants: dict[bytes, list[tuple[bytes, Ino]]] = {}
        self._holders: dict[bytes, bytes | None] = {b"": b""}
        self._status: dict[bytes, os.stat_result | None] = {}
        for path, directory in view.held():
            self.directories[path] = directory
            for name, entry in view.overrides(directory):
                self._claim(join(path, name), entry)

    def _claim(self, path: bytes, entry: Entry) -> None:
        if isinstance(entry, Linked):
            self.linked.setdefault(entry.ino, []).append(path)
            return
        base = self.cited(entry)
        if base is not None and isinstance(entry, Directory | Regular):
            self._claimants.setdefault(base, []).append((path, entry.attributes.ino))

    def status(self, path: bytes) -> os.stat_result | None:
        """lstat(2) of a path of the base as it was when the plan was made, None if there is nothing."""
        found = self._status.get(path, _UNKNOWN)
        if found is _UNKNOWN:
            try:
                found = self._host.stat(Origin(0, path))
            except FsError:
                found = None
            self._status[path] = found
        return found  # type: ignore[return-value]

    def cited(self, entry: Entry) -> bytes | None:
        """The path of the object of the base that ``entry`` is as it stands, but for attributes and overrides."""
        if isinstance(entry, Directory):
            if entry.origin is None or entry.origin.tree:
                return None
            status = self.status(entry.origin.path)
            return entry.origin.path if status is not None and stat.S_ISDIR(status.st_mode) else None
        if isinstance(entry, Regular) and isinstance(entry.content, Original) and not entry.content.origin.tree:
            path = entry.content.origin.path
            return path if self.is_intact(entry.content) and not self._is_shared(path) else None
        return None

    def is_intact(self, content: Original) -> bool:
        """True if the base still has the very file that ``content`` cites."""
        status = self.status(content.origin.path)
        return (
            status is not None
            and stat.S_ISREG(status.st_mode)
            and status.st_size == content.size
            and status.st_mtime_ns == content.mtime_ns
        )

    def is_available(self, content: Content) -> bool:
        """True if everything that ``content`` cites of the base and the attic is still there unchanged."""
        found = self._available.get(content)
        if found is None:
            spans = self._contents.spans(content) if isinstance(content, Original | Chunked) else []
            sources = {
                (s.source.origin, s.source.size, s.source.mtime_ns) for s in spans if isinstance(s.source, OriginPiece)
            }
            found = self._available[content] = all(self._has(*source) for source in sources)
        return found

    def _has(self, origin: Origin, size: int, mtime_ns: int) -> bool:
        try:
            status = self._host.stat(origin)
        except FsError:
            return False
        return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (size, mtime_ns)

    def _is_shared(self, path: bytes) -> bool:
        """True if the base's file has several names, or gets them: then a link table's row decides about it."""
        status = self.status(path)
        assert status is not None
        return status.st_nlink > 1 or self._view.row(self._host.ino(status)) is not None

    def holder(self, base: bytes) -> bytes | None:
        """Where in the tree the base's ``base`` goes; None if it is displaced."""
        waiting = []
        while base not in self._holders:
            waiting.append(base)
            base = parent(base)[0]
        for path in reversed(waiting):
            self._holders[path] = self._find_holder(path)
        return self._holders[waiting[0] if waiting else base]

    def _find_holder(self, base: bytes) -> bytes | None:
        head, name = parent(base)
        above = self._holders[head]
        if above is not None:
            override = self._override(above, name)
            path = join(above, name)
            if override is None:
                return path
            if self.cited(override) == base:
                return path
        claimants = self._claimants.get(base, [])
        status = self.status(base)
        own = None if status is None else self._host.ino(status)
        for path, ino in claimants:
            if ino == own:
                return path
        return claimants[0][0] if claimants else None

    def _override(self, path: bytes, name: bytes) -> Entry | None:
        directory = self.directories.get(path)
        return None if directory is None else self._view.override(directory, name)

    def shown(self, base: bytes) -> bytes | None:
        """The path at which the tree shows the base's ``base`` without saying anything of it itself, if it does."""
        head, name = parent(base)
        above = self.holder(head)
        return None if above is None or self._override(above, name) is not None else join(above, name)

    def fallen(self, path: bytes) -> bytes | None:
        """The path of the base that the tree's ``path`` falls through to; None if the tree says something of it, or
        if the directory it is in will be a copy.
        """
        names = path.split(b"/")
        base = b""
        at = b""
        for position, name in enumerate(names):
            override = self._override(at, name)
            base = join(base, name)
            at = join(at, name)
            if override is None:
                continue
            cited = self.cited(override)
            if position == len(names) - 1 or not isinstance(override, Directory) or cited is None:
                return None
            if self.holder(cited) != at:
                return None
            base = cited
        return base
