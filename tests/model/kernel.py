"""What a kernel does with a served file system: it remembers names, attributes, bytes and listings until it is told.

Owns the lookup counts, which it gives back as the kernel does: leaves first, and not what is open. Every answer of the
core goes through here, so that what it remembers can be compared with what the core would say now (``incoherent``).
"""

from __future__ import annotations

from collections import Counter

from store.refs import Ino
from vfs.channel import Caller, Invalidations
from vfs.errors import FsError

ROOT = 1
ME = Caller(0, 0, 0, 0o022)

Attributes = tuple[int, ...]


def facts(inode) -> Attributes:
    """What a reply tells of an inode."""
    return (
        inode.ino,
        inode.mode,
        inode.nlink,
        inode.uid,
        inode.gid,
        inode.rdev,
        inode.size,
        inode.blocks,
        inode.mtime_ns,
        inode.ctime_ns,
    )


class Kernel:
    """One mount's kernel. ``core`` is the file system."""

    def __init__(self, core) -> None:
        self.core = core
        self.lookups: Counter[int] = Counter()
        self.names: dict[tuple[int, bytes], int | None] = {}
        self.attributes: dict[int, Attributes] = {}
        self.bytes: dict[int, bytes] = {}
        self.listings: dict[int, dict[bytes, tuple[int, int]]] = {}
        self.open: Counter[int] = Counter()

    # Looking

    def lookup(self, parent: int, name: bytes) -> int | None:
        """The number under a name, asked for only if it is not remembered."""
        key = (parent, name)
        if key in self.names:
            return self.names[key]
        try:
            inode = self.core.lookup(Ino(parent), name)
        except FsError:
            self.names[key] = None
            raise
        self.entry(key, inode)
        return inode.ino

    def entry(self, key: tuple[int, bytes], inode) -> int:
        """A reply that counts a lookup."""
        self.lookups[inode.ino] += 1
        self.names[key] = inode.ino
        self.attributes[inode.ino] = facts(inode)
        return inode.ino

    def walk(self, path: bytes) -> int:
        ino = ROOT
        for name in path.split(b"/") if path else ():
            found = self.lookup(ino, name)
            assert found is not None, f"the kernel remembers that {path!r} is not there"
            ino = found
        return ino

    def stat(self, ino: int) -> Attributes:
        if ino not in self.attributes:
            self.attributes[ino] = facts(self.core.getattr(Ino(ino)))
        return self.attributes[ino]

    def read(self, ino: int) -> bytes:
        if ino not in self.bytes:
            self.bytes[ino] = read_all(self.core, ino)
        return self.bytes[ino]

    def list(self, ino: int) -> dict[bytes, tuple[int, int]]:
        if ino not in self.listings:
            self.listings[ino] = list_all(self.core, ino)
        return self.listings[ino]

    # What its own requests make it forget

    def changed(self, *inos: int) -> None:
        for ino in inos:
            self.attributes.pop(ino, None)
            self.bytes.pop(ino, None)
            self.listings.pop(ino, None)

    def gone(self, parent: int, name: bytes) -> None:
        """A name was removed: the kernel knows that it is not there."""
        ino = self.names.get((parent, name))
        self._drop_below(ino)
        self.names[parent, name] = None
        self.changed(parent, *([ino] if ino else []))
        self._release(ino)

    def moved(self, parent: int, name: bytes, new_parent: int, new_name: bytes, exchange: bool) -> None:
        one, other = self.names.get((parent, name)), self.names.get((new_parent, new_name))
        if not exchange:
            self._drop_below(other)
        self.names[new_parent, new_name] = one
        self.names[parent, name] = other if exchange else None
        self.changed(parent, new_parent, *(ino for ino in (one, other) if ino))
        if not exchange:
            self._release(other)

    def _drop_below(self, ino: int | None) -> None:
        """The names in a directory that goes away."""
        if ino is None:
            return
        for key in [key for key in self.names if key[0] == ino]:
            self._forget_name(key)

    def _forget_name(self, key: tuple[int, bytes]) -> None:
        ino = self.names.pop(key, None)
        self._drop_below(ino)
        self._release(ino)

    def _release(self, ino: int | None) -> None:
        """Give back the lookups of an inode that no name and no open file holds any more."""
        if ino is None or ino == ROOT or self.open[ino] or ino in self.names.values():
            return
        if any(parent == ino and child is not None for (parent, _), child in self.names.items()):
            return
        for key in [key for key in self.names if key[0] == ino]:
            del self.names[key]
        self.changed(ino)
        count = self.lookups.pop(ino, 0)
        if count:
            self.core.forget(Ino(ino), count)

    # What memory pressure and the server make it forget

    def hold(self, ino: int) -> None:
        self.open[ino] += 1

    def let_go(self, ino: int) -> None:
        self.open[ino] -= 1
        self._release(ino)

    def shrink(self, pick) -> None:
        """Drop a remembered name for which ``pick(n)`` chooses one of n, leaves first."""
        leaves = self._leaves()
        if leaves:
            self._forget_name(leaves[pick(len(leaves))])

    def shrink_all(self) -> None:
        while leaves := self._leaves():
            for key in leaves:
                self._forget_name(key)
        self.attributes = {ino: known for ino, known in self.attributes.items() if self.lookups[ino]}

    def _leaves(self) -> list[tuple[int, bytes]]:
        parents = {parent for (parent, _), child in self.names.items() if child is not None}
        return sorted(key for key, child in self.names.items() if child not in parents)

    def told(self, invalidations: Invalidations) -> None:
        """A server's notifications."""
        if invalidations.everything:
            for key in list(self.names):
                self._forget_name(key)
        for parent, name in invalidations.entries:
            self._invalidate(parent, name)
        for parent, _, name in invalidations.removed:
            self._invalidate(parent, name)
        for ino in invalidations.contents:
            self.changed(ino)
        for ino in invalidations.attributes:
            self.attributes.pop(ino, None)

    def _invalidate(self, parent: int, name: bytes) -> None:
        self.changed(parent)
        if (parent, name) in self.names:
            self._forget_name((parent, name))

    # Is it right?

    def incoherent(self) -> list[str]:
        """Where what it remembers is not what the core would say."""
        wrong = []
        for (parent, name), known in list(self.names.items()):
            try:
                found = self.core.lookup(Ino(parent), name).ino
                self.core.forget(found, 1)
            except FsError:
                found = None
            if found != known:
                wrong.append(f"name {name!r} in {parent}: the kernel remembers {known}, it is {found}")
        for ino, known in self.attributes.items():
            found = facts(self.core.getattr(Ino(ino)))
            if found != known:
                wrong.append(f"attributes of {ino}: the kernel remembers {known}, they are {found}")
        for ino, known in self.bytes.items():
            if read_all(self.core, ino) != known:
                wrong.append(f"content of {ino}: the kernel remembers {known[:40]!r}")
        for ino, known in self.listings.items():
            found = list_all(self.core, ino)
            if found != known:
                wrong.append(f"listing of {ino}: the kernel remembers {known}, it is {found}")
        return wrong


def read_all(core, ino: int) -> bytes:
    return core.read(Ino(ino), 0, core.getattr(Ino(ino)).size + 10)


def list_all(core, ino: int) -> dict[bytes, tuple[int, int]]:
    """(number, type) of each name; ``.`` and ``..`` left out."""
    found: dict[bytes, tuple[int, int]] = {}
    offset = 0
    while rows := list(core.readdir(Ino(ino), offset)):
        for at, name, number, kind in rows:
            assert at > offset, "offsets grow"
            offset = at
            if name not in (b".", b".."):
                assert name not in found, f"{name!r} is listed twice"
                found[name] = (number, kind)
    return found
