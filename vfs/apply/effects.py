"""What an apply does to real directories: one method for each effect.

Owns the system calls that write into the base, the staging directory in it, and the attic. Does not own what is done
in which order (``apply_run``, ``apply_stage``). Everything goes through a ``Site``, a directory descriptor: no path
is followed through a symbolic link, and none leads through the mount.

Tests replace ``Effects.step`` to stop after any effect. Concurrency: one thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from blake3 import blake3

from store.disk import FULL, Disk, no_space
from vfs import xattrs
from vfs.errors import FsError
from vfs.trees.contents import copy_data
from vfs.trees.host import STEP_BYTES, open_beneath, parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.format import Attributes, Content
    from vfs.trees.contents import Contents

T = TypeVar("T")

DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORIES_KEPT = 32

PART = b".plyfs-part-"
MOVED = b".plyfs-moved-"


class Site:
    """The directory ``fd``, with the descriptors of the directories below it that were used last."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._kept: OrderedDict[bytes, int] = OrderedDict()

    def at(self, path: bytes) -> tuple[int, bytes]:
        """(descriptor of the directory that ``path`` is in, its last name). Raises OSError."""
        head, name = parent(path)
        if not head:
            return self.fd, name or b"."
        fd = self._kept.get(head)
        if fd is None:
            try:
                fd = self._kept[head] = self._open(head)
            except PermissionError:
                if not os.geteuid() or not _open_up(self, head):
                    raise
                fd = self._kept[head] = self._open(head)
            if len(self._kept) > DIRECTORIES_KEPT:
                os.close(self._kept.popitem(last=False)[1])
        else:
            self._kept.move_to_end(head)
        return fd, name

    def _open(self, path: bytes) -> int:
        if len(path) < STEP_BYTES:
            return open_beneath(self.fd, path, DIRECTORY_FLAGS)
        fd = os.dup(self.fd)
        for name in path.split(b"/"):
            try:
                inner = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def forget(self) -> None:
        """Directories were moved, or will not be needed any more: close all but the top."""
        while self._kept:
            os.close(self._kept.popitem()[1])

    def stat(self, path: bytes) -> os.stat_result | None:
        """lstat(2), None if there is nothing."""
        try:
            fd, name = self.at(path)
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise


