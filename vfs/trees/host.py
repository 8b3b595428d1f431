"""The real directories below a mount: the workspace's base and the folders of its attic, read by origin.

Owns the directory descriptors of the trees, the way from an ``Origin`` to a file, and the mapping from a file's own
(device, inode) to the ``Ino`` that plyfs shows. Does not own what a tree says of them (``view``) and never writes,
save one last resort: a file or directory of ours whose own mode keeps us out is opened up for the moment of reading.

Everything goes through descriptors opened before the mount covered the path, so nothing here can wait for the mount.

Concurrency: any thread may call; the few shared tables are guarded by one lock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from blake3 import blake3

from store.entries import below
from store.format import Attributes, Directory, Origin, Original, Regular, Special, Symlink
from store.refs import Ino
from vfs import xattrs
from vfs.errors import FsError
from vfs.libc import libc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

T = TypeVar("T")

ROOT_INO = Ino(1)

NEW_INO = 1 << 62
"""Inode numbers from here on belong to files that were made in a mount; smaller ones to the base."""

DEVICE_SHIFT = 52
HASHED_DEVICE = 1023
"""The device index of files whose own number does not fit below ``DEVICE_SHIFT``: they are numbered by a hash."""

STEP_BYTES = 3800
"""A longer path is walked in steps: PATH_MAX (4096) holds for each system call, not for what a user may have."""

READ_FLAGS = 0
for _flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK"):  # Windows has none of them, and no bases either
    READ_FLAGS |= getattr(os, _flag, 0)

RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
SYS_OPENAT2 = 437  # one number on every architecture: openat2(2) came after numbering was unified


class OpenHow(ctypes.Structure):
    """``struct open_how`` of openat2(2)."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class Listed(NamedTuple):
    """One row of a directory: ``type`` is S_IFMT's part of the mode shifted right by 12, as d_type."""

    name: bytes
    ino: Ino
    type: int


Rows: TypeAlias = list[Listed]
Devices: TypeAlias = list[int]


def parent(path: bytes) -> tuple[bytes, bytes]:
    """The directory part and the last name of a relative path."""
    head, _, name = path.rpartition(b"/")
    return head, name


