"""Operations on content: read, write, truncate, allocate, seek, copy, sync.

Owns where written bytes go. A file that only the base has is read there; the first write gives it extents that still
cite the base for everything else, so a small change to a big file copies nothing.

Concurrency: the map of a file changes under the tree's lock; bytes are read without it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from store.refs import Ino
from vfs.errors import FsError
from vfs.live.attributes import AttributeOperations
from vfs.live.content import base_source, blocks_of, content_of
from vfs.live.extents import Run, read_runs
from vfs.live.inode import DirectoryInode, FileInode, Inode
from vfs.live.records import Op
from vfs.live.sources import OriginSource
from vfs.live.tree import Tree
from vfs.live.working import SPOOL_LIMIT, WorkingData, WorkingFile

FALLOC_KEEP_SIZE = 0x01
FALLOC_PUNCH_HOLE = 0x02
FALLOC_ZERO_RANGE = 0x10
SIZE_MAX = (1 << 63) - 1
REWRITE_AT_ONCE = 1 << 20
COPY_AT_ONCE = 8 << 20
"""Bytes of this epoch's working data that one copy_file_range(2) copies; everything else is shared."""


class Files:
    """The content operations of one tree over its working data; ``barrier`` makes everything so far durable."""

    def __init__(
        self, tree: Tree, working: WorkingData, attributes: AttributeOperations, barrier: Callable[[], None]
    ) -> None:
        self._tree = tree
        self._working = working
        self._attributes = attributes
        self._barrier = barrier

    def _file(self, ino: Ino) -> FileInode:
        inode = self._tree.inodes.get(ino)
        if type(inode) is FileInode:
            return inode
        if inode is None:
            raise FsError(errno.ESTALE)
        raise FsError(errno.EISDIR if isinstance(inode, DirectoryInode) else errno.EINVAL)

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, ino: Ino, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, fewer only at the end. Raises FsError(EIO), never gives wrong ones."""
        with self._tree.lock:
            inode = self._file(ino)
            end = min(offset + size, inode.size)
            if offset >= end:
                return b""
            extents = inode.extents
            if extents is None and inode.entry is None and inode.origin is not None:  # most of what is ever read
                base = base_source(self._tree, inode)
            else:
                base = None
                runs = (extents or content_of(self._tree, inode)).slice(offset, end)
        try:
            return read_runs(runs, offset, end) if base is None else base.pread(end - offset, offset)
        except FsError:
            with self._tree.lock:
                if not self._tree.refresh(inode):
                    raise
        return self.read(ino, offset, size)

    def lseek(self, ino: Ino, offset: int, whence: int) -> int:
        """SEEK_DATA and SEEK_HOLE of lseek(2). Raises FsError(ENXIO, EINVAL)."""
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise FsError(errno.EINVAL)
        with self._tree.lock:
            inode = self._file(ino)
            size = inode.size
            if not 0 <= offset < size:
                raise FsError(errno.ENXIO)
            runs = content_of(self._tree, inode).slice(offset, size)
        return self._seek_data(runs, offset) if whence == os.SEEK_DATA else self._seek_hole(runs, offset, size)

    def _seek_data(self, runs: list[Run], offset: int) -> int:
        for run in runs:
            at = max(offset, run.start)
            if isinstance(run.source, OriginSource):
                found = self._seek_origin(run, at, os.SEEK_DATA)
                if found is not None:
                    return found
            else:
                return at
        raise FsError(errno.ENXIO)

    def _seek_hole(self, runs: list[Run], offset: int, size: int) -> int:
        at = offset
        for run in runs:
            if run.start > at:
                return at
            if isinstance(run.source, OriginSource):
                found = self._seek_origin(run, at, os.SEEK_HOLE)
                if found is not None:
                    return found
            at = run.end
        return min(at, size)

    def _seek_origin(self, run: Run, at: int, whence: int) -> int | None:
        """As lseek(2) in the part of a base file that a run cites, None if there is nothing before its end."""
        assert isinstance(run.source, OriginSource)
        descriptor = self._tree.sources.descriptor(run.source)
        try:
            found = os.lseek(descriptor.fd, at + run.delta, whence) - run.delta
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise FsError(error.errno or errno.EIO) from error
        return found if found < run.end else None

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(self, ino: Ino, offset: int, data: bytes | bytearray | memoryview, kill_suid: bool = False) -> int:
        """Write all of ``data``; returns its length. Raises FsError (ENOSPC, EFBIG); then nothing is changed."""
        length = len(data)
        end = offset + length
        if end > SIZE_MAX:
            raise FsError(errno.EFBIG)
        if not length:
            return 0
        tree = self._tree
        with tree.lock:
            inode = self._file(ino)
            tree.introduce(inode)
            mode = inode.mode
            if kill_suid and mode & (stat.S_ISUID | stat.S_ISGID):
                mode = self._attributes.kill_privileges(inode)
            self._put(inode, offset, data, tree.now(), mode)
            return length

    def _put(self, inode: FileInode, offset: int, data: bytes | bytearray | memoryview, now: int, mode: int) -> None:
        length = len(data)
        file, at = self._place(inode, offset, offset + length)
        file.pwrite(memoryview(data), at)
        self._tree.record((Op.WRITE, inode.ino, offset, length, file.number, at, now, mode))
        if file.shared and at == file.tail:
            file.tail = at + length
        self.apply_write(inode, offset, length, file, at, now, mode)

    def _place(self, inode: FileInode, offset: int, end: int) -> tuple[WorkingFile, int]:
        """Where in the working data the bytes ``offset`` to ``end`` of ``inode`` go."""
        extents = content_of(self._tree, inode)
        run = extents.at(offset)
        if run is not None and end <= run.end and type(run.source) is WorkingFile and not run.source.frozen:
            return run.source, offset + run.delta
        private = inode.private
        if type(private) is WorkingFile and not private.frozen:
            return private, offset
        if end <= SPOOL_LIMIT:
            return self._working.spool_tail(end - offset)
        private = self._working.create()
        inode.private = private
        return private, offset

    def apply_write(
        self, inode: FileInode, offset: int, length: int, file: WorkingFile, at: int, now: int, mode: int
    ) -> None:
        """The change that WRITE records."""
        extents = content_of(self._tree, inode)
        end = offset + length
        extents.put(offset, end, file, at - offset)
        if end > inode.size:
            inode.size = end
        inode.blocks = blocks_of(extents.covered)
        inode.rewritten = True
        inode.mtime_ns = inode.ctime_ns = now
        inode.mode = mode
        self._tree.touch(inode)

    def rewrite(self, inode: FileInode) -> None:
        """Record a file without a name once more, as made in this epoch, with all its bytes; the lock is held.

        It is about to get a name (linkat(2)), and the journal in which it was made may be gone by then.
        """
        tree = self._tree
        times = inode.atime_ns, inode.mtime_ns, inode.ctime_ns
        mode, mtime = inode.mode, inode.mtime_ns
        xattrs = tree.xattrs_of(inode)
        tree.record((Op.MAKE, 0, b"", inode.ino, mode, inode.uid, inode.gid, 0, mtime, xattrs, None))
        inode.known = tree.epoch
        for run in content_of(tree, inode).freeze():
            for start in range(run.start, run.end, REWRITE_AT_ONCE):
                end = min(start + REWRITE_AT_ONCE, run.end)
                self._put(inode, start, run.source.pread(end - start, start + run.delta), mtime, mode)
        tree.record((Op.SIZE, inode.ino, inode.size, mtime))
        tree.record((Op.SET, inode.ino, None, None, None, *times))
        inode.ctime_ns = times[2]

    def truncate(self, inode: FileInode, size: int, now: int) -> None:
        """Record and make a change of size; the lock is held."""
        if size > SIZE_MAX:
            raise FsError(errno.EFBIG)
        tree = self._tree
        tree.introduce(inode)
        if size < inode.size:
            content_of(tree, inode)
        tree.record((Op.SIZE, inode.ino, size, now), size < inode.size)
        if size < inode.size:
            self._give_up(inode, size, inode.size)
        self.apply_size(inode, size, now)

    def _give_up(self, inode: FileInode, start: int, end: int) -> None:
        """A range of ``inode`` is about to be dropped. Its private file is not written to again: what is given back
        later must not be what somebody has put there meanwhile.
        """
        self._tree.give_up(content_of(self._tree, inode).slice(start, end))
        inode.private = None

    def apply_size(self, inode: FileInode, size: int, now: int) -> None:
        """The change that SIZE records."""
        extents = content_of(self._tree, inode)
        extents.truncate(size)
        inode.size = size
        inode.blocks = blocks_of(extents.covered)
        inode.rewritten = True
        inode.mtime_ns = inode.ctime_ns = now
        self._tree.touch(inode)

    def fallocate(self, ino: Ino, mode: int, offset: int, length: int) -> None:
        """fallocate(2): allocate, punch a hole, zero a range. Raises FsError (EOPNOTSUPP, ENOSPC, EFBIG).

        Allocation grows the file if asked to and reserves nothing: after a checkpoint the same bytes go elsewhere, so
        nobody could keep that promise here. It fails, though, if the store has not that much room now. (Refusing it
        would be worse: the C library's posix_fallocate(3) then writes into every block, for as empty a promise.)
        """
        if offset < 0 or length <= 0:
            raise FsError(errno.EINVAL)
        if offset + length > SIZE_MAX:
            raise FsError(errno.EFBIG)
        keep_size = bool(mode & FALLOC_KEEP_SIZE)
        kind = mode & ~FALLOC_KEEP_SIZE
        if (kind == FALLOC_PUNCH_HOLE and not keep_size) or kind not in (0, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE):
            raise FsError(errno.EOPNOTSUPP)
        if kind == 0:
            self._allocate(ino, offset + length, length, keep_size)
            return
        tree = self._tree
        with tree.lock:
            inode = self._file(ino)
            tree.introduce(inode)
            content_of(tree, inode)
            now = tree.now()
            end = min(offset + length, inode.size)
            if offset < end:
                tree.record((Op.HOLE, ino, offset, end - offset, now), True)
                self._give_up(inode, offset, end)
                self.apply_hole(inode, offset, end - offset, now)
            if kind == FALLOC_ZERO_RANGE and not keep_size and offset + length > inode.size:
                self.truncate(inode, offset + length, now)

    def _allocate(self, ino: Ino, end: int, length: int, keep_size: bool) -> None:
        if length > self._working.room():
            raise FsError(errno.ENOSPC)
        tree = self._tree
        with tree.lock:
            inode = self._file(ino)
            if end > inode.size and not keep_size:
                self.truncate(inode, end, tree.now())

    def apply_hole(self, inode: FileInode, offset: int, length: int, now: int) -> None:
        """The change that HOLE records."""
        extents = content_of(self._tree, inode)
        extents.cut(offset, offset + length)
        inode.blocks = blocks_of(extents.covered)
        inode.rewritten = True
        inode.mtime_ns = inode.ctime_ns = now
        self._tree.touch(inode)

    # --- copying ---------------------------------------------------------------------------------------------------

    def copy_file_range(self, source: Ino, source_offset: int, target: Ino, target_offset: int, length: int) -> int:
        """copy_file_range(2): shares everything that is no longer written to, copies the rest; returns the length."""
        tree = self._tree
        with tree.lock:
            inode = self._file(source)
            other = self._file(target)
            end = min(source_offset + length, inode.size)
            if source_offset >= end:
                return 0
            if target_offset + end - source_offset > SIZE_MAX:
                raise FsError(errno.EFBIG)
            runs = content_of(tree, inode).slice(source_offset, end)
            forgotten = not inode.nlink and inode.known != tree.epoch  # no journal could say where the bytes are from
            if forgotten or any(_is_working(run) for run in runs):
                end = min(end, source_offset + COPY_AT_ONCE)
                data = read_runs(content_of(tree, inode).slice(source_offset, end), source_offset, end)
            else:
                tree.introduce(inode)
                tree.introduce(other)
                now = tree.now()
                count = end - source_offset
                tree.record((Op.COPY, source, source_offset, target, target_offset, count, now))
                self.apply_copy(inode, source_offset, other, target_offset, count, now)
                return count
        return self.write(target, target_offset, data)

    def apply_copy(
        self, inode: FileInode, offset: int, target: FileInode, target_offset: int, length: int, now: int
    ) -> None:
        """The change that COPY records."""
        runs = content_of(self._tree, inode).slice(offset, offset + length)
        shift = target_offset - offset
        extents = content_of(self._tree, target)
        extents.cut(target_offset, target_offset + length)
        for run in runs:
            extents.put(run.start + shift, run.end + shift, run.source, run.delta - shift)
        target.size = max(target.size, target_offset + length)
        target.blocks = blocks_of(extents.covered)
        target.rewritten = True
        target.mtime_ns = target.ctime_ns = now
        self._tree.touch(target)

    # --- syncing ---------------------------------------------------------------------------------------------------

    def fsync(self, ino: Ino, datasync: bool = False) -> None:
        """Return when everything answered so far would survive a power loss. Raises FsError(EIO, ENOSPC)."""
        self._barrier()

    def fsyncdir(self, ino: Ino) -> None:
        """See ``fsync``."""
        self._barrier()

    def syncfs(self) -> None:
        """See ``fsync``."""
        self._barrier()

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
    ) -> Inode:
        """Change what is not None; all or nothing. Raises FsError."""
        tree = self._tree
        with tree.lock:
            inode = tree.get(ino)
            if size is not None:
                self.truncate(self._file(ino), size, tree.now())
            if not (mode is uid is gid is atime_ns is mtime_ns is ctime_ns is None):
                self._attributes.set(inode, mode, uid, gid, atime_ns, mtime_ns, ctime_ns)
            return inode


def _is_working(run: Run) -> bool:
    return type(run.source) is WorkingFile and not run.source.frozen
