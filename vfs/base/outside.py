"""Changes that were made to the base while it was not mounted, found at the next mount.

Owns what plyfs knows of the files that its applies wrote: what each was, and the signature it left on disk. A file
that is no longer that was changed by somebody else; then a generation of the base has ended, and this makes the two
trees that tell trees of the old one in terms of the new (``translate``): older checkpoints keep what plyfs wrote.

Files that plyfs never wrote need none of that: no checkpoint says anything of them, they are whatever the user made of
them, in every checkpoint. ``survey`` finds changes to those, to tell of them.

Concurrency: one thread, before anything else looks at the base.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import msgspec
from blake3 import blake3

from store.disk import Disk, read_file
from store.errors import DamagedError, FormatError
from store.format import (
    FORMAT_VERSION,
    Absent,
    Attributes,
    Blob,
    BlobPiece,
    Chunked,
    Directory,
    Entry,
    Inline,
    Layer,
    Origin,
    Original,
    Regular,
    Special,
    Symlink,
    encode,
)
from store.frames import frame, scan
from store.refs import Ino, LayerRef
from vfs.errors import FsError
from vfs.trees.contents import COPY_BYTES, Contents, content_size
from vfs.trees.host import DEVICE_SHIFT, HASHED_DEVICE
from vfs.trees.rewrite import Inverse
from vfs.trees.view import Present, View, join

if TYPE_CHECKING:
    from collections.abc import Iterable

    from store.nodes import Page, Pages
    from store.refs import NodeRef
    from vfs.apply.record import Written
    from vfs.trees.host import Host

Leaf: TypeAlias = Regular | Symlink | Special
Told: TypeAlias = "dict[bytes, Told | Change]"
"""Changes as a tree of names."""

KNOWN_VERSION = 2


class Known(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What plyfs wrote at ``path``; its content is in the store. ``ino`` (the host's) and ``ctime_ns`` are what the
    file had then; its size and modification time stand in ``inode``.
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


class Change(NamedTuple):
    """A path that plyfs wrote and somebody else changed: what it was, and what is there now."""

    known: Known
    now: Present | None


class Found(NamedTuple):
    """What a look at the base found: the changes, and what is still as plyfs wrote it."""

    changes: list[Change]
    known: list[Known]


class Ended(NamedTuple):
    """The end of a generation by outside changes: for ``store.generations``. ``paths`` is what changed, sorted."""

    applied: LayerRef
    inverse: LayerRef
    paths: list[bytes]


class ObjectStore(Protocol):
    """What this needs of ``store.objects``."""

    def put_node(self, data: bytes) -> NodeRef:
        """Store a node."""
        ...

    def has(self, ref: bytes) -> bool:
        """True if the object is there."""
        ...

    def flush(self) -> None:
        """Return when all that was put is on the device."""
        ...


# What is known


def load(path: bytes) -> KnownFile:
    """What was saved at ``path``; nothing of generation 0 if there is no such file. Raises DamagedError."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return KnownFile(KNOWN_VERSION, 0, ())
    name = os.fsdecode(path)
    frames = scan(data)
    if len(frames.payloads) != 1:
        raise DamagedError(
            f"{name} is damaged: it tells what plyfs wrote into the directory",
            hint="remove it to go on; what was changed there since the last unmount then goes unnoticed",
        )
    try:
        saved = msgspec.msgpack.decode(frames.payloads[0], type=KnownFile)
    except msgspec.DecodeError as error:
        raise FormatError(f"{name} cannot be read: {error}") from error
    if saved.version != KNOWN_VERSION:
        raise FormatError(f"{name} is of format version {saved.version}, not {KNOWN_VERSION}")
    return saved


def save(path: bytes, generation: int, known: Iterable[Known], disk: Disk) -> None:
    """Save what is known of the base in ``generation``, by rename."""
    value = KnownFile(KNOWN_VERSION, generation, tuple(known))
    disk.replace(path, frame(msgspec.msgpack.encode(value)), sync=True)


def remember(host: Host, known: Iterable[Known], inverse: View, written: Iterable[Written]) -> list[Known]:
    """What is known after an apply, which wrote ``written``: the rest is what was known before, where it is now.

    ``inverse`` is the apply's inverse; it is read, and the base, as they are when the staging directory is gone.
    """
    places = Inverse(inverse)
    found: dict[bytes, Known] = {}
    for one in known:
        path = _place_now(places, one.path)
        if path is not None:
            _add(host, found, path, one.inode)
    for wrote in written:
        _add(host, found, wrote.path, wrote.inode)
    return [found[path] for path in sorted(found)]


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