class Host:
    """Reads the base (tree 0) and the attic's folders. Every method raises FsError."""

    def __init__(self, trees: Mapping[int, int], devices: Sequence[int] = ()) -> None:
        """``trees`` are directory descriptors, which stay the caller's. ``devices`` is what ``devices`` gave in an
        earlier mount, so that numbers stay what they were.
        """
        self._trees = dict(trees)
        self._lock = threading.RLock()
        self._devices: dict[int, int] = {}
        self._root: tuple[int, int] | None = None
        self._mounts: frozenset[bytes] = frozenset()
        self._names: dict[tuple[int, Ino], tuple[bytes, ...]] = {}
        self.opened_up: dict[tuple[int, int], int] = {}
        """(device, inode) of what was opened up for reading, to the change time (nanoseconds) that this left."""
        if 0 in self._trees:
            status = os.fstat(self._trees[0])
            self._root = (status.st_dev, status.st_ino)
            self._devices[status.st_dev] = 0
            self._mounts = _mounts_below(self._trees[0])
        for device in devices[1:]:
            self._devices.setdefault(device, len(self._devices))

    @property
    def devices(self) -> Devices:
        """The device table, to be kept for the next mount."""
        return list(self._devices)

    def add_tree(self, tree: int, fd: int) -> None:
        """Make the directory ``fd`` readable as tree number ``tree``."""
        self._trees[tree] = fd

    def open_attic(self, attic_dir: bytes) -> None:
        """Read every folder of the attic that is not known yet. The descriptors stay open."""
        for name in os.listdir(attic_dir):
            if name.isdigit() and not self.has_tree(int(name)):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                self.add_tree(int(name), os.open(os.path.join(attic_dir, name), flags))

    def has_tree(self, tree: int) -> bool:
        """True if tree number ``tree`` can be read."""
        return tree in self._trees

    def has_attic(self) -> bool:
        """True if there is any folder of the attic."""
        return any(self._trees)

    def tree(self, tree: int) -> int:
        """The descriptor of a tree."""
        try:
            return self._trees[tree]
        except KeyError:
            raise FsError(errno.EIO, f"folder {tree} of the attic is not there") from None

    def ino(self, status: os.stat_result) -> Ino:
        """The number that plyfs shows for a file of the host."""
        device, number = status.st_dev, status.st_ino
        if (device, number) == self._root:
            return ROOT_INO
        return self._mapped(device, number)

    def _mapped(self, device: int, number: int) -> Ino:
        index = self._devices.get(device)
        if index is None:
            with self._lock:
                index = self._devices.setdefault(device, len(self._devices))
        if number >> DEVICE_SHIFT or index >= HASHED_DEVICE:
            hashed = blake3(b"%d:%d" % (index, number)).digest(length=8)
            return Ino(HASHED_DEVICE << DEVICE_SHIFT | int.from_bytes(hashed, "little") >> (64 - DEVICE_SHIFT))
        return Ino(index << DEVICE_SHIFT | number)

    def stat(self, origin: Origin) -> os.stat_result:
        """lstat(2)."""
        path = origin.path
        try:
            if len(path) < STEP_BYTES:
                return os.stat(path or b".", dir_fd=self.tree(origin.tree), follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EACCES:
                raise _failed(error, origin) from error
        return self._stepped(origin, lambda fd, name: os.stat(name, dir_fd=fd, follow_symlinks=False))

    def probe(self, origin: Origin) -> os.stat_result | None:
        """As ``stat``; None if nothing is there. Cheap, since every name that is made is first asked for."""
        if len(origin.path) < STEP_BYTES:
            try:
                return os.stat(origin.path or b".", dir_fd=self._trees[origin.tree], follow_symlinks=False)
            except FileNotFoundError:
                return None
            except (OSError, KeyError):
                pass  # told apart below
        try:
            return self.stat(origin)
        except FsError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    def exists(self, origin: Origin) -> bool:
        """True if there is anything, a dangling symbolic link too."""
        return self.probe(origin) is not None

    def readlink(self, origin: Origin) -> bytes:
        """The target of a symbolic link."""
        try:
            if len(origin.path) < STEP_BYTES:
                return os.readlink(origin.path, dir_fd=self.tree(origin.tree))
        except OSError as error:
            if error.errno != errno.EACCES:
                raise _failed(error, origin) from error
        return self._stepped(origin, lambda fd, name: os.readlink(name, dir_fd=fd))

    def open_any(self, origin: Origin) -> int:
        """A descriptor for reading what is at ``origin``, of whatever type; the caller looks."""
        return self._open(origin, READ_FLAGS)

    def open(self, origin: Origin, flags: int = os.O_RDONLY) -> int:
        """A descriptor of the regular file at ``origin``; EIO for anything else."""
        fd = self._open(origin, flags | READ_FLAGS)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FsError(errno.EIO, f"{describe(origin)} is not a regular file any more")
        return fd

    def open_directory(self, origin: Origin) -> int:
        """A descriptor of the directory at ``origin``."""
        return self._open(origin, os.O_RDONLY | os.O_DIRECTORY | READ_FLAGS)

    def _open(self, origin: Origin, flags: int) -> int:
        path = origin.path or b"."
        try:
            if len(path) < STEP_BYTES:
                return open_beneath(self.tree(origin.tree), path, flags)
        except OSError as error:
            if error.errno != errno.EACCES:
                raise _failed(error, origin) from error
        return self._stepped(origin, lambda fd, name: self._forced_open(fd, name, flags))

    def _forced_open(self, fd: int, name: bytes, flags: int) -> int:
        """Open what our own mode bits forbid: let us in, open, put the mode back."""
        try:
            return os.open(name, flags, dir_fd=fd)
        except PermissionError:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode):
                raise
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            self._open_up(handle, status)
            try:
                return os.open(name, flags, dir_fd=fd)
            finally:
                self._close_again(handle, status)
        finally:
            os.close(handle)

    def _open_up(self, handle: int, status: os.stat_result) -> None:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode) | 0o700)

    def _close_again(self, handle: int, status: os.stat_result) -> None:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode))
        self.opened_up[status.st_dev, status.st_ino] = os.fstat(handle).st_ctime_ns

    def _stepped(self, origin: Origin, operation: Callable[[int, bytes], T]) -> T:
        """``operation(directory, name)``, reaching the directory one name at a time and through closed doors."""
        *above, name = (origin.path or b".").split(b"/")
        with self._lock, ExitStack() as stack:
            fd = self.tree(origin.tree)
            try:
                for step in above:
                    fd = self._step(fd, step, stack)
                return operation(fd, name)
            except PermissionError as error:
                status = os.fstat(fd)
                if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o500 == 0o500:
                    raise _failed(error, origin) from error
                self._keep_open(fd, status, stack)
                try:
                    return operation(fd, name)
                except OSError as again:
                    raise _failed(again, origin) from again
            except OSError as error:
                raise _failed(error, origin) from error

    def _step(self, fd: int, name: bytes, stack: ExitStack) -> int:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            found = os.open(name, flags, dir_fd=fd)
        except PermissionError:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid():
                raise
            self._keep_open(fd, status, stack)
            found = os.open(name, flags, dir_fd=fd)
        stack.callback(os.close, found)
        return found

    def _keep_open(self, fd: int, status: os.stat_result, stack: ExitStack) -> None:
        self._open_up(fd, status)
        stack.callback(self._close_again, fd, status)

    def list(self, origin: Origin) -> Rows:
        """The rows of a directory, without ``.`` and ``..``, in no order."""
        fd = self.open_directory(origin)
        try:
            device = os.fstat(fd).st_dev
            rows = []
            with os.scandir(fd) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    if origin.tree == 0 and self._mounts and below(origin, name).path in self._mounts:
                        status = self.stat(below(origin, name))
                        rows.append(Listed(name, self.ino(status), status.st_mode >> 12))
                    else:
                        rows.append(Listed(name, self._mapped(device, entry.inode()), _type(entry)))
            return rows
        except OSError as error:
            raise _failed(error, origin) from error
        finally:
            os.close(fd)

    def xattrs(self, origin: Origin) -> tuple[tuple[bytes, bytes], ...]:
        """The extended attributes, sorted by name; none where the file system has none."""
        try:
            if len(origin.path) < STEP_BYTES:
                return xattrs.read(b"/proc/self/fd/%d/%s" % (self.tree(origin.tree), origin.path or b"."))
        except OSError as error:
            if error.errno != errno.EACCES:
                raise _failed(error, origin) from error
        return self._stepped(origin, lambda fd, name: xattrs.read(b"/proc/self/fd/%d/%s" % (fd, name)))

    def attributes(self, origin: Origin, status: os.stat_result) -> Attributes:
        """The attributes of what ``status`` is about."""
        return Attributes(
            ino=self.ino(status),
            mode=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
            xattrs=self.xattrs(origin),
        )

    def entry(self, origin: Origin, status: os.stat_result | None = None) -> Regular | Directory | Symlink | Special:
        """What is at ``origin``, as an entry that cites it. Link tables are ``view``'s business."""
        if status is None:
            status = self.stat(origin)
        attributes = self.attributes(origin, status)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            return Regular(attributes, Original(origin, status.st_size, status.st_mtime_ns))
        if kind == stat.S_IFDIR:
            return Directory(attributes, origin, 0, None)
        if kind == stat.S_IFLNK:
            return Symlink(attributes, self.readlink(origin))
        device = status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
        return Special(attributes, kind, device)

    def names(self, inos: Collection[Ino], tree: int = 0) -> dict[Ino, tuple[bytes, ...]]:
        """The paths in one tree of each inode number, sorted. Lists every directory of the tree the first time it is
        asked for a number, so it is for files with several names only.
        """
        missing = {ino for ino in inos if (tree, ino) not in self._names}
        if missing:
            found: dict[Ino, list[bytes]] = {ino: [] for ino in missing}
            waiting = [Origin(tree, b"")]
            while waiting:
                directory = waiting.pop()
                for row in self.list(directory):
                    if row.ino in missing:
                        found[row.ino].append(below(directory, row.name).path)
                    if row.type == stat.S_IFDIR >> 12:
                        waiting.append(below(directory, row.name))
            self._names.update(((tree, ino), tuple(sorted(paths))) for ino, paths in found.items())
        return {ino: self._names[tree, ino] for ino in inos}

    def forget_names(self) -> None:
        """The base has changed: what ``names`` remembers is void."""
        self._names.clear()


