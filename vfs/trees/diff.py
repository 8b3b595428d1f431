"""What differs between two trees, and what kind of change each difference is.

Owns the comparison: it walks only where two trees do not share pages. Does not own text (``patch``) nor what a restore
does about it. Neither inode numbers, change times nor the modification time of directories count as differences, and
contents are compared by where they lie: no byte is read.

Concurrency: pure functions over views.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from store.format import Attributes, Directory, Entry, LinkTarget, Regular, Special, Symlink
from store.nodes import FreshDirectory, FreshRegular, settled
from store.refs import Ino
from vfs.trees.view import Present, View, join
from vfs.workspace import Change, ChangeKind

if TYPE_CHECKING:
    from collections.abc import Iterator

GIT = b".git"


class Difference(NamedTuple):
    """A path that differs. A directory that is on one side only stands for all that it holds.

    ``source`` is where ``before`` was found, if that is another path: inside a directory that was renamed.
    """

    path: bytes
    before: Present | None
    after: Present | None
    source: bytes | None = None


class Changed(NamedTuple):
    """A classified difference of one path. A renamed directory stands for all that moved along with it."""

    kind: ChangeKind
    path: bytes
    source: bytes | None
    before: Present | None
    after: Present | None

    def change(self) -> Change:
        """The change as callers see it."""
        return Change(os.fsdecode(self.path), self.kind, None if self.source is None else os.fsdecode(self.source))


_KINDS: dict[type, type] = {
    Regular: Regular,
    FreshRegular: Regular,
    Directory: Directory,
    FreshDirectory: Directory,
    Symlink: Symlink,
    Special: Special,
}


def differences(a: View, b: View, skip_git: bool = False) -> Iterator[Difference]:
    """Where ``b`` differs from ``a``, sorted by path within each directory. ``skip_git`` leaves out every ``.git``.

    Both views speak of the same generation. Costs what differs, plus the listings of directories whose origin differs.
    """
    seen: set[bytes] = set()
    for difference in _Walk(a, b, skip_git).directory(b"", a.root, b.root):
        seen.add(difference.path)
        yield difference
    for difference in _relinked(a, b, seen):
        if not (skip_git and GIT in difference.path.split(b"/")):
            yield difference


def _relinked(a: View, b: View, seen: set[bytes]) -> Iterator[Difference]:
    """The differences, not ``seen`` yet, of inodes whose row in the link table differs: the directories that name them
    may well be the same in both trees.
    """
    rows: set[Ino] = set()
    for key, before, after in a.pages.differences(a.links, b.links):
        if not _same_row(before, after):
            rows.add(Ino(int.from_bytes(key, "big")))
    if not rows:
        return
    names_a, names_b = a.names_of(rows), b.names_of(rows)
    for ino in sorted(rows):
        common = names_a[ino] & names_b[ino]
        only_a, only_b = (sorted(names[ino] - common - seen) for names in (names_a, names_b))
        moved = zip(only_a, only_b, strict=False)  # below a directory that was renamed
        for source, path in [*((path, path) for path in sorted(common - seen)), *moved]:
            before, after = a.lookup(source), b.lookup(path)
            if before is not None and after is not None and not same(before, after):
                yield Difference(path, before, after, None if source == path else source)


def _same_row(a: Entry | None, b: Entry | None) -> bool:
    a, b = None if a is None else settled(a), None if b is None else settled(b)
    return isinstance(a, LinkTarget) and isinstance(b, LinkTarget) and same(_settled(a.inode), _settled(b.inode))


def _settled(entry: Present) -> Present:
    now = settled(entry)
    assert isinstance(now, Regular | Directory | Symlink | Special)
    return now


class _Walk:
    """One comparison of two views."""

    def __init__(self, a: View, b: View, skip_git: bool) -> None:
        self.a = a
        self.b = b
        self.skip_git = skip_git

    def directory(
        self, path: bytes, before: Directory, after: Directory, source: bytes | None = None
    ) -> Iterator[Difference]:
        """The differences of two directories at one path (or at ``source`` and ``path``) and of what they hold."""
        if not same(before, after):
            yield Difference(path, before, after, source)
        yield from self.inside(path, before, after, source)

    def inside(
        self, path: bytes, before: Directory, after: Directory, source: bytes | None = None
    ) -> Iterator[Difference]:
        """The differences of what two directories hold."""
        for name, old, new in self._unequal(before, after):
            if self.skip_git and name == GIT:
                continue
            was, now = self.a.resolve(before, name, old), self.b.resolve(after, name, new)
            if was is None and now is None:
                continue
            from_path = None if source is None else join(source, name)
            if isinstance(was, Directory) and isinstance(now, Directory):
                yield from self.directory(join(path, name), was, now, from_path)
            elif was is None or now is None or not same(was, now):
                yield Difference(join(path, name), was, now, from_path)

    def _unequal(self, before: Directory, after: Directory) -> list[tuple[bytes, Entry | None, Entry | None]]:
        """The names that may differ, with both overrides, sorted."""
        if before.origin == after.origin:
            pages = self.a.pages
            found = list(pages.differences(self.a.page(before), self.b.page(after)))
            return sorted(found, key=lambda row: row[0])
        names = self.a.names(before) | self.b.names(after)
        return [(name, self.a.override(before, name), self.b.override(after, name)) for name in sorted(names)]


def same(a: Present, b: Present) -> bool:
    """True if both are the same but for inode number, change time and, for directories, modification time.

    Of directories it says nothing about what they hold.
    """
    a, b = _settled(a), _settled(b)
    if a is b:
        return True
    if not _same_attributes(a.attributes, b.attributes, isinstance(a, Directory)):
        return False
    return same_kind(a, b) and same_content(a, b)


def same_kind(a: Present, b: Present) -> bool:
    """True if both are of one file type."""
    if isinstance(a, Special):
        return isinstance(b, Special) and a.file_type == b.file_type
    return _KINDS[type(a)] is _KINDS[type(b)]


def same_content(a: Present, b: Present) -> bool:
    """True if two inodes of one type certainly have the same content, target or device number."""
    a, b = _settled(a), _settled(b)
    if isinstance(a, Regular) and isinstance(b, Regular):
        if isinstance(a, FreshRegular) or isinstance(b, FreshRegular):
            return isinstance(a, FreshRegular) and isinstance(b, FreshRegular) and a.fresh is b.fresh
        return a.content == b.content
    if isinstance(a, Symlink) and isinstance(b, Symlink):
        return a.target == b.target
    if isinstance(a, Special) and isinstance(b, Special):
        return a.rdev == b.rdev
    return isinstance(a, Directory) and isinstance(b, Directory)


def _same_attributes(a: Attributes, b: Attributes, directory: bool) -> bool:
    return (
        a.mode == b.mode
        and a.uid == b.uid
        and a.gid == b.gid
        and a.xattrs == b.xattrs
        and (directory or a.mtime_ns == b.mtime_ns)
    )


def changes(a: View, b: View, skip_git: bool = False) -> list[Changed]:
    """The differences of ``b`` from ``a`` path by path, classified, sorted by path.

    What is gone in one place and has come in another with the same inode number was renamed; if it also changed, that
    is a second row. Created and deleted directories are listed with all that they hold.
    """
    return _Classifier(a, b, skip_git).run()


class _Classifier:
    """Pairs what has gone with what has come. Directories are opened only if they have no partner as a whole."""

    def __init__(self, a: View, b: View, skip_git: bool) -> None:
        self.walk = _Walk(a, b, skip_git)
        self.found: list[Changed] = []
        self.gone: dict[bytes, Present] = {}
        self.gone_paths: dict[tuple[Ino, type], bytes] = {}
        self.come: dict[bytes, Present] = {}
        self.opening = False

    def run(self) -> list[Changed]:
        for difference in differences(self.walk.a, self.walk.b, self.walk.skip_git):
            self._take(difference)
        self._pair()
        self.opening = True
        for path, entry in list(self.gone.items()):
            self._lose(path, entry)
        self._pair()
        while self.come:
            waiting, self.come = self.come, {}
            for path, entry in waiting.items():
                self.found.append(Changed("create", path, None, None, entry))
                if isinstance(entry, Directory):
                    self.come.update(self._held(self.walk.b, path, entry))
            self._pair()
        self.found.extend(Changed("delete", path, None, entry, None) for path, entry in self.gone.items())
        created = {changed.path for changed in self.found if changed.kind == "create"}
        # A name of a changed inode may be met twice: by its link table's row, and in a directory that was renamed.
        found = {
            (changed.path, changed.kind): changed
            for changed in reversed(self.found)
            if changed.kind in ("create", "rename") or changed.path not in created
        }
        return [found[key] for key in sorted(found)]

    def _take(self, difference: Difference) -> None:
        path, before, after, source = difference
        if before is None:
            assert after is not None
            self.come[path] = after
        elif after is None:
            self._lose(path if source is None else source, before)
        elif not same_kind(before, after):
            self.found.append(Changed("type", path, None, before, after))
            if isinstance(before, Directory):
                for inner, entry in self._held(self.walk.a, path if source is None else source, before).items():
                    self._lose(inner, entry)
            if isinstance(after, Directory):
                self.come.update(self._held(self.walk.b, path, after))
        else:
            kind: ChangeKind = "mode" if same_content(before, after) else "overwrite"
            self.found.append(Changed(kind, path, None, before, after))

    def _lose(self, path: bytes, entry: Present) -> None:
        self.gone[path] = entry
        self.gone_paths.setdefault(_identity(entry), path)
        if self.opening and isinstance(entry, Directory):
            for inner, held in self._held(self.walk.a, path, entry).items():
                self._lose(inner, held)

    def _held(self, view: View, path: bytes, directory: Directory) -> dict[bytes, Present]:
        children = view.list(directory).items()
        return {join(path, name): entry for name, entry in children if not (self.walk.skip_git and name == GIT)}

    def _pair(self) -> None:
        """Turn into renames what has both gone and come."""
        found = True
        while found:
            found = False
            for path, after in list(self.come.items()):
                source = self.gone_paths.get(_identity(after))
                before = None if source is None else self.gone.get(source)
                if source is not None and before is not None and path in self.come:
                    found = True
                    self._rename(source, path, before, after)

    def _rename(self, source: bytes, path: bytes, before: Present, after: Present) -> None:
        """Record a rename; what differs inside a renamed directory joins the pool."""
        del self.come[path], self.gone_paths[_identity(after)]
        self._forget_gone(source, before)
        self.found.append(Changed("rename", path, source, before, after))
        if not same(before, after):
            kind: ChangeKind = "mode" if same_content(before, after) else "overwrite"
            self.found.append(Changed(kind, path, None, before, after))
        if isinstance(before, Directory) and isinstance(after, Directory):
            for difference in self.walk.inside(path, before, after, source):
                self._take(difference)

    def _forget_gone(self, path: bytes, entry: Present) -> None:
        del self.gone[path]
        if isinstance(entry, Directory):
            above = path + b"/"
            for inner in [inner for inner in self.gone if inner.startswith(above)]:
                held = self.gone.pop(inner)
                if self.gone_paths.get(_identity(held)) == inner:
                    del self.gone_paths[_identity(held)]


def _identity(entry: Present) -> tuple[Ino, type]:
    return entry.attributes.ino, _KINDS[type(entry)]
