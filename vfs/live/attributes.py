"""Operations on attributes: mode, owner, times, extended attributes and ACLs.

Owns their rules. Permission is the kernel's business (default_permissions). ``size`` belongs to ``files``.
"""

from __future__ import annotations

import errno
import os
import stat

from store.refs import Ino
from vfs.errors import FsError
from vfs.live import acl
from vfs.live.inode import FileInode, Inode, SpecialInode, SymlinkInode, clamped
from vfs.live.records import Op
from vfs.live.tree import Tree

XATTR_CREATE = 1
XATTR_REPLACE = 2
XATTR_SIZE_MAX = 65536
XATTR_NAME_MAX = 255
XATTR_SPACES = (b"user.", b"trusted.", b"security.")
"""Where names of extended attributes may be, besides the two of ACLs (xattr(7))."""


def check_xattr_name(name: bytes) -> None:
    """Raise FsError for a name that no extended attribute here has, as on ext4."""
    if name in XATTR_SPACES:
        raise FsError(errno.EINVAL)
    if not name.startswith(XATTR_SPACES) and name not in (acl.ACCESS, acl.DEFAULT):
        raise FsError(errno.EOPNOTSUPP)


class AttributeOperations:
    """The attribute operations of one tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def getattr(self, ino: Ino) -> Inode:
        """The inode ``ino``. Raises FsError(ESTALE)."""
        inode = self._tree.inodes.get(ino)
        if inode is None:
            raise FsError(errno.ESTALE)
        return inode

    def set(
        self,
        inode: Inode,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        atime_ns: int | None,
        mtime_ns: int | None,
        ctime_ns: int | None,
    ) -> None:
        """Record and make a change of attributes; the lock is held. None leaves alone; ctime defaults to now."""
        tree = self._tree
        if mode is not None:
            mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(mode)
        if atime_ns is not None:
            atime_ns = clamped(atime_ns)
        if mtime_ns is not None:
            mtime_ns = clamped(mtime_ns)
        tree.introduce(inode)
        now = tree.now() if ctime_ns is None else clamped(ctime_ns)
        tree.record((Op.SET, inode.ino, mode, uid, gid, atime_ns, mtime_ns, now))
        self.apply_set(inode, mode, uid, gid, atime_ns, mtime_ns, now)

    def apply_set(
        self,
        inode: Inode,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        atime_ns: int | None,
        mtime_ns: int | None,
        ctime_ns: int,
    ) -> None:
        """The change that SET records."""
        xattrs = self._tree.xattrs_of(inode)
        if mode is not None:
            inode.mode = mode
            access = xattrs.get(acl.ACCESS)
            if access is not None:
                xattrs[acl.ACCESS] = acl.with_mode(access, mode)
        if uid is not None:
            inode.uid = uid
        if gid is not None:
            inode.gid = gid
        if atime_ns is not None:
            inode.atime_ns = atime_ns
        if mtime_ns is not None:
            inode.mtime_ns = mtime_ns
        inode.ctime_ns = ctime_ns
        self._tree.touch(inode)

    # --- extended attributes ---------------------------------------------------------------------------------------

    def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """The value of an extended attribute. Raises FsError (ENODATA, EOPNOTSUPP)."""
        with self._tree.lock:
            value = self._tree.xattrs_of(self._tree.get(ino)).get(name)
        if value is None:
            check_xattr_name(name)
            raise FsError(errno.ENODATA)
        return value

    def listxattr(self, ino: Ino) -> list[bytes]:
        """The names of the extended attributes."""
        with self._tree.lock:
            return list(self._tree.xattrs_of(self._tree.get(ino)))

    def setxattr(self, ino: Ino, name: bytes, value: bytes, flags: int = 0) -> None:
        """Set an extended attribute; ``flags`` XATTR_CREATE or XATTR_REPLACE. Raises FsError (EEXIST, ENODATA...)."""
        if len(name) > XATTR_NAME_MAX:
            raise FsError(errno.ERANGE)
        check_xattr_name(name)
        if len(value) > XATTR_SIZE_MAX:
            raise FsError(errno.E2BIG)
        tree = self._tree
        with tree.lock:
            inode = tree.get(ino)
            if name.startswith(b"user.") and isinstance(inode, SymlinkInode | SpecialInode):
                raise FsError(errno.EPERM)
            xattrs = tree.xattrs_of(inode)
            if flags & XATTR_CREATE and name in xattrs:
                raise FsError(errno.EEXIST)
            if flags & XATTR_REPLACE and name not in xattrs:
                raise FsError(errno.ENODATA)
            if name in (acl.ACCESS, acl.DEFAULT):
                self._check_acl(inode, name, value)
            self._change_xattr(inode, name, bytes(value))

    def removexattr(self, ino: Ino, name: bytes) -> None:
        """Remove an extended attribute; an ACL may be absent. Raises FsError (ENODATA, EOPNOTSUPP)."""
        tree = self._tree
        with tree.lock:
            inode = tree.get(ino)
            if name not in tree.xattrs_of(inode):
                check_xattr_name(name)
                if name in (acl.ACCESS, acl.DEFAULT):
                    return
                raise FsError(errno.ENODATA)
            self._change_xattr(inode, name, None)

    def _check_acl(self, inode: Inode, name: bytes, value: bytes) -> None:
        if stat.S_ISLNK(inode.mode):
            raise FsError(errno.EOPNOTSUPP)
        if name == acl.DEFAULT and not stat.S_ISDIR(inode.mode):
            raise FsError(errno.EACCES)
        try:
            acl.entries(value)
        except ValueError:
            raise FsError(errno.EINVAL) from None

    def _change_xattr(self, inode: Inode, name: bytes, value: bytes | None) -> None:
        tree = self._tree
        tree.introduce(inode)
        now = tree.now()
        tree.record((Op.XATTR, inode.ino, name, value, now))
        self.apply_xattr(inode, name, value, now)

    def apply_xattr(self, inode: Inode, name: bytes, value: bytes | None, now: int) -> None:
        """The change that XATTR records. An access ACL that permission bits can say becomes just those bits."""
        xattrs = self._tree.xattrs_of(inode)
        if name == acl.ACCESS and value is not None:
            inode.mode = acl.mode_of(value, inode.mode)
            if acl.is_minimal(value):
                value = None
        if value is None:
            xattrs.pop(name, None)
        else:
            xattrs[name] = value
        inode.ctime_ns = now
        self._tree.touch(inode)

    def kill_privileges(self, inode: FileInode) -> int:
        """The mode that a file keeps when somebody without privilege writes to it (write(2), inode(7))."""
        mode = inode.mode & ~stat.S_ISUID
        return mode & ~stat.S_ISGID if mode & stat.S_IXGRP else mode


def space(path: bytes | int) -> os.statvfs_result:
    """What statfs(2) shows: the store's file system, where everything new goes."""
    return os.statvfs(path)