def lost_ino(path: bytes) -> Ino:
    """A number for a directory whose own is not known, the same every time."""
    return Ino(HASHED_DEVICE << DEVICE_SHIFT | int.from_bytes(blake3(b"lost:" + path).digest(length=6), "little"))


def describe(origin: Origin) -> str:
    """``origin`` for a person."""
    path = os.fsdecode(origin.path) or "."
    return path if origin.tree == 0 else f"{path} (attic {origin.tree})"


def open_beneath(fd: int, path: bytes, flags: int) -> int:
    """Open ``path`` below the directory ``fd``, following no symbolic link on the way. Raises OSError.

    Without openat2(2) (Linux 5.6) only the last name is checked.
    """
    if b"/" not in path:
        return os.open(path, flags | os.O_NOFOLLOW, dir_fd=fd)
    how = OpenHow(flags | os.O_NOFOLLOW, 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
    while True:
        found = libc.syscall(SYS_OPENAT2, fd, path, ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            return int(found)
        number = ctypes.get_errno()
        if number in (errno.EAGAIN, errno.EINTR):  # a rename went on somewhere: openat2(2) asks to try again
            continue
        if number in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            return os.open(path, flags | os.O_NOFOLLOW, dir_fd=fd)
        raise OSError(number, os.strerror(number), path)


def _type(entry: os.DirEntry[str]) -> int:
    if entry.is_file(follow_symlinks=False):
        return stat.S_IFREG >> 12
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR >> 12
    if entry.is_symlink():
        return stat.S_IFLNK >> 12
    return entry.stat(follow_symlinks=False).st_mode >> 12


def _mounts_below(fd: int) -> frozenset[bytes]:
    """The mount points below the directory ``fd``: readdir(3) gives the number of what such a mount covers."""
    try:
        top = os.fsencode(os.readlink(f"/proc/self/fd/{fd}")).rstrip(b"/") + b"/"
        with open("/proc/self/mountinfo", "rb") as table:
            rows = table.read().splitlines()
    except OSError:
        return frozenset()
    points = (row.split()[4] for row in rows)
    paths = (p.replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\012", b"\n") for p in points)
    return frozenset(path.replace(b"\\134", b"\\")[len(top) :] for path in paths if path.startswith(top))


def _failed(error: OSError, origin: Origin) -> FsError:
    number = error.errno or errno.EIO
    return FsError(number, f"{describe(origin)}: {os.strerror(number)}")