class Effects:
    """The effects of an apply. They raise NoSpaceError for a full file system, else OSError."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.refused: list[str] = []
        """What the system did not let us set: foreign owners, privileged attributes."""

    def step(self) -> None:
        """Called before each effect."""

    def _do(self, effect: Callable[[], T], *opened: tuple[Site, bytes]) -> T:
        """Make one effect; what only our own mode bits forbid is tried again after opening up ``opened``."""
        self.step()
        try:
            try:
                return effect()
            except PermissionError:
                changed = [_open_up(site, path) for site, path in opened] if os.geteuid() else []
                if not any(changed):
                    raise
                return effect()
        except OSError as error:
            if error.errno in FULL:
                raise no_space(error, "write into the workspace") from error
            raise

    # Making

    def mkdir(self, site: Site, path: bytes, mode: int = 0o700) -> None:
        """A new directory."""

        def effect() -> None:
            fd, name = site.at(path)
            os.mkdir(name, mode, dir_fd=fd)

        self._do(effect, (site, parent(path)[0]))

    def make_file(
        self, site: Site, path: bytes, content: Content, contents: Contents, attributes: Attributes
    ) -> os.stat_result:
        """A new regular file, complete; what became of it."""

        def effect() -> os.stat_result:
            at, name = site.at(path)
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=at)
            try:
                try:
                    contents.copy_to(content, fd)
                except FsError as error:
                    if error.errno in FULL:
                        raise OSError(error.errno, str(error)) from error
                    raise
                self._set(f"/proc/self/fd/{fd}", os.fstat(fd), attributes, path)
                os.utime(fd, ns=(attributes.mtime_ns, attributes.mtime_ns))
                return os.fstat(fd)
            finally:
                os.close(fd)

        return self._do(effect)

    def symlink(self, site: Site, path: bytes, target: bytes) -> None:
        """A new symbolic link."""

        def effect() -> None:
            fd, name = site.at(path)
            os.symlink(target, name, dir_fd=fd)

        self._do(effect)

    def mknod(self, site: Site, path: bytes, file_type: int, rdev: int) -> None:
        """A new FIFO, socket or device."""

        def effect() -> None:
            fd, name = site.at(path)
            os.mknod(name, file_type | 0o600, rdev, dir_fd=fd)

        self._do(effect)

    def link(self, site: Site, path: bytes, target_site: Site, target: bytes) -> None:
        """Another name for a file."""

        def effect() -> None:
            source, name = site.at(path)
            fd, target_name = target_site.at(target)
            os.link(name, target_name, src_dir_fd=source, dst_dir_fd=fd, follow_symlinks=False)

        self._do(effect, (target_site, parent(target)[0]))

    def copy_file(self, site: Site, path: bytes, target_site: Site, target: bytes) -> None:
        """A new private copy of a regular file, with its times and holes."""

        def effect() -> None:
            source_at, name = site.at(path)
            source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=source_at)
            try:
                status = os.fstat(source)
                at, target_name = target_site.at(target)
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                fd = os.open(target_name, flags, 0o600, dir_fd=at)
                try:
                    os.ftruncate(fd, status.st_size)
                    copy_data(source, 0, fd, 0, status.st_size)
                    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
                finally:
                    os.close(fd)
            finally:
                os.close(source)

        self._do(effect, (site, path))

    # Moving and removing

    def move(self, site: Site, path: bytes, target_site: Site, target: bytes) -> None:
        """rename(2) that replaces nothing; across file systems a copy that takes its place by rename, then the removal
        of the original. Raises FileExistsError if there is something.
        """

        def effect() -> None:
            source, name = site.at(path)
            fd, target_name = target_site.at(target)
            rename_exclusively(source, name, fd, target_name)

        try:
            self._do(effect, (site, parent(path)[0]), (target_site, parent(target)[0]), (site, path))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._move_across(site, path, target_site, target)

    def _move_across(self, site: Site, path: bytes, target_site: Site, target: bytes) -> None:
        part = _beside(target, PART)
        self.remove_tree(target_site, part)
        self._copy_tree(site, path, target_site, part)
        self.sync(target_site)
        self.move(site, path, site, _beside(path, MOVED))
        self.finish_move(site, path, target_site, target)

    def finish_move(self, site: Site, path: bytes, target_site: Site, target: bytes) -> bool:
        """Go on with a move across file systems that was interrupted after the copy was complete; False if none was.

        The original is renamed once the copy is complete, the copy takes its place after that, and the original goes
        last: at each moment the names tell how far it came.
        """
        moved, part = _beside(path, MOVED), _beside(target, PART)
        if site.stat(moved) is None:
            return False
        if target_site.stat(part) is not None:
            self.move(target_site, part, target_site, target)
        self.remove_tree(site, moved)
        return True

    def _copy_tree(self, site: Site, path: bytes, target_site: Site, target: bytes) -> None:
        at, name = site.at(path)
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            self.copy_file(site, path, target_site, target)
        elif kind == stat.S_IFLNK:
            self.symlink(target_site, target, os.readlink(name, dir_fd=at))
        elif kind == stat.S_IFDIR:
            self.mkdir(target_site, target)
            for inner in names_in(site, path):
                self._copy_tree(site, path + b"/" + inner, target_site, target + b"/" + inner)
        else:
            self.mknod(target_site, target, kind, status.st_rdev)
        self._do(lambda: _copy_attributes(site, path, target_site, target, status))

    def unlink(self, site: Site, path: bytes) -> None:
        """Remove a file."""

        def effect() -> None:
            fd, name = site.at(path)
            os.unlink(name, dir_fd=fd)

        self._do(effect, (site, parent(path)[0]))

    def rmdir(self, site: Site, path: bytes) -> None:
        """Remove an empty directory."""

        def effect() -> None:
            fd, name = site.at(path)
            os.rmdir(name, dir_fd=fd)

        self._do(effect, (site, parent(path)[0]))

    def remove_tree(self, site: Site, path: bytes) -> None:
        """Remove whatever is at ``path``, with all that it holds; nothing there is fine."""
        status = site.stat(path)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            self.unlink(site, path)
            return
        for name in names_in(site, path):
            self.remove_tree(site, path + b"/" + name)
        site.forget()
        self.rmdir(site, path)

    # Attributes

    def set_attributes(self, site: Site, path: bytes, attributes: Attributes) -> None:
        """Owner, extended attributes, mode and modification time of whatever is at ``path``, in this order."""

        def effect() -> None:
            fd, name = site.at(path)
            handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                status = os.fstat(handle)
                self._set(f"/proc/self/fd/{handle}", status, attributes, path)
                times = (status.st_atime_ns, attributes.mtime_ns)
                os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)
            finally:
                os.close(handle)

        self._do(effect)

    def set_mtime(self, site: Site, path: bytes, mtime_ns: int) -> None:
        """The modification time alone."""

        def effect() -> None:
            fd, name = site.at(path)
            atime_ns = os.stat(name, dir_fd=fd, follow_symlinks=False).st_atime_ns
            os.utime(name, ns=(atime_ns, mtime_ns), dir_fd=fd, follow_symlinks=False)

        self._do(effect)

    def _set(self, link: str, status: os.stat_result, attributes: Attributes, path: bytes) -> None:
        """Set what differs on the file that ``link`` in /proc names: chown(2) clears what comes after it."""
        if (status.st_uid, status.st_gid) != (attributes.uid, attributes.gid):
            self._allowed("owner", path, lambda: os.chown(link, attributes.uid, attributes.gid))
        wanted = dict(attributes.xattrs)
        for name in _xattr_names(link):
            if name not in wanted and name not in xattrs.LABELS:
                self._allowed(os.fsdecode(name), path, _removal(link, name))
        for name, value in attributes.xattrs:
            self._allowed(os.fsdecode(name), path, _setting(link, name, value))
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(link, attributes.mode)

    def _allowed(self, what: str, path: bytes, effect: Callable[[], None]) -> None:
        try:
            effect()
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL):
                raise
            self.refused.append(f"{os.fsdecode(path)}: {what} could not be set: {os.strerror(error.errno)}")

    # Durability

    def sync(self, site: Site) -> None:
        """Return when all that was written to the site's file system is on the device."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=site.fd)
        try:
            self._do(lambda: self.disk.syncfs(fd))
        finally:
            os.close(fd)


