"""Changes that were made to the base while it was not mounted, found at the next mount.

Owns comparing the files that applies wrote with what is ``known`` of them. A file that is no longer that was changed by
somebody else; then a generation of the base has ended, and this makes the two trees that tell trees of the old one in
terms of the new (``translate``): older checkpoints keep what plyfs wrote.

Files that plyfs never wrote need none of that: no checkpoint says anything of them, they are whatever the user made of
them, in every checkpoint. ``survey`` finds changes to those, to tell of them.

Concurrency: one thread, before anything else looks at the base.
"""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

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
    Regular,
    encode,
)
from store.refs import LayerRef
from vfs.base.known import UNSURE, Known, Leaf, has_signature, is_unchanged, same_bytes, see, status_of
from vfs.trees.host import lost_ino
from vfs.trees.racy import is_racy
from vfs.trees.view import Present, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from store.nodes import Page, Pages
    from store.refs import NodeRef
    from vfs.trees.contents import Contents
    from vfs.trees.host import Host

Told: TypeAlias = "dict[bytes, Told | Change]"
"""Changes as a tree of names."""


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


# What was changed


def look(host: Host, contents: Contents, known: Iterable[Known], now_ns: Callable[[], int] = time.time_ns) -> Found:
    """Compare the base with what is known. Costs one stat(2) a file; only files whose times say nothing are read."""
    changes = []
    same = []
    directories = {b"": True}
    for one in known:
        status = status_of(host, one.path, directories)
        if status is None:
            changes.append(Change(one, None))
            continue
        if has_signature(one, status):
            same.append(one)
            continue
        now = host.entry(Origin(0, one.path), status)
        if not is_unchanged(one.inode, now, contents):
            changes.append(Change(one, now))
            continue
        signature = UNSURE if is_racy(status, now_ns()) else (status.st_ino, status.st_ctime_ns)
        same.append(Known(one.path, one.inode, *signature))
    return Found(changes, same)


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
        found = see(self._host, path, {b"": True})
        if found is not None and isinstance(found.entry, Directory):
            return self.directory(path, told)
        return self._now(None if found is None else found.entry), self._lost(path, told)

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
        untouched = was.attributes.mtime_ns == now.attributes.mtime_ns and same_bytes(was, now, self._contents)
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
            found = see(self._host, at, {b"": True})
            if found is not None and isinstance(found.entry, Directory):
                above = found.entry.attributes
                break
        first = next(iter(told.values()))
        while not isinstance(first, Change):
            first = next(iter(first.values()))
        mtime_ns = first.known.inode.attributes.mtime_ns
        mode = 0o755 | (above.mode & stat.S_ISGID)
        return Attributes(lost_ino(path), mode, above.uid, above.gid, mtime_ns, mtime_ns)
