"""A tree that tests change by plain operations and seal into views: the rules of the live tree, without its journal.

Everything is written from docs and the format alone, so that the code under test is not its own judge. ``snapshot``
reads a view, ``snapshot_of`` a real directory, both into one comparable form.
"""

from __future__ import annotations

import os
import random
import stat
from dataclasses import dataclass, field, replace

from store.entries import below, link_key
from store.format import (
    Absent,
    Attributes,
    Blob,
    BlobPiece,
    Chunked,
    ChunkList,
    Directory,
    HolePiece,
    Inline,
    Linked,
    LinkTarget,
    Origin,
    Original,
    OriginPiece,
    Regular,
    Special,
    Symlink,
    encode,
)
from store.nodes import Pages, settled
from store.refs import Ino
from tests.fakes.objects import MemoryObjects
from vfs.trees.contents import Contents
from vfs.trees.host import NEW_INO, Host
from vfs.trees.view import View, join


@dataclass(eq=False)
class Thing:
    """An inode: ``kind`` is S_IFMT's part of the mode; ``value`` its content, target or device."""

    kind: int
    ino: int
    mode: int
    uid: int
    gid: int
    mtime: int
    xattrs: dict[bytes, bytes]
    value: object = None
    linked: bool = False
    nlink: int = 1
    origin: Origin | None = None
    grafted: bool = False
    over: dict[bytes, Thing | None] = field(default_factory=dict)

    def attributes(self) -> Attributes:
        xattrs = tuple(sorted(self.xattrs.items()))
        return Attributes(Ino(self.ino), self.mode, self.uid, self.gid, self.mtime, self.mtime, xattrs)

    def copy(self) -> Thing:
        """A copy of the whole below, hard links taken apart."""
        over = {name: child and child.copy() for name, child in self.over.items()}
        return replace(self, xattrs=dict(self.xattrs), over=over)


class World:
    """A base directory, its attic, and an object store."""

    def __init__(self, top, objects=None) -> None:
        self.top = top
        self.base = os.path.join(top, "base")
        self.attic = os.path.join(top, "attic")
        self.work = os.path.join(top, "work")
        for path in (self.base, self.attic, self.work):
            os.makedirs(path, exist_ok=True)
        self.objects = objects or MemoryObjects()
        self.pages = Pages(self.objects)
        self.base_fd = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY)
        self.host = Host({0: self.base_fd})
        self.contents = Contents(self.objects, self.host)
        self.next_ino = NEW_INO
        self.clock = 1_500_000_000_000_000_000

    def close(self) -> None:
        for fd in self.host._trees.values():
            os.close(fd)

    def tick(self) -> int:
        self.clock += 1_000_000_007
        return self.clock

    def new_ino(self) -> int:
        self.next_ino += 1
        return self.next_ino