RENAME_NOREPLACE = 1

UNSUPPORTED = (errno.EINVAL, errno.ENOSYS)
"""How file systems (some network ones) and systems say that they cannot rename without replacing."""


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def rename_exclusively(source_fd: int, source: bytes, target_fd: int, target: bytes) -> None:
    """renameat2(2) with RENAME_NOREPLACE; where that cannot be had, a look and then rename(2)."""
    renameat2 = getattr(_c_library(), "renameat2", None)  # not in old C libraries
    if renameat2 is not None and not renameat2(source_fd, source, target_fd, target, RENAME_NOREPLACE):
        return
    number = errno.ENOSYS if renameat2 is None else ctypes.get_errno()
    if number not in UNSUPPORTED:
        raise OSError(number, os.strerror(number), os.fsdecode(source), None, os.fsdecode(target))
    try:
        os.stat(target, dir_fd=target_fd, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(target))


def _beside(path: bytes, kind: bytes) -> bytes:
    """A name in the directory of ``path`` for its copy or its original while it is moved across file systems."""
    head, name = parent(path)
    word = kind + blake3(name).hexdigest(length=8).encode()
    return head + b"/" + word if head else word


def names_in(site: Site, path: bytes) -> list[bytes]:
    """The names in a directory, sorted."""
    at, name = site.at(path)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=at)
    except PermissionError:
        if not _open_up(site, path):
            raise
        fd = os.open(name, flags, dir_fd=at)
    try:
        return sorted(os.fsencode(inner) for inner in os.listdir(fd))
    finally:
        os.close(fd)


def _open_up(site: Site, path: bytes) -> bool:
    """Give ourselves what our own mode bits withhold at ``path`` and above it; True if anything was changed."""
    changed = False
    parts = path.split(b"/") if path else []
    fd = os.dup(site.fd)
    try:
        for name in [b".", *parts]:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = inner
            status = os.fstat(fd)
            mode = stat.S_IMODE(status.st_mode)
            if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and mode & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{fd}", mode | 0o700)
                changed = True
    except OSError:
        return changed
    finally:
        os.close(fd)
    return changed


def _copy_attributes(site: Site, path: bytes, target_site: Site, target: bytes, status: os.stat_result) -> None:
    """Mode, owner, extended attributes and times, as far as allowed."""
    at, name = site.at(path)
    source = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        at, name = target_site.at(target)
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        try:
            for step in (
                lambda: os.chown(f"/proc/self/fd/{handle}", status.st_uid, status.st_gid),
                *(
                    _setting(f"/proc/self/fd/{handle}", key, os.getxattr(f"/proc/self/fd/{source}", key))
                    for key in _xattr_names(f"/proc/self/fd/{source}")
                ),
            ):
                try:
                    step()
                except OSError as error:
                    if error.errno in FULL:
                        raise
            if not stat.S_ISLNK(status.st_mode):
                os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode))
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=at, follow_symlinks=False)
        finally:
            os.close(handle)
    finally:
        os.close(source)


def _xattr_names(link: str) -> list[bytes]:
    try:
        return [os.fsencode(name) for name in os.listxattr(link)]
    except OSError:
        return []


def _setting(link: str, name: bytes, value: bytes) -> Callable[[], None]:
    return lambda: os.setxattr(link, name, value)


def _removal(link: str, name: bytes) -> Callable[[], None]:
    return lambda: os.removexattr(link, name)