def _add(host: Host, found: dict[bytes, Known], path: bytes, inode: Leaf) -> None:
    """Note what is at ``path`` now, if it is what ``inode`` says, whatever its attributes are."""
    now = _look(host, path)
    if now is None:
        found.pop(path, None)
        return
    status, entry = now
    if isinstance(inode, Regular) and isinstance(entry, Regular) and status.st_size == content_size(inode.content):
        found[path] = Known(path, Regular(entry.attributes, inode.content), status.st_ino, status.st_ctime_ns)
    elif isinstance(entry, Symlink | Special) and _same_kind(inode, entry):
        found[path] = Known(path, entry, status.st_ino, status.st_ctime_ns)
    else:
        found.pop(path, None)


def _look(host: Host, path: bytes) -> tuple[os.stat_result, Present] | None:
    origin = Origin(0, path)
    try:
        status = host.stat(origin)
        return status, host.entry(origin, status)
    except FsError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _same_kind(a: Present, b: Present) -> bool:
    """True if both are of one type with, unless they are regular files, one target or device number."""
    if isinstance(a, Regular):
        return isinstance(b, Regular)
    if isinstance(a, Symlink):
        return isinstance(b, Symlink) and a.target == b.target
    return isinstance(a, Special) and isinstance(b, Special) and (a.file_type, a.rdev) == (b.file_type, b.rdev)


# What was changed


def look(host: Host, contents: Contents, known: Iterable[Known]) -> Found:
    """Compare the base with what is known. Costs one stat(2) a file; only files whose times say nothing are read."""
    changes = []
    same = []
    directories = {b"": True}
    for one in known:
        status = _status(host, one.path, directories)
        if status is None:
            changes.append(Change(one, None))
            continue
        if (status.st_ino, status.st_ctime_ns) == (one.ino, one.ctime_ns) and _has_signature(one, status):
            same.append(one)
            continue
        now = host.entry(Origin(0, one.path), status)
        if _is_unchanged(one.inode, now, contents):
            same.append(Known(one.path, one.inode, status.st_ino, status.st_ctime_ns))
        else:
            changes.append(Change(one, now))
    return Found(changes, same)


def _status(host: Host, path: bytes, directories: dict[bytes, bool]) -> os.stat_result | None:
    """lstat(2), None if nothing is there; what is seen through a symbolic link on the way is not there."""
    head = path.rpartition(b"/")[0]
    while head not in directories:
        above = _status(host, head, directories)
        directories[head] = above is not None and stat.S_ISDIR(above.st_mode)
    if not directories[head]:
        return None
    try:
        return host.stat(Origin(0, path))
    except FsError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _has_signature(known: Known, status: os.stat_result) -> bool:
    inode = known.inode
    if not isinstance(inode, Regular):
        return True
    return (status.st_size, status.st_mtime_ns) == (content_size(inode.content), inode.attributes.mtime_ns)


def _is_unchanged(was: Leaf, now: Present, contents: Contents) -> bool:
    """True if ``now`` is ``was`` though its inode or change time is another: a backup restored it, say."""
    if not _same_attributes(was.attributes, now.attributes) or not _same_kind(was, now):
        return False
    if not isinstance(was, Regular) or not isinstance(now, Regular):
        return True
    return content_size(was.content) == content_size(now.content) and _same_bytes(was, now, contents)


def _same_bytes(was: Regular, now: Regular, contents: Contents) -> bool:
    size = content_size(was.content)
    try:
        for offset in range(0, size, COPY_BYTES):
            if contents.read(was.content, offset, COPY_BYTES) != contents.read(now.content, offset, COPY_BYTES):
                return False
    except (FsError, DamagedError):
        return False
    return True


def _same_attributes(a: Attributes, b: Attributes) -> bool:
    return (a.mode, a.uid, a.gid, a.mtime_ns, a.xattrs) == (b.mode, b.uid, b.gid, b.mtime_ns, b.xattrs)


# The end of a generation


def end_generation(
    changes: Iterable[Change], generation: int, host: Host, pages: Pages, contents: Contents, objects: ObjectStore
) -> Ended | None:
    """The layers of a generation that ``changes`` ended, stored durably; None if nothing of it can be told (the store
    no longer has what plyfs wrote there).
    """
    told: Told = {}
    paths = []
    for change in changes:
        if _is_stored(change.known.inode, contents, objects):
            paths.append(change.known.path)
            *above, name = change.known.path.split(b"/")
            at = told
            for step in above:
                inner = at.setdefault(step, {})
                assert isinstance(inner, dict), "plyfs wrote a file where it wrote a directory"
                at = inner
            at[name] = change
    if not paths:
        return None
    applied, inverse = _Tellers(host, pages, contents).directory(b"", told)
    refs = []
    for root, number in ((applied, generation), (inverse, generation + 1)):
        refs.append(LayerRef(objects.put_node(encode(Layer(FORMAT_VERSION, None, number, root, None)))))
    objects.flush()
    return Ended(refs[0], refs[1], sorted(paths))


