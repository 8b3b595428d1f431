"""A file system in a dict: the smallest ``FileSystem`` that a channel can serve and the POSIX contract accepts.

For tests of channels without the core. One lock around everything; nothing is ever on disk.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from store.refs import Ino
from vfs.channel import ROOT, Buffer, Caller, DirectoryRow
from vfs.errors import FsError

FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2
ACL_ACCESS = b"system.posix_acl_access"
ACL_DEFAULT = b"system.posix_acl_default"


class MemoryInode:
    """One object; ``entries`` for directories, ``data`` for files and symlinks."""

    def __init__(self, ino: Ino, mode: int, uid: int, gid: int, now: int, rdev: int = 0) -> None:
        self.ino = ino
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.rdev = rdev
        self.nlink = 2 if stat.S_ISDIR(mode) else 1
        self.atime_ns = self.mtime_ns = self.ctime_ns = now
        self.data = bytearray()
        self.entries: dict[bytes, Ino] = {}
        self.positions: dict[bytes, int] = {}
        self.next_position = 3
        self.parent = ROOT
        self.xattrs: dict[bytes, bytes] = {}
        self.lookups = 0

    @property
    def size(self) -> int:
        return 4096 if stat.S_ISDIR(self.mode) else len(self.data)

    @property
    def blocks(self) -> int:
        return (len(self.data) + 511) // 512


def locked(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: MemoryFs, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return call


class MemoryFs:
    """Implements ``vfs.channel.FileSystem``. ``inodes`` may be looked at, and changed by tests that play a restore."""

    def __init__(self, uid: int | None = None, gid: int | None = None) -> None:
        self.lock = threading.RLock()
        self._last = 0
        self._next = 2
        root = MemoryInode(
            ROOT,
            stat.S_IFDIR | 0o755,
            os.getuid() if uid is None else uid,
            os.getgid() if gid is None else gid,
            self.now(),
        )
        root.lookups = 1
        self.inodes: dict[Ino, MemoryInode] = {ROOT: root}

    def now(self) -> int:
        self._last = max(time.time_ns(), self._last + 1)
        return self._last

    # What the methods are made of

    def _inode(self, ino: Ino) -> MemoryInode:
        try:
            return self.inodes[ino]
        except KeyError:
            raise FsError(errno.ESTALE) from None

    def _directory(self, ino: Ino) -> MemoryInode:
        inode = self._inode(ino)
        if not stat.S_ISDIR(inode.mode):
            raise FsError(errno.ENOTDIR)
        if inode.nlink == 0:
            raise FsError(errno.ENOENT)
        return inode

    def _find(self, directory: MemoryInode, name: bytes) -> MemoryInode:
        try:
            return self.inodes[directory.entries[name]]
        except KeyError:
            raise FsError(errno.ENOENT) from None

    def _enter(self, directory: MemoryInode, name: bytes, inode: MemoryInode) -> None:
        directory.entries[name] = inode.ino
        directory.positions[name] = directory.next_position
        directory.next_position += 1
        self._changed(directory)

    def _remove(self, directory: MemoryInode, name: bytes) -> None:
        del directory.entries[name], directory.positions[name]
        self._changed(directory)

    def _changed(self, inode: MemoryInode) -> None:
        inode.mtime_ns = inode.ctime_ns = self.now()

    def _drop(self, inode: MemoryInode) -> None:
        if inode.nlink == 0 and inode.lookups <= 0:
            self.inodes.pop(inode.ino, None)

    def _new(self, parent: MemoryInode, name: bytes | None, mode: int, caller: Caller, rdev: int = 0) -> MemoryInode:
        if name is not None:
            if len(name) > 255:
                raise FsError(errno.ENAMETOOLONG)
            if name in parent.entries:
                raise FsError(errno.EEXIST)
        gid = parent.gid if parent.mode & stat.S_ISGID else caller.gid
        if parent.mode & stat.S_ISGID and stat.S_ISDIR(mode):
            mode |= stat.S_ISGID
        inode = MemoryInode(Ino(self._next), mode, caller.uid, gid, self.now(), rdev)
        self._next += 1
        self._inherit(parent, inode, caller.umask)
        inode.lookups = 1
        inode.parent = parent.ino
        self.inodes[inode.ino] = inode
        if name is not None:
            self._enter(parent, name, inode)
            if stat.S_ISDIR(mode):
                parent.nlink += 1
        return inode

    def _inherit(self, parent: MemoryInode, inode: MemoryInode, umask: int) -> None:
        """The umask, or in its place the parent's default ACL."""
        if stat.S_ISLNK(inode.mode):
            return
        acl = parent.xattrs.get(ACL_DEFAULT)
        if acl is None:
            inode.mode &= ~umask
            return
        if stat.S_ISDIR(inode.mode):
            inode.xattrs[ACL_DEFAULT] = acl
        entries = [list(struct.unpack_from("<HHI", acl, at)) for at in range(4, len(acl), 8)]
        masked = any(tag == 0x10 for tag, _, _ in entries)
        for entry in entries:
            shift = {0x01: 6, 0x04: None if masked else 3, 0x10: 3, 0x20: 0}.get(entry[0])
            if shift is not None:
                entry[1] &= inode.mode >> shift & 7
                inode.mode = inode.mode & ~(7 << shift) | entry[1] << shift
        if len(entries) > 3:
            inode.xattrs[ACL_ACCESS] = acl[:4] + b"".join(struct.pack("<HHI", *entry) for entry in entries)

    # Names

    @locked
    def lookup(self, parent: Ino, name: bytes) -> MemoryInode:
        if len(name) > 255:
            raise FsError(errno.ENAMETOOLONG)
        inode = self._find(self._directory(parent), name)
        inode.lookups += 1
        return inode

    @locked
    def forget(self, ino: Ino, lookups: int) -> None:
        inode = self.inodes.get(ino)
        if inode is not None and ino != ROOT:
            inode.lookups -= lookups
            self._drop(inode)

    @locked
    def getattr(self, ino: Ino) -> MemoryInode:
        return self._inode(ino)

    @locked
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
    ) -> MemoryInode:
        inode = self._inode(ino)
        if mode is not None:
            inode.mode = stat.S_IFMT(inode.mode) | mode & 0o7777
            self._mask_acl(inode)
        inode.uid = inode.uid if uid is None else uid
        inode.gid = inode.gid if gid is None else gid
        inode.ctime_ns = self.now()
        if size is not None:
            if size < len(inode.data):
                del inode.data[size:]
            else:
                inode.data.extend(bytes(size - len(inode.data)))
            inode.mtime_ns = inode.ctime_ns
        inode.atime_ns = inode.atime_ns if atime_ns is None else atime_ns
        inode.mtime_ns = inode.mtime_ns if mtime_ns is None else mtime_ns
        inode.ctime_ns = inode.ctime_ns if ctime_ns is None else ctime_ns
        return inode

    def _mask_acl(self, inode: MemoryInode) -> None:
        acl = inode.xattrs.get(ACL_ACCESS)
        if acl is None:
            return
        entries = [list(struct.unpack_from("<HHI", acl, at)) for at in range(4, len(acl), 8)]
        for entry in entries:
            shift = {0x01: 6, 0x10: 3, 0x20: 0}.get(entry[0])
            if shift is not None:
                entry[1] = inode.mode >> shift & 7
        inode.xattrs[ACL_ACCESS] = acl[:4] + b"".join(struct.pack("<HHI", *entry) for entry in entries)

    @locked
    def readlink(self, ino: Ino) -> bytes:
        return bytes(self._inode(ino).data)

    @locked
    def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> MemoryInode:
        return self._new(self._directory(parent), name, mode, caller, rdev)

    @locked
    def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> MemoryInode:
        return self._new(self._directory(parent), name, stat.S_IFDIR | mode & 0o7777, caller)

    @locked
    def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> MemoryInode:
        inode = self._new(self._directory(parent), name, stat.S_IFLNK | 0o777, caller)
        inode.data[:] = target
        return inode

    @locked
    def link(self, ino: Ino, parent: Ino, name: bytes) -> MemoryInode:
        inode, directory = self._inode(ino), self._directory(parent)
        if name in directory.entries:
            raise FsError(errno.EEXIST)
        self._enter(directory, name, inode)
        inode.nlink += 1
        inode.lookups += 1
        inode.ctime_ns = self.now()
        return inode

    @locked
    def tmpfile(self, parent: Ino, mode: int, caller: Caller) -> MemoryInode:
        inode = self._new(self._directory(parent), None, stat.S_IFREG | mode & 0o7777, caller)
        inode.nlink = 0
        return inode

    @locked
    def unlink(self, parent: Ino, name: bytes) -> None:
        directory = self._directory(parent)
        inode = self._find(directory, name)
        if stat.S_ISDIR(inode.mode):
            raise FsError(errno.EISDIR)
        self._remove(directory, name)
        inode.nlink -= 1
        inode.ctime_ns = self.now()
        self._drop(inode)

    @locked
    def rmdir(self, parent: Ino, name: bytes) -> None:
        directory = self._directory(parent)
        inode = self._find(directory, name)
        if not stat.S_ISDIR(inode.mode):
            raise FsError(errno.ENOTDIR)
        if inode.entries:
            raise FsError(errno.ENOTEMPTY)
        self._remove(directory, name)
        directory.nlink -= 1
        inode.nlink = 0
        self._drop(inode)

    @locked
    def rename(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int) -> None:
        source, target = self._directory(parent), self._directory(new_parent)
        inode = self._find(source, name)
        there = self.inodes.get(target.entries.get(new_name, Ino(0)))
        if flags & ~3 or flags == 3:
            raise FsError(errno.EINVAL)
        if flags & 1 and there is not None:
            raise FsError(errno.EEXIST)
        if flags & 2:
            if there is None:
                raise FsError(errno.ENOENT)
            source.entries[name], target.entries[new_name] = there.ino, inode.ino
            self._moved(inode, source, target)
            self._moved(there, target, source)
            return
        if there is inode:
            return
        if there is not None:
            if stat.S_ISDIR(there.mode):
                if not stat.S_ISDIR(inode.mode):
                    raise FsError(errno.EISDIR)
                self.rmdir(new_parent, new_name)
            elif stat.S_ISDIR(inode.mode):
                raise FsError(errno.ENOTDIR)
            else:
                self.unlink(new_parent, new_name)
        self._remove(source, name)
        self._enter(target, new_name, inode)
        self._moved(inode, source, target)

    def _moved(self, inode: MemoryInode, source: MemoryInode, target: MemoryInode) -> None:
        inode.ctime_ns = self.now()
        if stat.S_ISDIR(inode.mode):
            source.nlink -= 1
            target.nlink += 1
            inode.parent = target.ino
        self._changed(source)
        self._changed(target)

    # Content

    @locked
    def read(self, ino: Ino, offset: int, size: int) -> bytes:
        return bytes(self._inode(ino).data[offset : offset + size])

    @locked
    def write(self, ino: Ino, offset: int, data: Buffer, kill_suid: bool = False) -> int:
        inode = self._inode(ino)
        if kill_suid:
            inode.mode &= ~(stat.S_ISUID | (stat.S_ISGID if inode.mode & stat.S_IXGRP else 0))
        if offset > len(inode.data):
            inode.data.extend(bytes(offset - len(inode.data)))
        inode.data[offset : offset + len(data)] = data
        self._changed(inode)
        return len(data)

    @locked
    def fallocate(self, ino: Ino, mode: int, offset: int, length: int) -> None:
        inode = self._inode(ino)
        if mode & FALLOC_PUNCH_HOLE:
            end = min(offset + length, len(inode.data))
            if end > offset:
                inode.data[offset:end] = bytes(end - offset)
        elif mode & ~FALLOC_KEEP_SIZE:
            raise FsError(errno.EOPNOTSUPP)
        elif offset + length > 1 << 30:
            raise FsError(errno.ENOSPC)
        elif not mode and offset + length > len(inode.data):
            inode.data.extend(bytes(offset + length - len(inode.data)))
        self._changed(inode)

    @locked
    def lseek(self, ino: Ino, offset: int, whence: int) -> int:
        size = len(self._inode(ino).data)
        if offset >= size:
            raise FsError(errno.ENXIO)
        return offset if whence == os.SEEK_DATA else size

    @locked
    def copy_file_range(self, source: Ino, source_offset: int, target: Ino, target_offset: int, length: int) -> int:
        return int(self.write(target, target_offset, self.read(source, source_offset, length)))

    @locked
    def fsync(self, ino: Ino, datasync: bool) -> None:
        self._inode(ino)

    @locked
    def fsyncdir(self, ino: Ino) -> None:
        self._inode(ino)

    def syncfs(self) -> None:
        pass

    # Extended attributes

    @locked
    def getxattr(self, ino: Ino, name: bytes) -> bytes:
        try:
            return self._inode(ino).xattrs[name]
        except KeyError:
            raise FsError(errno.ENODATA) from None

    @locked
    def setxattr(self, ino: Ino, name: bytes, value: bytes, flags: int) -> None:
        inode = self._inode(ino)
        if flags & os.XATTR_CREATE and name in inode.xattrs:
            raise FsError(errno.EEXIST)
        if flags & os.XATTR_REPLACE and name not in inode.xattrs:
            raise FsError(errno.ENODATA)
        inode.xattrs[name] = value
        inode.ctime_ns = self.now()
        if name == ACL_ACCESS:
            perms = {tag: bits for tag, bits, _ in struct.iter_unpack("<HHI", value[4:])}
            group = perms.get(0x10, perms.get(0x04, 0))
            inode.mode = inode.mode & ~0o777 | perms[0x01] << 6 | group << 3 | perms[0x20]
            if len(value) == 4 + 3 * 8:
                del inode.xattrs[name]

    @locked
    def listxattr(self, ino: Ino) -> Iterable[bytes]:
        return list(self._inode(ino).xattrs)

    @locked
    def removexattr(self, ino: Ino, name: bytes) -> None:
        inode = self._inode(ino)
        if inode.xattrs.pop(name, None) is None:
            raise FsError(errno.ENODATA)
        inode.ctime_ns = self.now()

    # Directories and the whole

    @locked
    def readdir(self, ino: Ino, offset: int) -> Iterable[DirectoryRow]:
        inode = self._inode(ino)
        if not stat.S_ISDIR(inode.mode):
            raise FsError(errno.ENOTDIR)
        rows = [(1, b".", inode.ino, stat.S_IFDIR >> 12), (2, b"..", inode.parent, stat.S_IFDIR >> 12)]
        rows += sorted(
            (inode.positions[name], name, child, self.inodes[child].mode >> 12) for name, child in inode.entries.items()
        )
        return [row for row in rows if row[0] > offset]

    def statfs(self) -> os.statvfs_result:
        return os.statvfs("/")
