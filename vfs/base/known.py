"""What plyfs knows of the files that its applies wrote: what each was, and the signature it left on disk.

Owns the file ``known`` and what goes into it after an apply. A signature (inode number, change time, size, modification
time) is only written down if nobody can have changed the file between plyfs's last touch and the look that it comes
from: else a change made in between would become what plyfs is taken to have written, and never be noticed. What is not
certain has the signature ``UNSURE`` and is compared by its bytes at the next mount. Does not own comparing then
(``outside``).

Concurrency: one thread.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from store.disk import Disk
from store.entries import content_size
from store.errors import DamagedError, FormatError
from store.format import Attributes, Origin, Original, Regular, Special, Symlink
from store.whole import read_whole, write_whole
from vfs.apply.draft import with_attributes
from vfs.errors import FsError
from vfs.trees.contents import COPY_BYTES, Contents
from vfs.trees.racy import RACY_NS, is_racy
from vfs.trees.rewrite import Inverse
from vfs.trees.view import Present, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vfs.apply.record import Written
    from vfs.trees.host import Host

Leaf: TypeAlias = Regular | Symlink | Special

KNOWN_VERSION = 2

UNSURE = (0, 0)
"""An inode number and change time that no file has."""

LARGE_BYTES = 16 << 20
"""Rather than read so much at the next mount, an unmount waits until times tell changes."""


class Known(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What plyfs wrote at ``path``; its content is in the store. ``ino`` (the host's) and ``ctime_ns`` are what the
    file had then, or ``UNSURE``; its size and modification time stand in ``inode``.
    """

    path: bytes
    inode: Leaf
    ino: int
    ctime_ns: int


