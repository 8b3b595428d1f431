"""The pyfuse3 channel: the same file system served through libfuse, where the direct channel cannot be.

Owns the one pyfuse3 session of this process and the thread whose trio loop runs it; nothing else may import pyfuse3.
Every operation is one call of the file system. An exception other than FUSEError would end ``pyfuse3.main`` and the
mount with it, so every one is converted here.

What it cannot do, because pyfuse3 does not: fallocate, SEEK_HOLE, copy_file_range, O_TMPFILE, ioctl, zero-message
open, cached listings and symlinks, the epoch. Modes come with the caller's umask applied by the kernel, so a default
ACL cannot undo it.

Concurrency: operations run one at a time in the loop's thread and never await; ``invalidate``, ``wake`` and ``stop``
are for other threads.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import pyfuse3
import trio

from store.refs import Ino
from vfs.channel import (
    VALID_SECONDS,
    Attributes,
    Caller,
    FileSystem,
    Invalidations,
    Negotiated,
    Touched,
    visible_xattrs,
)
from vfs.channels import mountpoint
from vfs.channels.disguise import ABSENT, Disguise
from vfs.channels.notify import parents
from vfs.channels.watchers import Watchers
from vfs.errors import FsError

log = logging.getLogger(__name__)

START_SECONDS = 30.0
MODE_BITS = 0o7777
CLOCK_REALTIME_COARSE = 5
"""Linux's number of it (time.h), which Python does not have."""

_session = threading.Lock()
"""Held while this process has a pyfuse3 session: there can be only one."""

T = TypeVar("T")