class Overlay:
    """The tree of ``world`` over its base, or over a sealed view, to be changed and sealed."""

    def __init__(self, world: World, view: View | None = None, generation: int = 0) -> None:
        self.world = world
        self.generation = view.generation if view else generation
        self.rows: dict[int, Thing] = {}
        if view is None:
            self.root = self._of_base(Origin(0, b""))
        else:
            for key, row in world.pages.items(view.links):
                row = settled(row)
                thing = self._of_entry(view, settled(row.inode))
                thing.linked, thing.nlink = True, row.links
                self.rows[int.from_bytes(key, "big")] = thing
            self.root = self._of_entry(view, view.root)

    # Where things come from

    def _of_base(self, origin: Origin) -> Thing:
        status = self.world.host.stat(origin)
        ino = self.world.host.ino(status)
        directory = stat.S_ISDIR(status.st_mode)
        if status.st_nlink > 1 and not directory and ino in self.rows:
            return self.rows[ino]
        entry = self.world.host.entry(origin, status)
        thing = self._of_entry(None, entry)
        if status.st_nlink > 1 and not directory:
            thing.linked, thing.nlink = True, status.st_nlink
        return thing

    def _of_entry(self, view, entry) -> Thing:
        a = entry.attributes
        thing = Thing(0, a.ino, a.mode, a.uid, a.gid, a.mtime_ns, dict(a.xattrs))
        if isinstance(entry, Directory):
            thing.kind, thing.origin = stat.S_IFDIR, entry.origin
            if view is not None:
                for name, child in view.overrides(entry):
                    if isinstance(child, Absent):
                        thing.over[name] = None
                    elif isinstance(child, Linked):
                        thing.over[name] = self.rows[child.ino]
                    else:
                        thing.over[name] = self._of_entry(view, child)
        elif isinstance(entry, Regular):
            thing.kind, thing.value = stat.S_IFREG, entry.content
        elif isinstance(entry, Symlink):
            thing.kind, thing.value = stat.S_IFLNK, entry.target
        else:
            thing.kind, thing.value = entry.file_type, entry.rdev
        return thing

    def get(self, directory: Thing, name: bytes) -> Thing | None:
        if name in directory.over:
            return directory.over[name]
        if directory.origin is None or not self.world.host.exists(below(directory.origin, name)):
            return None
        return self._of_base(below(directory.origin, name))

    def at(self, path: bytes) -> Thing | None:
        thing: Thing | None = self.root
        for name in path.split(b"/") if path else ():
            if thing is None or thing.kind != stat.S_IFDIR:
                return None
            thing = self.get(thing, name)
        return thing

    def own(self, path: bytes) -> Thing:
        """The thing at ``path``, held by the overrides of everything above it, to be changed."""
        thing = self.root
        for name in path.split(b"/") if path else ():
            child = self.get(thing, name)
            assert child is not None
            if child.linked:
                self.rows.setdefault(child.ino, child)
            elif name not in thing.over:
                if thing.grafted:
                    child.ino, child.grafted = self.world.new_ino(), True
                thing.over[name] = child
            thing = child
        return thing

    def names(self, directory: Thing) -> list[bytes]:
        found = {name for name, child in directory.over.items() if child is not None}
        if directory.origin is not None:
            rows = self.world.host.list(directory.origin)
            found.update(row.name for row in rows if row.name not in directory.over)
        return sorted(found)

    def paths(self, path: bytes = b"") -> list[tuple[bytes, Thing]]:
        found = []
        top = self.at(path)
        for name in self.names(top):
            thing = self.get(top, name)
            found.append((join(path, name), thing))
            if thing.kind == stat.S_IFDIR:
                found.extend(self.paths(join(path, name)))
        return found

    # Operations, as a user makes them

    def _put(self, path: bytes, thing: Thing) -> None:
        head, _, name = path.rpartition(b"/")
        directory = self.own(head)
        directory.over[name] = thing
        directory.mtime = self.world.tick()

    def _drop(self, path: bytes) -> Thing:
        head, _, name = path.rpartition(b"/")
        thing = self.own(path)
        directory = self.own(head)
        in_base = directory.origin is not None and self.world.host.exists(below(directory.origin, name))
        if in_base:
            directory.over[name] = None
        else:
            directory.over.pop(name, None)
        directory.mtime = self.world.tick()
        return thing

    def _lose(self, thing: Thing) -> None:
        if thing.linked:
            thing.nlink -= 1
            if thing.nlink <= 0 and thing.ino >= NEW_INO:  # a grafted directory may show a base inode once more
                del self.rows[thing.ino]

    def _make(self, path: bytes, kind: int, mode: int, value: object = None) -> Thing:
        if self.at(path) is not None:
            self.remove(path)
        world = self.world
        thing = Thing(kind, world.new_ino(), mode, os.getuid(), os.getgid(), world.tick(), {}, value)
        self._put(path, thing)
        return thing

    def content(self, data: bytes, pieces: bool = False):
        objects = self.world.objects
        if pieces and len(data) > 2:
            cut = len(data) // 2
            ref = objects.put_node(
                encode(ChunkList((BlobPiece(cut, objects.put_blob(data[:cut])), HolePiece(5)))),
            )
            return Chunked(ref, cut + 5)
        return Inline(data) if len(data) <= 16 else Blob(objects.put_blob(data), len(data))

    def write(self, path: bytes, data: bytes, mode: int = 0o644, pieces: bool = False) -> None:
        thing = self.at(path)
        if thing is not None and thing.kind == stat.S_IFREG:
            thing = self.own(path)
            thing.mtime = self.world.tick()
        else:
            thing = self._make(path, stat.S_IFREG, mode)
        thing.value = self.content(data, pieces)

    def append(self, path: bytes, data: bytes) -> None:
        """Write at the end: what was there stays a piece of the base."""
        thing = self.own(path)
        content = thing.value
        if not isinstance(content, Original) or not content.size:
            self.write(path, self.world.contents.read(content, 0, 1 << 20) + data)
            return
        objects = self.world.objects
        first = content.size // 2 or 1
        pieces = [OriginPiece(first, content.origin, 0, content.size, content.mtime_ns)]
        if content.size > first:
            pieces.append(OriginPiece(content.size - first, content.origin, first, content.size, content.mtime_ns))
        pieces.append(BlobPiece(len(data), objects.put_blob(data)))
        thing.value = Chunked(objects.put_node(encode(ChunkList(tuple(pieces)))), content.size + len(data))
        thing.mtime = self.world.tick()

    def mkdir(self, path: bytes, mode: int = 0o755) -> None:
        self._make(path, stat.S_IFDIR, mode)

    def symlink(self, path: bytes, target: bytes) -> None:
        self._make(path, stat.S_IFLNK, 0o777, target)

    def mkfifo(self, path: bytes, mode: int = 0o600) -> None:
        self._make(path, stat.S_IFIFO, mode, 0)

    def remove(self, path: bytes) -> None:
        """rm -r"""
        thing = self.own(path)
        if thing.kind == stat.S_IFDIR:
            for name in self.names(thing):
                self.remove(join(path, name))
        self._lose(self._drop(path))

    def rename(self, path: bytes, target: bytes) -> None:
        if path == target or self.at(path) is self.at(target):
            return
        if self.at(target) is not None:
            self.remove(target)
        self._put(target, self._drop(path))

    def exchange(self, a: bytes, b: bytes) -> None:
        first, second = self._drop(a), self._drop(b)
        self._put(a, second)
        self._put(b, first)

    def link(self, path: bytes, target: bytes) -> None:
        if self.at(target) is not None:
            return
        thing = self.own(path)
        thing.linked = True
        self.rows[thing.ino] = thing
        thing.nlink += 1
        self._put(target, thing)

    def chmod(self, path: bytes, mode: int) -> None:
        self.own(path).mode = mode

    def utime(self, path: bytes, mtime: int) -> None:
        self.own(path).mtime = mtime

    def setxattr(self, path: bytes, name: bytes, value: bytes | None) -> None:
        thing = self.own(path)
        if value is None:
            thing.xattrs.pop(name, None)
        else:
            thing.xattrs[name] = value

    def graft(self, path: bytes, thing: Thing | None) -> None:
        """Bring back one path of another tree of the same generation, with new inode numbers, as a restore does."""
        if self.at(path) is not None:
            self.remove(path)
        if thing is not None:
            new = thing.copy()
            self._renumber(new)
            self._put(path, new)

    def _renumber(self, thing: Thing) -> None:
        thing.ino, thing.grafted = self.world.new_ino(), True
        if thing.linked:
            thing.linked, thing.nlink = False, 1
        for child in thing.over.values():
            if child is not None:
                self._renumber(child)

    # Sealing

    def seal(self) -> View:
        pages = self.world.pages
        rows = {link_key(Ino(ino)): LinkTarget(self._entry(thing), thing.nlink) for ino, thing in self.rows.items()}
        links = pages.update(None, rows)
        if links is not None:
            pages.save(links)
        return View(pages, self.world.host, self._entry(self.root), links, self.generation)

    def _entry(self, thing: Thing):
        attributes = thing.attributes()
        if thing.kind == stat.S_IFREG:
            return Regular(attributes, thing.value)
        if thing.kind == stat.S_IFLNK:
            return Symlink(attributes, thing.value)
        if thing.kind != stat.S_IFDIR:
            return Special(attributes, thing.kind, thing.value)
        changes = {}
        for name, child in thing.over.items():
            if child is None:
                changes[name] = Absent()
            else:
                changes[name] = Linked(Ino(child.ino)) if child.linked else self._entry(child)
        page = self.world.pages.update(None, changes)
        node = None if page is None else self.world.pages.save(page)
        count = sum(self.get(thing, name).kind == stat.S_IFDIR for name in self.names(thing))
        if thing.origin is not None:
            count -= sum(row.type << 12 == stat.S_IFDIR for row in self.world.host.list(thing.origin))
        return Directory(attributes, thing.origin, count, node)


