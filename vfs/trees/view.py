"""A whole tree, sealed or just frozen, as something to look into: pages of overrides over the base.

Owns how names are resolved in a tree that does not change: overrides before the origin, ``Linked`` and the base's own
hard links through the link table. Does not own the live tree (``tree``), nor bytes (``contents``).

Concurrency: a view is a value; any thread may use it. It reads the base when asked for a name that falls through.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from store.entries import below, link_key
from store.errors import FormatError
from store.format import Absent, Directory, Entry, Layer, Linked, LinkTarget, Origin, Regular, Special, Symlink, decode
from store.nodes import ObjectStore, Page, Pages, settled
from store.refs import NodeRef
from vfs.errors import FsError
from vfs.trees.host import NEW_INO

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from store.refs import Ino, LayerRef
    from vfs.trees.host import Host

Present: TypeAlias = Regular | Directory | Symlink | Special
"""An entry that stands for an inode itself."""

Names: TypeAlias = set[bytes]
Children: TypeAlias = dict[bytes, Present]


class Held(NamedTuple):
    """A directory that overrides name: its path in the tree and what it is."""

    path: bytes
    directory: Directory


def join(path: bytes, name: bytes) -> bytes:
    """The path of ``name`` in the directory ``path``."""
    return path + b"/" + name if path else name


class View:
    """The tree below ``root``, whose origins speak of generation ``generation`` of the base."""

    __slots__ = ("generation", "host", "links", "pages", "root")

    def __init__(self, pages: Pages, host: Host, root: Directory, links: Page | None, generation: int) -> None:
        self.pages = pages
        self.host = host
        self.root = root
        self.links = links
        self.generation = generation

    @classmethod
    def of(cls, pages: Pages, host: Host, layer: Layer) -> View:
        """The tree of a sealed layer. Raises MissingError or DamagedError if its link table cannot be read."""
        links = None if layer.links is None else pages.load(layer.links)
        return cls(pages, host, layer.root, links, layer.generation)

    @classmethod
    def load(cls, pages: Pages, host: Host, objects: ObjectStore, ref: LayerRef) -> View:
        """The tree of the sealed layer ``ref``. Raises MissingError or DamagedError."""
        layer = decode(objects.get_node(NodeRef(ref)))
        if not isinstance(layer, Layer):
            raise FormatError(f"object {ref.hex()} is not a layer")
        return cls.of(pages, host, layer)

    @classmethod
    def base(cls, pages: Pages, host: Host, generation: int) -> View:
        """The base as it is, without any override."""
        root = host.entry(Origin(0, b""))
        assert isinstance(root, Directory)
        return cls(pages, host, root, None, generation)

    # Directories

    def page(self, directory: Directory) -> Page | None:
        """The overrides of ``directory``."""
        return self.pages.page_of(directory)

    def override(self, directory: Directory, name: bytes) -> Entry | None:
        """What ``directory`` itself says of ``name``; None where its origin decides."""
        entry = self.pages.get(self.page(directory), name)
        return None if entry is None else settled(entry)

    def overrides(self, directory: Directory) -> Iterator[tuple[bytes, Entry]]:
        """All that ``directory`` itself says, in no order."""
        for name, entry in self.pages.items(self.page(directory)):
            yield name, settled(entry)

    def child(self, directory: Directory, name: bytes) -> Present | None:
        """What is called ``name`` in ``directory``."""
        return self.resolve(directory, name, self.override(directory, name))

    def resolve(self, directory: Directory, name: bytes, override: Entry | None) -> Present | None:
        """What is called ``name`` in ``directory``, which says ``override`` of it. Raises FsError or DamagedError."""
        if override is None:
            return None if directory.origin is None else self.fallen(below(directory.origin, name))
        override = settled(override)
        if isinstance(override, Absent):
            return None
        if isinstance(override, Linked):
            return self.linked(override.ino)
        if isinstance(override, LinkTarget):
            raise FormatError("a row of the link table stands in a directory")
        return override

    def fallen(self, origin: Origin) -> Present | None:
        """What this tree shows for a name that falls through to ``origin``."""
        try:
            status = self.host.stat(origin)
        except FsError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise
        if status.st_nlink > 1 and self.links is not None and not stat.S_ISDIR(status.st_mode):
            row = self.row(self.host.ino(status))
            if row is not None:
                return _inode(row)
        return self.host.entry(origin, status)

    def row(self, ino: Ino) -> LinkTarget | None:
        """The link table's row for ``ino``."""
        row = self.pages.get(self.links, link_key(ino))
        if row is None:
            return None
        row = settled(row)
        if not isinstance(row, LinkTarget):
            raise FormatError(f"the link table has no inode for {ino}")
        return row

    def linked(self, ino: Ino) -> Present:
        """The inode that ``Linked(ino)`` names."""
        row = self.row(ino)
        if row is None:
            raise FormatError(f"inode {ino} is missing from the link table")
        return _inode(row)

    def names(self, directory: Directory) -> Names:
        """The names in ``directory``. Reads no inode."""
        found = set() if directory.origin is None else {row.name for row in self.host.list(directory.origin)}
        for name, entry in self.overrides(directory):
            if isinstance(entry, Absent):
                found.discard(name)
            else:
                found.add(name)
        return found

    def list(self, directory: Directory) -> Children:
        """Everything in ``directory`` by name, sorted."""
        overrides = dict(self.overrides(directory))
        names = set(overrides)
        if directory.origin is not None:
            names.update(row.name for row in self.host.list(directory.origin))
        found = ((name, self.resolve(directory, name, overrides.get(name))) for name in sorted(names))
        return {name: entry for name, entry in found if entry is not None}

    # The whole

    def lookup(self, path: bytes) -> Present | None:
        """What is at ``path``; ``b""`` is the root. Follows no symbolic link."""
        found: Present | None = self.root
        for name in path.split(b"/") if path else ():
            if not isinstance(found, Directory):
                return None
            found = self.child(found, name)
        return found

    def walk(self, path: bytes = b"") -> Iterator[tuple[bytes, Present]]:
        """(path, entry) of everything at and below ``path``, a directory before what it holds. Costs the whole."""
        top = self.lookup(path)
        if top is not None:
            yield path, top
        if isinstance(top, Directory):
            yield from self.walk_in(path, top)

    def walk_in(self, path: bytes, directory: Directory) -> Iterator[tuple[bytes, Present]]:
        """As ``walk``, for what is in ``directory``, which is called ``path``."""
        waiting = [Held(path, directory)]
        while waiting:
            path, directory = waiting.pop()
            inner = []
            for name, entry in self.list(directory).items():
                yield join(path, name), entry
                if isinstance(entry, Directory):
                    inner.append(Held(join(path, name), entry))
            waiting.extend(reversed(inner))

    def held(self) -> Iterator[Held]:
        """Every directory that overrides name, the root first. Costs the overrides of the whole tree."""
        waiting = [Held(b"", self.root)]
        while waiting:
            found = waiting.pop()
            yield found
            for name, entry in self.overrides(found.directory):
                if isinstance(entry, Directory):
                    waiting.append(Held(join(found.path, name), entry))

    def names_of(self, inos: Collection[Ino]) -> dict[Ino, Names]:
        """All paths of the inodes ``inos``, each of which has a row in the link table or several names in the base.

        There is no index from an inode to its names, so this walks the tree's overrides and, for inodes of the base,
        lists the base once (``Host.names``). It is asked for only when a file with several names has changed.
        """
        found: dict[Ino, Names] = {ino: set() for ino in inos}
        held = list(self.held())
        for path, directory in held:
            for name, entry in self.overrides(directory):
                if isinstance(entry, Linked) and entry.ino in found:
                    found[entry.ino].add(join(path, name))
        of_base = [ino for ino in found if ino < NEW_INO]
        for tree in {directory.origin.tree for _, directory in held if directory.origin is not None} if of_base else ():
            for ino, paths in self.host.names(of_base, tree).items():
                for old in paths:
                    found[ino].update(self.shown(Origin(tree, old), held))
        return found

    def shown(self, origin: Origin, held: Iterable[Held]) -> Iterator[bytes]:
        """The paths at which what is at ``origin`` is seen because nothing overrides it; ``held`` as it came from
        ``held()``.
        """
        for path, directory in held:
            rest = within(directory.origin, origin)
            if rest and self.override(directory, rest.split(b"/", 1)[0]) is None:
                yield join(path, rest)


def within(directory: Origin | None, origin: Origin) -> bytes | None:
    """The path of ``origin`` below ``directory``, ``b""`` if it is that itself, None if it is not below it."""
    if directory is None or directory.tree != origin.tree:
        return None
    if not directory.path or directory.path == origin.path:
        return origin.path[len(directory.path) :]
    above = directory.path + b"/"
    return origin.path[len(above) :] if origin.path.startswith(above) else None


def _inode(row: LinkTarget) -> Present:
    inode = settled(row.inode)
    assert isinstance(inode, Regular | Symlink | Special)
    return inode
