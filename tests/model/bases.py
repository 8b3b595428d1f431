"""Base directories to start from, and the model of each."""

from __future__ import annotations

import os
import random
import stat

from tests.model.plain import DIR, LNK, REG, Node, Plain

OLD = 1_500_000_000_000_000_000
ODD = b"\xff\xfe\n\xc3"
LONG = b"n" * 255
NAMES = [b"a", b"b", b"c", b"d", b".git", ODD, LONG]


class Maker:
    """Makes real files and their model side by side."""

    def __init__(self, top: bytes) -> None:
        self.top = top
        self.plain = Plain()
        self._time = OLD
        self._counter = 0

    def tick(self) -> int:
        self._time += 1_000_000_007
        return self._time

    def _add(self, path: bytes, node: Node) -> Node:
        *above, name = path.split(b"/")
        parent = self.plain.root
        for step in above:
            parent = parent.entries[step]
        parent.entries[name] = node
        return node

    def _dress(self, path: bytes, node: Node, xattrs: dict[bytes, bytes] | None = None) -> Node:
        where = os.path.join(self.top, path)
        if node.kind != LNK:
            os.chmod(where, node.mode)
        if xattrs:
            for name, value in xattrs.items():
                os.setxattr(where, name, value)
            node.xattrs = dict(xattrs)
        return self._add(path, node)

    def directory(self, path: bytes, mode: int = 0o755, xattrs: dict[bytes, bytes] | None = None) -> Node:
        os.mkdir(os.path.join(self.top, path))
        return self._dress(path, Node(DIR, mode), xattrs)

    def file(
        self, path: bytes, data: bytes | None = None, mode: int = 0o644, xattrs: dict[bytes, bytes] | None = None
    ) -> Node:
        self._counter += 1
        if data is None:
            data = b"base %d %s\n" % (self._counter, path[-20:])
        with open(os.path.join(self.top, path), "wb") as file:
            file.write(data)
        return self._dress(path, Node(REG, mode, data=bytearray(data)), xattrs)

    def sparse(self, path: bytes, size: int, at: int, data: bytes) -> Node:
        with open(os.path.join(self.top, path), "wb") as file:
            os.ftruncate(file.fileno(), size)
            os.pwrite(file.fileno(), data, at)
        content = bytearray(size)
        content[at : at + len(data)] = data
        return self._dress(path, Node(REG, 0o644, data=content))

    def symlink(self, path: bytes, target: bytes) -> Node:
        os.symlink(target, os.path.join(self.top, path))
        return self._dress(path, Node(LNK, 0o777, target=target))

    def fifo(self, path: bytes) -> Node:
        os.mkfifo(os.path.join(self.top, path))
        return self._dress(path, Node(stat.S_IFIFO, 0o600))

    def link(self, old: bytes, new: bytes) -> None:
        os.link(os.path.join(self.top, old), os.path.join(self.top, new))
        node = self.plain.paths()[old]
        self._add(new, node)

    def done(self) -> Plain:
        """Give everything its time, numbers and owners as they are on the disk."""
        for path, node in self.plain.paths().items():
            where = os.path.join(self.top, path) if path else self.top
            when = self.tick()
            os.utime(where, ns=(when, when), follow_symlinks=False)
            node.mtime = node.tree_mtime = when
        for path, node in self.plain.paths().items():
            status = os.lstat(os.path.join(self.top, path) if path else self.top)
            node.mtime = node.tree_mtime = status.st_mtime_ns
            node.ino = status.st_ino if path else 1
            node.uid, node.gid = status.st_uid, status.st_gid
            node.mode = stat.S_IMODE(status.st_mode)
        return self.plain


def small(make: Maker) -> None:
    make.file(b"a")
    make.directory(b"d")
    make.file(b"d/a")


def rich(make: Maker) -> None:
    """One of everything, and names that meet."""
    make.file(b"a", mode=0o600, xattrs={b"user.one": b"1", b"user.two": b""})
    make.file(b"b", data=b"")
    make.symlink(b"c", b"nowhere/\xff")
    make.directory(b"d", mode=0o2775, xattrs={b"user.dir": b"\0"})
    make.file(b"d/a", data=bytes(range(256)) * 3)
    make.directory(b"d/b")
    make.file(b"d/b/a")
    make.directory(b"d/b/c", mode=0o700)
    make.file(b"d/b/c/a")
    make.fifo(b"d/c")
    make.sparse(b"d/" + ODD, 20_000, 9_000, b"island")
    make.directory(b".git")
    make.file(b".git/a")
    make.directory(b".git/d")
    make.file(b".git/d/a")
    make.directory(b"d/.git")
    make.file(b"d/.git/a")
    make.directory(LONG)
    make.file(LONG + b"/a", mode=0)


def linked(make: Maker) -> None:
    """Hard links in the base."""
    make.file(b"a")
    make.link(b"a", b"b")
    make.directory(b"d")
    make.link(b"a", b"d/a")
    make.file(b"d/c")
    make.link(b"d/c", b"d/d")
    make.directory(b"c")
    make.directory(b"c/a")
    make.link(b"d/c", b"c/a/a")


def many(make: Maker) -> None:
    """Enough names for pages to branch."""
    for number in range(90):
        make.file(b"f%d" % number)
    make.directory(b"d")
    for number in range(70):
        make.file(b"d/g%d" % number, data=b"g%d" % number)


def chance(make: Maker, seed: int) -> None:
    rng = random.Random(seed)
    places = [b""]
    for _ in range(rng.randrange(12)):
        above = rng.choice(places)
        path = above + b"/" + rng.choice(NAMES) if above else rng.choice(NAMES)
        if len(path) > 700 or path in make.plain.paths():
            continue
        kind = rng.randrange(6)
        if kind < 2:
            make.directory(path, rng.choice([0o755, 0o700, 0o777]))
            places.append(path)
        elif kind < 4:
            make.file(path, rng.randbytes(rng.choice([0, 5, 100, 3000])), rng.choice([0o644, 0o4755, 0o400]))
        elif kind == 4:
            make.symlink(path, rng.choice([b"a", b"/etc/passwd", b"../.."]))
        else:
            make.file(path)


def base(top: bytes, number: int) -> Plain:
    """Base number ``number``; 0 is empty, 1 to 4 are chosen, the rest is chance."""
    make = Maker(top)
    chosen = {1: small, 2: rich, 3: linked, 4: many}
    if number in chosen:
        chosen[number](make)
    elif number:
        chance(make, number)
    return make.done()