def _operation(call: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The coroutine function that pyfuse3 wants, with every error turned into a FUSEError."""

    @functools.wraps(call)
    async def operation(*arguments: Any) -> T:
        try:
            return call(*arguments)
        except FsError as error:
            raise pyfuse3.FUSEError(error.errno) from None
        except pyfuse3.FUSEError:
            raise
        except Exception:
            log.exception("%s%r", call.__name__, arguments[1:3])
            raise pyfuse3.FUSEError(errno.EIO) from None

    return operation


def _entry(a: Attributes, valid: float = VALID_SECONDS) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = a.ino
    entry.generation = 0
    entry.entry_timeout = valid
    entry.attr_timeout = VALID_SECONDS
    entry.st_mode = a.mode
    entry.st_nlink = a.nlink
    entry.st_uid = a.uid
    entry.st_gid = a.gid
    entry.st_rdev = a.rdev
    entry.st_size = a.size
    entry.st_blksize = 4096
    entry.st_blocks = a.blocks
    entry.st_atime_ns = a.atime_ns
    entry.st_mtime_ns = a.mtime_ns
    entry.st_ctime_ns = a.ctime_ns
    return entry


def _absent(valid: float) -> pyfuse3.EntryAttributes:
    """No inode under the name asked for, to be remembered for ``valid`` seconds."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = valid
    return entry


def _caller(context: Any) -> Caller:
    return Caller(context.uid, context.gid, context.pid, context.umask)


class Operations(pyfuse3.Operations):
    """pyfuse3's requests, answered by ``fs``. A file handle is the inode number."""

    enable_acl = True
    supports_dot_lookup = False

    def __init__(self, fs: FileSystem, disguise: Disguise, writeback: bool, started: threading.Event) -> None:
        super().__init__()
        self.enable_writeback_cache = writeback
        self._fs = fs
        self._disguise = disguise
        self._started = started

    def init(self) -> None:
        self._started.set()

    def _part(self, context: Any) -> Disguise | None:
        return self._disguise if context.pid == self._disguise.thread else None

    @_operation
    def lookup(self, parent: int, name: bytes, context: Any) -> pyfuse3.EntryAttributes:
        disguise = self._part(context)
        if disguise is not None:
            found = disguise.lookup(Ino(parent), name)
            if found == ABSENT:
                return _absent(0)
            if found is not None:
                return _entry(found, 0)
        try:
            return _entry(self._fs.lookup(Ino(parent), name))
        except FsError as error:
            if error.errno == errno.ENOENT:
                return _absent(VALID_SECONDS)
            raise

    @_operation
    def forget(self, forgotten: list[tuple[int, int]]) -> None:
        for ino, lookups in forgotten:
            self._fs.forget(Ino(ino), self._disguise.take_back(Ino(ino), lookups))

    @_operation
    def getattr(self, ino: int, context: Any) -> pyfuse3.EntryAttributes:
        return _entry(self._fs.getattr(Ino(ino)))

    @_operation
    def setattr(self, ino: int, a: Any, fields: Any, fh: int | None, context: Any) -> pyfuse3.EntryAttributes:
        disguise = self._part(context)
        same = disguise.setattr(Ino(ino)) if disguise is not None else None
        if same is not None:
            return _entry(same)
        before = self._fs.getattr(Ino(ino))
        changed = self._fs.setattr(
            Ino(ino),
            mode=a.st_mode & MODE_BITS if fields.update_mode else None,
            uid=a.st_uid if fields.update_uid else None,
            gid=a.st_gid if fields.update_gid else None,
            size=a.st_size if fields.update_size else None,
            atime_ns=self._time(a.st_atime_ns, before.atime_ns) if fields.update_atime else None,
            mtime_ns=self._time(a.st_mtime_ns, before.mtime_ns) if fields.update_mtime else None,
            ctime_ns=a.st_ctime_ns if fields.update_ctime else None,
        )
        return _entry(changed)

    def _time(self, asked_ns: int, before_ns: int) -> int:
        """The time to set. pyfuse3 does not tell UTIME_NOW from a time: it comes as the kernel's clock of the last tick
        has it, which can be before what our own clock has just given. Then the present is taken for it.
        """
        if (
            asked_ns < before_ns
            and sys.platform == "linux"
            and asked_ns == time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        ):
            return self._fs.now()
        return asked_ns

    @_operation
    def readlink(self, ino: int, context: Any) -> bytes:
        return self._fs.readlink(Ino(ino))

    def _made(self, parent: int, name: bytes, context: Any) -> pyfuse3.EntryAttributes | None:
        disguise = self._part(context)
        made = disguise.make(Ino(parent), name) if disguise is not None else None
        return None if made is None else _entry(made)

    @_operation
    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, context: Any) -> pyfuse3.EntryAttributes:
        return self._made(parent, name, context) or _entry(
            self._fs.mknod(Ino(parent), name, mode, rdev, _caller(context))
        )

    @_operation
    def mkdir(self, parent: int, name: bytes, mode: int, context: Any) -> pyfuse3.EntryAttributes:
        return self._made(parent, name, context) or _entry(
            self._fs.mkdir(Ino(parent), name, mode & MODE_BITS, _caller(context))
        )

    @_operation
    def symlink(self, parent: int, name: bytes, target: bytes, context: Any) -> pyfuse3.EntryAttributes:
        return self._made(parent, name, context) or _entry(
            self._fs.symlink(Ino(parent), name, target, _caller(context))
        )

    @_operation
    def create(
        self, parent: int, name: bytes, mode: int, flags: int, context: Any
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        made = self._fs.mknod(Ino(parent), name, stat.S_IFREG | mode & MODE_BITS, 0, _caller(context))
        return pyfuse3.FileInfo(fh=made.ino, keep_cache=True), _entry(made)

    @_operation
    def link(self, ino: int, parent: int, name: bytes, context: Any) -> pyfuse3.EntryAttributes:
        return _entry(self._fs.link(Ino(ino), Ino(parent), name))

    @_operation
    def unlink(self, parent: int, name: bytes, context: Any) -> None:
        disguise = self._part(context)
        if disguise is None or not disguise.remove(Ino(parent), name):
            self._fs.unlink(Ino(parent), name)

    @_operation
    def rmdir(self, parent: int, name: bytes, context: Any) -> None:
        disguise = self._part(context)
        if disguise is None or not disguise.remove(Ino(parent), name):
            self._fs.rmdir(Ino(parent), name)

    @_operation
    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, context: Any) -> None:
        self._fs.rename(Ino(parent), name, Ino(new_parent), new_name, flags)

    @_operation
    def open(self, ino: int, flags: int, context: Any) -> pyfuse3.FileInfo:
        if flags & os.O_TRUNC:  # libfuse takes ATOMIC_O_TRUNC, and leaves it to us to drop setuid with it
            mode = self._fs.getattr(Ino(ino)).mode & MODE_BITS
            kept = mode & ~(stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0)) if context.uid else mode
            self._fs.setattr(Ino(ino), mode=None if kept == mode else kept, size=0, mtime_ns=self._fs.now())
        return pyfuse3.FileInfo(fh=ino, keep_cache=True)

    @_operation
    def read(self, fh: int, offset: int, size: int) -> bytes:
        return self._fs.read(Ino(fh), offset, size)  # type: ignore[return-value]  # any buffer will do

    @_operation
    def write(self, fh: int, offset: int, data: bytes) -> int:
        return self._fs.write(Ino(fh), offset, data)

    @_operation
    def flush(self, fh: int) -> None:
        raise FsError(errno.ENOSYS)  # and the kernel asks no more

    @_operation
    def release(self, fh: int) -> None:
        return None

    @_operation
    def fsync(self, fh: int, datasync: bool) -> None:
        self._fs.fsync(Ino(fh), datasync)

    @_operation
    def opendir(self, ino: int, context: Any) -> int:
        return ino

    @_operation
    def readdir(self, fh: int, offset: int, token: Any) -> None:
        fs, parent = self._fs, Ino(fh)
        for next_offset, name, ino, _ in fs.readdir(parent, offset):
            if name in (b".", b".."):
                if not pyfuse3.readdir_reply(token, name, _entry(fs.getattr(ino)), next_offset):
                    return
                continue
            try:
                found = fs.lookup(parent, name)
            except FsError:  # gone meanwhile
                continue
            if not pyfuse3.readdir_reply(token, name, _entry(found), next_offset):
                fs.forget(found.ino, 1)
                return

    @_operation
    def releasedir(self, fh: int) -> None:
        return None

    @_operation
    def fsyncdir(self, fh: int, datasync: bool) -> None:
        self._fs.fsyncdir(Ino(fh))

    @_operation
    def statfs(self, context: Any) -> pyfuse3.StatvfsData:
        space, answer = self._fs.statfs(), pyfuse3.StatvfsData()
        for field in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_namemax"):
            setattr(answer, field, getattr(space, field))
        answer.f_favail = space.f_ffree
        return answer

    @_operation
    def getxattr(self, ino: int, name: bytes, context: Any) -> bytes:
        return self._fs.getxattr(Ino(ino), name)

    @_operation
    def setxattr(self, ino: int, name: bytes, value: bytes, context: Any) -> None:
        self._fs.setxattr(Ino(ino), name, value, 0)

    @_operation
    def listxattr(self, ino: int, context: Any) -> list[bytes]:
        return visible_xattrs(self._fs.listxattr(Ino(ino)), context.uid)

    @_operation
    def removexattr(self, ino: int, name: bytes, context: Any) -> None:
        self._fs.removexattr(Ino(ino), name)

    @_operation
    def access(self, ino: int, mode: int, context: Any) -> bool:
        raise FsError(errno.ENOSYS)  # the kernel decides (default_permissions)


