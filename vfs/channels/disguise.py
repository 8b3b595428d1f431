"""What the thread that wakes inotify watchers is told instead of the truth.

The kernel raises inotify events only for what passes through it, so after a restore ``watchers`` plays the changes
once more through the mount. Its requests must succeed and change nothing: here is what the channels answer to that
one thread, which they know by the thread id that every request carries. Owns the part being played and the lookups
lent for it; never changes the file system.

Concurrency: ``Watchers`` sets a part, makes one system call, and clears the part; serving threads read it meanwhile,
for requests of that very call, so nothing else changes it. The lent lookups have a lock of their own.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final, Literal, TypeAlias

import msgspec

from store.refs import Ino
from vfs.channel import Attributes, FileSystem
from vfs.errors import FsError


class Appear(msgspec.Struct, frozen=True):
    """``name`` in ``parent`` is to be created, though it is there."""

    parent: Ino
    name: bytes


class Ghost(msgspec.Struct, frozen=True):
    """What can be said of an inode that the file system has dropped: the kernel has, too, so nobody looks closer."""

    ino: Ino
    mode: int
    nlink: int = 1
    uid: int = 0
    gid: int = 0
    rdev: int = 0
    size: int = 0
    blocks: int = 0
    atime_ns: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0


class Vanish(msgspec.Struct, frozen=True):
    """``name`` in ``parent`` is to be removed and was ``ino`` of ``mode``, though it is gone or is another."""

    parent: Ino
    name: bytes
    ino: Ino
    mode: int


class Touch(msgspec.Struct, frozen=True):
    """The attributes of ``ino`` are to be set to what they are."""

    ino: Ino


class Knock(msgspec.Struct, frozen=True):
    """``name`` in the root is asked for, only to see who answers."""

    name: bytes


Part: TypeAlias = Appear | Vanish | Touch | Knock

ABSENT: Final = "absent"


class Disguise:
    """Answers for one thread at a time. ``thread`` is its id, -1 while there is none."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self.thread = -1
        self.part: Part | None = None
        self.heard: bytes | None = None
        """The name of the last knock that reached us."""
        self.lent: Counter[Ino] = Counter()
        """Lookups that the kernel counts and the file system does not: those of vanished names."""

    def lookup(self, parent: Ino, name: bytes) -> Attributes | Literal["absent"] | None:
        """ABSENT, or the vanished inode (not to be remembered under that name), or None for the truth."""
        match self.part:
            case Knock(name=n) if n == name:
                self.heard = name
                return ABSENT
            case Appear(parent=p, name=n) if p == parent and n == name:
                return ABSENT
            case Vanish(parent=p, name=n, ino=ino, mode=mode) if p == parent and n == name:
                with self._lock:
                    self.lent[ino] += 1
                try:
                    return self._fs.getattr(ino)
                except FsError:
                    return Ghost(ino, mode)
        return None

    def make(self, parent: Ino, name: bytes) -> Attributes | None:
        """The inode that is there, with one more lookup, or None if a real creation is meant."""
        match self.part:
            case Appear(parent=p, name=n) if p == parent and n == name:
                return self._fs.lookup(parent, name)
        return None

    def remove(self, parent: Ino, name: bytes) -> bool:
        """True if the removal has been played, False if a real one is meant."""
        match self.part:
            case Vanish(parent=p, name=n):
                return p == parent and n == name
        return False

    def setattr(self, ino: Ino) -> Attributes | None:
        """The attributes as they are, or None if a real change is meant."""
        match self.part:
            case Touch(ino=i) if i == ino:
                return self._fs.getattr(ino)
        return None

    def take_back(self, ino: Ino, lookups: int) -> int:
        """How many of ``lookups`` that the kernel forgets are the file system's."""
        with self._lock:
            lent = min(self.lent.get(ino, 0), lookups)
            if lent:
                self.lent[ino] -= lent
                if not self.lent[ino]:
                    del self.lent[ino]
        return lookups - lent
