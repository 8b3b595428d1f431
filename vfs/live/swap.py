"""Putting another tree in the place of the one that is served, under the feet of everyone who uses it.

Owns which live inodes survive (what holds the same under the same name, and directories that are there before and
after), what gets a fresh identity (everything whose content changes or comes back), and what the kernel and watchers
have to be told. Costs what differs between the trees. Runs under the tree's lock, on a tree that has just been folded.
"""

from __future__ import annotations

import errno
from collections import Counter
from typing import NamedTuple

from store.entries import entry_type
from store.format import Directory, Entry, Original, Regular
from store.nodes import Page, same_entry, settled
from store.refs import Ino
from vfs.channel import Invalidations, Touched
from vfs.errors import FsError
from vfs.live.content import content_of, set_content_facts
from vfs.live.effective import Found, resolve, row, same_content
from vfs.live.inode import FIRST_NEW_INO, DirectoryInode, FileInode, Inode
from vfs.live.making import fill_directory
from vfs.live.records import UNKNOWN_TIME, Shown
from vfs.live.tree import Root, Tree


class Swapped(NamedTuple):
    """What was swapped: what the kernel must forget, what watchers should hear."""

    invalidations: Invalidations
    touched: list[Touched]


class _Change(NamedTuple):
    """One name that holds something else; ``directory`` is None where the kernel knows nothing. ``reborn_ns`` is when
    a restore brought the directory back.
    """

    reborn_ns: int
    path: bytes
    directory: DirectoryInode | None
    name: bytes
    before: Found | None
    after: Found | None


class _Pair(NamedTuple):
    """A directory before and after, at ``path`` in the new tree, and its inode if that is live. ``reborn_ns`` is when
    a restore brought back the directory above it.
    """

    reborn_ns: int
    path: bytes
    live: DirectoryInode | None
    before: Directory
    after: Directory


