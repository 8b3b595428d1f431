"""What differs between Linux, macOS and Windows when a directory tree is read and changed: in one place, chosen once.

Owns the system calls of scanner mode. Where the system can, everything goes through descriptors of directories, so that
no symbolic link is ever followed (``Posix``); Windows has no such calls, and works with paths (``Paths``, which runs on
every system, so that it can be tested here). Does not own what is done with a tree.

Names are text as ``os.fsdecode`` gives it. Methods raise OSError. Concurrency: no state; any thread.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from store.format import Attributes
from vfs import xattrs
from vfs.scan import changetime

T = TypeVar("T")

Handle: TypeAlias = int | str
"""An open directory: a descriptor, or a path where there are none."""

NOT_ALLOWED = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
BUSY_TRIES, BUSY_SECONDS = 20, 0.05
SHARING_VIOLATIONS = (5, 32, 33)

_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_SAFE = getattr(os, "O_NOFOLLOW", 0) | _CLOEXEC | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_NONBLOCK", 0)
_PATH = getattr(os, "O_PATH", 0)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)

RESERVED = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$", *(f"{w}{n}" for w in ("com", "lpt") for n in "123456789¹²³")}
)


class Platform(Protocol):
    """The system calls that scanner mode needs."""

    name: str
    threads: int

    def open_top(self, path: bytes) -> Handle: ...

    def open_directory(self, at: Handle, name: str) -> Handle: ...

    def close(self, at: Handle) -> None: ...

    def entries(self, at: Handle) -> list[os.DirEntry[str]]: ...

    def stat_directory(self, at: Handle) -> os.stat_result: ...

    def stat(self, at: Handle, name: str) -> os.stat_result: ...

    def stat_open(self, fd: int) -> os.stat_result: ...

    def open_file(self, at: Handle, name: str) -> int: ...

    def readlink(self, at: Handle, name: str) -> bytes: ...

    def xattrs(self, at: Handle, name: str) -> tuple[tuple[bytes, bytes], ...]: ...

    def xattrs_open(self, fd: int) -> tuple[tuple[bytes, bytes], ...]: ...

    def create(self, at: Handle, name: str) -> int: ...

    def mkdir(self, at: Handle, name: str) -> None: ...

    def symlink(self, target: bytes, at: Handle, name: str, directory: bool) -> None: ...

    def mknod(self, at: Handle, name: str, mode: int, device: int) -> None: ...

    def link(self, at: Handle, name: str, to: Handle, new: str) -> None: ...

    def rename(self, at: Handle, name: str, to: Handle, new: str) -> None: ...

    def unlink(self, at: Handle, name: str) -> None: ...

    def rmdir(self, at: Handle, name: str) -> None: ...

    def set_attributes(self, at: Handle, name: str, wanted: Attributes, times: bool) -> list[str]: ...

    def open_up(self, at: Handle, name: str) -> int | None: ...

    def close_again(self, at: Handle, name: str, mode: int) -> None: ...

    def sync(self, at: Handle) -> None: ...

    def name_problem(self, name: str) -> str | None: ...


class Posix:
    """Linux and macOS: everything relative to descriptors of directories."""

    name = sys.platform
    threads = max(2, min(8, 2 * (os.cpu_count() or 1)))

    def open_top(self, path: bytes) -> Handle:
        """The directory at ``path``."""
        return os.open(path, os.O_RDONLY | _DIRECTORY | _CLOEXEC)

    def open_directory(self, at: Handle, name: str) -> Handle:
        """The directory ``name`` in ``at``; ENOTDIR or ELOOP if it is something else."""
        return os.open(name, os.O_RDONLY | _DIRECTORY | _SAFE, dir_fd=_fd(at))

    def close(self, at: Handle) -> None:
        """Give up ``at``."""
        os.close(_fd(at))

    def entries(self, at: Handle) -> list[os.DirEntry[str]]:
        """What ``at`` holds."""
        os.lseek(_fd(at), 0, os.SEEK_SET)  # btrfs lists what there was when it was opened or wound back
        with os.scandir(_fd(at)) as found:
            return list(found)

    def stat_directory(self, at: Handle) -> os.stat_result:
        """fstat(2)."""
        return os.fstat(_fd(at))

    def stat(self, at: Handle, name: str) -> os.stat_result:
        """lstat(2) of ``name`` in ``at``."""
        return os.stat(name, dir_fd=_fd(at), follow_symlinks=False)

    def stat_open(self, fd: int) -> os.stat_result:
        """fstat(2) of an open file."""
        return os.fstat(fd)

    def open_file(self, at: Handle, name: str) -> int:
        """A descriptor for reading; does not wait for a FIFO's writer."""
        return os.open(name, os.O_RDONLY | _SAFE, dir_fd=_fd(at))

    def readlink(self, at: Handle, name: str) -> bytes:
        """The target of a symbolic link."""
        return os.fsencode(os.readlink(name, dir_fd=_fd(at)))

    def xattrs(self, at: Handle, name: str) -> tuple[tuple[bytes, bytes], ...]:
        """The extended attributes, sorted; none where Python or the file system has none."""
        return xattrs.read(os.fsencode(f"/proc/self/fd/{at}/{name or '.'}")) if sys.platform == "linux" else ()

    def xattrs_open(self, fd: int) -> tuple[tuple[bytes, bytes], ...]:
        """As ``xattrs``, of an open file."""
        return xattrs.read(fd) if sys.platform == "linux" else ()

    def create(self, at: Handle, name: str) -> int:
        """A new empty private file."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=_fd(at))

    def mkdir(self, at: Handle, name: str) -> None:
        """A new private directory."""
        os.mkdir(name, 0o700, dir_fd=_fd(at))

    def symlink(self, target: bytes, at: Handle, name: str, directory: bool) -> None:
        """A new symbolic link."""
        os.symlink(os.fsdecode(target), name, dir_fd=_fd(at))

    def mknod(self, at: Handle, name: str, mode: int, device: int) -> None:
        """A FIFO, socket or device."""
        if stat.S_IFMT(mode) == stat.S_IFIFO:
            os.mkfifo(name, stat.S_IMODE(mode), dir_fd=_fd(at))
        else:
            os.mknod(name, mode, device, dir_fd=_fd(at))

    def link(self, at: Handle, name: str, to: Handle, new: str) -> None:
        """Another name for a file."""
        os.link(name, new, src_dir_fd=_fd(at), dst_dir_fd=_fd(to), follow_symlinks=False)

    def rename(self, at: Handle, name: str, to: Handle, new: str) -> None:
        """rename(2)."""
        os.rename(name, new, src_dir_fd=_fd(at), dst_dir_fd=_fd(to))

    def unlink(self, at: Handle, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=_fd(at))

    def rmdir(self, at: Handle, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=_fd(at))

    def set_attributes(self, at: Handle, name: str, wanted: Attributes, times: bool) -> list[str]:
        """Owner, extended attributes, mode and (with ``times``) modification time, in the order in which they survive
        each other. Returns what the system did not let us set.
        """
        status = self.stat(at, name)
        refused: list[str] = []
        if (status.st_uid, status.st_gid) != (wanted.uid, wanted.gid):
            _try(refused, "owner", lambda: self._chown(at, name, wanted))
        if sys.platform == "linux":
            self._set_xattrs(at, name, wanted, refused)
        if not stat.S_ISLNK(status.st_mode) and stat.S_IMODE(self.stat(at, name).st_mode) != wanted.mode:
            _try(refused, "mode", lambda: self._chmod(at, name, wanted.mode))
        if times:
            both = (status.st_atime_ns, wanted.mtime_ns)
            _try(refused, "time", lambda: os.utime(name, ns=both, dir_fd=_fd(at), follow_symlinks=False))
        return refused

    def _chown(self, at: Handle, name: str, wanted: Attributes) -> None:
        os.chown(name, wanted.uid, wanted.gid, dir_fd=_fd(at), follow_symlinks=False)

    def _set_xattrs(self, at: Handle, name: str, wanted: Attributes, refused: list[str]) -> None:
        present = dict(self.xattrs(at, name))
        path = f"/proc/self/fd/{at}/{name}"  # no call follows a link: links have attributes of their own
        for key in present.keys() - dict(wanted.xattrs).keys():
            _try(refused, os.fsdecode(key), partial(os.removexattr, path, key, follow_symlinks=False))
        for key, value in wanted.xattrs:
            if present.get(key) != value:
                _try(refused, os.fsdecode(key), partial(os.setxattr, path, key, value, 0, follow_symlinks=False))

    def _chmod(self, at: Handle, name: str, mode: int) -> None:
        if not _PATH:
            os.chmod(name, mode, dir_fd=_fd(at), follow_symlinks=False)
            return
        handle = os.open(name, _PATH | os.O_NOFOLLOW | _CLOEXEC, dir_fd=_fd(at))
        try:
            if stat.S_ISLNK(os.fstat(handle).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            os.chmod(f"/proc/self/fd/{handle}", mode)
        finally:
            os.close(handle)

    def open_up(self, at: Handle, name: str) -> int | None:
        """Let us into what our own mode bits close to us; the mode before, None if it is not ours to open."""
        status = self.stat(at, name)
        if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode):
            return None
        self._chmod(at, name, stat.S_IMODE(status.st_mode) | 0o700)
        return stat.S_IMODE(status.st_mode)

    def close_again(self, at: Handle, name: str, mode: int) -> None:
        """Undo ``open_up``."""
        self._chmod(at, name, mode)

    def sync(self, at: Handle) -> None:
        """Return when all that was written to the file system of ``at`` is on the device."""
        from store.disk import Disk

        Disk().syncfs(_fd(at))

    def name_problem(self, name: str) -> str | None:
        """Why no file can be called ``name`` here."""
        return None


class Paths:
    """Windows: paths, no modes, no owners. Everything else is as in ``Posix``."""

    name = "win32"
    threads = max(2, min(8, 2 * (os.cpu_count() or 1)))

    def open_top(self, path: bytes) -> Handle:
        """The directory at ``path``, however long its path is."""
        text = os.path.abspath(os.fsdecode(path))
        return "\\\\?\\" + text if os.sep == "\\" and not text.startswith("\\\\") else text

    def _path(self, at: Handle, name: str) -> str:
        assert isinstance(at, str)
        return os.path.join(at, name) if name else at

    def open_directory(self, at: Handle, name: str) -> Handle:
        """The directory ``name`` in ``at``, if it is no link or junction."""
        path = self._path(at, name)
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or getattr(status, "st_reparse_tag", False):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return path

    def close(self, at: Handle) -> None:
        """Nothing is open."""

    def entries(self, at: Handle) -> list[os.DirEntry[str]]:
        """What ``at`` holds."""
        with os.scandir(self._path(at, "")) as found:
            return list(found)

    def stat_directory(self, at: Handle) -> os.stat_result:
        """The directory itself."""
        return changetime.lstat(self._path(at, ""))

    def stat(self, at: Handle, name: str) -> os.stat_result:
        """lstat of ``name`` in ``at``."""
        return changetime.lstat(self._path(at, name))

    def stat_open(self, fd: int) -> os.stat_result:
        """fstat of an open file."""
        return changetime.fstat(fd)

    def open_file(self, at: Handle, name: str) -> int:
        """A descriptor for reading."""
        return _patient(lambda: os.open(self._path(at, name), os.O_RDONLY | _SAFE))

    def readlink(self, at: Handle, name: str) -> bytes:
        """The target of a symbolic link."""
        return os.fsencode(os.readlink(self._path(at, name)))

    def xattrs(self, at: Handle, name: str) -> tuple[tuple[bytes, bytes], ...]:
        """None."""
        return ()

    def xattrs_open(self, fd: int) -> tuple[tuple[bytes, bytes], ...]:
        """None."""
        return ()

    def create(self, at: Handle, name: str) -> int:
        """A new empty file."""
        return os.open(self._path(at, name), os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o600)

    def mkdir(self, at: Handle, name: str) -> None:
        """A new directory."""
        os.mkdir(self._path(at, name))

    def symlink(self, target: bytes, at: Handle, name: str, directory: bool) -> None:
        """A new symbolic link; EPERM where the user has not the right to make one."""
        os.symlink(os.fsdecode(target), self._path(at, name), target_is_directory=directory)

    def mknod(self, at: Handle, name: str, mode: int, device: int) -> None:
        """There are none."""
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), self._path(at, name))

    def link(self, at: Handle, name: str, to: Handle, new: str) -> None:
        """Another name for a file."""
        os.link(self._path(at, name), self._path(to, new))

    def rename(self, at: Handle, name: str, to: Handle, new: str) -> None:
        """Over what is there, as rename(2); waits a second for a program that has it open."""
        _patient(lambda: os.replace(self._path(at, name), self._path(to, new)))

    def unlink(self, at: Handle, name: str) -> None:
        """Remove a file, also one that is read-only."""
        path = self._path(at, name)

        def remove() -> None:
            try:
                os.unlink(path)
            except PermissionError:
                os.chmod(path, stat.S_IWRITE | stat.S_IREAD)
                os.unlink(path)

        _patient(remove)

    def rmdir(self, at: Handle, name: str) -> None:
        """Remove an empty directory."""
        _patient(lambda: os.rmdir(self._path(at, name)))

    def set_attributes(self, at: Handle, name: str, wanted: Attributes, times: bool) -> list[str]:
        """The read-only bit and the time."""
        path = self._path(at, name)
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return []
        refused: list[str] = []
        if times:
            _try(refused, "time", lambda: os.utime(path, ns=(status.st_atime_ns, wanted.mtime_ns)))
        if (status.st_mode ^ wanted.mode) & stat.S_IWRITE and not stat.S_ISDIR(status.st_mode):
            _try(refused, "mode", lambda: os.chmod(path, wanted.mode))
        return refused

    def open_up(self, at: Handle, name: str) -> int | None:
        """Modes close nothing here."""
        return None

    def close_again(self, at: Handle, name: str, mode: int) -> None:
        """See ``open_up``."""

    def sync(self, at: Handle) -> None:
        """There is no such call; NTFS journals names by itself."""

    def name_problem(self, name: str) -> str | None:
        """Why no file can be called ``name`` here."""
        if name.split(".")[0].rstrip(" ").lower() in RESERVED:
            return "Windows reserves this name"
        if name.endswith((".", " ")):
            return "Windows drops dots and spaces at the end of a name"
        if any(letter in '<>:"|?*\\' or ord(letter) < 32 for letter in name):
            return "Windows does not allow one of its characters"
        return None


def _fd(at: Handle) -> int:
    assert isinstance(at, int)
    return at


def _try(refused: list[str], what: str, effect: Callable[[], None]) -> None:
    """Make an effect that the system may not allow us."""
    try:
        effect()
    except OSError as error:
        if error.errno not in NOT_ALLOWED:
            raise
        refused.append(f"{what} could not be set: {os.strerror(error.errno or 0)}")


def _patient(effect: Callable[[], T]) -> T:
    """An effect that a virus scanner or an editor may hold up for a moment. Raises the last OSError."""
    for _ in range(BUSY_TRIES):
        try:
            return effect()
        except PermissionError as error:
            if getattr(error, "winerror", None) not in SHARING_VIOLATIONS:
                raise
            time.sleep(BUSY_SECONDS)
    return effect()


def choose() -> Platform:
    """The platform of this system."""
    return Paths() if sys.platform == "win32" else Posix()
