"""The one merged tree that a mount serves: live inodes over pages of overrides over the base.

Owns which inodes are live, how one is found, what has changed since the tree was last folded, and the folding.
Does not own what operations do (``namespace``, ``files``, ``attributes``), nor hashing (``seal``).

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

from store.format import (
    Absent,
    Attributes,
    Chunked,
    Content,
    Directory,
    Entry,
    Inline,
    Linked,
    LinkTarget,
    Origin,
    Original,
    Regular,
    Special,
    Symlink,
)
from store.nodes import NO_CONTENT, Fresh, FreshDirectory, FreshRegular, Page, Pages, settled
from store.refs import Ino
from vfs.errors import FsError
from vfs.live.extents import Extents, Run
from vfs.live.inode import FIRST_NEW_INO, ROOT, DirectoryInode, FileInode, Inode, SpecialInode, SymlinkInode
from vfs.live.listing import Listing
from vfs.live.pending import Pending
from vfs.live.records import UNKNOWN_TIME, Op, Recorder, Shown
from vfs.live.sources import OriginSource, Sources


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


def link_key(ino: Ino) -> bytes:
    """The link table's key of an inode."""
    return ino.to_bytes(8, "big")


def below(origin: Origin, name: bytes) -> Origin:
    """The origin of ``name`` in the directory at ``origin``."""
    return Origin(origin.tree, origin.path + b"/" + name if origin.path else name)


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
        self.shown: dict[Ino, Shown] = {}
        self.shown_origins: dict[Ino, Origin] = {}
        self.reborn: dict[Ino, int] = {}
        self.changed_since_fold = 0
        self.root = DirectoryInode(ROOT, stat.S_IFDIR | 0o755)
        self.root.lookups = 1
        self.inodes: dict[Ino, Inode] = {ROOT: self.root}
        self.fill_directory(self.root, root.directory)

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
            inode = self._from_entry(directory, override)
        elif directory.origin is None:
            return None
        else:
            origin, status = probed
            if origin != directory.origin:  # a restore came between the question and the lock
                status = self.base_status(below(directory.origin, name))
            inode = None if status is None else self._from_base(directory, below(directory.origin, name), status)
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

    def _identify(
        self, directory: DirectoryInode | None, key: Ino, ctime_ns: int, mtime_ns: int | None
    ) -> tuple[Ino, int | None]:
        """The number of an inode that is made live, and the mtime that it shows (None: its entry's).

        ``directory``, if it was brought back by a restore, brought back all that had been in it; but not what was put
        there since, which the change time tells. ``mtime_ns`` is None for directories.
        """
        shown = self.shown.get(key)
        reborn = directory.reborn_ns if directory is not None else 0
        if reborn > ctime_ns and (shown is None or shown.since_ns < reborn):
            shown = self.shown[key] = Shown(self.new_ino(), reborn, mtime_ns)
        if (key if shown is None else shown.ino) in self.inodes:  # an inode without a name goes by that number still
            since, of = (0, None) if shown is None else (shown.since_ns, shown.of_ns)
            shown = self.shown[key] = Shown(self.new_ino(), since, of)
        if shown is None:
            return key, None
        if shown.of_ns == UNKNOWN_TIME and mtime_ns is not None:
            shown = self.shown[key] = Shown(shown.ino, shown.since_ns, mtime_ns)
        return shown.ino, shown.since_ns if mtime_ns is not None and shown.of_ns == mtime_ns else None

    def _rebirth(self, directory: DirectoryInode | None, key: Ino, ctime_ns: int) -> int:
        """When a restore brought back the directory that trees know by ``key``, or one above it; 0 for never."""
        when = self.reborn.get(key, 0)
        if directory is not None and directory.reborn_ns > max(when, ctime_ns):
            when = self.reborn[key] = directory.reborn_ns
        return when

    def _listed_ino(self, directory: DirectoryInode, name: bytes, key: Ino, ctime_ns: int = 0) -> Ino:
        """The number that a listing gives for a name that is not live: the one that it will have when looked up."""
        shown = self.shown.get(key)
        since = 0 if shown is None else shown.since_ns
        if directory.reborn_ns <= max(since, ctime_ns):
            number = key if shown is None else shown.ino
            live = self.inodes.get(number)
            if live is None or (live.linked and live.nlink):  # another of its names
                return number
        inode = self.lookup(directory.ino, name)
        if inode is None:  # it has just gone from the base
            return key
        self.evict(inode)
        return inode.ino

    def _from_entry(self, directory: DirectoryInode, entry: Entry) -> Inode | None:
        match settled(entry):
            case Absent():
                return None
            case Linked(key):
                return self.linked_inode(key)
            case Regular() | Directory() | Symlink() | Special() as value:
                return self._make(directory, value)
            case LinkTarget():
                raise FsError(errno.EIO, "a row of the link table stands in a directory")

    def _make(self, directory: DirectoryInode | None, value: Regular | Directory | Symlink | Special) -> Inode:
        inode: Inode
        attributes = value.attributes
        key, mode, ctime_ns = attributes.ino, attributes.mode, attributes.ctime_ns
        if isinstance(value, Directory):
            ino, _ = self._identify(directory, key, ctime_ns, None)
            inode = DirectoryInode(ino, stat.S_IFDIR | mode)
            inode.reborn_ns = self._rebirth(directory, key, ctime_ns)
            self.fill_directory(inode, value)
            self.inodes[ino] = inode
            return inode
        ino, mtime = self._identify(directory, key, ctime_ns, attributes.mtime_ns)
        match value:
            case Regular():
                inode = FileInode(ino, stat.S_IFREG | mode)
                self.set_content_facts(inode, value)
            case Symlink():
                inode = SymlinkInode(ino, stat.S_IFLNK | 0o777, value.target)
            case Special():
                inode = SpecialInode(ino, value.file_type | mode)
                inode.rdev = value.rdev
        inode.key = key
        inode.show(attributes)
        inode.entry = value
        if mtime is not None:
            inode.mtime_ns = inode.ctime_ns = mtime
        self.inodes[ino] = inode
        return inode

    def set_content_facts(self, inode: FileInode, value: Regular) -> None:
        """Size and blocks of a file with the content of ``value``; its extents are read when they are needed."""
        inode.extents = None
        inode.rewritten = False
        if isinstance(value, FreshRegular):
            pending = value.fresh.value
            assert isinstance(pending, Pending)
            inode.size = pending.size
            inode.blocks = blocks_of(sum(run.end - run.start for run in pending.runs))
            return
        inode.size = content_size(value.content)
        inode.blocks = blocks_of(inode.size)
        if isinstance(value.content, Chunked):
            inode.extents = self.sources.extents(value.content)
            inode.blocks = blocks_of(inode.extents.covered)
        elif isinstance(value.content, Original):
            status = self.base_status(value.content.origin)
            if status is not None:
                inode.blocks = status.st_blocks

    def fill_directory(self, inode: DirectoryInode, value: Directory) -> None:
        """Let ``inode`` be what ``value`` says; its live children are not looked at."""
        value_now = settled(value)
        assert isinstance(value_now, Directory)
        inode.show(value_now.attributes)
        inode.key = value_now.attributes.ino
        inode.entry = value_now
        inode.origin = value_now.origin
        inode.page = self.pages.page_of(value_now)
        inode.subdirectories = value_now.subdirectories
        inode.base_links = 2
        inode.size = 4096
        inode.blocks = 8
        if inode.origin is not None:
            status = self.base_status(inode.origin)
            if status is not None:
                inode.base_links = status.st_nlink
                inode.size = status.st_size
                inode.blocks = status.st_blocks
        inode.count_links()

    def _from_base(self, directory: DirectoryInode, origin: Origin, status: os.stat_result) -> Inode:
        key = self.base.ino(status)
        mode = status.st_mode
        linked = status.st_nlink > 1 and not stat.S_ISDIR(mode)
        if linked:
            live = self.live_link(key)
            if live is not None:
                return live
            row = self.pages.get(self.links, link_key(key)) if self.links is not None else None
            if row is not None:
                return self.linked_inode(key)
        # A file with several names has not come back because one of them has.
        parent = None if linked else directory
        times = status.st_ctime_ns, None if stat.S_ISDIR(mode) else status.st_mtime_ns
        ino, mtime = self._identify(parent, key, *times)
        inode: Inode
        if stat.S_ISREG(mode):
            inode = FileInode(ino, mode)
        elif stat.S_ISDIR(mode):
            inode = DirectoryInode(ino, mode)
            inode.base_links = status.st_nlink
            inode.reborn_ns = self._rebirth(directory, key, status.st_ctime_ns)
        elif stat.S_ISLNK(mode):
            inode = SymlinkInode(ino, mode, self.base.readlink(origin))
        else:
            inode = SpecialInode(ino, mode)
            inode.rdev = status.st_rdev
        inode.key = key
        inode.nlink = status.st_nlink
        if linked:
            inode.linked = True
            self.linked[key] = inode
        inode.uid = status.st_uid
        inode.gid = status.st_gid
        inode.size = status.st_size
        inode.blocks = status.st_blocks
        inode.atime_ns = status.st_atime_ns
        inode.mtime_ns = status.st_mtime_ns
        inode.ctime_ns = status.st_ctime_ns
        inode.origin = origin
        if mtime is not None:
            inode.mtime_ns = inode.ctime_ns = mtime
        self.inodes[ino] = inode
        return inode

    def linked_inode(self, key: Ino) -> Inode:
        """The inode of a row of the link table. Raises FsError(EIO) if the row is missing."""
        live = self.live_link(key)
        if live is not None:
            return live
        row = self.pages.get(self.links, link_key(key))
        if row is not None:
            row = settled(row)
        if not isinstance(row, LinkTarget):
            raise FsError(errno.EIO, f"inode {key} is missing from the link table")
        value = settled(row.inode)
        assert isinstance(value, Regular | Symlink | Special)
        inode = self._make(None, value)
        inode.linked = True
        inode.nlink = row.links
        self.linked[key] = inode
        return inode

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
                    yield name, self._listed_ino(directory, name, ino), kind
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
                        self._listed_ino(directory, name, attributes.ino, attributes.ctime_ns),
                        entry_type(value),
                    )
        for name, inode in children.items():
            if inode is not None:
                yield name, inode.ino, inode.type

    # --- folding ---------------------------------------------------------------------------------------------------

    def fold(self) -> Root:
        """Bring the pages up to date with the live inodes and return the tree as a value. Costs what has changed."""
        changed: list[Inode] = []
        if self.dirty_links:
            rows: dict[bytes, Entry | None] = {}
            for key, inode in self.dirty_links.items():
                if inode is None:
                    rows[link_key(key)] = None
                else:
                    rows[link_key(key)] = LinkTarget(self._leaf_entry(inode), inode.nlink)
                    inode.dirty = False
                    changed.append(inode)
            self.dirty_links = {}
            self.links = self.pages.update(self.links, rows)
        if self.root.dirty:
            self._fold_directory(self.root, changed)
        for inode in changed:
            if not inode.lookups:
                self.evict(inode)
        entry = self.root.entry
        assert isinstance(entry, Directory)
        return Root(entry, self.links, self.generation)

    def _fold_directory(self, directory: DirectoryInode, changed: list[Inode]) -> Directory:
        changes: dict[bytes, Entry | None] = {}
        for name, in_base in directory.delta.items():
            child = directory.children.get(name)
            if child is None:
                if directory.origin is None or in_base is False:
                    changes[name] = None
                elif in_base or self.base_status(below(directory.origin, name)) is not None:
                    changes[name] = Absent()
                else:
                    changes[name] = None
                directory.children.pop(name, None)
                continue
            self.changed_since_fold += 1
            if child.linked:
                changes[name] = Linked(child.key)
            elif isinstance(child, DirectoryInode):
                if child.dirty:
                    changes[name] = self._fold_directory(child, changed)
                else:
                    changes[name] = child.entry if child.entry is not None else self._directory_entry(child)
            elif child.dirty or child.entry is None:
                changes[name] = self._leaf_entry(child)
                child.dirty = False
            else:
                changes[name] = child.entry
            changed.append(child)
        directory.page = self.pages.update(directory.page, changes)
        directory.delta = {}
        directory.dirty = False
        return self._directory_entry(directory)

    def _directory_entry(self, directory: DirectoryInode) -> Directory:
        self.xattrs_of(directory)
        attributes = directory.attributes()
        page = directory.page
        entry: Directory
        if page is None or page.ref is not None:
            ref = None if page is None else page.ref
            entry = Directory(attributes, directory.origin, directory.subdirectories, ref)
        else:
            entry = FreshDirectory(attributes, directory.origin, directory.subdirectories, None, Fresh(page))
        directory.entry = entry
        return entry

    def _leaf_entry(self, inode: Inode) -> Regular | Symlink | Special:
        self.xattrs_of(inode)
        shown = self.shown.get(inode.key)
        if shown is not None and shown.of_ns == inode.mtime_ns:  # that is its time now, whoever gave it
            self.shown[inode.key] = Shown(shown.ino, shown.since_ns, None)
        entry: Regular | Symlink | Special
        if isinstance(inode, FileInode):
            entry = self._file_entry(inode)
        elif isinstance(inode, SymlinkInode):
            entry = Symlink(inode.attributes(), inode.target)
        else:
            entry = Special(inode.attributes(), stat.S_IFMT(inode.mode), inode.rdev)
        inode.entry = entry
        return entry

    def _file_entry(self, inode: FileInode) -> Regular:
        attributes = inode.attributes()
        if not inode.size:
            inode.rewritten = False
            return Regular(attributes, Inline(b""))
        if inode.rewritten:
            assert inode.extents is not None
            inode.rewritten = False
            return FreshRegular(attributes, NO_CONTENT, Fresh(Pending(inode.size, inode.extents.freeze())))
        before = None if inode.entry is None else settled(inode.entry)
        if isinstance(before, FreshRegular):
            return FreshRegular(attributes, NO_CONTENT, Fresh(before.fresh.value))
        if isinstance(before, Regular):
            return Regular(attributes, before.content)
        assert inode.origin is not None
        return Regular(attributes, self.original(inode))

    def original(self, inode: FileInode) -> Content:
        """The content of a file that nobody has written to since it was in the base."""
        assert inode.origin is not None
        status = self.base_status(inode.origin)
        mtime = inode.mtime_ns if status is None else status.st_mtime_ns
        return Original(inode.origin, inode.size, mtime)

    def base_source(self, inode: FileInode) -> OriginSource:
        """The one source of a file that is just what the base has."""
        source = inode.base
        if source is None:
            origin = inode.origin
            assert origin is not None
            mtime = inode.mtime_ns
            if self.shown or inode.dirty:  # it may show another time than the base has
                status = self.base_status(origin)
                mtime = mtime if status is None else status.st_mtime_ns
            source = inode.base = OriginSource(self.sources, origin, inode.size, mtime)
        return source

    def content_of(self, inode: FileInode) -> Extents:
        """The extents of ``inode``, read if that has not been done. Raises FsError(EIO) for a damaged store."""
        if inode.extents is None:
            entry = None if inode.entry is None else settled(inode.entry)
            if isinstance(entry, FreshRegular):
                pending = entry.fresh.value
                assert isinstance(pending, Pending)
                inode.extents = Extents(pending.runs)
            elif isinstance(entry, Regular):
                inode.extents = self._stored_extents(inode, entry.content)
            elif inode.origin is not None:
                inode.extents = self._stored_extents(inode, self.original(inode))
            else:
                inode.extents = Extents()
        return inode.extents

    def _stored_extents(self, inode: FileInode, content: Content) -> Extents:
        """The extents of ``content``; the holes of a sparse base file stay holes, so that they cost no space either."""
        if isinstance(content, Original) and inode.blocks * 512 < content.size:
            return Extents(self.sources.data_runs(content))
        return self.sources.extents(content)


def blocks_of(length: int) -> int:
    """512-byte blocks for ``length`` bytes in pages of 4096."""
    return (length + 4095) // 4096 * 8


def content_size(content: Content) -> int:
    """The number of bytes of ``content``."""
    return len(content.data) if isinstance(content, Inline) else content.size


def entry_type(entry: Regular | Directory | Symlink | Special) -> int:
    """S_IFMT's bits of what ``entry`` is, shifted right by 12."""
    match entry:
        case Regular():
            return stat.S_IFREG >> 12
        case Directory():
            return stat.S_IFDIR >> 12
        case Symlink():
            return stat.S_IFLNK >> 12
        case Special():
            return entry.file_type >> 12


def plain_directory(origin: Origin | None, status: os.stat_result, ino: Ino = ROOT) -> Directory:
    """A directory that is just what the base has."""
    attributes = Attributes(
        ino, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ctime_ns
    )
    return Directory(attributes, origin, 0, None)