class Pyfuse3Channel:
    """Serves ``fs`` at the directory ``point`` (absolute) in a thread with a trio loop of its own."""

    name = "pyfuse3"

    def __init__(
        self, fs: FileSystem, point: bytes, *, allow_other: bool | None = None, writeback: bool = False
    ) -> None:
        self._point = point
        self._allow_other = allow_other
        self._writeback = writeback
        self._disguise = Disguise(fs)
        self._started = threading.Event()
        self._operations = Operations(fs, self._disguise, writeback, self._started)
        self._watchers = Watchers(point, self._disguise, self.invalidate)
        self._thread: threading.Thread | None = None
        self._serving = False

    @property
    def negotiated(self) -> Negotiated:
        """libfuse does not tell more."""
        return Negotiated(
            protocol=(7, 0),
            flags=(),
            max_write=1 << 20,
            zero_message_open=False,
            epoch=False,
            expire_only=False,
            writeback=self._writeback,
        )

    def start(self) -> None:
        if not _session.acquire(blocking=False):
            raise mountpoint.MountError("pyfuse3 serves one mount per process, and there is one already")
        try:
            self._initialise()
        except BaseException:
            _session.release()
            raise
        self._serving = True
        self._thread = threading.Thread(target=self._run, name="plyfs-pyfuse3", daemon=True)
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            self.stop(lazy=True)
            raise mountpoint.MountError(f"the kernel did not start to talk within {START_SECONDS:.0f} s")

    def _initialise(self) -> None:
        """Mount. On Linux we do it ourselves, as the direct channel does, and hand libfuse the descriptor."""
        if sys.platform == "linux":
            fd = mountpoint.mount(self._point, allow_other=self._allow_other)
            try:
                pyfuse3.init(self._operations, f"/dev/fd/{fd}", set())
            except BaseException:
                os.close(fd)
                mountpoint.unmount(self._point, lazy=True)
                raise
            return
        options = {"default_permissions", "fsname=plyfs"} | ({"allow_other"} if self._allow_other else set())
        try:
            pyfuse3.init(self._operations, os.fsdecode(self._point), options)
        except RuntimeError as error:
            raise mountpoint.MountError(f"libfuse could not mount: {error}") from error

    def _run(self) -> None:
        try:
            trio.run(pyfuse3.main)
        except Exception:
            log.exception("pyfuse3.main")
        finally:
            self._serving = False
            pyfuse3.close(unmount=sys.platform != "linux")
            _session.release()

    def wait(self, timeout: float | None = None) -> bool:
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self, lazy: bool = False) -> None:
        if not self.wait(0):
            try:
                mountpoint.unmount(self._point, lazy=lazy)
            except mountpoint.MountError:
                if not self.wait(1):
                    raise
        if not lazy:
            self.wait()

    def invalidate(self, invalidations: Invalidations) -> None:
        for parent, child, name in invalidations.removed:
            self._notify(pyfuse3.invalidate_entry, parent, name, child)
        for parent, name in invalidations.entries:
            self._notify(pyfuse3.invalidate_entry, parent, name)
        for parent in parents(invalidations):
            self._notify(pyfuse3.invalidate_inode, parent)
        for ino in invalidations.contents:
            self._notify(pyfuse3.invalidate_inode, ino)
        for ino in invalidations.attributes:
            self._notify(pyfuse3.invalidate_inode, ino, True)

    def _notify(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self._serving:
            return
        try:
            call(*arguments)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY, errno.ENOTDIR, errno.ENODEV):
                log.warning("notification %r: %s", arguments[:2], error)

    def wake(self, touched: Iterable[Touched]) -> None:
        self._watchers.wake(touched)
