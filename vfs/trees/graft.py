"""Trees made of two: one tree's ``.git`` directories in another, or some paths of one tree in another.

Functions from trees to a tree; nothing live is touched, save the counter of inode numbers. They cost what differs
between the two, and, if there are hard links, a walk over the overrides of both.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Set
from typing import TypeAlias

import msgspec

from store.entries import below, link_key
from store.format import Absent, Directory, Entry, Linked, LinkTarget, Origin, Regular, Symlink
from store.nodes import Fresh, FreshDirectory, FreshRegular, Page, same_entry, settled
from store.refs import Ino
from vfs.live.effective import Found, Present, effective, resolve, row, same_content
from vfs.live.inode import FIRST_NEW_INO
from vfs.live.tree import Root, Tree
from vfs.trees.view import View, join, within

GIT = b".git"

Region: TypeAlias = Callable[[bytes], bool]
"""True for paths that the new tree has from the source."""


class Grafter:
    """Builds trees over the pages of ``tree``; ``onto`` gets what it lacks from ``source``. Use one method, once."""

    def __init__(
        self,
        tree: Tree,
        onto: Root,
        source: Root,
        view: Callable[[Root], View],
        new_key: Callable[[], Ino] | None = None,
    ) -> None:
        """``new_key`` gives numbers for inodes that become two; by default ``tree`` does."""
        self.tree = tree
        self.new_key = new_key or self._of_tree
        self.onto = onto
        self.source = source
        self.view = view
        self._renames = False
        self._inside: Region = self._in_git
        self._named: set[Ino] = set()
        """Inodes with several names to which a name was given, or from which one was taken."""

    def keep_git(self) -> Root:
        """``onto``, but with the ``.git`` that ``source`` has, wherever both have the directory that holds it.

        A ``.git`` that ``source`` has not is left as ``onto`` has it: what is gone comes back.
        """
        directory = self._graft(self.onto.directory, self.source.directory)
        return self._root(directory)

    def pick(self, paths: list[bytes]) -> Root:
        """``onto``, but with everything at and below ``paths`` as ``source`` has it (nothing, where it has nothing).

        What comes is another inode than whatever ``onto`` has elsewhere, even if it once was the same.
        """
        self._renames = True
        return self.keep(paths)

    def keep(self, paths: list[bytes]) -> Root:
        """As ``pick``, for a ``source`` that is what is served: its inodes stay what they are."""

        def inside(path: bytes) -> bool:
            return any(path == one or path.startswith(one + b"/") for one in chosen)

        self._inside = inside
        directory = self.onto.directory
        chosen = sorted(paths)
        for path in chosen:
            if not path:
                return self.source
            directory = self._pick(directory, self.source.directory, path.split(b"/"))

        return self._root(directory)

    def _root(self, directory: Directory) -> Root:
        root = Root(directory, self.onto.links, self.onto.generation)
        keys = self._named.union(*(map(_key, self._rows(links)) for links in (self.onto.links, self.source.links)))
        return root if not keys else _Links(self, self._inside).join(root, keys)

    def _rows(self, links: Page | None) -> list[bytes]:
        return [name for name, _ in self.tree.pages.items(links)]

    # --- .git ------------------------------------------------------------------------------------------------------

    def _in_git(self, path: bytes) -> bool:
        steps = path.split(b"/")
        if GIT not in steps:
            return False
        at = steps.index(GIT)
        if self.view(self.source).lookup(b"/".join(steps[: at + 1])) is None:
            return False
        return isinstance(self.view(self.onto).lookup(b"/".join(steps[:at])), Directory)

    def _graft(self, onto: Directory, source: Directory) -> Directory:
        if same_entry(onto, source):
            return onto
        pages = self.tree.pages
        page, source_page = pages.page_of(onto), pages.page_of(source)
        changes: dict[bytes, Entry | None] = {}
        more = 0
        for name, ours_here, theirs_here in self._differing(onto, page, source, source_page):
            if name != GIT and (_is_no_directory(ours_here) or _is_no_directory(theirs_here)):
                continue
            theirs = resolve(self.tree, self.source.links, source.origin, name, theirs_here)
            if theirs is None:
                continue
            ours = resolve(self.tree, self.onto.links, onto.origin, name, ours_here)
            if name == GIT:
                if ours is None or not same_entry(ours.inode, theirs.inode):
                    changes[name] = self._entry(theirs)
                    self._note_doubled(theirs)
                    more += _directories(theirs) - _directories(ours)
            elif ours is not None and isinstance(theirs.inode, Directory) and isinstance(ours.inode, Directory):
                grafted = self._graft(ours.inode, theirs.inode)
                if grafted is not ours.inode:
                    changes[name] = grafted
        if not changes:
            return onto
        return with_page(onto, pages.update(page, changes), more)

    def _differing(
        self, a: Directory, a_page: Page | None, b: Directory, b_page: Page | None
    ) -> Iterable[tuple[bytes, Entry | None, Entry | None]]:
        """Names of directories and repositories that may differ, with both overrides."""
        pages = self.tree.pages
        if a.origin == b.origin:
            return pages.differences(a_page, b_page)
        before, after = dict(pages.items(a_page)), dict(pages.items(b_page))
        names = before.keys() | after.keys()
        if b.origin is not None:
            names |= {name for name, _, kind in self.tree.base.list(b.origin) if kind == 4 or name == GIT}
        return [(name, before.get(name), after.get(name)) for name in names]

    # --- paths -----------------------------------------------------------------------------------------------------

    def _pick(self, onto: Directory, source: Directory | None, parts: list[bytes]) -> Directory:
        pages = self.tree.pages
        name, rest = parts[0], parts[1:]
        page = pages.page_of(onto)
        override = pages.get(page, name)
        links = self.onto.links
        if isinstance(override, Linked) and row(self.tree, links, override.ino) is None:
            links = self.source.links  # a path before this one brought it
        ours = resolve(self.tree, links, onto.origin, name, override)
        theirs = None
        if source is not None:
            theirs = effective(self.tree, self.source.links, source, pages.page_of(source), name)
        above = theirs.inode if theirs is not None and isinstance(theirs.inode, Directory) else None
        entry: Entry | None
        if rest:
            if ours is not None and isinstance(ours.inode, Directory):
                there = ours.inode
            elif above is not None:  # the directory above it is gone here: it comes back for the path
                there = Directory(above.attributes, None, 0, None)
            else:
                return onto
            entry = self._pick(there, above, rest)
            if entry is there:
                return onto
            more = 1 - _directories(ours)
        else:
            if ours is theirs is None:
                return onto
            if ours is not None and theirs is not None and _same_name(self.tree, ours, theirs):
                return onto
            if theirs is not None:
                entry = self._brought(theirs, ours)
                self._note_doubled(theirs)
            else:
                in_base = onto.origin is not None and self.tree.base_status(below(onto.origin, name)) is not None
                entry = Absent() if in_base else None
            if ours is not None and ours.links:
                self._named.add(ours.key)
            more = _directories(theirs) - _directories(ours)
        return with_page(onto, pages.update(page, {name: entry}), more)

    def _brought(self, theirs: Found, ours: Found | None) -> Entry:
        """The entry of what comes to a name."""
        inode = theirs.inode
        same = ours is not None and ours.key == theirs.key
        if theirs.links > 1 or isinstance(inode, Directory) or same or not self._renames:
            return self._entry(theirs)
        return renamed(inode, self.new_key())

    # --- both ------------------------------------------------------------------------------------------------------

    def _entry(self, value: Found) -> Entry:
        if value.links:
            self._named.add(value.key)
            return Linked(value.key)
        return value.inode

    def _note_doubled(self, theirs: Found) -> None:
        """A directory of the base comes that ``onto`` has elsewhere too, it or part of it: inodes in it that have
        several names get more of them than the base has.
        """
        directory = theirs.inode
        if not isinstance(directory, Directory) or directory.origin is None:
            return
        view = self.view(self.onto)
        held = list(view.held())
        part = [path for path, other in held if other.origin and within(directory.origin, other.origin) is not None]
        if any(not self._inside(path) for path in [*part, *view.shown(directory.origin, held)]):
            self._named |= _several_names(self.view(self.source), directory)

    def _of_tree(self) -> Ino:
        with self.tree.lock:
            return self.tree.new_ino()


class _Links:
    """The link table of a tree in which the paths ``inside`` are from ``source`` and the others from ``onto``."""

    def __init__(self, grafter: Grafter, inside: Region) -> None:
        self._tree = grafter.tree
        self._onto = grafter.onto
        self._source = grafter.source
        self._view = grafter.view
        self._new_key = grafter.new_key
        self._onto_view = self._view(self._onto)
        self._source_view = self._view(self._source)
        self._inside = inside
        self._rows: dict[bytes, Entry | None] = {}
        self._placed: dict[bytes, Entry] = {}

    def join(self, root: Root, keys: Set[Ino]) -> Root:
        """``root`` with what ``keys``, inodes with several names, are now."""
        ours, theirs = names_of(self._onto_view, keys), names_of(self._source_view, keys)
        view = self._view(root)
        for key in sorted(keys):
            mine = {path for path in ours[key] if self._is_link(self._onto_view, path, key)}
            other = {path for path in theirs[key] if self._is_link(self._source_view, path, key)}
            inside = {path for path in theirs[key] if self._inside(path)}
            come = {path for path in inside if self._is_link(view, path, key)}
            stay = {path for path in mine if not self._inside(path)}
            alone = any(not self._inside(path) for path in ours[key] - mine)
            self._one(key, mine, stay, other, come, alone)
            if stay:
                self._part(view, inside - come, key)
        directory = root.directory
        for path, entry in sorted(self._placed.items()):
            directory = self._place(directory, path.split(b"/"), entry)
        return Root(directory, self._tree.pages.update(root.links, self._rows), root.generation)

    def _one(
        self, key: Ino, ours: Set[bytes], stay: Set[bytes], theirs: Set[bytes], come: Set[bytes], alone: bool
    ) -> None:
        """The rows for one inode: ``stay`` are its names in ``onto`` that stay, ``come`` those that come; ``alone``
        says that an inode with one name, which stays, has the same key.
        """
        if not come and stay == ours:
            return
        mine = self._found(key, self._onto, self._onto_view, ours)
        other = self._found(key, self._source, self._source_view, theirs)
        name = link_key(key)
        if not come:
            if mine is not None:
                self._rows[name] = _row(mine, stay, ours) if stay else None
            return
        if other is None:  # one name each, as far as the source knows: entries of their own
            return
        if not stay and not alone:
            self._rows[name] = _row(other, come, theirs)
        elif mine is not None and min(mine.links, other.links) > 1 and _same(self._tree, mine.inode, other.inode):
            self._rows[name] = _row(mine, stay | come, ours)
        else:  # one inode in each tree, but not the same any more: two from now on
            self._split(other, come)
            if mine is not None and stay != ours:
                self._rows[name] = _row(mine, stay, ours) if stay else None

    def _part(self, view: View, paths: Set[bytes], key: Ino) -> None:
        """What came with one name, while ``onto`` has the same with others: it is an inode of its own."""
        for path in paths:
            inode = view.lookup(path)
            if inode is not None and inode.attributes.ino == key:
                self._placed[path] = renamed(inode, self._new_key())

    def _is_link(self, view: View, path: bytes, key: Ino) -> bool:
        """True if the new tree has, at a path of the source, one of the names of ``key``; not an inode of its own."""
        above, _, name = path.rpartition(b"/")
        directory = view.lookup(above)
        assert isinstance(directory, Directory)
        entry = view.override(directory, name)
        return self._base_links(key, view) > 0 if entry is None else isinstance(entry, Linked) and entry.ino == key

    def _found(self, key: Ino, root: Root, view: View, names: Set[bytes]) -> Found | None:
        """An inode with several names as a tree has it under ``names``, counting those outside the workspace; None if
        it is not there, or is no hard link there.
        """
        known = row(self._tree, root.links, key)
        if known is not None:
            return known
        links = self._base_links(key, view)
        inode = view.lookup(min(names)) if links and names else None
        return None if inode is None else Found(inode, max(links, len(names)))

    def _base_links(self, key: Ino, view: View) -> int:
        """How many names the base has for an inode, 0 if just one or none."""
        if key >= FIRST_NEW_INO or view.root.origin is None:
            return 0
        for path in view.host.names({key})[key]:
            status = self._tree.base_status(Origin(0, path))
            if status is not None and status.st_nlink > 1:
                return status.st_nlink
        return 0

    def _split(self, value: Found, paths: Set[bytes]) -> None:
        key = self._new_key()
        inode = renamed(value.inode, key)
        if len(paths) > 1:
            assert not isinstance(inode, Directory)
            self._rows[link_key(key)] = LinkTarget(inode, len(paths))
        for path in paths:
            self._placed[path] = Linked(key) if len(paths) > 1 else inode

    def _place(self, directory: Directory, parts: list[bytes], entry: Entry) -> Directory:
        """``directory`` with ``entry`` at a path that is there."""
        pages = self._tree.pages
        page = pages.page_of(directory)
        if len(parts) > 1:
            there = effective(self._tree, None, directory, page, parts[0])
            assert there is not None and isinstance(there.inode, Directory)
            entry = self._place(there.inode, parts[1:], entry)
        return with_page(directory, pages.update(page, {parts[0]: entry}), 0)


def _row(value: Found, names: Set[bytes], before: Set[bytes]) -> LinkTarget:
    """A row of the link table for an inode whose names were ``before`` and now are ``names``."""
    assert not isinstance(value.inode, Directory)
    return LinkTarget(value.inode, max(len(names), value.links - len(before) + len(names)))


def _same(tree: Tree, a: Present, b: Present) -> bool:
    """True if two trees have the same inode, whenever it was changed."""
    if same_entry(a, b):
        return True
    attributes = msgspec.structs.replace(a.attributes, ctime_ns=b.attributes.ctime_ns)
    return attributes == b.attributes and same_content(tree, a, b)


def _same_name(tree: Tree, a: Found, b: Found) -> bool:
    """True if a name holds the same in two trees, whatever they call it."""
    if same_entry(a.inode, b.inode):
        return True
    if isinstance(a.inode, Directory) or isinstance(b.inode, Directory) or max(a.links, b.links) > 1:
        return False
    return _same(tree, renamed(a.inode, b.key), b.inode)


def names_of(view: View, keys: Set[Ino]) -> dict[Ino, set[bytes]]:
    """All paths of some inodes, of those with one name too. Costs the overrides of the whole tree."""
    found = view.names_of(keys)
    for path, directory in view.held():
        for name, entry in view.overrides(directory):
            if not isinstance(entry, Absent | Linked | LinkTarget) and entry.attributes.ino in keys:
                found[entry.attributes.ino].add(join(path, name))
    return found


def _several_names(view: View, top: Directory) -> set[Ino]:
    """Inodes with several names that fall through to the base or the attic in ``top``. Lists all of it."""
    found = set()
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        overrides = dict(view.overrides(directory))
        waiting += [entry for entry in overrides.values() if isinstance(entry, Directory)]
        for name, _, kind in view.host.list(directory.origin) if directory.origin is not None else ():
            if name in overrides:
                continue
            assert directory.origin is not None
            origin = below(directory.origin, name)
            if kind == stat.S_IFDIR >> 12:
                inner = view.fallen(origin)
                waiting += [inner] if isinstance(inner, Directory) else []
                continue
            status = view.host.stat(origin)
            if status.st_nlink > 1:
                found.add(view.host.ino(status))
    return found


def renamed(inode: Present, key: Ino) -> Present:
    """``inode`` as trees know it by ``key``."""
    attributes = msgspec.structs.replace(inode.attributes, ino=key)
    if isinstance(inode, FreshRegular):
        return FreshRegular(attributes, inode.content, Fresh(inode.fresh.value))
    if isinstance(inode, Regular):
        return Regular(attributes, inode.content)
    if isinstance(inode, Symlink):
        return Symlink(attributes, inode.target)
    return msgspec.structs.replace(inode, attributes=attributes)


def with_page(directory: Directory, page: Page | None, more: int) -> Directory:
    """``directory`` with the overrides ``page`` and ``more`` subdirectories."""
    value = settled(directory)
    assert isinstance(value, Directory)
    count = value.subdirectories + more
    if page is None or page.ref is not None:
        return Directory(value.attributes, value.origin, count, None if page is None else page.ref)
    return FreshDirectory(value.attributes, value.origin, count, None, Fresh(page))


def _is_no_directory(override: Entry | None) -> bool:
    """True if ``override`` says that its name is no directory, whatever the base has there."""
    return override is not None and not isinstance(settled(override), Directory)


def _directories(value: Found | None) -> int:
    return int(value is not None and isinstance(value.inode, Directory))


def _key(name: bytes) -> Ino:
    return Ino(int.from_bytes(name, "big"))
