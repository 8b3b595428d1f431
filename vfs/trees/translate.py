"""Trees of an earlier generation of the base in terms of a later one.

Owns the rewriting of a sealed tree when the base below it has become another: the same tree, name for name and byte
for byte, over the new base. Does not own how a generation ends (``apply``, ``outside``).

A step from generation g to g+1 is two trees. ``applied``, in terms of g, is what the base has been since: where a tree
of g has the same, it falls through to the new base. ``inverse``, in terms of g+1, is what the base was before: where a
tree of g fell through to something else than ``applied`` shows, it takes that from there, and origins in its own
entries are looked up there. The cost is that of the differences between the tree and ``applied``.

Concurrency: pure functions over sealed views; new pages are put into the store (``Objects.sealing`` is the caller's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from store.entries import below, link_key
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
from store.nodes import settled
from store.refs import Ino
from vfs.trees.contents import Contents
from vfs.trees.diff import same
from vfs.trees.host import NEW_INO
from vfs.trees.rewrite import Inverse, Place, PutStore, Rewriter
from vfs.trees.view import Held, View, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from store.generations import Generation
    from store.nodes import Page

Forced: TypeAlias = "dict[bytes, Forced | Ino]"
"""Names that must not fall through, as a tree of names; its leaves are rows of the link table."""


class Step(NamedTuple):
    """The end of generation ``applied.generation``."""

    applied: View
    inverse: View


def steps(view: View, objects: PutStore, generations: Sequence[Generation]) -> list[Step]:
    """The recorded ends of generations as steps; views share the pages and host of ``view``."""
    found = []
    for generation in generations:
        applied = View.load(view.pages, view.host, objects, generation.applied)
        found.append(Step(applied, View.load(view.pages, view.host, objects, generation.inverse)))
    return found


def translate_all(view: View, objects: PutStore, through: Iterable[Step]) -> View:
    """``view`` in terms of the generation after the last of the steps ``through``, which follow each other."""
    for step in through:
        view = translate(view, objects, step)
    return view


def translate(view: View, objects: PutStore, step: Step) -> View:
    """The tree ``view`` in terms of the next generation. Raises DamagedError for pages that cannot be read."""
    assert view.generation == step.applied.generation, "a step fits the trees of one generation"
    work = _Translation(view, objects, step)
    root = work.root({})
    disturbed = work.disturbed()
    forced = work.forced(disturbed)
    if forced:
        root = work.root(forced)
        disturbed |= work.disturbed()
    return View(view.pages, view.host, root, work.links(disturbed), view.generation + 1)


class _Translation:
    """One tree through one step."""

    def __init__(self, view: View, objects: PutStore, step: Step) -> None:
        self.view = view
        self.applied = step.applied
        self.pages = view.pages
        self.inverse = Inverse(step.inverse)
        self.rewriter = Rewriter(objects, self.inverse, Contents(objects, view.host))
        self.seen: set[Ino] = set()
        self.attic_rows: dict[Ino, LinkTarget] = {}

    def root(self, forced: Forced) -> Directory:
        """The root directory; ``forced`` names do not fall through."""
        applied = self.applied.root
        place = Place(applied.origin, self.applied.page(applied), applied.subdirectories)
        return self.directory(b"", self.view.root, place, forced)

    # Directories

    def directory(self, path: bytes, directory: Directory, applied: Place | None, forced: Forced) -> Directory:
        """``directory``, which the tree has at ``path``, where ``applied`` has the other directory, if any."""
        if applied is not None and self._lies_at(path, directory, applied):
            origin: Origin | None = Origin(0, path)
            page = self.pages.update(None, self._changes(path, directory, applied, forced))
            count = directory.subdirectories - applied.subdirectories
        else:
            origin, under, count = self._under(directory.origin)
            changes: dict[bytes, Entry | None] = {}
            for name, entry in self.view.overrides(directory):
                beside = None if applied is None else self._beside(applied, name)
                changes[name] = self._entry(join(path, name), entry, beside, _deeper(forced, name))
            page = self.pages.update(under, changes)
            count += directory.subdirectories
        return Directory(directory.attributes, origin, count, None if page is None else self.pages.save(page))

    def _lies_at(self, path: bytes, directory: Directory, applied: Place) -> bool:
        """True if the new base has at ``path`` what both directories say of one and the same origin: either they say
        the same, or what they leave to the origin is there (and not where ``applied`` moved the origin itself to).
        """
        origin = directory.origin
        if origin != applied.origin:
            return False
        if origin is None or origin.tree or self.inverse.directory(origin.path).origin == Origin(0, path):
            return True
        return next(iter(self.pages.differences(self.view.page(directory), applied.page)), None) is None

    def _under(self, origin: Origin | None) -> Place:
        """What lies under the overrides of a directory of that origin."""
        if origin is None or origin.tree:
            return Place(origin, None, 0)
        place = self.inverse.directory(origin.path)
        self._see_page(place.page)
        return place

    def _beside(self, applied: Place, name: bytes) -> Place | None:
        """The directory that ``applied`` has under ``name``. It is a guess if its page is None: what falls through
        need not be a directory; only a directory of the very same origin is compared with it.
        """
        entry = self.pages.get(applied.page, name)
        if entry is None:
            return None if applied.origin is None else Place(below(applied.origin, name), None, 0)
        entry = settled(entry)
        if not isinstance(entry, Directory):
            return None
        return Place(entry.origin, self.applied.page(entry), entry.subdirectories)

    def _changes(self, path: bytes, directory: Directory, applied: Place, forced: Forced) -> dict[bytes, Entry | None]:
        """The overrides over the new base's ``path``, which is what ``applied`` shows there."""
        changes: dict[bytes, Entry | None] = {}
        differing = set()
        for name, entry, other in self.pages.differences(self.view.page(directory), applied.page):
            differing.add(name)
            entry, other = None if entry is None else settled(entry), None if other is None else settled(other)
            if isinstance(other, Linked):
                self.seen.add(other.ino)
            found = self._differing(path, name, directory, applied, entry, other, _deeper(forced, name))
            if found is not None:
                changes[name] = found
        for name in forced.keys() - differing:
            changes[name] = self._forced(path, name, directory, forced[name])
        return changes

    def _differing(
        self,
        path: bytes,
        name: bytes,
        directory: Directory,
        applied: Place,
        entry: Entry | None,
        other: Entry | None,
        forced: Forced,
    ) -> Entry | None:
        """The override for ``name``, of which the tree says ``entry`` and ``applied`` says ``other``."""
        if entry is None:
            found = self._fallen(directory.origin, name)
            return Absent() if found is None and other is not None and self._is_gone(directory.origin) else found
        beside = self._beside(applied, name)
        found = self._entry(join(path, name), entry, beside, forced)
        if isinstance(entry, Directory):
            if isinstance(other, Directory) and entry.attributes == other.attributes:
                whole = Directory(entry.attributes, Origin(0, join(path, name)), 0, None)
                return None if found == whole else found
        elif isinstance(entry, Regular | Symlink | Special) and isinstance(other, Regular | Symlink | Special):
            return None if same(entry, other) else found
        return found

    @staticmethod
    def _is_gone(origin: Origin | None) -> bool:
        """True if a name of which neither the tree nor the inverse says anything was not there at all: in the base the
        inverse says so itself (``Absent``).
        """
        return origin is None or origin.tree != 0

    def _fallen(self, origin: Origin | None, name: bytes) -> Entry | None:
        """What the tree showed as ``name`` in a directory of that origin, of which it said nothing itself."""
        if origin is None:
            return None
        if origin.tree:
            return self._fallen_in_attic(below(origin, name))
        entry_now = self.inverse.entry(below(origin, name).path)
        self._see(entry_now)
        return entry_now

    def _fallen_in_attic(self, origin: Origin) -> Entry | None:
        """What the tree showed for a path of the attic, which never changes."""
        host = self.view.host
        if not host.exists(origin):
            return None
        status = host.stat(origin)
        entry = host.entry(origin, status)
        if status.st_nlink == 1 or isinstance(entry, Directory):
            return entry
        ino = entry.attributes.ino
        self.seen.add(ino)
        self.attic_rows[ino] = LinkTarget(entry, status.st_nlink)
        return Linked(ino)

    def _entry(self, path: bytes, entry: Entry, beside: Place | None, forced: Forced) -> Entry:
        """An override of the tree itself, rewritten."""
        if isinstance(entry, Directory):
            return self.directory(path, entry, beside, forced)
        if isinstance(entry, Regular):
            return self.rewriter.regular(entry)
        if isinstance(entry, Linked):
            self.seen.add(entry.ino)
        return entry

    # Hard links

    def _see(self, entry: Entry | None) -> None:
        """Note the rows of the link table that an entry of the inverse, now part of the tree, refers to."""
        if isinstance(entry, Linked):
            self.seen.add(entry.ino)
        elif isinstance(entry, Directory):
            self._see_page(self.inverse.view.page(entry))

    def _see_page(self, page: Page | None) -> None:
        for _, entry in self.pages.items(page):
            self._see(settled(entry))

    def disturbed(self) -> set[Ino]:
        """The inodes with several names of which the tree and ``applied`` do not certainly show the same."""
        found = set(self.seen)
        for key, row, other in self.pages.differences(self.view.links, self.applied.links):
            if not _same_row(row, other):
                found.add(Ino(int.from_bytes(key, "big")))
        return found

    def forced(self, disturbed: set[Ino]) -> Forced:
        """The names of disturbed inodes that may lie where the tree is just as ``applied`` is: falling through there,
        they would be other inodes than the names that do not.
        """
        if not disturbed:
            return {}
        held = list(self.view.held())
        forced: Forced = {}
        for path, directory in held:
            for name, entry in self.view.overrides(directory):
                if isinstance(entry, Linked) and entry.ino in disturbed:
                    _force(forced, join(path, name), entry.ino)
        for origin, ino in [*self._displaced(disturbed), *self._in_attic(disturbed, held)]:
            for path in self.view.shown(origin, held):
                _force(forced, path, ino)
        return forced

    def _displaced(self, disturbed: set[Ino]) -> list[tuple[Origin, Ino]]:
        """The paths in the old base of disturbed inodes that are no longer there."""
        found = []
        for path, directory in self.inverse.view.held():
            for name, entry in self.inverse.view.overrides(directory):
                if isinstance(entry, Linked) and entry.ino in disturbed:
                    found.append((Origin(0, join(path, name)), entry.ino))
        return found

    def _in_attic(self, disturbed: set[Ino], held: list[Held]) -> list[tuple[Origin, Ino]]:
        """The paths of disturbed inodes in those folders of the attic that the tree looks into."""
        inos = [ino for ino in disturbed if ino < NEW_INO]
        trees = {directory.origin.tree for _, directory in held if directory.origin is not None} - {0}
        found = []
        for tree in trees if inos else ():
            for ino, paths in self.view.host.names(inos, tree).items():
                found += [(Origin(tree, path), ino) for path in paths]
                if paths:
                    self._fallen_in_attic(Origin(tree, paths[0]))
        return found

    def _forced(self, path: bytes, name: bytes, directory: Directory, forced: Forced | Ino) -> Entry:
        """An override for what is the same in the tree and in ``applied``, so that what is below it can be told."""
        if isinstance(forced, int):
            return Linked(forced)
        entry = self.view.override(directory, name)
        if entry is None:
            assert directory.origin is not None
            origin = below(directory.origin, name)
            was = self.view.host.entry(origin) if origin.tree else self.inverse.entry(origin.path)
            assert isinstance(was, Directory), "the inverse tells the directories above what it tells"
            entry = Directory(was.attributes, origin, 0, None)
        assert isinstance(entry, Directory)
        beside = Place(entry.origin, self.view.page(entry), entry.subdirectories)
        return self.directory(join(path, name), entry, beside, forced)

    def _needed_in_attic(self) -> set[Ino]:
        """The inodes of rows that names in the attic may look into: there nothing but the table tells what they are.
        What the base still has as it was tells that by itself.
        """
        if not any(directory.origin is not None and directory.origin.tree for _, directory in self.view.held()):
            return set()
        rows = ((Ino(int.from_bytes(key, "big")), row) for key, row in self.pages.items(self.view.links))
        return {ino for ino, row in rows if ino < NEW_INO and not _is_as_in_base(row)}

    def links(self, disturbed: set[Ino]) -> Page | None:
        """The link table: the tree's disturbed rows, and the inverse's for what the tree left to the old base."""
        if self.view.links is None and not disturbed and not self.attic_rows:
            return None
        rows: dict[bytes, Entry | None] = {link_key(ino): row for ino, row in self.attic_rows.items()}
        for ino in disturbed | self._needed_in_attic():
            row = self.view.row(ino)
            found = self.inverse.view.row(ino) if row is None else self.rewriter.row(ino, row)
            if found is not None:
                rows[link_key(ino)] = found
        page = self.pages.update(None, rows)
        if page is not None:
            self.pages.save(page)
        return page


def _same_row(a: Entry | None, b: Entry | None) -> bool:
    a, b = None if a is None else settled(a), None if b is None else settled(b)
    if not isinstance(a, LinkTarget) or not isinstance(b, LinkTarget) or a.links != b.links:
        return False
    return same(settled(a.inode), settled(b.inode))  # type: ignore[arg-type]


def _is_as_in_base(row: Entry) -> bool:
    """True if a row only says of a file of the base what an apply leaves, or makes, true of that very file."""
    inode = settled(row.inode) if isinstance(row, LinkTarget) else None
    if not isinstance(inode, Regular) or not isinstance(inode.content, Original) or inode.content.origin.tree:
        return False
    return inode.attributes.mtime_ns == inode.content.mtime_ns


def _deeper(forced: Forced, name: bytes) -> Forced:
    found = forced.get(name)
    return found if isinstance(found, dict) else {}


def _force(forced: Forced, path: bytes, ino: Ino) -> None:
    *above, last = path.split(b"/")
    for name in above:
        inner = forced.setdefault(name, {})
        assert isinstance(inner, dict)
        forced = inner
    forced[last] = ino


__all__ = ["PutStore", "Step", "steps", "translate", "translate_all"]