# Comparing


def snapshot(view: View, contents: Contents) -> dict[bytes, tuple]:
    """Everything that ``view`` shows, by path: type, mode, owner, mtime, xattrs, content, and which names are one."""
    found = {}
    groups: dict[object, list[bytes]] = {}
    for path, entry in view.walk():
        a = entry.attributes
        if isinstance(entry, Regular):
            kind, value = stat.S_IFREG, contents.read(entry.content, 0, 1 << 30)
        elif isinstance(entry, Symlink):
            kind, value = stat.S_IFLNK, entry.target
        elif isinstance(entry, Special):
            kind, value = entry.file_type, entry.rdev
        else:
            kind, value = stat.S_IFDIR, None
        found[path] = (kind, a.mode, a.uid, a.gid, a.mtime_ns, a.xattrs, value)
        if kind != stat.S_IFDIR:
            groups.setdefault(a.ino if is_linked(view, entry) else path, []).append(path)
    return _grouped(found, groups)


def is_linked(view: View, entry) -> bool:
    """True if the inode may have several names. A base file in a directory that is shown twice has not."""
    if view.row(entry.attributes.ino) is not None and view.linked(entry.attributes.ino) == entry:
        return True
    content = getattr(entry, "content", None)
    return isinstance(content, Original) and view.host.stat(content.origin).st_nlink > 1


