"""What stands between a channel and the file system core: the calls of each upon the other.

Owns the two Protocols and the values that cross. ``FileSystem`` is what a channel serves (the core, or a fake in
tests); ``Channel`` is what speaks FUSE for it (``direct`` or ``pyfuse3_channel``). Knows no FUSE structure and no
trio. A channel unpacks a request, calls the file system once, packs the answer; it holds no policy.

Concurrency: a channel calls the file system from several threads at once, so the file system locks itself. The file
system never calls a channel; whoever changes the tree from outside (a restore) calls ``Channel.invalidate`` from a
thread that answers no requests and holds no lock that answering needs, because the kernel may make it wait for
requests in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from store.refs import Ino

ROOT = Ino(1)
"""The inode number of the root, in FUSE and here."""

VALID_SECONDS = 10 * 365 * 86400
"""How long the kernel may keep entries, attributes and absences: for ever, since nobody but this server changes the
tree and it says so when it does (``Invalidations``)."""

Buffer = bytes | bytearray | memoryview


class Caller(NamedTuple):
    """Who asks: ids as the kernel gives them; ``pid`` is the *thread* id of the caller, ``umask`` not yet applied to
    any mode that comes with it (a default ACL of the parent takes its place).
    """

    uid: int
    gid: int
    pid: int
    umask: int


class Attributes(Protocol):
    """What a channel reads of an inode to answer with it, in the same thread, before it makes another call.

    Times are nanoseconds since the epoch; ``mode`` has the type bits; ``blocks`` counts 512 bytes.
    """

    @property
    def ino(self) -> Ino: ...
    @property
    def mode(self) -> int: ...
    @property
    def nlink(self) -> int: ...
    @property
    def uid(self) -> int: ...
    @property
    def gid(self) -> int: ...
    @property
    def rdev(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def atime_ns(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def ctime_ns(self) -> int: ...


class Space(Protocol):
    """What ``statfs`` answers; ``os.statvfs_result`` is one."""

    @property
    def f_bsize(self) -> int: ...
    @property
    def f_frsize(self) -> int: ...
    @property
    def f_blocks(self) -> int: ...
    @property
    def f_bfree(self) -> int: ...
    @property
    def f_bavail(self) -> int: ...
    @property
    def f_files(self) -> int: ...
    @property
    def f_ffree(self) -> int: ...
    @property
    def f_namemax(self) -> int: ...


DirectoryRow = tuple[int, bytes, Ino, int]
"""One row of a listing: the offset after it (never 0), the name, the inode number, the type (``S_IF* >> 12``)."""


def visible_xattrs(names: Iterable[bytes], uid: int) -> list[bytes]:
    """The names that listxattr(2) shows to the user ``uid``: the trusted ones are root's alone (xattr(7))."""
    return [name for name in names if uid == 0 or not name.startswith(b"trusted.")]


class FileSystem(Protocol):
    """The core as a channel sees it. Every method may be called from any thread and raises ``vfs.errors.FsError``.

    Those that return an inode under a name (``lookup``, ``mknod``, ``mkdir``, ``symlink``, ``link``, ``tmpfile``)
    count one more lookup of it, which ``forget`` takes back. An inode lives while it has a name or a lookup, so
    there are no file handles: open, flush and release need no call. Names are single components, never ``.`` or
    ``..``, without NUL. Permissions are checked by the kernel (default_permissions), modes come unmasked.
    """

    def now(self) -> int:
        """The time that changes are stamped with, nanoseconds."""
        ...

    def lookup(self, parent: Ino, name: bytes) -> Attributes: ...

    def forget(self, ino: Ino, lookups: int) -> None:
        """Never raises, whatever the numbers."""
        ...

    def getattr(self, ino: Ino) -> Attributes: ...

    def setattr(
        self,
        ino: Ino,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        size: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
        ctime_ns: int | None = None,
    ) -> Attributes:
        """Set what is given. ``mode`` is permission bits (type bits are ignored). All or nothing."""
        ...

    def readlink(self, ino: Ino) -> bytes: ...

    def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attributes:
        """Any type but directory and symlink; creating a regular file is ``mknod`` of S_IFREG."""
        ...

    def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attributes: ...

    def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attributes: ...

    def link(self, ino: Ino, parent: Ino, name: bytes) -> Attributes: ...

    def tmpfile(self, parent: Ino, mode: int, caller: Caller) -> Attributes:
        """A regular file without a name."""
        ...

    def unlink(self, parent: Ino, name: bytes) -> None: ...

    def rmdir(self, parent: Ino, name: bytes) -> None: ...

    def rename(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int) -> None:
        """``flags`` as in renameat2(2): RENAME_NOREPLACE 1, RENAME_EXCHANGE 2; others are EINVAL."""
        ...

    def read(self, ino: Ino, offset: int, size: int) -> Buffer:
        """Fewer than ``size`` bytes only at the end of the file."""
        ...

    def write(self, ino: Ino, offset: int, data: Buffer, kill_suid: bool = False) -> int:
        """``data`` is borrowed: it is a channel's buffer, overwritten by the next request. ``kill_suid``: drop setuid,
        setgid (if group-executable) and security.capability, as write(2) by an unprivileged process does.
        """
        ...

    def fallocate(self, ino: Ino, mode: int, offset: int, length: int) -> None: ...

    def lseek(self, ino: Ino, offset: int, whence: int) -> int:
        """SEEK_DATA and SEEK_HOLE."""
        ...

    def copy_file_range(self, source: Ino, source_offset: int, target: Ino, target_offset: int, length: int) -> int: ...

    def fsync(self, ino: Ino, datasync: bool) -> None: ...

    def fsyncdir(self, ino: Ino) -> None: ...

    def syncfs(self) -> None: ...

    def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """ENODATA where there is none."""
        ...

    def setxattr(self, ino: Ino, name: bytes, value: bytes, flags: int) -> None: ...

    def listxattr(self, ino: Ino) -> Iterable[bytes]: ...

    def removexattr(self, ino: Ino, name: bytes) -> None: ...

    def readdir(self, ino: Ino, offset: int) -> Iterable[DirectoryRow]:
        """Rows after ``offset`` (0: from the start), ``.`` and ``..`` among them with offsets 1 and 2. The channel
        takes as many as fit and asks again from the last offset, so the cost must be that of what is taken. Calls of
        ``lookup`` come between the rows.
        """
        ...

    def statfs(self) -> Space: ...