class KnownFile(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """All that is known of the base in ``generation``, as it is saved: in one frame, because nothing else would tell
    that it was damaged.
    """

    version: int
    generation: int
    known: tuple[Known, ...]


class Seen(NamedTuple):
    """What is at a path of the base."""

    status: os.stat_result
    entry: Present


def load(path: bytes) -> KnownFile:
    """What was saved at ``path``; nothing of generation 0 if there is no such file. Raises DamagedError."""
    what = "it tells what plyfs wrote into the directory"
    hint = "`plyfs fsck --repair` sets it aside; what was changed since the last unmount then goes unnoticed"
    try:
        data = read_whole(path, what, hint)
    except FileNotFoundError:
        return KnownFile(KNOWN_VERSION, 0, ())
    name = os.fsdecode(path)
    try:
        saved = msgspec.msgpack.decode(data, type=KnownFile)
    except msgspec.DecodeError as error:
        raise FormatError(f"{name} cannot be read: {error}") from error
    if saved.version != KNOWN_VERSION:
        raise FormatError(f"{name} is of format version {saved.version}, not {KNOWN_VERSION}")
    return saved


def save(path: bytes, generation: int, known: Iterable[Known], disk: Disk, sync: bool = True) -> None:
    """Save what is known of the base in ``generation``, by rename."""
    value = KnownFile(KNOWN_VERSION, generation, tuple(known))
    write_whole(disk, path, msgspec.msgpack.encode(value), sync=sync)


def remember(
    host: Host,
    contents: Contents,
    known: Iterable[Known],
    inverse: View,
    written: Iterable[Written],
    stamps: Mapping[int, os.stat_result] | None,
    now_ns: Callable[[], int] = time.time_ns,
    pause: Callable[[float], None] = time.sleep,
) -> list[Known]:
    """What is known after an apply, which wrote ``written``: the rest is what was known before, where it is now.

    ``inverse`` is the apply's inverse; it is read, and the base, as they are when the staging directory is gone.
    ``stamps``: see ``Applied``.
    """
    places = Inverse(inverse)
    look = _Look(host, contents, stamps, now_ns)
    found: dict[bytes, Known] = {}
    for one in known:
        path = _place_now(places, one.path)
        if path is not None:
            found[path] = look.carried(path, one)
    for wrote in written:
        found[wrote.path] = look.wrote(wrote)
    if sum(seen.status.st_size for _, seen in look.young) > LARGE_BYTES:
        pause(RACY_NS / 1e9)
        for one, was in look.young:
            found[one.path] = look.older(one, was)
    return [found[path] for path in sorted(found)]


class _Look:
    """A look at what an apply left, through which files changed by somebody else do not slip."""

    def __init__(
        self, host: Host, contents: Contents, stamps: Mapping[int, os.stat_result] | None, now_ns: Callable[[], int]
    ) -> None:
        self._host = host
        self._contents = contents
        self._resumed = stamps is None
        self._stamps = stamps or {}
        self._now_ns = now_ns
        self._directories = {b"": True}
        self.young: list[tuple[Known, Seen]] = []
        """What is only unsure because it is so young, without its signature, and what was seen of it."""

    def carried(self, path: bytes, one: Known) -> Known:
        """``one``, which was known before the apply and is at ``path`` now: it moved it, perhaps, or set attributes."""
        seen = see(self._host, path, self._directories)
        if seen is None:
            return Known(path, one.inode, *UNSURE)
        status, entry = seen
        if has_signature(one, status):
            return Known(path, one.inode, one.ino, one.ctime_ns)
        if not _same_content(one.inode, entry, self._contents):
            return Known(path, one.inode, *UNSURE)
        if same_attributes(one.inode.attributes, entry.attributes) or self._resumed:
            return self._sure(path, one.inode, seen)
        stamp = self._stamps.get(status.st_ino)
        if stamp is None:
            return Known(path, one.inode, *UNSURE)
        if _facts(stamp) == _facts(status):
            return self._sure(path, one.inode, seen)
        own, xattrs = one.inode.attributes, entry.attributes.xattrs
        mode, times = stat.S_IMODE(stamp.st_mode), (stamp.st_mtime_ns, stamp.st_ctime_ns)
        set_by_us = Attributes(own.ino, mode, stamp.st_uid, stamp.st_gid, *times, xattrs)
        return Known(path, with_attributes(one.inode, set_by_us), *UNSURE)

    def wrote(self, wrote: Written) -> Known:
        """What the apply wrote: certain if no change time says that more was done to it."""
        path, inode = wrote.path, wrote.inode
        seen = see(self._host, path, self._directories)
        if seen is None:
            return Known(path, inode, *UNSURE)
        status, entry = seen
        stamp = self._stamps.get(wrote.ino)
        last_ns = wrote.ctime_ns if stamp is None else stamp.st_ctime_ns
        untouched = (status.st_ino, status.st_ctime_ns) == (wrote.ino, last_ns) and _as_staged(wrote, status)
        if untouched and same_kind(inode, entry):
            return self._sure(path, inode, seen)
        if not _same_content(inode, entry, self._contents):
            return Known(path, inode, *UNSURE)
        if same_attributes(inode.attributes, entry.attributes):
            return self._sure(path, inode, seen)
        return Known(path, inode, *UNSURE)

    def _sure(self, path: bytes, inode: Leaf, seen: Seen) -> Known:
        """What was seen is what plyfs wrote."""
        known = Known(path, with_attributes(inode, seen.entry.attributes), *UNSURE)
        if is_racy(seen.status, self._now_ns()):
            self.young.append((known, seen))
            return known
        return _signed(known, seen.status)

    def older(self, one: Known, was: Seen) -> Known:
        """``one`` a while after ``was`` was seen of it."""
        now = status_of(self._host, one.path, self._directories)
        if now is None or is_racy(now, self._now_ns()) or _identity(now) != _identity(was.status):
            return one
        return _signed(one, now)


def _signed(one: Known, status: os.stat_result) -> Known:
    return Known(one.path, one.inode, status.st_ino, status.st_ctime_ns)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_ctime_ns, status.st_size, status.st_mtime_ns


def _facts(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns


def _as_staged(wrote: Written, status: os.stat_result) -> bool:
    own = wrote.inode.attributes
    size = content_size(wrote.inode.content) if isinstance(wrote.inode, Regular) else status.st_size
    got = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, status.st_size)
    return got == (own.mode, own.uid, own.gid, own.mtime_ns, size)


def _place_now(places: Inverse, path: bytes) -> bytes | None:
    """Where an apply left the file that was at ``path``, None if it displaced it."""
    try:
        entry = places.entry(path)
        origin = places.place(path) if entry is None else None
    except FormatError:
        return None
    if isinstance(entry, Regular) and isinstance(entry.content, Original):
        origin = entry.content.origin
    return origin.path if origin is not None and origin.tree == 0 else None


# Comparing


def see(host: Host, path: bytes, directories: dict[bytes, bool]) -> Seen | None:
    """What is at ``path``, None for nothing; see ``status_of``."""
    status = status_of(host, path, directories)
    return None if status is None else Seen(status, host.entry(Origin(0, path), status))


def status_of(host: Host, path: bytes, directories: dict[bytes, bool]) -> os.stat_result | None:
    """lstat(2), None if nothing is there; what is seen through a symbolic link on the way is not there.
    ``directories`` keeps which of those above are any.
    """
    head = path.rpartition(b"/")[0]
    while head not in directories:
        above = status_of(host, head, directories)
        directories[head] = above is not None and stat.S_ISDIR(above.st_mode)
    if not directories[head]:
        return None
    try:
        return host.stat(Origin(0, path))
    except FsError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def has_signature(known: Known, status: os.stat_result) -> bool:
    """True if ``status`` is that of the very file that was written down, unchanged."""
    if (status.st_ino, status.st_ctime_ns) != (known.ino, known.ctime_ns):
        return False
    inode = known.inode
    if not isinstance(inode, Regular):
        return True
    return (status.st_size, status.st_mtime_ns) == (content_size(inode.content), inode.attributes.mtime_ns)


def same_kind(a: Present, b: Present) -> bool:
    """True if both are of one type with, unless they are regular files, one target or device number."""
    if isinstance(a, Regular):
        return isinstance(b, Regular)
    if isinstance(a, Symlink):
        return isinstance(b, Symlink) and a.target == b.target
    return isinstance(a, Special) and isinstance(b, Special) and (a.file_type, a.rdev) == (b.file_type, b.rdev)


def _same_content(was: Leaf, now: Present, contents: Contents) -> bool:
    """True if ``now`` is ``was`` but for its attributes."""
    if not same_kind(was, now):
        return False
    if not isinstance(was, Regular) or not isinstance(now, Regular):
        return True
    return content_size(was.content) == content_size(now.content) and same_bytes(was, now, contents)


def is_unchanged(was: Leaf, now: Present, contents: Contents) -> bool:
    """True if ``now`` is ``was`` though its inode or change time is another: a backup restored it, say."""
    return same_attributes(was.attributes, now.attributes) and _same_content(was, now, contents)


def same_bytes(was: Regular, now: Regular, contents: Contents) -> bool:
    """True if the bytes of two files of one size are the same, and can be read."""
    size = content_size(was.content)
    try:
        for offset in range(0, size, COPY_BYTES):
            if contents.read(was.content, offset, COPY_BYTES) != contents.read(now.content, offset, COPY_BYTES):
                return False
    except (FsError, DamagedError):
        return False
    return True


def same_attributes(a: Attributes, b: Attributes) -> bool:
    """True if two files have the same attributes, as far as they are the user's."""
    return (a.mode, a.uid, a.gid, a.mtime_ns, a.xattrs) == (b.mode, b.uid, b.gid, b.mtime_ns, b.xattrs)