class Swap:
    """One swap of ``tree`` to ``target`` at time ``now`` (nanoseconds)."""

    def __init__(self, tree: Tree, target: Root, now: int) -> None:
        self._tree = tree
        self._target = target
        self._now = now
        self._old_links = tree.links
        self._entries: list[tuple[Ino, bytes]] = []
        self._attributes: list[Ino] = []
        self._contents: list[Ino] = []
        self._touched: list[Touched] = []
        self._changes: list[_Change] = []
        self._waiting: list[_Pair] = []
        self._kept: set[Ino] = set()
        self._kept_inodes: set[Inode] = set()
        self._renewed: set[Ino] = set()
        self._numbers: dict[Ino, Shown] = {}
        """What is kept under a name, but with another key: by that key, how it has shown itself so far."""
        self._homeless: list[tuple[bytes, Inode]] = []
        self._reborn: dict[Ino, int] = {}
        self._reborn_ns = 0
        """When the directory that is being walked came back."""
        self._before_numbers: dict[Ino, Ino] = {}
        self._one_sided: dict[Ino, tuple[Found | None, Found | None]] = {}
        self._visited: list[DirectoryInode] = []

    def run(self) -> Swapped:
        """Swap. The tree has no unfolded change; afterwards it is ``target``."""
        tree = self._tree
        before = tree.root.entry
        assert isinstance(before, Directory) and not tree.root.dirty and not tree.dirty_links
        tree.version += 1
        tree.links = self._target.links
        tree.generation = self._target.generation
        renumbered = self._swap_links()
        self._waiting.append(_Pair(0, b"", tree.root, before, self._target.directory))
        while self._waiting:  # a second round for what differs inside directories that have moved
            self._walk_all()
            self._settle(renumbered)
        for path, inode in self._homeless:
            self._house(path, inode)
        if renumbered:
            self._renumber(renumbered)
        for directory in self._visited:
            tree.evict(directory)
        return Swapped(
            Invalidations(tuple(self._entries), tuple(self._attributes), tuple(self._contents)), self._touched
        )

    # --- walking where the trees differ ----------------------------------------------------------------------------

    def _walk_all(self) -> None:
        while self._waiting:
            self._walk(self._waiting.pop())

    def _walk(self, pair: _Pair) -> None:
        tree = self._tree
        path, live = pair.path, pair.live
        old, new = _settled(pair.before), _settled(pair.after)
        if same_entry(old, new):
            return
        self._continue(old, new, pair.reborn_ns)
        above = pair.reborn_ns if pair.reborn_ns > old.attributes.ctime_ns else 0
        self._reborn_ns = max(tree.reborn.get(old.attributes.ino, 0), above)
        if self._reborn_ns and old.attributes.ino != new.attributes.ino:
            self._reborn[new.attributes.ino] = self._reborn_ns
        old_page, new_page = tree.pages.page_of(old), tree.pages.page_of(new)
        for name, before_override, after_override in self._differing(live, old, old_page, new, new_page):
            before = resolve(tree, self._old_links, old.origin, name, before_override)
            after = resolve(tree, tree.links, new.origin, name, after_override)
            self._compare(path + b"/" + name if path else name, live, name, before, after)
        if live is not None:
            fill_directory(tree, live, new)
            self._contents.append(live.ino)
            self._visited.append(live)

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
        self, path: bytes, live: DirectoryInode | None, name: bytes, before: Found | None, after: Found | None
    ) -> None:
        if before is None and after is None:
            return
        if before is not None and after is not None:
            if isinstance(before.inode, Directory) and isinstance(after.inode, Directory):
                child = live.children.get(name) if live is not None else None
                inode = child if isinstance(child, DirectoryInode) else None
                self._waiting.append(_Pair(self._reborn_ns, path, inode, before.inode, after.inode))
                return
            if self._same_inode(before, after):
                self._keep(path, live, name, before, after)
                return
        self._changes.append(_Change(self._reborn_ns, path, live, name, before, after))

    def _same_inode(self, before: Found, after: Found) -> bool:
        """True if what a name holds is the same before and after, perhaps with other attributes."""
        if before.key != after.key and (before.links or after.links):
            return False
        return not isinstance(before.inode, Directory) and same_content(self._tree, before.inode, after.inode)

    # --- what stays ------------------------------------------------------------------------------------------------

    def _continue(self, before: Directory | Found, after: Directory | Found, reborn_ns: int) -> None:
        """What is under a name goes on showing the number that it had there, whatever trees call it; or would have
        had, if somebody had looked since its directory came back.
        """
        old, new = (one.inode.attributes if isinstance(one, Found) else one.attributes for one in (before, after))
        if old.ino == new.ino:
            return
        shown = self._tree.shown.get(old.ino, Shown(old.ino))
        if reborn_ns > max(old.ctime_ns, shown.since_ns):
            shown = Shown(self._tree.new_ino(), reborn_ns, None if isinstance(before, Directory) else old.mtime_ns)
        if shown.of_ns == old.mtime_ns == new.mtime_ns:
            self._numbers[new.ino] = shown
        else:
            self._numbers[new.ino] = Shown(shown.ino, self._now)

    def _keep(self, path: bytes, live: DirectoryInode | None, name: bytes, before: Found, after: Found) -> None:
        """The inode stays; it takes the attributes and the links that the target has."""
        tree = self._tree
        self._kept.add(after.key)
        self._continue(before, after, self._reborn_ns)
        child = live.children.get(name) if live is not None else None
        if child is None and before.links:  # the kernel may know it by another name only
            child = tree.live_link(before.key)
            if child is None:
                return
            if not after.links:
                self._homeless.append((path, child))
        if child is None:
            return
        self._kept_inodes.add(child)
        if after.links and not child.linked:
            tree.linked[after.key] = child
            tree.places[child.ino] = {(child.parent, child.name)} if child.parent is not None else set()
        elif child.linked and not after.links:
            self._part(child, live, name)
        links = after.links or 1
        if child.nlink == links and child.linked == bool(after.links) and same_entry(before.inode, after.inode):
            return
        child.linked = bool(after.links)
        child.nlink = links
        self._take(child, after)

    def _part(self, child: Inode, directory: DirectoryInode | None, name: bytes) -> None:
        """An inode with several names is from now on the one under this name only."""
        for other, known_as in self._tree.places.pop(child.ino, ()):
            if (other, known_as) != (directory, name) and other.children.get(known_as) is child:
                del other.children[known_as]
                other.listing = None
                self._entries.append((other.ino, known_as))
        child.parent, child.name = directory, name

    def _take(self, child: Inode, value: Found) -> None:
        child.show(value.inode.attributes)
        child.key = value.key
        assert not isinstance(value.inode, Directory)
        child.entry = value.inode
        if isinstance(value.inode, Regular):
            assert isinstance(child, FileInode)
            set_content_facts(self._tree, child, value.inode)
        shown = self._numbers.get(value.key) or self._tree.shown.get(value.key)
        if shown is not None and shown.of_ns == value.inode.attributes.mtime_ns:
            child.mtime_ns = shown.since_ns
        child.ctime_ns = self._now
        self._attributes.append(child.ino)

    def _house(self, path: bytes, inode: Inode) -> None:
        """Give a live inode, which was known by names that it has lost, the one place that it has now."""
        tree = self._tree
        *above, name = path.split(b"/")
        directory = tree.root
        for step in above:
            found = tree.lookup(directory.ino, step)
            assert isinstance(found, DirectoryInode), "the new tree has that directory"
            directory = found
        directory.children[name] = inode
        inode.parent, inode.name = directory, name

    # --- the link table --------------------------------------------------------------------------------------------

    def _swap_links(self) -> dict[Ino, Ino]:
        """Inodes with several names whose row differs: the directories that name them may be the same in both trees.

        Returns the new numbers of those whose content differs, by the old ones.
        """
        tree = self._tree
        renumbered: dict[Ino, Ino] = {}
        for name, _, _ in list(tree.pages.differences(self._old_links, tree.links)):
            key = Ino(int.from_bytes(name, "big"))
            before, after = row(tree, self._old_links, key), row(tree, tree.links, key)
            if before is not None and after is not None:
                self._swap_row(key, before, after, renumbered)
            elif key < FIRST_NEW_INO:
                self._one_sided[key] = before, after
        return renumbered

    def _swap_row(self, key: Ino, before: Found | None, after: Found | None, renumbered: dict[Ino, Ino]) -> None:
        tree = self._tree
        live = tree.live_link(key)
        if before is not None and after is not None and same_content(tree, before.inode, after.inode):
            self._kept.add(key)
            if live is not None:
                live.nlink = after.links
                self._take(live, after)
            return
        number = self._before_numbers[key] = tree.number(key)
        places = set(tree.places.pop(live.ino, ())) if live is not None else set()
        if live is not None:
            self._detach(live, places)
        self._renew(key, after)
        if live is not None and after is not None:
            for directory, name in places:
                self._touched.append(Touched(_path(directory, name), (live.ino, live.mode), self._facts(after)))
        renumbered[number] = tree.number(key)

    def _weigh_links(self, renumbered: dict[Ino, Ino]) -> None:
        """Decide which inodes with several names go on, now that it is known which names they lose and get."""
        tree = self._tree
        lost = Counter(one.before.key for one in self._changes if one.before is not None and one.before.links)
        come = Counter(one.after.key for one in self._changes if one.after is not None and one.after.links)
        # A row in one tree only: in the other the inode is just what the base has, or not there at all.
        for key, (before, after) in self._one_sided.items():
            if key in self._kept:
                continue
            if before is not None:
                there = come[key] > 0 or lost[key] < before.links
            else:
                assert after is not None
                there = lost[key] > 0 or come[key] < after.links
            if there:
                self._swap_row(key, before or self._base_row(after), after or self._base_row(before), renumbered)
        self._one_sided.clear()
        for change in self._changes:
            for one, other_links in ((change.before, tree.links), (change.after, self._old_links)):
                if one is not None and one.links and one.key not in self._renewed:
                    other = row(tree, other_links, one.key)
                    if other is not None and same_content(tree, one.inode, other.inode):
                        self._kept.add(one.key)

    def _renumber(self, renumbered: dict[Ino, Ino]) -> None:
        """Listings name inodes whose names have not changed, but whose numbers have."""
        for inode in self._tree.inodes.values():
            listing = inode.listing if isinstance(inode, DirectoryInode) else None
            if listing is not None and listing.renumber(renumbered):
                self._contents.append(inode.ino)

    def _base_row(self, other: Found | None) -> Found | None:
        """What the base says of an inode whose row, in one tree only, is ``other``; None if that cannot be told."""
        if other is None or not isinstance(other.inode, Regular) or not isinstance(other.inode.content, Original):
            return None
        origin = other.inode.content.origin
        status = self._tree.base_status(origin)
        if status is None or status.st_nlink < 2 or self._tree.base.ino(status) != other.key:
            return None
        return Found(self._tree.base.entry(origin), status.st_nlink)

    def _detach(self, inode: Inode, places: set[tuple[DirectoryInode, bytes]]) -> None:
        for directory, name in places:
            if directory.children.get(name) is inode:
                del directory.children[name]
            self._entries.append((directory.ino, name))
        inode.nlink = 0
        inode.parent = None
        self._drop(inode)

    # --- what has really changed -----------------------------------------------------------------------------------

    def _settle(self, renumbered: dict[Ino, Ino]) -> None:
        tree = self._tree
        self._weigh_links(renumbered)
        gone, moved = self._moves()
        facts = [self._before(change) for change in self._changes]
        movers: dict[Ino, Inode] = {}
        for change in self._changes:
            inode = self._unplace(change)
            if inode is None or change.before is None:
                continue
            key = change.before.key
            if key in moved and gone[key] is change:
                movers[key] = inode
            else:
                self._lose(inode)
        tree.shown.update(self._numbers)
        tree.reborn.update(self._reborn)
        for change in self._changes:
            if change.after is None:
                continue
            key = change.after.key
            if moved.get(key) is change:
                self._move(change, gone[key], movers.get(key))
            elif key not in self._kept:
                self._renew(key, change.after)
        for change, before in zip(self._changes, facts, strict=True):
            self._tell(change, before)
        for change in self._changes:
            if change.before is not None and not change.before.links:
                self._left(change.before.key, moved)
        self._changes, self._numbers, self._reborn = [], {}, {}

    def _left(self, key: Ino, moved: dict[Ino, _Change]) -> None:
        """Forget how what has gone showed itself, so that what is kept of that does not grow with every restore."""
        if key not in self._renewed and key not in self._kept and key not in moved:
            self._tree.unshow(key)

    def _moves(self) -> tuple[dict[Ino, _Change], dict[Ino, _Change]]:
        """By key: where something with one name has gone, and where the same has come."""
        gone: dict[Ino, _Change] = {}
        for change in self._changes:
            if change.before is not None and not change.before.links and change.before.key not in self._kept:
                gone.setdefault(change.before.key, change)
        moved: dict[Ino, _Change] = {}
        for change in self._changes:
            after = change.after
            if after is not None and not after.links and after.key in gone:
                source = gone[after.key].before
                if source is not None and same_content(self._tree, source.inode, after.inode):
                    moved.setdefault(after.key, change)
        return gone, moved

    def _unplace(self, change: _Change) -> Inode | None:
        """Take the name away; the inode that had it, if it was live."""
        directory = change.directory
        if directory is None:
            return None
        inode = directory.children.pop(change.name, None)
        if directory.listing is not None and change.after is None:  # what takes its place is listed in its place
            directory.listing.remove(change.name)
        if inode is not None and inode.linked:
            places = self._tree.places.get(inode.ino)
            if places is not None:
                places.discard((directory, change.name))
        return inode

    def _lose(self, inode: Inode) -> None:
        """A live inode has lost a name to the swap; who holds it open keeps it, with its bytes."""
        if isinstance(inode, DirectoryInode):
            for name, child in inode.children.items():
                if child is not None:
                    if child.linked:
                        self._tree.places.get(child.ino, set()).discard((inode, name))
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
            inode.parent = None
            after = row(self._tree, self._tree.links, inode.key)
            if inode.key in self._kept or (after is not None and inode.key not in self._renewed):
                self._tree.evict(inode)  # it has names that the kernel does not know
                return
            inode.nlink = 0
        elif inode in self._kept_inodes:
            return
        else:
            inode.nlink = 0
            if isinstance(inode, FileInode):
                try:
                    content_of(self._tree, inode)
                except FsError as error:  # a damaged store must not stop the swap away from it
                    if error.errno != errno.EIO:
                        raise
        inode.parent = None
        self._drop(inode)

    def _drop(self, inode: Inode) -> None:
        """An inode has no name any more."""
        if inode.lookups:
            (self._contents if isinstance(inode, DirectoryInode) else self._attributes).append(inode.ino)
        else:
            self._tree.inodes.pop(inode.ino, None)

    def _renew(self, key: Ino, value: Found | None) -> None:
        """What trees know by ``key`` shows itself from now on as something new."""
        if key in self._renewed:
            return
        self._renewed.add(key)
        tree = self._tree
        if value is not None and isinstance(value.inode, Directory):
            tree.shown[key] = Shown(tree.new_ino(), self._now)
            tree.reborn[key] = self._now
            if value.inode.origin is not None:
                tree.shown_origins[key] = value.inode.origin
        else:
            if value is not None and isinstance(value.inode, Regular) and isinstance(value.inode.content, Original):
                tree.shown_origins[key] = value.inode.content.origin
            of = UNKNOWN_TIME if value is None else value.inode.attributes.mtime_ns
            tree.shown[key] = Shown(tree.new_ino(), self._now, of)

    def _move(self, change: _Change, source: _Change, inode: Inode | None) -> None:
        """The same thing under another name: it keeps its inode."""
        directory, before, after = change.directory, source.before, change.after
        assert after is not None and before is not None
        if inode is not None:
            if directory is None:
                self._homeless.append((change.path, inode))
            else:
                inode.parent, inode.name = directory, change.name
                directory.children[change.name] = inode
            if not isinstance(after.inode, Directory) and not same_entry(before.inode, after.inode):
                self._take(inode, after)
        if isinstance(after.inode, Directory) and isinstance(before.inode, Directory):
            live = inode if isinstance(inode, DirectoryInode) else None
            self._waiting.append(_Pair(source.reborn_ns, change.path, live, before.inode, after.inode))

    def _before(self, change: _Change) -> tuple[Ino, int] | None:
        """(inode number, st_mode) of what stood under the name before, where the kernel may have known it."""
        if change.directory is None or change.before is None:
            return None
        inode = change.directory.children.get(change.name)
        if inode is not None:
            return inode.ino, inode.mode
        number, mode = self._facts(change.before)
        return self._before_numbers.get(change.before.key, number), mode

    def _tell(self, change: _Change, before: tuple[Ino, int] | None) -> None:
        """Note what the kernel and watchers have to hear of ``change``."""
        directory = change.directory
        if directory is None:
            return
        self._entries.append((directory.ino, change.name))
        after = None if change.after is None else self._facts(change.after)
        if after is not None and directory.listing is not None:
            directory.listing.add(change.name, after[0], after[1] >> 12)
        self._touched.append(Touched(change.path, before, after))

    def _facts(self, value: Found) -> tuple[Ino, int]:
        """(inode number as shown, st_mode) of what stands under a name."""
        inode = value.inode
        return self._tree.number(value.key), entry_type(inode) << 12 | inode.attributes.mode


def _path(directory: DirectoryInode, name: bytes) -> bytes:
    """The path of ``name`` in a live directory."""
    parts = [name]
    at: DirectoryInode | None = directory
    while at is not None and at.parent is not None:
        parts.append(at.name)
        at = at.parent
    return b"/".join(reversed(parts))


def _settled(directory: Directory) -> Directory:
    value = settled(directory)
    assert isinstance(value, Directory)
    return value
