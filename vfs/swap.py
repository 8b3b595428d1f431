"""Putting another tree in the place of the one that is served, under the feet of everyone who uses it.

Owns which live inodes survive (what did not change, and directories that are there before and after), what gets a
fresh identity (everything whose content changes or comes back), and what the kernel and watchers have to be told.
Costs what differs between the trees. Runs under the tree's lock, on a tree that has just been folded.
"""

from __future__ import annotations

import errno
import stat
from typing import NamedTuple, TypeAlias

from store.format import (
    Absent,
    Directory,
    Entry,
    Linked,
    LinkTarget,
    Origin,
    Original,
    Regular,
    Special,
    Symlink,
)
from store.nodes import FreshRegular, Page, same_entry, settled
from store.refs import Ino
from vfs.channel import Invalidations, Touched
from vfs.errors import FsError
from vfs.inode import DirectoryInode, FileInode, Inode
from vfs.records import Shown
from vfs.tree import Root, Tree, below, entry_type, link_key

Value: TypeAlias = Regular | Directory | Symlink | Special | Linked


class Swapped(NamedTuple):
    """What was swapped: what the kernel must forget, what watchers should hear."""

    invalidations: Invalidations
    touched: list[Touched]


class _Change(NamedTuple):
    """One name whose value differs; ``directory`` is None where the kernel knows nothing."""

    path: bytes
    directory: DirectoryInode | None
    name: bytes
    before: Value | None
    after: Value | None


def effective(tree: Tree, directory: Directory, page: Page | None, name: bytes) -> Value | None:
    """What ``name`` is in a directory of a sealed or folded tree, None for nothing."""
    entry = tree.pages.get(page, name) if page is not None else None
    return effective_entry(tree, directory.origin, name, entry)


def effective_entry(tree: Tree, origin: Origin | None, name: bytes, override: Entry | None) -> Value | None:
    """As ``effective``, for an override already looked up."""
    if override is None:
        return None if origin is None else base_value(tree, below(origin, name))
    value = settled(override)
    if isinstance(value, Absent):
        return None
    assert not isinstance(value, LinkTarget)
    return value


def base_value(tree: Tree, origin: Origin) -> Value | None:
    """The base's own value at ``origin``; ``Linked`` where it has several names."""
    status = tree.base_status(origin)
    if status is None:
        return None
    if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
        return Linked(tree.base.ino(status))
    return tree.base.entry(origin)


def same_content(a: Value, b: Value) -> bool:
    """True if both have certainly the same type and content, whatever their attributes."""
    if isinstance(a, FreshRegular) and isinstance(b, FreshRegular):
        return a.fresh.value is b.fresh.value
    if isinstance(a, FreshRegular) or isinstance(b, FreshRegular):
        return False
    match a, b:
        case Regular(), Regular():
            return a.content == b.content
        case Symlink(), Symlink():
            return a.target == b.target
        case Special(), Special():
            return (a.file_type, a.rdev) == (b.file_type, b.rdev)
        case Linked(), Linked():
            return a.ino == b.ino
        case Directory(), Directory():
            return True
    return False


def path_of(directory: DirectoryInode, name: bytes) -> bytes:
    """The path of ``name`` in a live directory, relative to the root."""
    parts = [name]
    at: DirectoryInode | None = directory
    while at is not None and at.parent is not None:
        parts.append(at.name)
        at = at.parent
    return b"/".join(reversed(parts))


def ino_of(value: Value) -> Ino:
    """The inode number that the tree gives to ``value``."""
    return value.ino if isinstance(value, Linked) else value.attributes.ino


