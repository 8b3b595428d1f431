"""One FUSE request in, one call of the file system, one reply out.

Owns the meaning of every operation of the direct channel. A request is a buffer and the reply is what to write to the
device: bytes, a (header, data) pair, or None where the kernel expects none. No file descriptor, no thread, no mount:
``Dispatcher.answer`` may be called from several threads at once and holds no state.

Whatever the bytes, an answer comes back: a malformed request gets EIO, an unknown one ENOSYS, an unexpected exception
is logged and becomes EIO. The hot operations pack header and body with one call and catch nothing.
"""

from __future__ import annotations

import errno
import logging
import stat
import struct
from collections.abc import Callable, Iterable
from typing import TypeAlias

from store.refs import Ino
from vfs.channel import VALID_SECONDS, Attributes, Buffer, Caller, DirectoryRow, FileSystem, visible_xattrs
from vfs.channels import wire
from vfs.channels.disguise import ABSENT, Disguise
from vfs.channels.wire import HEADER_SIZE, OUT_SIZE
from vfs.errors import FsError

log = logging.getLogger(__name__)

Header: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""As ``wire.IN_HEADER`` unpacks it: len, opcode, unique, nodeid, uid, gid, pid, extension length, padding."""

Reply: TypeAlias = bytes | tuple[Buffer, Buffer] | None
Handler: TypeAlias = Callable[[Header, memoryview], Reply]

BLOCK_SIZE = 4096
NANO = 1_000_000_000
MODE_BITS = 0o7777

_error = wire.OUT_HEADER.pack
_entry = wire.ENTRY_REPLY.pack
_attr = wire.ATTR_REPLY.pack
_wrote = wire.WRITE_REPLY.pack
_ENTRY_SIZE = wire.ENTRY_REPLY.size
_ATTR_SIZE = wire.ATTR_REPLY.size
_WRITE_SIZE = wire.WRITE_REPLY.size

_ABSENT_TAIL = struct.pack("=QQQQ", 0, 0, VALID_SECONDS, 0).ljust(_ENTRY_SIZE - OUT_SIZE, b"\0")
_ABSENT_NOW_TAIL = bytes(_ENTRY_SIZE - OUT_SIZE)

NO_REPLY = frozenset({wire.FORGET, wire.BATCH_FORGET, wire.NOTIFY_REPLY})

ROWS = tuple(struct.Struct(f"={wire.DIRENT}{(n + 7) // 8 * 8}s") for n in range(256))
"""A fuse_dirent with a name of n bytes, padded."""

PLUS_ROWS = tuple(struct.Struct(f"={wire.ENTRY}{wire.DIRENT}{(n + 7) // 8 * 8}s") for n in range(256))
"""A fuse_direntplus with a name of n bytes, padded."""


def absent_reply(unique: int) -> bytes:
    """An entry that is not there, for the kernel to remember."""
    return _error(_ENTRY_SIZE, 0, unique) + _ABSENT_TAIL


def absent_now_reply(unique: int) -> bytes:
    """An entry that is not there, not to be remembered."""
    return _error(_ENTRY_SIZE, 0, unique) + _ABSENT_NOW_TAIL


def error_reply(unique: int, number: int) -> bytes:
    """``number`` is an errno; 0 is success without a body."""
    return _error(OUT_SIZE, -number if 0 <= number < 512 else -errno.EIO, unique)


def entry_reply(unique: int, a: Attributes, valid: int = VALID_SECONDS) -> bytes:
    """The inode ``a`` under the name asked for; ``valid`` seconds for the name."""
    ino = a.ino
    atime, atime_nsec = divmod(a.atime_ns, NANO)
    mtime, mtime_nsec = divmod(a.mtime_ns, NANO)
    ctime, ctime_nsec = divmod(a.ctime_ns, NANO)
    return _entry(
        _ENTRY_SIZE, 0, unique, ino, 0, valid, VALID_SECONDS, 0, 0,
        ino, a.size, a.blocks, atime, mtime, ctime, atime_nsec, mtime_nsec, ctime_nsec,
        a.mode, a.nlink, a.uid, a.gid, a.rdev, BLOCK_SIZE, 0,
    )  # fmt: skip


def attr_reply(unique: int, a: Attributes) -> bytes:
    """The attributes ``a``."""
    atime, atime_nsec = divmod(a.atime_ns, NANO)
    mtime, mtime_nsec = divmod(a.mtime_ns, NANO)
    ctime, ctime_nsec = divmod(a.ctime_ns, NANO)
    return _attr(
        _ATTR_SIZE, 0, unique, VALID_SECONDS, 0, 0,
        a.ino, a.size, a.blocks, atime, mtime, ctime, atime_nsec, mtime_nsec, ctime_nsec,
        a.mode, a.nlink, a.uid, a.gid, a.rdev, BLOCK_SIZE, 0,
    )  # fmt: skip


def plain_rows(rows: Iterable[DirectoryRow], size: int) -> bytes:
    """A READDIR body of at most ``size`` bytes."""
    parts: list[bytes] = []
    room = size
    for offset, name, ino, kind in rows:
        length = len(name)
        row = ROWS[length]
        room -= row.size
        if room < 0:
            break
        parts.append(row.pack(ino, offset, length, kind, name))
    return b"".join(parts)


class Dispatcher:
    """Answers requests with what ``fs`` says. ``about_to_block`` is called before what waits for a disk."""

    def __init__(
        self,
        fs: FileSystem,
        disguise: Disguise,
        *,
        about_to_block: Callable[[], None] = lambda: None,
        zero_message_open: bool = True,
        extended_setxattr: bool = True,
    ) -> None:
        self._fs = fs
        self._disguise = disguise
        self._about_to_block = about_to_block
        self._open_reply = errno.ENOSYS if zero_message_open else 0
        self._setxattr_in = wire.SETXATTR_IN if extended_setxattr else wire.SETXATTR_IN_COMPAT
        self.handlers: dict[int, tuple[Handler, int]] = {
            opcode: (handler, HEADER_SIZE + body) for opcode, handler, body in self._operations()
        }

    def _operations(self) -> list[tuple[int, Handler, int]]:
        """Operation, handler, least size of the body (a name is at least one byte and its NUL)."""
        name = 2
        return [
            (wire.LOOKUP, self.lookup, name),
            (wire.FORGET, self.forget, wire.FORGET_IN.size),
            (wire.BATCH_FORGET, self.batch_forget, wire.BATCH_FORGET_IN.size),
            (wire.GETATTR, self.getattr, 0),
            (wire.SETATTR, self.setattr, wire.SETATTR_IN.size),
            (wire.READLINK, self.readlink, 0),
            (wire.SYMLINK, self.symlink, name + 1),
            (wire.MKNOD, self.mknod, wire.MKNOD_IN.size + name),
            (wire.MKDIR, self.mkdir, wire.MKDIR_IN.size + name),
            (wire.UNLINK, self.unlink, name),
            (wire.RMDIR, self.rmdir, name),
            (wire.RENAME, self.rename, wire.RENAME_IN.size + 2 * name),
            (wire.RENAME2, self.rename2, wire.RENAME2_IN.size + 2 * name),
            (wire.LINK, self.link, wire.LINK_IN.size + name),
            (wire.OPEN, self.open, 0),
            (wire.OPENDIR, self.opendir, 0),
            (wire.READ, self.read, wire.READ_IN.size),
            (wire.WRITE, self.write, wire.WRITE_IN.size),
            (wire.STATFS, self.statfs, 0),
            (wire.RELEASE, self.succeed, 0),
            (wire.RELEASEDIR, self.succeed, 0),
            (wire.FSYNC, self.fsync, wire.FSYNC_IN.size),
            (wire.FSYNCDIR, self.fsyncdir, 0),
            (wire.SYNCFS, self.syncfs, 0),
            (wire.SETXATTR, self.setxattr, self._setxattr_in.size + name),
            (wire.GETXATTR, self.getxattr, wire.GETXATTR_IN.size + name),
            (wire.LISTXATTR, self.listxattr, wire.GETXATTR_IN.size),
            (wire.REMOVEXATTR, self.removexattr, name),
            (wire.READDIR, self.readdir, wire.READ_IN.size),
            (wire.READDIRPLUS, self.readdirplus, wire.READ_IN.size),
            (wire.FALLOCATE, self.fallocate, wire.FALLOCATE_IN.size),
            (wire.LSEEK, self.lseek, wire.LSEEK_IN.size),
            (wire.COPY_FILE_RANGE, self.copy_file_range, wire.COPY_FILE_RANGE_IN.size),
            (wire.COPY_FILE_RANGE_64, self.copy_file_range_64, wire.COPY_FILE_RANGE_IN.size),
            (wire.TMPFILE, self.tmpfile, wire.CREATE_IN.size),
            (wire.IOCTL, self.ioctl, 0),
            (wire.DESTROY, self.succeed, 0),
            # INTERRUPT, answered ENOSYS, is not sent again: nothing here can be interrupted (fuse_dev_do_write).
            # CREATE, FLUSH, ACCESS, BMAP, POLL, STATX likewise: the kernel does without us from then on. CREATE
            # becomes MKNOD and a zero-message open, which saves the RELEASE; STATX is for birth times, which we
            # do not keep.
            *((opcode, self.never_again, 0) for opcode in
              (wire.INTERRUPT, wire.CREATE, wire.FLUSH, wire.ACCESS, wire.BMAP, wire.POLL, wire.STATX)),
        ]  # fmt: skip

    def answer(self, request: memoryview, length: int) -> Reply:
        """The reply to the first ``length`` bytes of ``request``; never raises."""
        if length < HEADER_SIZE:
            log.error("a request of %d bytes", length)
            return None
        header = wire.IN_HEADER.unpack_from(request)
        opcode = header[1]
        try:
            handler, least = self.handlers[opcode]
        except KeyError:
            return None if opcode in NO_REPLY else error_reply(header[2], errno.ENOSYS)
        if length < least or length != header[0]:
            log.error("malformed request: operation %d, %d bytes, header says %d", opcode, length, header[0])
            return None if opcode in NO_REPLY else error_reply(header[2], errno.EIO)
        try:
            if header[6] == self._disguise.thread:
                reply = self._disguised(header, request)
                if reply is not None:
                    return reply
            return handler(header, request)
        except FsError as error:
            number = error.errno
        except MemoryError:
            number = errno.ENOMEM
        except Exception:
            log.exception("operation %d on inode %d", opcode, header[3])
            number = errno.EIO
        return None if opcode in NO_REPLY else error_reply(header[2], number)

    def _disguised(self, h: Header, request: memoryview) -> Reply:
        """The answer to the thread that wakes watchers, or None if it is to get what everybody gets."""
        disguise, ino = self._disguise, Ino(h[3])
        match h[1]:
            case wire.LOOKUP:
                found = disguise.lookup(ino, bytes(request[HEADER_SIZE : h[0] - 1]))
                if found == ABSENT:
                    return absent_now_reply(h[2])
                return None if found is None else entry_reply(h[2], found, 0)
            case wire.MKNOD | wire.MKDIR | wire.SYMLINK:
                start = HEADER_SIZE + {wire.MKNOD: 16, wire.MKDIR: 8, wire.SYMLINK: 0}[h[1]]
                made = disguise.make(ino, bytes(request[start : h[0] - 1]).partition(b"\0")[0])
                return None if made is None else entry_reply(h[2], made)
            case wire.UNLINK | wire.RMDIR:
                removed = disguise.remove(ino, bytes(request[HEADER_SIZE : h[0] - 1]))
                return error_reply(h[2], 0) if removed else None
            case wire.SETATTR:
                changed = disguise.setattr(ino)
                return None if changed is None else attr_reply(h[2], changed)
        return None

    # Names and attributes

    def lookup(self, h: Header, request: memoryview) -> Reply:
        try:
            return entry_reply(h[2], self._fs.lookup(Ino(h[3]), bytes(request[HEADER_SIZE : h[0] - 1])))
        except FsError as error:
            if error.errno == errno.ENOENT:
                return absent_reply(h[2])
            raise

    def forget(self, h: Header, request: memoryview) -> Reply:
        lookups = wire.FORGET_IN.unpack_from(request, HEADER_SIZE)[0]
        if self._disguise.lent:
            lookups = self._disguise.take_back(Ino(h[3]), lookups)
        self._fs.forget(Ino(h[3]), lookups)
        return None

    def batch_forget(self, h: Header, request: memoryview) -> Reply:
        count = wire.BATCH_FORGET_IN.unpack_from(request, HEADER_SIZE)[0]
        start = HEADER_SIZE + wire.BATCH_FORGET_IN.size
        size = wire.FORGET_ONE.size
        count = min(count, (h[0] - start) // size)
        forget, disguise = self._fs.forget, self._disguise
        for ino, lookups in wire.FORGET_ONE.iter_unpack(request[start : start + count * size]):
            forget(ino, disguise.take_back(ino, lookups) if disguise.lent else lookups)
        return None

    def getattr(self, h: Header, request: memoryview) -> Reply:
        return attr_reply(h[2], self._fs.getattr(Ino(h[3])))

    def setattr(self, h: Header, request: memoryview) -> Reply:
        (
            valid, _, _, size, _, atime, mtime, ctime, atime_nsec, mtime_nsec, ctime_nsec, mode, _, uid, gid, _,
        ) = wire.SETATTR_IN.unpack_from(request, HEADER_SIZE)  # fmt: skip
        fs, ino = self._fs, Ino(h[3])
        changes: dict[str, int] = {}
        if valid & wire.FATTR_MODE:
            changes["mode"] = mode & MODE_BITS
        if valid & wire.FATTR_SIZE:
            changes["size"] = size
        if valid & wire.FATTR_UID:
            changes["uid"] = uid
        if valid & wire.FATTR_GID:
            changes["gid"] = gid
        if valid & wire.FATTR_ATIME:
            changes["atime_ns"] = fs.now() if valid & wire.FATTR_ATIME_NOW else atime * NANO + atime_nsec
        if valid & wire.FATTR_MTIME:
            changes["mtime_ns"] = fs.now() if valid & wire.FATTR_MTIME_NOW else mtime * NANO + mtime_nsec
        if valid & wire.FATTR_CTIME:
            changes["ctime_ns"] = ctime * NANO + ctime_nsec
        # chown(-1, -1) changes nothing but drops privileges too; it is the one request that sets nothing
        if valid & (wire.FATTR_UID | wire.FATTR_GID | wire.FATTR_KILL_SUIDGID) or not changes:
            self._drop_privileges(ino, valid, changes)
        return attr_reply(h[2], fs.setattr(ino, **changes))

    def _drop_privileges(self, ino: Ino, valid: int, changes: dict[str, int]) -> None:
        """HANDLE_KILLPRIV_V2: a change of owner, or a truncation by an unprivileged process, takes setuid and (where
        the group may execute) setgid from all but directories, and the capabilities.
        """
        before = self._fs.getattr(ino).mode
        if stat.S_ISDIR(before):
            return
        mode = changes.get("mode", before & MODE_BITS)
        kept = mode & ~stat.S_ISUID
        if mode & stat.S_IXGRP:
            kept &= ~stat.S_ISGID
        if kept != mode:
            changes["mode"] = kept
        try:
            self._fs.removexattr(ino, b"security.capability")
        except FsError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise

    def readlink(self, h: Header, request: memoryview) -> Reply:
        target = self._fs.readlink(Ino(h[3]))
        return _error(OUT_SIZE + len(target), 0, h[2]) + target

    def mknod(self, h: Header, request: memoryview) -> Reply:
        mode, rdev, umask, _ = wire.MKNOD_IN.unpack_from(request, HEADER_SIZE)
        name = bytes(request[HEADER_SIZE + 16 : h[0] - 1])
        return entry_reply(h[2], self._fs.mknod(Ino(h[3]), name, mode, rdev, Caller(h[4], h[5], h[6], umask)))

    def mkdir(self, h: Header, request: memoryview) -> Reply:
        mode, umask = wire.MKDIR_IN.unpack_from(request, HEADER_SIZE)
        name = bytes(request[HEADER_SIZE + 8 : h[0] - 1])
        return entry_reply(h[2], self._fs.mkdir(Ino(h[3]), name, mode, Caller(h[4], h[5], h[6], umask)))

    def symlink(self, h: Header, request: memoryview) -> Reply:
        name, _, target = bytes(request[HEADER_SIZE : h[0] - 1]).partition(b"\0")
        return entry_reply(h[2], self._fs.symlink(Ino(h[3]), name, target, Caller(h[4], h[5], h[6], 0)))

    def link(self, h: Header, request: memoryview) -> Reply:
        ino = wire.LINK_IN.unpack_from(request, HEADER_SIZE)[0]
        return entry_reply(h[2], self._fs.link(ino, Ino(h[3]), bytes(request[HEADER_SIZE + 8 : h[0] - 1])))

    def tmpfile(self, h: Header, request: memoryview) -> Reply:
        _, mode, umask, _ = wire.CREATE_IN.unpack_from(request, HEADER_SIZE)
        a = self._fs.tmpfile(Ino(h[3]), mode, Caller(h[4], h[5], h[6], umask))
        entry = entry_reply(h[2], a)[OUT_SIZE:]
        return _error(wire.TMPFILE_REPLY.size, 0, h[2]) + entry + struct.pack("=QII", 0, wire.FOPEN_KEEP_CACHE, 0)

    def unlink(self, h: Header, request: memoryview) -> Reply:
        self._fs.unlink(Ino(h[3]), bytes(request[HEADER_SIZE : h[0] - 1]))
        return _error(OUT_SIZE, 0, h[2])

    def rmdir(self, h: Header, request: memoryview) -> Reply:
        self._fs.rmdir(Ino(h[3]), bytes(request[HEADER_SIZE : h[0] - 1]))
        return _error(OUT_SIZE, 0, h[2])

    def rename(self, h: Header, request: memoryview) -> Reply:
        target = wire.RENAME_IN.unpack_from(request, HEADER_SIZE)[0]
        name, _, new_name = bytes(request[HEADER_SIZE + 8 : h[0] - 1]).partition(b"\0")
        self._fs.rename(Ino(h[3]), name, target, new_name, 0)
        return _error(OUT_SIZE, 0, h[2])

    def rename2(self, h: Header, request: memoryview) -> Reply:
        target, flags, _ = wire.RENAME2_IN.unpack_from(request, HEADER_SIZE)
        name, _, new_name = bytes(request[HEADER_SIZE + 16 : h[0] - 1]).partition(b"\0")
        self._fs.rename(Ino(h[3]), name, target, new_name, flags)
        return _error(OUT_SIZE, 0, h[2])

    # Directories

    def readdir(self, h: Header, request: memoryview) -> Reply:
        _, offset, size, *_ = wire.READ_IN.unpack_from(request, HEADER_SIZE)
        body = plain_rows(self._fs.readdir(Ino(h[3]), offset), size)
        return _error(OUT_SIZE + len(body), 0, h[2]), body

    def readdirplus(self, h: Header, request: memoryview) -> Reply:
        _, offset, room, *_ = wire.READ_IN.unpack_from(request, HEADER_SIZE)
        fs, parent = self._fs, Ino(h[3])
        lookup = fs.lookup
        parts: list[bytes] = []
        for next_offset, name, ino, kind in fs.readdir(parent, offset):
            length = len(name)
            row = PLUS_ROWS[length]
            room -= row.size
            if room < 0:
                break
            if name == b"." or name == b"..":
                parts.append(_bare_row(row, next_offset, name, ino, kind))
                continue
            try:
                a = lookup(parent, name)
            except FsError:  # gone meanwhile, or unreadable: a row without an inode, which the kernel does not enter
                parts.append(_bare_row(row, next_offset, name, ino, kind))
                continue
            atime, atime_nsec = divmod(a.atime_ns, NANO)
            mtime, mtime_nsec = divmod(a.mtime_ns, NANO)
            ctime, ctime_nsec = divmod(a.ctime_ns, NANO)
            ino, mode = a.ino, a.mode
            parts.append(row.pack(
                ino, 0, VALID_SECONDS, VALID_SECONDS, 0, 0,
                ino, a.size, a.blocks, atime, mtime, ctime, atime_nsec, mtime_nsec, ctime_nsec,
                mode, a.nlink, a.uid, a.gid, a.rdev, BLOCK_SIZE, 0,
                ino, next_offset, length, mode >> 12, name,
            ))  # fmt: skip
        body = b"".join(parts)
        return _error(OUT_SIZE + len(body), 0, h[2]), body

    # Content

    def open(self, h: Header, request: memoryview) -> Reply:
        if self._open_reply:
            return error_reply(h[2], self._open_reply)
        return wire.OPEN_REPLY.pack(wire.OPEN_REPLY.size, 0, h[2], 0, wire.FOPEN_KEEP_CACHE, 0)

    def opendir(self, h: Header, request: memoryview) -> Reply:
        if self._open_reply:
            return error_reply(h[2], self._open_reply)
        flags = wire.FOPEN_KEEP_CACHE | wire.FOPEN_CACHE_DIR
        return wire.OPEN_REPLY.pack(wire.OPEN_REPLY.size, 0, h[2], 0, flags, 0)

    def read(self, h: Header, request: memoryview) -> Reply:
        _, offset, size, *_ = wire.READ_IN.unpack_from(request, HEADER_SIZE)
        data = self._fs.read(Ino(h[3]), offset, size)
        return _error(OUT_SIZE + len(data), 0, h[2]), data

    def write(self, h: Header, request: memoryview) -> Reply:
        _, offset, size, flags, *_ = wire.WRITE_IN.unpack_from(request, HEADER_SIZE)
        start = HEADER_SIZE + 40
        if h[0] != start + size:
            return error_reply(h[2], errno.EIO)
        data = request[start : start + size]
        size = self._fs.write(Ino(h[3]), offset, data, flags & wire.WRITE_KILL_SUIDGID != 0)
        return _wrote(_WRITE_SIZE, 0, h[2], size, 0)

    def fallocate(self, h: Header, request: memoryview) -> Reply:
        _, offset, length, mode, _ = wire.FALLOCATE_IN.unpack_from(request, HEADER_SIZE)
        self._fs.fallocate(Ino(h[3]), mode, offset, length)
        return _error(OUT_SIZE, 0, h[2])

    def lseek(self, h: Header, request: memoryview) -> Reply:
        _, offset, whence, _ = wire.LSEEK_IN.unpack_from(request, HEADER_SIZE)
        return wire.LSEEK_REPLY.pack(wire.LSEEK_REPLY.size, 0, h[2], self._fs.lseek(Ino(h[3]), offset, whence))

    def copy_file_range(self, h: Header, request: memoryview) -> Reply:
        return _wrote(_WRITE_SIZE, 0, h[2], self._copy(h, request), 0)

    def copy_file_range_64(self, h: Header, request: memoryview) -> Reply:
        return wire.COPY64_REPLY.pack(wire.COPY64_REPLY.size, 0, h[2], self._copy(h, request))

    def _copy(self, h: Header, request: memoryview) -> int:
        _, offset, target, _, target_offset, length, flags = wire.COPY_FILE_RANGE_IN.unpack_from(request, HEADER_SIZE)
        if flags:
            raise FsError(errno.EINVAL)
        return self._fs.copy_file_range(Ino(h[3]), offset, target, target_offset, length)

    def fsync(self, h: Header, request: memoryview) -> Reply:
        flags = wire.FSYNC_IN.unpack_from(request, HEADER_SIZE)[1]
        self._about_to_block()
        self._fs.fsync(Ino(h[3]), flags & wire.FSYNC_FDATASYNC != 0)
        return _error(OUT_SIZE, 0, h[2])

    def fsyncdir(self, h: Header, request: memoryview) -> Reply:
        self._about_to_block()
        self._fs.fsyncdir(Ino(h[3]))
        return _error(OUT_SIZE, 0, h[2])

    def syncfs(self, h: Header, request: memoryview) -> Reply:
        self._about_to_block()
        self._fs.syncfs()
        return _error(OUT_SIZE, 0, h[2])

    # Extended attributes

    def setxattr(self, h: Header, request: memoryview) -> Reply:
        size, flags, *more = self._setxattr_in.unpack_from(request, HEADER_SIZE)
        body = bytes(request[HEADER_SIZE + self._setxattr_in.size : h[0]])
        name, nul, value = body.partition(b"\0")
        if not nul or len(value) != size:
            return error_reply(h[2], errno.EIO)
        fs, ino = self._fs, Ino(h[3])
        fs.setxattr(ino, name, value, flags)
        if more and more[0] & wire.SETXATTR_ACL_KILL_SGID:
            mode = fs.getattr(ino).mode
            if mode & stat.S_ISGID:
                fs.setattr(ino, mode=mode & MODE_BITS & ~stat.S_ISGID)
        return _error(OUT_SIZE, 0, h[2])

    def getxattr(self, h: Header, request: memoryview) -> Reply:
        size, _ = wire.GETXATTR_IN.unpack_from(request, HEADER_SIZE)
        value = self._fs.getxattr(Ino(h[3]), bytes(request[HEADER_SIZE + 8 : h[0] - 1]))
        return self._sized(h, size, value)

    def listxattr(self, h: Header, request: memoryview) -> Reply:
        size, _ = wire.GETXATTR_IN.unpack_from(request, HEADER_SIZE)
        value = b"".join([name + b"\0" for name in visible_xattrs(self._fs.listxattr(Ino(h[3])), h[4])])
        return self._sized(h, size, value)

    def _sized(self, h: Header, size: int, value: bytes) -> Reply:
        """``value`` if it fits in ``size``; its length if ``size`` is 0, which asks for that."""
        if size == 0:
            return wire.GETXATTR_REPLY.pack(wire.GETXATTR_REPLY.size, 0, h[2], len(value), 0)
        if len(value) > size:
            return error_reply(h[2], errno.ERANGE)
        return _error(OUT_SIZE + len(value), 0, h[2]) + value

    def removexattr(self, h: Header, request: memoryview) -> Reply:
        self._fs.removexattr(Ino(h[3]), bytes(request[HEADER_SIZE : h[0] - 1]))
        return _error(OUT_SIZE, 0, h[2])

    # The file system as a whole, and what we do not do

    def statfs(self, h: Header, request: memoryview) -> Reply:
        s = self._fs.statfs()
        return wire.STATFS_REPLY.pack(
            wire.STATFS_REPLY.size, 0, h[2], s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree,
            s.f_bsize, s.f_namemax, s.f_frsize, 0,
        )  # fmt: skip

    def succeed(self, h: Header, request: memoryview) -> Reply:
        return _error(OUT_SIZE, 0, h[2])

    def never_again(self, h: Header, request: memoryview) -> Reply:
        return _error(OUT_SIZE, -errno.ENOSYS, h[2])

    def ioctl(self, h: Header, request: memoryview) -> Reply:
        return _error(OUT_SIZE, -errno.ENOTTY, h[2])


def _bare_row(row: struct.Struct, offset: int, name: bytes, ino: int, kind: int) -> bytes:
    """A READDIRPLUS row that names an inode without entering it."""
    return row.pack(*_NO_ENTRY, ino, offset, len(name), kind, name)


_NO_ENTRY = (0,) * 22
