"""Operations on names: look up, make, link, remove, rename, list.

Owns the rules of POSIX for directory entries. Does not own content or attributes. Each operation checks, records,
then changes; after the record nothing can fail. Methods whose name begins with ``apply_`` make one recorded change
and are what recovery replays; they run under the tree's lock, the others take it.
"""

from __future__ import annotations

import errno
import stat

from store.entries import below, link_key
from store.format import Absent
from store.refs import Ino
from vfs.channel import Caller
from vfs.errors import FsError
from vfs.live import acl
from vfs.live.extents import Extents
from vfs.live.inode import FIRST_NEW_INO, DirectoryInode, FileInode, Inode, SpecialInode, SymlinkInode
from vfs.live.listing import Row
from vfs.live.records import Op
from vfs.live.tree import Tree

NAME_MAX = 255
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4
ROWS_AT_ONCE = 1024


def check_name(name: bytes) -> None:
    """Raise FsError for a name that cannot stand in a directory."""
    if len(name) > NAME_MAX:
        raise FsError(errno.ENAMETOOLONG)
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise FsError(errno.EINVAL)


class Namespace:
    """The name operations of one tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    # --- finding ---------------------------------------------------------------------------------------------------

    def lookup(self, parent: Ino, name: bytes) -> Inode:
        """The inode ``name`` in ``parent``, with one more lookup. Raises FsError (ENOENT, ENAMETOOLONG)."""
        tree = self._tree
        with tree.lock:
            directory = tree.directory(parent)
            inode = directory.children.get(name)
            if inode is not None:
                inode.lookups += 1
                return inode
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        probed = tree.probe(parent, name)
        with tree.lock:
            inode = tree.child(tree.directory(parent), name, probed)
            if inode is None:
                raise FsError(errno.ENOENT)
            inode.lookups += 1
            return inode

    def forget(self, ino: Ino, count: int) -> None:
        """The kernel drops ``count`` lookups of ``ino``; an unknown number is nothing to it."""
        tree = self._tree
        with tree.lock:
            inode = tree.inodes.get(ino)
            if inode is not None and inode is not tree.root:
                tree.forget(inode, count)

    def readlink(self, ino: Ino) -> bytes:
        """The target of a symbolic link. Raises FsError(EINVAL) for anything else."""
        with self._tree.lock:
            inode = self._tree.get(ino)
            if not isinstance(inode, SymlinkInode):
                raise FsError(errno.EINVAL)
            return inode.target

    def readdir(self, ino: Ino, offset: int) -> list[Row]:
        """Rows of a directory from ``offset`` on, ``.`` and ``..`` first; empty at the end."""
        tree = self._tree
        with tree.lock:
            directory = tree.directory(ino)
            listing = directory.listing
            origin = directory.origin
        base_rows = None
        if listing is None and origin is not None:
            base_rows = tree.base.list(origin)
        with tree.lock:
            directory = tree.directory(ino)
            if directory.origin != origin:
                base_rows = None
            listing = tree.listing(directory, base_rows)
            rows = listing.after(offset, ROWS_AT_ONCE)
            if offset < 2:
                kind = stat.S_IFDIR >> 12
                parent = directory.parent
                dots = [
                    Row(1, b".", directory.ino, kind),
                    Row(2, b"..", parent.ino if parent is not None else directory.ino, kind),
                ]
                rows = dots[offset:] + rows
            return rows

    # --- making ----------------------------------------------------------------------------------------------------

    def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Inode:
        """A new file, FIFO, socket or device, with one lookup."""
        if not stat.S_IFMT(mode):
            mode |= stat.S_IFREG
        return self._make(parent, name, mode, rdev, caller, None)

    def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Inode:
        """A new directory, with one lookup."""
        return self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), 0, caller, None)

    def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Inode:
        """A new symbolic link, with one lookup."""
        if len(target) > 4095:
            raise FsError(errno.ENAMETOOLONG)
        return self._make(parent, name, stat.S_IFLNK | 0o777, 0, caller, target)

    def tmpfile(self, parent: Ino, mode: int, caller: Caller) -> Inode:
        """A new file without a name, with one lookup (open(2), O_TMPFILE)."""
        tree = self._tree
        with tree.lock:
            directory = tree.directory(parent)
            if not directory.nlink:
                raise FsError(errno.ENOENT)
            mode, gid, xattrs = self._birth(directory, stat.S_IFREG | stat.S_IMODE(mode), caller)
            ino, now = tree.new_ino(), tree.now()
            tree.record((Op.MAKE, 0, b"", ino, mode, caller.uid, gid, 0, now, xattrs, None))
            inode = self.apply_make(None, b"", ino, mode, caller.uid, gid, 0, now, xattrs, None, False)
            inode.lookups += 1
            return inode

    def _make(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller, target: bytes | None) -> Inode:
        check_name(name)
        tree = self._tree
        probed = tree.probe(parent, name)
        with tree.lock:
            directory = tree.directory(parent)
            if not directory.nlink:
                raise FsError(errno.ENOENT)
            in_base = tree.in_base(directory, name, probed)
            if tree.child(directory, name, probed) is not None:
                raise FsError(errno.EEXIST)
            mode, gid, xattrs = self._birth(directory, mode, caller)
            tree.introduce(directory)
            ino, now = tree.new_ino(), tree.now()
            tree.record((Op.MAKE, parent, name, ino, mode, caller.uid, gid, rdev, now, xattrs, target))
            inode = self.apply_make(directory, name, ino, mode, caller.uid, gid, rdev, now, xattrs, target, in_base)
            inode.lookups += 1
            return inode

    def _birth(self, directory: DirectoryInode, mode: int, caller: Caller) -> tuple[int, int, dict[bytes, bytes]]:
        """Mode, group and extended attributes of what is made in ``directory`` (mkdir(2), acl(5))."""
        xattrs: dict[bytes, bytes] = {}
        if not stat.S_ISLNK(mode):
            default = self._tree.xattrs_of(directory).get(acl.DEFAULT)
            if default is not None:
                access, mode = acl.inherited(default, mode)
                if access is not None:
                    xattrs[acl.ACCESS] = access
                if stat.S_ISDIR(mode):
                    xattrs[acl.DEFAULT] = default
            else:
                mode &= ~caller.umask
        if directory.mode & stat.S_ISGID:
            return (mode | stat.S_ISGID if stat.S_ISDIR(mode) else mode), directory.gid, xattrs
        return mode, caller.gid, xattrs

    def apply_make(
        self,
        directory: DirectoryInode | None,
        name: bytes,
        ino: Ino,
        mode: int,
        uid: int,
        gid: int,
        rdev: int,
        now: int,
        xattrs: dict[bytes, bytes],
        target: bytes | None,
        in_base: bool | None,
    ) -> Inode:
        """The change that MAKE records."""
        tree = self._tree
        inode: Inode
        kind = stat.S_IFMT(mode)
        if kind == stat.S_IFREG:
            inode = FileInode(ino, mode)
            inode.extents = Extents()
            inode.rewritten = True
        elif kind == stat.S_IFDIR:
            inode = DirectoryInode(ino, mode)
            inode.size = 4096
            inode.blocks = 8
        elif kind == stat.S_IFLNK:
            inode = SymlinkInode(ino, mode, target or b"")
        else:
            inode = SpecialInode(ino, mode)
            inode.rdev = rdev
        inode.uid, inode.gid = uid, gid
        inode.atime_ns = inode.mtime_ns = inode.ctime_ns = now
        inode.xattrs = xattrs
        inode.known = tree.epoch
        inode.dirty = True
        tree.inodes[ino] = inode
        tree.next_ino = max(tree.next_ino, ino + 1)
        if directory is None:
            inode.nlink = 0
            return inode
        inode.parent, inode.name = directory, name
        self._add_name(directory, name, inode, in_base, now)
        return inode

    def _add_name(self, directory: DirectoryInode, name: bytes, inode: Inode, in_base: bool | None, now: int) -> None:
        directory.children[name] = inode
        if isinstance(inode, DirectoryInode):
            directory.subdirectories += 1
            directory.count_links()
        if inode.linked:
            self._tree.places.setdefault(inode.ino, set()).add((directory, name))
        if directory.listing is not None:
            directory.listing.add(name, inode.ino, inode.type)
        directory.mtime_ns = directory.ctime_ns = now
        self._tree.mark(directory, name, in_base)

    def _drop_name(
        self,
        directory: DirectoryInode,
        name: bytes,
        inode: Inode,
        in_base: bool | None,
        now: int,
        replaced: bool = False,
    ) -> None:
        """Take a name away; one that is ``replaced`` at once stays where it is listed."""
        directory.children[name] = None
        if isinstance(inode, DirectoryInode):
            directory.subdirectories -= 1
            directory.count_links()
        if inode.linked:
            places = self._tree.places.get(inode.ino)
            if places is not None:
                places.discard((directory, name))
        if inode.parent is directory and inode.name == name:
            inode.parent = None
            if inode.linked:
                for other, known_as in self._tree.places.get(inode.ino, ()):
                    inode.parent, inode.name = other, known_as
                    break
        if directory.listing is not None and not replaced:
            directory.listing.remove(name)
        directory.mtime_ns = directory.ctime_ns = now
        self._tree.mark(directory, name, in_base)

    # --- linking ---------------------------------------------------------------------------------------------------

    def link(self, ino: Ino, parent: Ino, name: bytes) -> Inode:
        """Another name for ``ino``, with one more lookup. Raises FsError (EPERM for directories)."""
        check_name(name)
        tree = self._tree
        probed = tree.probe(parent, name)
        with tree.lock:
            inode = tree.get(ino)
            directory = tree.directory(parent)
            if isinstance(inode, DirectoryInode):
                raise FsError(errno.EPERM)
            if not directory.nlink:
                raise FsError(errno.ENOENT)
            in_base = tree.in_base(directory, name, probed)
            if tree.child(directory, name, probed) is not None:
                raise FsError(errno.EEXIST)
            if not inode.nlink and inode.known != tree.epoch:
                if not isinstance(inode, FileInode):
                    raise FsError(errno.ENOENT)
                tree.rewrite(inode)
            tree.introduce(inode)
            tree.introduce(directory)
            now = tree.now()
            tree.record((Op.LINK, ino, parent, name, now))
            self.apply_link(inode, directory, name, in_base, now)
            inode.lookups += 1
            return inode

    def apply_link(self, inode: Inode, directory: DirectoryInode, name: bytes, in_base: bool | None, now: int) -> None:
        """The change that LINK records."""
        tree = self._tree
        if inode.nlink == 0:  # an unnamed file gets its first name
            inode.parent, inode.name = directory, name
            inode.dirty = True
        elif not inode.linked:
            assert inode.parent is not None
            if tree.pages.get(tree.links, link_key(inode.key)) is not None or tree.live_link(inode.key) is not None:
                inode.key = tree.new_ino()  # another inode with the same past has the row
            inode.linked = True
            tree.linked[inode.key] = inode
            inode.dirty = False
            tree.places[inode.ino] = {(inode.parent, inode.name)}
            tree.mark(inode.parent, inode.name, None)
        inode.nlink += 1
        inode.ctime_ns = now
        if inode.linked:
            tree.touch(inode)
            tree.dirty_links[inode.key] = inode
        self._add_name(directory, name, inode, in_base, now)

    # --- removing --------------------------------------------------------------------------------------------------

    def unlink(self, parent: Ino, name: bytes) -> None:
        """Remove a name that is not a directory's. Raises FsError (ENOENT, EISDIR)."""
        self._remove(parent, name, directories=False)

    def rmdir(self, parent: Ino, name: bytes) -> None:
        """Remove an empty directory. Raises FsError (ENOENT, ENOTDIR, ENOTEMPTY)."""
        self._remove(parent, name, directories=True)

    def _remove(self, parent: Ino, name: bytes, directories: bool) -> None:
        tree = self._tree
        if len(name) > NAME_MAX:
            raise FsError(errno.ENAMETOOLONG)
        probed = tree.probe(parent, name)
        with tree.lock:
            directory = tree.directory(parent)
            in_base = tree.in_base(directory, name, probed)
            inode = tree.child(directory, name, probed)
            if inode is None:
                raise FsError(errno.ENOENT)
            if isinstance(inode, DirectoryInode):
                if not directories:
                    raise FsError(errno.EISDIR)
                if not self._is_empty(inode):
                    raise FsError(errno.ENOTEMPTY)
            elif directories:
                raise FsError(errno.ENOTDIR)
            tree.introduce(directory)
            now = tree.now()
            tree.record((Op.REMOVE, parent, name, now), True)
            self.apply_remove(directory, name, inode, in_base, now)

    def apply_remove(
        self, directory: DirectoryInode, name: bytes, inode: Inode, in_base: bool | None, now: int
    ) -> None:
        """The change that REMOVE records."""
        self._drop_name(directory, name, inode, in_base or self._falls_through(directory, name, inode), now)
        self._lose_link(inode, now)

    def _lose_link(self, inode: Inode, now: int) -> None:
        """One name of ``inode`` has gone; without a name it lives on only as long as the kernel knows it."""
        tree = self._tree
        inode.ctime_ns = now
        if isinstance(inode, DirectoryInode):
            inode.nlink = 0
            inode.origin = None
            inode.page = None
            inode.children = {}
            inode.delta = {}
            inode.listing = None
        else:
            inode.nlink -= 1
            if inode.linked and not self._alone_again(inode):
                if inode.nlink:
                    tree.touch(inode)
                    tree.dirty_links[inode.key] = inode
                else:
                    tree.dirty_links[inode.key] = None
                    tree.places.pop(inode.ino, None)
        if not inode.nlink and not inode.lookups:
            tree.evict(inode)

    def _alone_again(self, inode: Inode) -> bool:
        """Let an inode have one name as if it never had more, if no tree has seen it with more: git gives each of its
        objects its name by link(2) and unlink(2). False if that cannot be.
        """
        tree = self._tree
        places = tree.places.get(inode.ino, ())
        if inode.nlink != 1 or len(places) != 1 or inode.key < FIRST_NEW_INO:
            return False
        if tree.pages.get(tree.links, link_key(inode.key)) is not None:
            return False
        inode.parent, inode.name = next(iter(places))
        inode.linked = False
        inode.dirty = True
        del tree.places[inode.ino]
        tree.dirty_links.pop(inode.key, None)
        tree.linked.pop(inode.key, None)
        tree.mark(inode.parent, inode.name, None)
        return True

    def _is_empty(self, directory: DirectoryInode) -> bool:
        tree = self._tree
        if directory.listing is not None:
            return len(directory.listing) == 0
        if any(child is not None for child in directory.children.values()):
            return False
        hidden = {name for name, child in directory.children.items() if child is None}
        for name, entry in tree.pages.items(directory.page):
            if not isinstance(entry, Absent) and name not in hidden:
                return False
            hidden.add(name)
        if directory.origin is None:
            return True
        return all(name in hidden for name, _, _ in tree.base.list(directory.origin))

    # --- renaming --------------------------------------------------------------------------------------------------

    def rename(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int = 0) -> None:
        """rename(2) and renameat2(2): flags are RENAME_NOREPLACE or RENAME_EXCHANGE. O(1) for directories too."""
        check_name(new_name)
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE) or flags == RENAME_NOREPLACE | RENAME_EXCHANGE:
            raise FsError(errno.EINVAL)
        tree = self._tree
        probed = tree.probe(parent, name)
        new_probed = tree.probe(new_parent, new_name)
        with tree.lock:
            directory = tree.directory(parent)
            new_directory = tree.directory(new_parent)
            in_base = tree.in_base(directory, name, probed)
            new_in_base = tree.in_base(new_directory, new_name, new_probed)
            inode = tree.child(directory, name, probed)
            if inode is None or not new_directory.nlink:
                raise FsError(errno.ENOENT)
            target = tree.child(new_directory, new_name, new_probed)
            if self._check_rename(inode, target, directory, new_directory, flags):
                return
            tree.introduce(directory)
            tree.introduce(new_directory)
            now = tree.now()
            tree.record((Op.RENAME, parent, name, new_parent, new_name, flags, now))
            self.apply_rename(directory, name, new_directory, new_name, flags, now, in_base, new_in_base)

    def _check_rename(
        self,
        inode: Inode,
        target: Inode | None,
        directory: DirectoryInode,
        new_directory: DirectoryInode,
        flags: int,
    ) -> bool:
        """Raise FsError if the rename may not be; True if there is nothing to do."""
        if flags & RENAME_EXCHANGE and target is None:
            raise FsError(errno.ENOENT)
        if isinstance(inode, DirectoryInode) and self._is_within(new_directory, inode):
            raise FsError(errno.EINVAL)
        if target is None:
            return False
        if flags & RENAME_NOREPLACE:
            raise FsError(errno.EEXIST)
        if target is inode:
            return True
        if flags & RENAME_EXCHANGE:
            if isinstance(target, DirectoryInode) and self._is_within(directory, target):
                raise FsError(errno.EINVAL)
            return False
        if isinstance(target, DirectoryInode):
            if not isinstance(inode, DirectoryInode):
                raise FsError(errno.EISDIR)
            if self._is_within(directory, target) or not self._is_empty(target):
                raise FsError(errno.ENOTEMPTY)
        elif isinstance(inode, DirectoryInode):
            raise FsError(errno.ENOTDIR)
        return False

    @staticmethod
    def _is_within(directory: DirectoryInode | None, above: DirectoryInode) -> bool:
        while directory is not None:
            if directory is above:
                return True
            directory = directory.parent
        return False

    def apply_rename(
        self,
        directory: DirectoryInode,
        name: bytes,
        new_directory: DirectoryInode,
        new_name: bytes,
        flags: int,
        now: int,
        in_base: bool | None,
        new_in_base: bool | None,
    ) -> None:
        """The change that RENAME records."""
        inode = directory.children[name]
        assert inode is not None
        target = new_directory.children.get(new_name)
        if target is not None:
            new_in_base = new_in_base or self._falls_through(new_directory, new_name, target)
            self._drop_name(new_directory, new_name, target, new_in_base, now, replaced=True)
        in_base = in_base or self._falls_through(directory, name, inode)
        self._drop_name(directory, name, inode, in_base, now, replaced=bool(flags & RENAME_EXCHANGE))
        self._place(inode, new_directory, new_name, new_in_base, now)
        if flags & RENAME_EXCHANGE:
            assert target is not None
            self._place(target, directory, name, None, now)
        elif target is not None:
            self._lose_link(target, now)

    @staticmethod
    def _falls_through(directory: DirectoryInode, name: bytes, inode: Inode) -> bool | None:
        """True if ``inode`` is certainly just what the base has under that name, None if that is not known."""
        if inode.entry is not None or inode.dirty or inode.origin is None or directory.origin is None:
            return None
        return inode.origin == below(directory.origin, name) or None

    def _place(self, inode: Inode, directory: DirectoryInode, name: bytes, in_base: bool | None, now: int) -> None:
        inode.ctime_ns = now
        if inode.linked:
            self._tree.touch(inode)
            if inode.parent is None:
                inode.parent, inode.name = directory, name
        else:
            inode.parent, inode.name = directory, name
            inode.dirty = True
        self._add_name(directory, name, inode, in_base, now)
