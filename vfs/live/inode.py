"""The live inodes: what the kernel knows, and what has changed since the tree was last folded into pages.

Owns the fields of one inode and the table of them all. Does not own what operations mean (``namespace``, ``files``,
``attributes``) nor where an inode comes from (``tree``). Every field is guarded by the core's lock.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from store.format import Attributes, Directory, Origin, Regular, Special, Symlink
from store.refs import Ino

if TYPE_CHECKING:
    from store.nodes import Page
    from vfs.live.extents import Extents
    from vfs.live.listing import Listing
    from vfs.live.sources import OriginSource

ROOT = Ino(1)
FIRST_NEW_INO = 1 << 62
"""Numbers from here on belong to inodes made in a mount; smaller ones are the base's (``vfs.trees.host``)."""


TIME_MIN, TIME_MAX = -(1 << 63), (1 << 64) - 1
"""The times (nanoseconds) that the format can hold: years 1677 to 2554."""


def clamped(time_ns: int) -> int:
    """The nearest time that can be stored."""
    return TIME_MIN if time_ns < TIME_MIN else min(time_ns, TIME_MAX)


class Inode:
    """Anything with an inode number. ``mode`` is the full st_mode, times are nanoseconds, ``blocks`` of 512 bytes.

    ``ino`` is the number that is shown; ``key`` the one by which trees know the inode, the same in every checkpoint. A
    restore that changes what an inode holds gives it another ``ino``, for the sake of who has the old one open.
    ``entry`` is the inode's value in the tree as last folded, None while the base alone tells it. ``dirty`` says that
    ``entry`` no longer does. ``parent`` and ``name`` are one place where it can be found, None if it has none.
    ``linked`` inodes stand in the link table. ``known`` is the last epoch whose journal introduced the inode.
    """

    __slots__ = (
        "atime_ns",
        "blocks",
        "ctime_ns",
        "dirty",
        "entry",
        "gid",
        "ino",
        "key",
        "known",
        "linked",
        "lookups",
        "mode",
        "mtime_ns",
        "name",
        "nlink",
        "origin",
        "parent",
        "rdev",
        "size",
        "uid",
        "xattrs",
    )

    def __init__(self, ino: Ino, mode: int) -> None:
        self.ino = ino
        self.key = ino
        self.mode = mode
        self.nlink = 1
        self.uid = 0
        self.gid = 0
        self.rdev = 0
        self.size = 0
        self.blocks = 0
        self.atime_ns = 0
        self.mtime_ns = 0
        self.ctime_ns = 0
        self.lookups = 0
        self.parent: DirectoryInode | None = None
        self.name = b""
        self.entry: Regular | Directory | Symlink | Special | None = None
        self.origin: Origin | None = None
        self.dirty = False
        self.linked = False
        self.known = -1
        self.xattrs: dict[bytes, bytes] | None = None  # None: not read from the base yet

    @property
    def type(self) -> int:
        """The file type as a directory entry has it: S_IFMT's bits shifted right by 12."""
        return self.mode >> 12

    def attributes(self) -> Attributes:
        """The inode's part of an entry; its extended attributes must have been read."""
        assert self.xattrs is not None
        return Attributes(
            self.key,
            stat.S_IMODE(self.mode),
            self.uid,
            self.gid,
            clamped(self.mtime_ns),
            clamped(self.ctime_ns),
            tuple(sorted(self.xattrs.items())) if self.xattrs else (),
        )

    def show(self, attributes: Attributes) -> None:
        """Take everything that ``attributes`` tells, but for the inode number."""
        self.mode = stat.S_IFMT(self.mode) | attributes.mode
        self.uid = attributes.uid
        self.gid = attributes.gid
        self.mtime_ns = attributes.mtime_ns
        self.atime_ns = attributes.mtime_ns
        self.ctime_ns = attributes.ctime_ns
        self.xattrs = dict(attributes.xattrs)


class FileInode(Inode):
    """A regular file. ``extents`` is None until its content is asked for; ``rewritten`` says that it differs from
    what ``entry`` holds; ``private`` is the working file that is the file's own in this epoch, if it has one;
    ``base`` the source of a file that is just what the base has, once it was read.
    """

    __slots__ = ("base", "extents", "private", "rewritten")

    def __init__(self, ino: Ino, mode: int) -> None:
        super().__init__(ino, mode)
        self.base: OriginSource | None = None
        self.extents: Extents | None = None
        self.rewritten = False
        self.private: object | None = None


class SymlinkInode(Inode):
    """A symbolic link."""

    __slots__ = ("target",)

    def __init__(self, ino: Ino, mode: int, target: bytes) -> None:
        super().__init__(ino, mode)
        self.target = target
        self.size = len(target)


class SpecialInode(Inode):
    """A FIFO, a socket or a device."""

    __slots__ = ()


class DirectoryInode(Inode):
    """A directory: the live children in ``children``, over the overrides in ``page``, over what ``origin`` lists.

    ``children[name]`` is None where the name was removed since the last fold. ``delta`` holds the names whose value
    changed since; its value is True where the base is known to have that name, None where that is not known.
    ``subdirectories`` counts relative to the origin. ``reborn_ns`` is the time of the restore that brought the
    directory back, 0 if none did.
    """

    __slots__ = ("base_links", "children", "delta", "listing", "page", "reborn_ns", "subdirectories")

    def __init__(self, ino: Ino, mode: int) -> None:
        super().__init__(ino, mode)
        self.children: dict[bytes, Inode | None] = {}
        self.delta: dict[bytes, bool | None] = {}
        self.page: Page | None = None
        self.base_links = 2
        self.subdirectories = 0
        self.reborn_ns = 0
        self.listing: Listing | None = None
        self.nlink = 2

    def count_links(self) -> None:
        """Set ``nlink`` from the origin's and the counted difference; 1, unknown, where the base does not count."""
        self.nlink = 1 if self.base_links == 1 else self.base_links + self.subdirectories
