"""The file system as a channel sees it: one object with an operation for each request.

Owns nothing but the putting together of the tree, the operations on it, and the journal. Thin on purpose: every
operation is the method of the module that owns its rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from store.disk import Disk
from store.nodes import Pages
from store.refs import Ino
from vfs.channel import Caller, DirectoryRow
from vfs.live.attributes import AttributeOperations
from vfs.live.epochs import Epochs
from vfs.live.files import Files
from vfs.live.identities import IdentityFile
from vfs.live.inode import FIRST_NEW_INO, Inode
from vfs.live.namespace import Namespace
from vfs.live.sources import BlobFiles, Sources
from vfs.live.tree import BaseFiles, Root, Tree
from vfs.live.working import WorkingData


class Core:
    """One served tree with its working layer; satisfies ``vfs.channel.FileSystem``."""

    def __init__(
        self,
        root: Root,
        base: BaseFiles,
        pages: Pages,
        blobs: BlobFiles,
        journal_dir: bytes,
        working_dir: bytes,
        disk: Disk,
        now: Callable[[], int],
        next_ino: int = FIRST_NEW_INO,
        epoch: int = 0,
    ) -> None:
        self.now = now
        self.sources = Sources(blobs, base)
        self.working = WorkingData(working_dir)
        self.epochs = Epochs(journal_dir, disk, self.working)
        self.identities = IdentityFile(journal_dir, disk)
        self.tree = Tree(root, base, pages, self.sources, self.epochs.record, now, next_ino, epoch)
        self.tree.give_up = self.epochs.give_up
        self.names = Namespace(self.tree)
        self.attributes = AttributeOperations(self.tree)
        self.files = Files(self.tree, self.working, self.attributes, self.barrier)
        self.tree.rewrite = self.files.rewrite
        self._space_path = working_dir
        # Bound once each: these are called for every request.
        self.lookup: Callable[[Ino, bytes], Inode] = self.names.lookup
        self.forget: Callable[[Ino, int], None] = self.names.forget
        self.readlink: Callable[[Ino], bytes] = self.names.readlink
        self.mknod: Callable[[Ino, bytes, int, int, Caller], Inode] = self.names.mknod
        self.mkdir: Callable[[Ino, bytes, int, Caller], Inode] = self.names.mkdir
        self.symlink: Callable[[Ino, bytes, bytes, Caller], Inode] = self.names.symlink
        self.tmpfile: Callable[[Ino, int, Caller], Inode] = self.names.tmpfile
        self.link: Callable[[Ino, Ino, bytes], Inode] = self.names.link
        self.unlink: Callable[[Ino, bytes], None] = self.names.unlink
        self.rmdir: Callable[[Ino, bytes], None] = self.names.rmdir
        self.rename: Callable[[Ino, bytes, Ino, bytes, int], None] = self.names.rename
        self.readdir: Callable[[Ino, int], Iterable[DirectoryRow]] = self.names.readdir
        self.getattr: Callable[[Ino], Inode] = self.attributes.getattr
        self.getxattr: Callable[[Ino, bytes], bytes] = self.attributes.getxattr
        self.setxattr: Callable[[Ino, bytes, bytes, int], None] = self.attributes.setxattr
        self.listxattr: Callable[[Ino], list[bytes]] = self.attributes.listxattr
        self.removexattr: Callable[[Ino, bytes], None] = self.attributes.removexattr
        self.setattr = self.files.setattr
        self.read: Callable[[Ino, int, int], bytes] = self.files.read
        self.write = self.files.write
        self.fallocate: Callable[[Ino, int, int, int], None] = self.files.fallocate
        self.lseek: Callable[[Ino, int, int], int] = self.files.lseek
        self.copy_file_range: Callable[[Ino, int, Ino, int, int], int] = self.files.copy_file_range
        self.fsync: Callable[[Ino, bool], None] = self.files.fsync
        self.fsyncdir: Callable[[Ino], None] = self.files.fsyncdir
        self.syncfs: Callable[[], None] = self.files.syncfs

    def statfs(self) -> os.statvfs_result:
        """The space of the file system that the store is on: everything new goes there."""
        return os.statvfs(self._space_path)

    def barrier(self) -> None:
        """Return when everything answered so far would survive a power loss. Raises FsError."""
        self.epochs.barrier(self.tree.lock)

    def keep_identities(self) -> None:
        """Write down how inodes show themselves in the present epoch."""
        self.identities.save(self.tree, self.epochs.oldest())

    def close(self) -> None:
        """Close files; everything stays on disk."""
        self.epochs.close()
        self.identities.close()
        self.sources.close()