def _is_stored(inode: Leaf, contents: Contents, objects: ObjectStore) -> bool:
    """True if the store still has all that ``inode`` needs."""
    if not isinstance(inode, Regular) or isinstance(inode.content, Inline):
        return True
    if isinstance(inode.content, Blob):
        return objects.has(inode.content.ref)
    if isinstance(inode.content, Chunked) and objects.has(inode.content.ref):
        pieces = contents.chunks(inode.content).pieces
        return all(objects.has(piece.ref) for piece in pieces if isinstance(piece, BlobPiece))
    return False


class _Tellers:
    """Makes the two trees together: of each path ``applied`` says what is there now, ``inverse`` what was."""

    def __init__(self, host: Host, pages: Pages, contents: Contents) -> None:
        self._host = host
        self._pages = pages
        self._contents = contents

    def directory(self, path: bytes, told: Told) -> tuple[Directory, Directory]:
        """The directory that is, and was, at ``path``."""
        now = self._host.entry(Origin(0, path))
        assert isinstance(now, Directory)
        applied: dict[bytes, Entry | None] = {}
        inverse: dict[bytes, Entry | None] = {}
        for name, below in told.items():
            applied[name], inverse[name] = self._entry(join(path, name), below)
        more = sum(isinstance(entry, Directory) for entry in applied.values())
        more -= sum(isinstance(entry, Directory) for entry in inverse.values())
        return self._with(now, applied, more), self._with(now, inverse, -more)

    def _with(self, now: Directory, changes: dict[bytes, Entry | None], subdirectories: int) -> Directory:
        page = self._pages.update(None, changes)
        return Directory(now.attributes, now.origin, subdirectories, self._save(page))

    def _save(self, page: Page | None) -> NodeRef | None:
        return None if page is None else self._pages.save(page)

    def _entry(self, path: bytes, told: Told | Change) -> tuple[Entry, Entry]:
        if isinstance(told, Change):
            return self._now(told.now), self._was(told)
        found = _look(self._host, path)
        if found is not None and isinstance(found[1], Directory):
            return self.directory(path, told)
        return self._now(None if found is None else found[1]), self._lost(path, told)

    @staticmethod
    def _now(entry: Present | None) -> Entry:
        if entry is None:
            return Absent()
        return Directory(entry.attributes, None, 0, None) if isinstance(entry, Directory) else entry

    def _was(self, change: Change) -> Leaf:
        """What plyfs wrote; if only attributes changed, its bytes still are where they were."""
        was, now = change.known.inode, change.now
        if not isinstance(was, Regular) or not isinstance(now, Regular):
            return was
        untouched = was.attributes.mtime_ns == now.attributes.mtime_ns and _same_bytes(was, now, self._contents)
        return Regular(was.attributes, now.content) if untouched else was

    def _lost(self, path: bytes, told: Told) -> Directory:
        """A directory that is gone, with what plyfs wrote in it; nothing is known of the rest."""
        changes: dict[bytes, Entry | None] = {}
        for name, below in told.items():
            inner = join(path, name)
            changes[name] = self._was(below) if isinstance(below, Change) else self._lost(inner, below)
        count = sum(isinstance(entry, Directory) for entry in changes.values())
        attributes = self._attributes_of_lost(path, told)
        return Directory(attributes, None, count, self._save(self._pages.update(None, changes)))

    def _attributes_of_lost(self, path: bytes, told: Told) -> Attributes:
        """Those of the nearest directory above that is there; the mode as mkdir(1) makes it."""
        at = path
        while True:
            at = at.rpartition(b"/")[0]
            found = _look(self._host, at)
            if found is not None and isinstance(found[1], Directory):
                above = found[1].attributes
                break
        first = next(iter(told.values()))
        while not isinstance(first, Change):
            first = next(iter(first.values()))
        mtime_ns = first.known.inode.attributes.mtime_ns
        mode = 0o755 | (above.mode & stat.S_ISGID)
        return Attributes(_lost_ino(path), mode, above.uid, above.gid, mtime_ns, mtime_ns)


def _lost_ino(path: bytes) -> Ino:
    """A number for a directory whose own is not known, the same every time."""
    return Ino(HASHED_DEVICE << DEVICE_SHIFT | int.from_bytes(blake3(b"lost:" + path).digest(length=6), "little"))
