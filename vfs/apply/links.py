"""The inodes with several names of a tree that is to be applied.

Owns what becomes of each row of the link table: whether the base's own inode goes on being it, and which names of the
base look into the row without the tree saying so. Does not own placing names (``apply_plan``).

Concurrency: made for one plan and used by one thread.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.format import LinkTarget, Origin, Original, Regular, Special, Symlink
from store.nodes import settled
from store.refs import Ino
from vfs.trees.host import NEW_INO, Host

if TYPE_CHECKING:
    import os

    from vfs.apply.claims import Claims
    from vfs.apply.draft import Leaf
    from vfs.trees.view import View


@dataclass
class Group:
    """An inode with several names in the tree. ``kept`` is a name of it in the base, where it is that very inode."""

    ino: Ino
    inode: Leaf
    kept: bytes | None
    slot: bytes | None = None
    fixed: bool = False


class Links:
    """The rows of ``view``. ``rows`` are those that stand for inodes of the base."""

    def __init__(self, view: View, host: Host, claims: Claims) -> None:
        self._view = view
        self._host = host
        self._claims = claims
        self._groups: dict[Ino, Group | None] = {}
        self.rows = self._read_rows()

    def _read_rows(self) -> list[Ino]:
        """The rows of the link table that stand for inodes of the base. It is listed once for all that need it."""
        rows = []
        unknown = set()
        for key, row in self._view.pages.items(self._view.links):
            ino = Ino(int.from_bytes(key, "big"))
            if ino < NEW_INO:
                rows.append(ino)
                inode = settled(row.inode) if isinstance(row, LinkTarget) else row
                if not isinstance(inode, Regular) or self._kept(ino, inode) is None:
                    unknown.add(ino)
        self._host.names(unknown)
        return rows

    def group(self, ino: Ino) -> Group | None:
        """The inode of a row of the link table, None if its content is lost."""
        if ino not in self._groups:
            row = self._view.linked(ino)
            assert isinstance(row, Regular | Symlink | Special)
            kept = self._kept(ino, row)
            lost = kept is None and isinstance(row, Regular) and not self._claims.is_available(row.content)
            self._groups[ino] = None if lost else Group(ino, row, kept)
        return self._groups[ino]

    def add(self, ino: Ino, inode: Leaf, kept: bytes | None) -> None:
        """An inode with several names that has no row: a directory is shown once more than the base has it."""
        if ino not in self._groups and self._view.row(ino) is None:
            self._groups[ino] = Group(ino, inode, kept)

    def _kept(self, ino: Ino, inode: Leaf) -> bytes | None:
        """A name in the base of ``inode``, if the base's inode of that number has its content and may be changed."""
        if ino >= NEW_INO:
            return None
        if isinstance(inode, Regular):
            content = inode.content
            if isinstance(content, Original) and not content.origin.tree and self._claims.is_intact(content):
                status = self._claims.status(content.origin.path)
                assert status is not None
                same = self._host.ino(status) == ino and not self.is_pinned(status, inode.attributes.mtime_ns)
                return content.origin.path if same and not self._is_apart(content.origin.path, status) else None
            return None
        for path in self._host.names({ino})[ino]:
            status = self._claims.status(path)
            if status is not None and self.is_there(inode, path, status):
                return path
        return None

    def _is_apart(self, path: bytes, status: os.stat_result) -> bool:
        """True if the tree shows the file at ``path`` as one with a single name, whatever the link table says."""
        return status.st_nlink == 1 and self._claims.shown(path) is not None

    def is_pinned(self, status: os.stat_result, mtime_ns: int) -> bool:
        """True if the file must not get the time ``mtime_ns``: one of its names may be in the attic, cited with the
        time that it has.
        """
        return status.st_nlink > 1 and status.st_mtime_ns != mtime_ns and self._host.has_attic()

    def is_kept(self, ino: Ino) -> bool:
        if self._view.row(ino) is None:
            return False
        group = self.group(ino)
        return group is not None and group.kept is not None

    def shown_names(self, ino: Ino) -> dict[bytes, bytes]:
        """The names in the base of one of its inodes, to where the tree shows them without saying so itself."""
        found = {}
        for base in self._host.names({ino})[ino]:
            path = self._claims.shown(base)
            status = self._claims.status(base)
            if path is not None and status is not None and status.st_nlink > 1:  # else the row is not asked
                found[base] = path
        return found

    def is_single(self, status: os.stat_result) -> bool:
        return status.st_nlink == 1 and self._view.row(self._host.ino(status)) is None

    def is_there(self, entry: Leaf, base: bytes, status: os.stat_result) -> bool:
        """True if the base's object at ``base`` is ``entry`` but for attributes."""
        if isinstance(entry, Regular):
            content = entry.content
            return (
                isinstance(content, Original) and content.origin == Origin(0, base) and self._claims.is_intact(content)
            )
        kind = stat.S_IFMT(status.st_mode)
        if isinstance(entry, Symlink):
            return kind == stat.S_IFLNK and self._host.readlink(Origin(0, base)) == entry.target
        device = status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
        return (kind, device) == (entry.file_type, entry.rdev)