def snapshot_of(top: str) -> dict[bytes, tuple]:
    """As ``snapshot``, of a real directory."""
    found = {}
    groups: dict[object, list[bytes]] = {}
    root = os.fsencode(top)
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        full = os.path.join(root, path) if path else root
        status = os.lstat(full)
        kind = stat.S_IFMT(status.st_mode)
        value: object = None
        if kind == stat.S_IFREG:
            with open(full, "rb") as file:
                value = file.read()
        elif kind == stat.S_IFLNK:
            value = os.readlink(full)
        elif kind == stat.S_IFDIR:
            waiting.extend(join(path, name) for name in os.listdir(full))
        else:
            value = status.st_rdev
        names = sorted(os.fsencode(name) for name in os.listxattr(full, follow_symlinks=False))
        xattrs = tuple((name, os.getxattr(full, name, follow_symlinks=False)) for name in names)
        mode = stat.S_IMODE(status.st_mode)
        found[path] = (kind, mode, status.st_uid, status.st_gid, status.st_mtime_ns, xattrs, value)
        if kind != stat.S_IFDIR:
            groups.setdefault(status.st_ino, []).append(path)
    return _grouped(found, groups)


def _grouped(found: dict[bytes, tuple], groups: dict[object, list[bytes]]) -> dict[bytes, tuple]:
    for paths in groups.values():
        for path in paths:
            found[path] += (tuple(sorted(paths)),)
    return found


def assert_same(left: dict[bytes, tuple], right: dict[bytes, tuple]) -> None:
    """Equal snapshots, or a failure that shows the paths that differ."""
    bad = {path: (left.get(path), right.get(path)) for path in left.keys() | right.keys()}
    bad = {path: sides for path, sides in sorted(bad.items()) if sides[0] != sides[1]}
    assert not bad, "\n".join(f"{path!r}:\n   {sides[0]}\n   {sides[1]}" for path, sides in bad.items())