class Swap:
    """One swap of ``tree`` to ``target`` at time ``now`` (nanoseconds)."""

    def __init__(self, tree: Tree, target: Root, now: int) -> None:
        self._tree = tree
        self._target = target
        self._now = now
        self._entries: list[tuple[Ino, bytes]] = []
        self._attributes: list[Ino] = []
        self._contents: list[Ino] = []
        self._touched: list[Touched] = []
        self._changes: list[_Change] = []
        self._waiting: list[tuple[bytes, DirectoryInode | None, Directory, Directory]] = []

    def run(self) -> Swapped:
        """Swap. The tree has no unfolded change; afterwards it is ``target``."""
        tree = self._tree
        before = tree.root.entry
        assert isinstance(before, Directory) and not tree.root.dirty and not tree.dirty_links
        old_links = tree.links
        tree.version += 1
        tree.links = self._target.links
        tree.generation = self._target.generation
        self._swap_links(old_links)
        self._waiting.append((b"", tree.root, before, self._target.directory))
        moved_from = self._walk_all()
        self._settle(moved_from)
        return Swapped(
            Invalidations(tuple(self._entries), tuple(self._attributes), tuple(self._contents)), self._touched
        )

    # --- walking where the trees differ ----------------------------------------------------------------------------

    def _walk_all(self) -> dict[Ino, _Change]:
        while self._waiting:
            self._walk(*self._waiting.pop())
        gone = {}
        for change in self._changes:
            if change.after is None and change.before is not None and not isinstance(change.before, Linked):
                gone[ino_of(change.before)] = change
        return gone

    def _walk(self, path: bytes, live: DirectoryInode | None, old: Directory, new: Directory) -> None:
        tree = self._tree
        old, new = self._settled(old), self._settled(new)
        if same_entry(old, new):
            return
        old_page, new_page = tree.pages.page_of(old), tree.pages.page_of(new)
        names = self._differing(live, old, old_page, new, new_page)
        for name, before_override, after_override in names:
            before = effective_entry(tree, old.origin, name, before_override)
            after = effective_entry(tree, new.origin, name, after_override)
            self._compare(path, live, name, before, after)
        if live is not None:
            tree.fill_directory(live, new)
            self._contents.append(live.ino)

    @staticmethod
    def _settled(directory: Directory) -> Directory:
        value = settled(directory)
        assert isinstance(value, Directory)
        return value

    def _differing(
        self,
        live: DirectoryInode | None,
        old: Directory,
        old_page: Page | None,
        new: Directory,
        new_page: Page | None,
    ) -> list[tuple[bytes, Entry | None, Entry | None]]:
        pages = self._tree.pages
        if old.origin == new.origin:
            return list(pages.differences(old_page, new_page))
        names = set(live.children) if live is not None else set()
        before, after = dict(pages.items(old_page)), dict(pages.items(new_page))
        names.update(before, after)
        for origin in (old.origin, new.origin):
            if origin is not None:
                names.update(name for name, _, _ in self._tree.base.list(origin))
        return [(name, before.get(name), after.get(name)) for name in names]

    def _compare(
        self, path: bytes, live: DirectoryInode | None, name: bytes, before: Value | None, after: Value | None
    ) -> None:
        if before is None and after is None:
            return
        below_path = path + b"/" + name if path else name
        if isinstance(before, Directory) and isinstance(after, Directory):
            child = live.children.get(name) if live is not None else None
            self._waiting.append((below_path, child if isinstance(child, DirectoryInode) else None, before, after))
            return
        if before is not None and after is not None and self._same_inode(before, after):
            self._keep(live, name, before, after)
            return
        self._changes.append(_Change(below_path, live, name, before, after))

    def _same_inode(self, before: Value, after: Value) -> bool:
        """True if the same inode with the same content is there before and after, perhaps with other attributes."""
        if same_entry(before, after):
            return True
        if ino_of(before) != ino_of(after):
            return False
        if isinstance(before, Linked) and isinstance(after, Linked):
            return True  # its content is the link table's business
        return same_content(self._value(before), self._value(after))

    def _value(self, value: Value) -> Value:
        if not isinstance(value, Linked):
            return value
        row = self._tree.pages.get(self._tree.links, link_key(value.ino))
        row = None if row is None else settled(row)
        return row.inode if isinstance(row, LinkTarget) else value

    def _keep(self, live: DirectoryInode | None, name: bytes, before: Value, after: Value) -> None:
        """The inode stays; it takes the attributes and the kind of entry that the target has."""
        child = live.children.get(name) if live is not None else None
        if child is None or live is None or same_entry(before, after):
            return
        if isinstance(after, Linked):
            if not child.linked:
                child.linked = True
                self._tree.places.setdefault(child.ino, set()).add((live, name))
            row = self._tree.pages.get(self._tree.links, link_key(after.ino))
            row = None if row is None else settled(row)
            if isinstance(row, LinkTarget):
                child.nlink = row.links
                after = row.inode
            else:
                return
        elif child.linked:
            child.linked = False
            child.nlink = 1
            self._tree.places.pop(child.ino, None)
            child.parent, child.name = live, name
        self._take(child, after)

    def _take(self, child: Inode, value: Value) -> None:
        assert not isinstance(value, Linked)
        child.show(value.attributes)
        child.entry = value
        if isinstance(value, Regular):
            assert isinstance(child, FileInode)
            self._tree.set_content_facts(child, value)
        shown = self._tree.shown.get(value.attributes.ino)
        if shown is not None and shown.mtime_ns:
            child.mtime_ns = shown.mtime_ns
        child.ctime_ns = self._now
        self._attributes.append(child.ino)

    # --- the link table --------------------------------------------------------------------------------------------

    def _swap_links(self, old_links: Page | None) -> None:
        tree = self._tree
        for key, before, after in list(tree.pages.differences(old_links, tree.links)):
            ino = Ino(int.from_bytes(key, "big"))
            shown = tree.shown.get(ino)
            live = tree.inodes.get(shown.ino if shown is not None else ino)
            before = None if before is None else settled(before)
            after = None if after is None else settled(after)
            if (
                isinstance(before, LinkTarget)
                and isinstance(after, LinkTarget)
                and same_content(before.inode, after.inode)
            ):
                if live is not None and live.nlink:
                    live.nlink = after.links
                    self._take(live, after.inode)
                continue
            places = tree.places.pop(live.ino, set()) if live is not None and live.linked else set()
            if live is not None and live.linked:
                self._detach(live, places)
            self._renew(ino, directory=False)
            if live is not None and isinstance(after, LinkTarget):
                row = tree.shown[ino].ino, entry_type(after.inode) << 12 | after.inode.attributes.mode
                for directory, name in places:
                    self._touched.append(Touched(path_of(directory, name), (live.ino, live.mode), row))

    def _detach(self, inode: Inode, places: set[tuple[DirectoryInode, bytes]]) -> None:
        for directory, name in places:
            if directory.children.get(name) is inode:
                del directory.children[name]
            if directory.listing is not None:
                directory.listing = None
            self._entries.append((directory.ino, name))
            self._contents.append(directory.ino)
        inode.nlink = 0
        self._drop(inode)

    # --- what has really changed -----------------------------------------------------------------------------------

    def _settle(self, gone: dict[Ino, _Change]) -> None:
        tree = self._tree
        moved: dict[Ino, tuple[_Change, _Change]] = {}
        for change in self._changes:
            if change.before is None and change.after is not None and change.directory is not None:
                source = gone.get(ino_of(change.after))
                if source is not None and source.before is not None and same_content(source.before, change.after):
                    moved[ino_of(change.after)] = (source, change)
        kept: dict[Ino, Inode] = {}
        facts = [self._before(change) for change in self._changes]
        for change in self._changes:
            inode = self._unplace(change)
            if inode is None or change.before is None:
                continue
            ino = ino_of(change.before)
            if change.after is None and ino in moved:
                kept[ino] = inode
            else:
                self._lose(inode)
        for change, before in zip(self._changes, facts, strict=True):
            if change.after is None:
                self._tell(change, before)
                continue
            ino = ino_of(change.after)
            if ino in moved and moved[ino][1] is change:
                self._move(change, moved[ino][0], kept.get(ino))
            elif not isinstance(change.after, Linked):
                self._renew(ino, isinstance(change.after, Directory), change.after)
            self._tell(change, before)
        while self._waiting:
            self._walk(*self._waiting.pop())
        tree.evict(tree.root)

    def _unplace(self, change: _Change) -> Inode | None:
        """Take the name away; the inode that had it, if it was live."""
        directory = change.directory
        if directory is None:
            return None
        inode = directory.children.pop(change.name, None)
        if directory.listing is not None:
            directory.listing.remove(change.name)
        if inode is not None and inode.linked:
            places = self._tree.places.get(inode.ino)
            if places is not None:
                places.discard((directory, change.name))
        return inode

    def _lose(self, inode: Inode) -> None:
        """A live inode has lost its name to the swap; who holds it open keeps it, with its bytes."""
        if isinstance(inode, DirectoryInode):
            for child in list(inode.children.values()):
                if child is not None:
                    self._lose(child)
            inode.children = {}
            inode.page = None
            inode.origin = None
            inode.listing = None
            inode.nlink = 0
        elif inode.linked:
            places = self._tree.places.get(inode.ino)
            if places:
                inode.parent, inode.name = next(iter(places))
                return
            inode.nlink = 0
        else:
            inode.nlink = 0
            if isinstance(inode, FileInode):
                try:
                    self._tree.content_of(inode)
                except FsError as error:  # a damaged store must not stop the swap away from it
                    if error.errno != errno.EIO:
                        raise
        inode.parent = None
        self._drop(inode)

    def _drop(self, inode: Inode) -> None:
        if inode.lookups:
            self._attributes.append(inode.ino)  # who holds it open sees that it has no name
        else:
            self._tree.inodes.pop(inode.ino, None)

    def _renew(self, ino: Ino, directory: bool, value: Value | None = None) -> None:
        """What the tree calls ``ino`` shows itself from now on as something new."""
        tree = self._tree
        if isinstance(value, Regular) and isinstance(value.content, Original):
            tree.shown_origins[ino] = value.content.origin
        tree.shown[ino] = Shown(tree.new_ino(), 0 if directory else self._now)
        if directory:
            tree.reborn[ino] = self._now

    def _move(self, change: _Change, source: _Change, inode: Inode | None) -> None:
        """The same thing under another name: it keeps its inode."""
        directory = change.directory
        assert directory is not None and change.after is not None and source.before is not None
        if inode is not None:
            inode.parent, inode.name = directory, change.name
            directory.children[change.name] = inode
            if not isinstance(change.after, Directory | Linked) and not same_entry(source.before, change.after):
                self._take(inode, change.after)
        if isinstance(change.after, Directory) and isinstance(source.before, Directory):
            live = inode if isinstance(inode, DirectoryInode) else None
            self._waiting.append((change.path, live, source.before, change.after))

    def _before(self, change: _Change) -> tuple[Ino, int] | None:
        """(inode number, st_mode) of what stood under the name before, where the kernel may have known it."""
        if change.directory is None or change.before is None:
            return None
        inode = change.directory.children.get(change.name)
        return self._facts(change.directory, change.before) if inode is None else (inode.ino, inode.mode)

    def _tell(self, change: _Change, before: tuple[Ino, int] | None) -> None:
        """Note what the kernel and watchers have to hear of ``change``."""
        directory = change.directory
        if directory is None:
            return
        self._entries.append((directory.ino, change.name))
        after = None if change.after is None else self._facts(directory, change.after)
        if after is not None and directory.listing is not None:
            directory.listing.add(change.name, after[0], after[1] >> 12)
        self._touched.append(Touched(change.path, before, after))

    def _facts(self, directory: DirectoryInode, value: Value) -> tuple[Ino, int] | None:
        """(inode number as shown, st_mode) of what stands under a name."""
        tree = self._tree
        if isinstance(value, Linked):
            row = self._value(value)
            mode = stat.S_IFREG if isinstance(row, Linked) else entry_type(row) << 12 | row.attributes.mode
            return tree.shown_ino(directory, value.ino, mode >> 12), mode
        kind = entry_type(value)
        return tree.shown_ino(directory, value.attributes.ino, kind), kind << 12 | value.attributes.mode