class Invalidations(msgspec.Struct, frozen=True):
    """What the kernel may have cached and is no longer so, after a change that did not come through the kernel.

    ``entries``: (parent, name) that now mean another inode, or an inode where none was, or none where one was (listing
    and times of the parent are forgotten with it);
    ``attributes``: inodes whose attributes (and ACLs) alone changed; ``contents``: inodes whose bytes, or listing,
    changed under the same number; ``removed``: (parent, child, name) for children that are gone from there and from
    everywhere else; ``everything``: any entry may have changed (the other lists still say what they say), which needs
    ``Negotiated.epoch``: without it only what is listed is forgotten.
    An inode number that stays away from the kernel's sight may be left out of all lists.
    """

    entries: tuple[tuple[Ino, bytes], ...] = ()
    attributes: tuple[Ino, ...] = ()
    contents: tuple[Ino, ...] = ()
    removed: tuple[tuple[Ino, Ino, bytes], ...] = ()
    everything: bool = False


class Touched(msgspec.Struct, frozen=True):
    """One path that a restore changed, for those who watch it with inotify. ``path`` is relative to the root.

    ``before`` and ``after`` are the inodes under that path then and now with their full st_mode, None for none. Equal
    inode numbers mean that attributes changed.
    """

    path: bytes
    before: tuple[Ino, int] | None
    after: tuple[Ino, int] | None


class Negotiated(msgspec.Struct, frozen=True):
    """What a channel and the kernel agreed upon; facts for ``status``, tests and measurements."""

    protocol: tuple[int, int]
    flags: tuple[str, ...]
    max_write: int
    zero_message_open: bool
    epoch: bool
    """FUSE_NOTIFY_INC_EPOCH is there."""
    expire_only: bool
    writeback: bool


class Channel(Protocol):
    """Serves one file system at one mount point, in threads of its own."""

    @property
    def name(self) -> str:
        """``direct`` or ``pyfuse3``."""
        ...

    @property
    def negotiated(self) -> Negotiated:
        """Known once ``start`` has returned."""
        ...

    def start(self) -> None:
        """Mount and serve; returns when the mount answers. Raises ``vfs.channels.mountpoint.MountError``."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the mount is gone and all threads have ended; False if ``timeout`` seconds passed before."""
        ...

    def stop(self, lazy: bool = False) -> None:
        """Unmount, then wait. ``lazy`` detaches at once and lets open files live until they are closed (and does not
        wait for that). Raises ``vfs.channels.mountpoint.BusyError`` while files are open there and not ``lazy``.
        """
        ...

    def invalidate(self, invalidations: Invalidations) -> None:
        """Make the kernel forget; returns when it has. May block on requests in flight (see the module's rule)."""
        ...

    def wake(self, touched: Iterable[Touched]) -> None:
        """Let inotify watchers see what a restore changed; returns when they have been told. Call it after
        ``invalidate``, under the same rule. Changes nothing in the file system.
        """
        ...
