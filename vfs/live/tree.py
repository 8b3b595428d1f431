"""The one merged tree that a mount serves: live inodes over pages of overrides over the base.

Owns which inodes are live, how one is found and goes away, and what has changed since the tree was last folded. Does
not own how an inode is made live (``making``), folding (``folding``), where bytes are (``content``), what operations
do (``namespace``, ``files``, ``attributes``), nor hashing (``seal``).

Concurrency: everything here runs under ``lock``, which the modules on top take; only ``probe`` is called without it,
since it may wait for the base's disk.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from store.entries import below, entry_type
from store.format import (
    Absent,
    Attributes,
    Directory,
    Linked,
    LinkTarget,
    Origin,
    Regular,
    Special,
    Symlink,
)
from store.nodes import Page, Pages, settled
from store.refs import Ino
from vfs.errors import FsError
from vfs.live.extents import Run
from vfs.live.inode import FIRST_NEW_INO, ROOT, DirectoryInode, FileInode, Inode
from vfs.live.listing import Listing
from vfs.live.making import fill_directory, from_base, from_entry, listed_ino
from vfs.live.noted import Noted
from vfs.live.records import Op, Recorder, Shown
from vfs.live.sources import Sources


class BaseFiles(Protocol):
    """The part of ``vfs.trees.host`` that the tree needs; ``host.Host`` on disk."""

    def probe(self, origin: Origin) -> os.stat_result | None: ...

    def ino(self, status: os.stat_result) -> Ino: ...

    def list(self, origin: Origin) -> Sequence[tuple[bytes, Ino, int]]: ...

    def readlink(self, origin: Origin) -> bytes: ...

    def xattrs(self, origin: Origin) -> tuple[tuple[bytes, bytes], ...]: ...

    def open_any(self, origin: Origin) -> int: ...

    def entry(self, origin: Origin) -> Regular | Directory | Symlink | Special: ...


class Root(NamedTuple):
    """A whole tree as a value: its root directory, its link table, and the generation its origins speak of."""

    directory: Directory
    links: Page | None
    generation: int


_UNKNOWN = object()


class Tree:
    """The live tree. ``version`` counts its changes; ``epoch`` the checkpoints and restores."""

    def __init__(
        self,
        root: Root,
        base: BaseFiles,
        pages: Pages,
        sources: Sources,
        record: Recorder,
        now: Callable[[], int],
        next_ino: int = FIRST_NEW_INO,
        epoch: int = 0,
    ) -> None:
        self.lock = threading.RLock()
        self.base = base
        self.pages = pages
        self.sources = sources
        self.record = record
        self.now = now
        self.next_ino = max(next_ino, FIRST_NEW_INO)
        self.epoch = epoch
        self.version = 0
        self.replaying = False
        self.on_changed_below: Callable[[Inode], None] = lambda _: None
        self.give_up: Callable[[Iterable[Run]], None] = lambda _: None
        self.rewrite: Callable[[FileInode], None] = lambda _: None
        self.generation = root.generation
        self.links = root.links
        self.dirty_links: dict[Ino, Inode | None] = {}
        self.places: dict[Ino, set[tuple[DirectoryInode, bytes]]] = {}
        self.linked: dict[Ino, Inode] = {}
        """Live inodes with several names, by key; for one that is certainly so still, ``live_link``."""
        self.shown: Noted[Ino, Shown] = Noted()
        self.shown_origins: Noted[Ino, Origin] = Noted()
        self.reborn: Noted[Ino, int] = Noted()
        self.unshown: set[Ino] = set()
        """Numbers that were taken out of these three, for whoever keeps them on disk."""
        self.changed_since_fold = 0
        self.root = DirectoryInode(ROOT, stat.S_IFDIR | 0o755)
        self.root.lookups = 1
        self.inodes: dict[Ino, Inode] = {ROOT: self.root}
        fill_directory(self, self.root, root.directory)

    # --- finding ---------------------------------------------------------------------------------------------------

    def get(self, ino: Ino) -> Inode:
        """The live inode ``ino``. Raises FsError(ESTALE)."""
        inode = self.inodes.get(ino)
        if inode is None:
            raise FsError(errno.ESTALE)
        return inode

    def directory(self, ino: Ino) -> DirectoryInode:
        """The live directory ``ino``. Raises FsError(ESTALE or ENOTDIR)."""
        inode = self.inodes.get(ino)
        if type(inode) is DirectoryInode:
            return inode
        raise FsError(errno.ESTALE if inode is None else errno.ENOTDIR)

    def probe(self, parent: Ino, name: bytes) -> tuple[Origin | None, os.stat_result | None]:
        """What the base has under ``name``, asked for without the lock: (the directory's origin, its stat or None)."""
        directory = self.directory(parent)
        origin = directory.origin
        if origin is None or name in directory.children:
            return origin, None
        return origin, self.base_status(below(origin, name))

    def base_status(self, origin: Origin) -> os.stat_result | None:
        """stat(2) of a path of the base, None if nothing is there."""
        return self.base.probe(origin)

    def child(
        self, directory: DirectoryInode, name: bytes, probed: tuple[Origin | None, os.stat_result | None]
    ) -> Inode | None:
        """The inode called ``name`` in ``directory``, made live if it was not; None if there is none."""
        found = directory.children.get(name, _UNKNOWN)
        if found is not _UNKNOWN:
            return found  # type: ignore[return-value]
        if not directory.nlink:
            return None
        override = self.pages.get(directory.page, name) if directory.page is not None else None
        if override is not None:
            inode = from_entry(self, directory, override)
        elif directory.origin is None:
            return None
        else:
            origin, status = probed
            if origin != directory.origin:  # a restore came between the question and the lock
                status = self.base_status(below(directory.origin, name))
            inode = None if status is None else from_base(self, directory, below(directory.origin, name), status)
        if inode is not None:
            directory.children[name] = inode
            if inode.linked:
                self.places.setdefault(inode.ino, set()).add((directory, name))
            if inode.parent is None:
                inode.parent = directory
                inode.name = name
        return inode

    def lookup(self, parent: Ino, name: bytes) -> Inode | None:
        """As ``child``, probing the base as needed. For callers that hold the lock and may wait."""
        return self.child(self.directory(parent), name, self.probe(parent, name))

    def refresh(self, inode: FileInode) -> bool:
        """Take over what somebody made below the mount of a file that nobody has touched through it.

        False if there is nothing new, or if the file is not the base's own any more: then the base must not matter.
        """
        if inode.entry is not None or inode.dirty or inode.rewritten or inode.origin is None:
            return False
        status = self.base_status(inode.origin)
        if status is None or not stat.S_ISREG(status.st_mode):
            return False
        if (status.st_size, status.st_mtime_ns) == (inode.size, inode.mtime_ns):
            return False
        inode.size = status.st_size
        inode.blocks = status.st_blocks
        inode.mtime_ns, inode.ctime_ns = status.st_mtime_ns, status.st_ctime_ns
        inode.extents = None
        inode.base = None
        self.on_changed_below(inode)
        return True

    # --- making inodes live ----------------------------------------------------------------------------------------

    def new_ino(self) -> Ino:
        """A number that no inode of this workspace has had."""
        number = self.next_ino
        self.next_ino += 1
        return Ino(number)

    def live(self, key: Ino) -> Inode | None:
        """The live inode that trees know by ``key``, or one of them: bringing back a directory, of which something was
        moved elsewhere before, can make them two.
        """
        shown = self.shown.get(key)
        inode = self.inodes.get(key if shown is None else shown.ino)
        return inode if inode is not None and inode.key == key else None

    def live_link(self, key: Ino) -> Inode | None:
        """The live inode of a row of the link table."""
        inode = self.linked.get(key)
        if inode is None or not inode.linked or not inode.nlink or self.inodes.get(inode.ino) is not inode:
            return None
        return inode

    def unshow(self, key: Ino) -> None:
        """What trees know by ``key`` has gone from the tree; should it come back, it will come as something new."""
        for table in (self.shown, self.shown_origins, self.reborn):
            table.pop(key, None)
        self.unshown.add(key)

    def number(self, key: Ino) -> Ino:
        """The number under which what trees know by ``key`` shows itself."""
        shown = self.shown.get(key)
        return key if shown is None else shown.ino

    def presented(self, attributes: Attributes, reborn_ns: int = 0) -> int:
        """The mtime that is shown for an inode with ``attributes`` in a directory that was brought back then."""
        shown = self.shown.get(attributes.ino)
        if reborn_ns > max(attributes.ctime_ns, 0 if shown is None else shown.since_ns):
            return reborn_ns
        if shown is not None and shown.of_ns == attributes.mtime_ns:
            return shown.since_ns
        return attributes.mtime_ns

    # --- changing --------------------------------------------------------------------------------------------------

    def introduce(self, inode: Inode) -> None:
        """Record where ``inode`` is, so that records of this epoch may call it by its number."""
        waiting = []
        at: Inode | None = inode
        while at is not None and at.known != self.epoch and at is not self.root:
            waiting.append(at)
            at = at.parent
        for at in reversed(waiting):
            if at.parent is not None:
                self.record((Op.KNOW, at.ino, at.parent.ino, at.name), True)
            elif at.linked and at.nlink:
                self.record((Op.KNOW, at.ino, 0, b""), True)
            else:  # without a name it will not outlive those who have it open
                continue
            at.known = self.epoch

    def xattrs_of(self, inode: Inode) -> dict[bytes, bytes]:
        """The extended attributes of ``inode``, read from the base if that has not been done."""
        if inode.xattrs is None:
            inode.xattrs = dict(self.base.xattrs(inode.origin)) if inode.origin is not None else {}
        return inode.xattrs

    def touch(self, inode: Inode) -> None:
        """``inode`` no longer is what its entry says."""
        self.version += 1
        if inode.dirty:
            return
        inode.dirty = True
        if inode.linked:
            self.dirty_links[inode.key] = inode
            return
        name = inode.name
        parent = inode.parent
        while parent is not None and name not in parent.delta:
            parent.delta[name] = None
            if parent.dirty:
                return
            parent.dirty = True
            name = parent.name
            parent = parent.parent

    def mark(self, directory: DirectoryInode, name: bytes, in_base: bool | None) -> None:
        """``name`` in ``directory`` no longer is what the pages say; ``in_base``: whether the origin has the name."""
        if directory.delta.get(name) is None:
            directory.delta[name] = in_base
        self.touch(directory)

    def in_base(
        self, directory: DirectoryInode, name: bytes, probed: tuple[Origin | None, os.stat_result | None]
    ) -> bool | None:
        """Whether the origin of ``directory`` has ``name``, as far as ``probed`` tells."""
        if directory.origin is None:
            return False
        if probed[0] != directory.origin or name in directory.children:
            return None
        return probed[1] is not None

    # --- going away ------------------------------------------------------------------------------------------------

    def forget(self, inode: Inode, count: int) -> None:
        """The kernel gives back ``count`` lookups."""
        inode.lookups = max(inode.lookups - count, 0)
        if not inode.lookups:
            self.evict(inode)

    def forget_all(self) -> None:
        """The kernel that knew inodes is gone: the mount has ended."""
        for inode in list(self.inodes.values()):
            if inode is not self.root:
                inode.lookups = 0
        for inode in list(self.inodes.values()):
            self.evict(inode)

    def evict(self, inode: Inode) -> None:
        """Drop a live inode that nobody needs live: neither the kernel, nor a live child, nor an unfolded change; and
        those above it that were only live for its sake.
        """
        waiting = [inode]
        while waiting:
            at = waiting.pop()
            if at.lookups or at is self.root or self.replaying:
                continue
            if at.nlink and (at.dirty or at.key in self.dirty_links):
                continue
            if isinstance(at, DirectoryInode) and (at.delta or any(c is not None for c in at.children.values())):
                continue
            if self.inodes.get(at.ino) is not at:
                continue
            places: Iterable[tuple[DirectoryInode, bytes]] = ()
            if at.linked:
                places = self.places.get(at.ino, ())
            elif at.parent is not None:
                places = ((at.parent, at.name),)
            if any(name in directory.delta for directory, name in places):
                continue
            del self.inodes[at.ino]
            if not at.nlink and type(at) is FileInode and at.extents is not None:
                self.give_up(at.extents.freeze())
            for directory, name in places:
                if directory.children.get(name) is at:
                    del directory.children[name]
                waiting.append(directory)
            if at.linked:
                self.places.pop(at.ino, None)
                if self.linked.get(at.key) is at:
                    del self.linked[at.key]
            at.parent = None

    # --- listing ---------------------------------------------------------------------------------------------------

    def listing(self, directory: DirectoryInode, base_rows: Sequence[tuple[bytes, Ino, int]] | None = None) -> Listing:
        """The listing of ``directory``, made if need be; ``base_rows`` is what its origin lists, if already read."""
        if directory.listing is None:
            directory.listing = Listing(self.rows(directory, base_rows))
        return directory.listing

    def rows(
        self, directory: DirectoryInode, base_rows: Sequence[tuple[bytes, Ino, int]] | None = None
    ) -> Iterator[tuple[bytes, Ino, int]]:
        """(name, inode number, type) of everything in ``directory``."""
        if not directory.nlink:
            return
        children = dict(directory.children)  # looking up a linked inode below makes it live
        overrides = dict(self.pages.items(directory.page))
        if directory.origin is not None:
            if base_rows is None:
                base_rows = self.base.list(directory.origin)
            for name, ino, kind in base_rows:
                if name not in children and name not in overrides:
                    yield name, listed_ino(self, directory, name, ino), kind
        for name, entry in overrides.items():
            if name in children:
                continue
            match settled(entry):
                case Absent() | LinkTarget():
                    pass
                case Linked():
                    inode = self.child(directory, name, (directory.origin, None))
                    if inode is not None:
                        yield name, inode.ino, inode.type
                        self.evict(inode)
                case Regular() | Directory() | Symlink() | Special() as value:
                    attributes = value.attributes
                    yield (
                        name,
                        listed_ino(self, directory, name, attributes.ino, attributes.ctime_ns),
                        entry_type(value),
                    )
        for name, inode in children.items():
            if inode is not None:
                yield name, inode.ino, inode.type

    # --- folding ---------------------------------------------------------------------------------------------------


def plain_directory(origin: Origin | None, status: os.stat_result, ino: Ino = ROOT) -> Directory:
    """A directory that is just what the base has."""
    attributes = Attributes(
        ino, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ctime_ns
    )
    return Directory(attributes, origin, 0, None)