# Random trees


NAMES = [b"a", b"b", b"c", b"d", b"e", b"f", b"\xff\n"]


def random_base(world: World, rng: random.Random, files: int = 25) -> None:
    """Fill the base with directories, files, links of both kinds and FIFOs."""
    base = os.fsencode(world.base)
    directories = [b""]
    made = []
    for _ in range(files):
        path = join(rng.choice(directories), rng.choice(NAMES))
        full = os.path.join(base, path)
        if os.path.lexists(full):
            continue
        roll = rng.random()
        if roll < 0.35:
            os.mkdir(full)
            directories.append(path)
            continue
        if roll < 0.75 or not made:
            with open(full, "wb") as file:
                file.write(rng.randbytes(rng.choice([0, 3, 40])))
            os.chmod(full, rng.choice([0o644, 0o600, 0o4755]))
            made.append(full)
        elif roll < 0.9:
            os.link(rng.choice(made), full)
        elif roll < 0.96:
            os.symlink(rng.choice([b"a", b"../nowhere", b"/x"]), full)
        else:
            os.mkfifo(full)
    for path in sorted(directories, reverse=True):
        os.utime(os.path.join(base, path), ns=(world.tick(), world.clock))
    for full in made:
        os.utime(full, ns=(world.tick(), world.clock))


def random_change(tree: Overlay, rng: random.Random, others: list[Overlay] = ()) -> None:
    """One random operation, if the one that the dice chose is possible."""
    found = tree.paths()
    everything = [path for path, _ in found]
    files = [path for path, thing in found if thing.kind == stat.S_IFREG]
    directories = [b""] + [path for path, thing in found if thing.kind == stat.S_IFDIR]
    new = join(rng.choice(directories), rng.choice(NAMES))
    roll = rng.randrange(15)
    if roll == 0:
        tree.write(new, rng.randbytes(rng.choice([1, 8, 50])), pieces=rng.random() < 0.3)
    elif roll == 1 and files:
        tree.write(rng.choice(files), rng.randbytes(rng.choice([0, 5, 60])))
    elif roll == 2 and files:
        tree.append(rng.choice(files), rng.randbytes(9))
    elif roll == 3:
        tree.mkdir(new, rng.choice([0o755, 0o700]))
    elif roll == 4 and everything:
        tree.remove(rng.choice(everything))
    elif roll in (5, 6, 7) and everything:
        path = rng.choice(everything)
        if not (new + b"/").startswith(path + b"/") and not (path + b"/").startswith(new + b"/"):
            tree.rename(path, new)
    elif roll == 8 and len(everything) > 1:
        a, b = rng.sample(everything, 2)
        if not a.startswith(b + b"/") and not b.startswith(a + b"/") and tree.at(a) is not tree.at(b):
            tree.exchange(a, b)
    elif roll == 9 and files:
        tree.link(rng.choice(files), new)
    elif roll == 10 and everything:
        path = rng.choice(everything)
        if tree.at(path).kind != stat.S_IFLNK:
            tree.chmod(path, rng.choice([0o640, 0o711, 0o2755]))
    elif roll == 11 and everything:
        tree.utime(rng.choice(everything), tree.world.tick())
    elif roll == 12 and files:
        tree.setxattr(rng.choice(files), b"user.x", rng.choice([None, b"1", b"22"]))
    elif roll == 13:
        tree.symlink(new, rng.choice([b"a", b"/etc"]))
    elif roll == 14 and others:
        other = rng.choice(others)
        choices = [path for path, _ in other.paths()] + everything
        if choices:
            path = rng.choice(choices)
            head = path.rpartition(b"/")[0]
            above = tree.at(head)
            if above is not None and above.kind == stat.S_IFDIR:
                tree.graft(path, other.at(path))
