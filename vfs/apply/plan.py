"""How to make the base equal to a tree: the plan of an apply.

Owns the decisions: what stays and only changes attributes, what moves within the base, what is made new, what is
displaced into the attic; and, told along the way, the inverse. Does not own who gets which object of the base
(``apply_claims``), nor doing any of it (``apply_stage``, ``apply_run``). Making a plan changes nothing.

The cost is that of the tree's overrides, beside: a displaced directory is looked through for files that were changed
below the mount; for an inode of the base with several names whose content changed, the base is listed once.

Concurrency: one thread, the base at rest.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from store.entries import below
from store.format import (
    Absent,
    Attributes,
    Blob,
    Chunked,
    Directory,
    Entry,
    Inline,
    Linked,
    Origin,
    OriginPiece,
    Regular,
    Special,
    Symlink,
)
from store.refs import Ino
from vfs.apply.claims import Claims
from vfs.apply.draft import AtticCopy, Draft, Leaf, StageDirectory, StageLeaf, StageLink, Wrote, with_attributes
from vfs.apply.inverse import Inverse
from vfs.apply.links import Group, Links
from vfs.apply.record import Fix, Out, Put
from vfs.errors import FsError
from vfs.trees.host import Host, parent
from vfs.trees.view import Present, View, join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vfs.trees.contents import Contents


class Planner:
    """Makes the plan for one tree.

    ``attic`` is the folder that will hold what is displaced; ``is_remote(status)`` says that it cannot go there by
    rename. ``since_ns``: what changed later, by the base's clock, was changed below the mount. ``presented`` has the
    modification times, by path, that the mount showed instead of the tree's.
    """

    def __init__(
        self,
        view: View,
        host: Host,
        contents: Contents,
        attic: int,
        is_remote: Callable[[os.stat_result], bool],
        since_ns: int,
        presented: Mapping[bytes, int],
    ) -> None:
        self.view = view
        self.host = host
        self.contents = contents
        self.attic = attic
        self.is_remote = is_remote
        self.since_ns = since_ns
        self.presented = presented
        self.claims = Claims(view, host, contents)
        self.links = Links(view, host, self.claims)
        self.inverse = Inverse(host, view.pages)
        self.draft = Draft()
        self._count = 0
        self._real: dict[bytes, bytes] = {}
        self._targets: dict[bytes, Attributes] = {}
        self._touched: set[bytes] = set()
        self._copied_links: dict[Ino, os.stat_result] = {}

    def run(self) -> Draft:
        """The plan. Raises DamagedError if the tree cannot be read, FsError if the base cannot."""
        root = self.view.root
        assert root.origin == Origin(0, b""), "the top directory is always the base's own"
        self._directory(b"", root, b"")
        self._other_names()
        self._presented()
        self._name_copied_links()
        draft = self.draft
        if not draft.empty or self._touched:
            self._touched.add(b"")
            self._finish_directories()
            draft.outs.sort(key=lambda out: (-out.path.count(b"/"), out.path))
            draft.puts.sort(key=lambda put: (put.path.count(b"/"), put.path))
        draft.inverse = self.inverse.build()
        return draft

    def _slot(self, kind: bytes) -> bytes:
        self._count += 1
        return b"%s%d" % (kind, self._count)

    def _attributes(self, path: bytes, entry: Present) -> Attributes:
        """What ``entry`` shall have at ``path``."""
        mtime_ns = self.presented.get(path)
        own = entry.attributes
        if mtime_ns is None:
            return own
        return Attributes(own.ino, own.mode, own.uid, own.gid, mtime_ns, own.ctime_ns, own.xattrs)

    # Directories

    def _directory(self, path: bytes, directory: Directory, base: bytes) -> None:
        """The directory that the base has at ``base`` will be at ``path``: what is in it?"""
        self._real[path] = base
        status = self.claims.status(base)
        assert status is not None
        wanted = self._targets[path] = self._attributes(path, directory)
        if not _equal(wanted, self._now(base, status)):
            self._touched.add(path)
            self.inverse.tell(base, status)
        for name, entry in sorted(self.view.overrides(directory), key=lambda item: item[0]):
            self._place(join(path, name), entry, join(base, name), None)

    def _now(self, base: bytes, status: os.stat_result) -> Attributes:
        return self.host.attributes(Origin(0, base), status)

    def _new_directory(self, path: bytes, directory: Directory, inside: bytes | None) -> None:
        """A directory that the base does not have; in the staging directory it is filled as far as can be."""
        slot = self._new(path, inside, is_directory=True)
        wanted = self._targets[path] = self._attributes(path, directory)
        self.draft.staged.append(StageDirectory(slot, wanted))
        overrides = dict(self.view.overrides(directory))
        rows: dict[bytes, Entry] = {name: entry for name, entry in overrides.items() if not isinstance(entry, Absent)}
        if directory.origin is not None:
            try:
                listed = self.host.list(directory.origin)
            except FsError:
                self.draft.lost.append(path)
                listed = []
            for row in listed:
                if row.name not in overrides:
                    rows[row.name] = self._fallen(below(directory.origin, row.name))
        for name in sorted(rows):
            self._place(join(path, name), rows[name], None, slot)

    def _fallen(self, origin: Origin) -> Entry:
        """What a directory that will be a copy shows for ``origin``."""
        status = self.host.stat(origin)
        entry = self.host.entry(origin, status)
        if status.st_nlink == 1 or isinstance(entry, Directory):
            return entry
        ino = entry.attributes.ino
        self.links.add(ino, entry, None if origin.tree else origin.path)
        return Linked(ino)

    def _finish_directories(self) -> None:
        """The attributes, at last, of every directory that something came into or left."""
        if os.geteuid():
            self._open_ways()
        found = []
        for path in self._touched:
            wanted = self._targets.get(path)
            if wanted is None:
                base = self.claims.fallen(path)
                assert base is not None
                status = self.claims.status(base)
                assert status is not None
                wanted = self._attributes(path, self.host.entry(Origin(0, base), status))
            found.append(Fix(path, stat.S_IFDIR, wanted))
        self.draft.directories = sorted(found, key=lambda fix: (-_depth(fix.path), fix.path))

    def _open_ways(self) -> None:
        """What has to be opened up to reach or move things gets its attributes in the end, too."""
        for path in [*self._touched, *(put.path for put in self.draft.puts)]:
            at = path
            while at:
                wanted = self._targets.get(at)
                base = self.claims.fallen(at) if wanted is None else None
                status = None if base is None else self.claims.status(base)
                mode = wanted.mode if wanted is not None else 0o700 if status is None else status.st_mode
                if mode & 0o700 != 0o700 and (wanted is not None or stat.S_ISDIR(mode)):
                    self._touched.add(at)
                at = parent(at)[0]

    # One name

    def _place(self, path: bytes, entry: Entry, base: bytes | None, inside: bytes | None) -> None:
        """``entry`` shall be at ``path``. ``base`` is the base's path for it, if the directory it is in is the base's
        own; ``inside`` is the directory in staging that it is in, if that is new.
        """
        there = None if base is None else self.claims.status(base)
        if isinstance(entry, Absent):
            self._make_room(base, there)
        elif isinstance(entry, Directory):
            cited = self.claims.cited(entry)
            if cited is not None and self.claims.holder(cited) == path:
                if cited != base:
                    self._make_room(base, there)
                    self._take(cited, path)
                self._directory(path, entry, cited)
            else:
                self._make_room(base, there)
                self._new_directory(path, entry, inside)
        elif isinstance(entry, Linked):
            self._name(path, entry.ino, base, there, inside)
        elif isinstance(entry, Regular | Symlink | Special):
            self._leaf(path, entry, base, there, inside)

    def _leaf(
        self, path: bytes, entry: Leaf, base: bytes | None, there: os.stat_result | None, inside: bytes | None
    ) -> None:
        wanted = self._attributes(path, entry)
        if isinstance(entry, Regular):
            cited = self.claims.cited(entry)
            if cited is not None and self.claims.holder(cited) == path:
                if cited != base:
                    self._make_room(base, there)
                    self._take(cited, path)
                self._fix(path, wanted, cited)
                return
            if not self.claims.is_available(entry.content):
                self.draft.lost.append(path)
                return
        if (
            base is not None
            and there is not None
            and self.links.is_single(there)
            and self.links.is_there(entry, base, there)
        ):
            self._fix(path, wanted, base)
            return
        self._make_room(base, there)
        self._new_leaf(path, entry, wanted, inside)

    def _new_leaf(self, path: bytes, entry: Leaf, wanted: Attributes, inside: bytes | None) -> None:
        slot = self._new(path, inside, is_directory=False)
        inode = with_attributes(entry, wanted)
        self.draft.staged.append(StageLeaf(slot, inode))
        self._wrote(path, slot, inode)

    def _new(self, path: bytes, inside: bytes | None, is_directory: bool) -> bytes:
        """Where in staging the new object for ``path`` is made."""
        if inside is not None:
            self.draft.made.append(path)
            return join(inside, parent(path)[1])
        slot = self._slot(b"s")
        self.draft.puts.append(Put(path, slot))
        self._arrived(path, is_directory)
        return slot

    def _wrote(self, path: bytes, slot: bytes, inode: Leaf) -> None:
        if not isinstance(inode, Regular) or isinstance(inode.content, Inline | Blob):
            self.draft.written.append(Wrote(path, slot, inode))
        elif isinstance(inode.content, Chunked):
            pieces = self.contents.chunks(inode.content).pieces
            if not any(isinstance(piece, OriginPiece) for piece in pieces):
                self.draft.written.append(Wrote(path, slot, inode))

    # What the base loses and gets

    def _make_room(self, base: bytes | None, there: os.stat_result | None) -> None:
        """What the base has at ``base`` leaves its place. If it goes elsewhere in the tree it is taken there."""
        if base is not None and there is not None and self.claims.holder(base) is None:
            self._displace(base, there)

    def _displace(self, base: bytes, there: os.stat_result) -> None:
        """What the base has at ``base`` goes to the attic."""
        self._check(base, there)
        remote = self.is_remote(there)
        directory = stat.S_ISDIR(there.st_mode)
        if directory:
            self._look_through(base, remote)
        elif there.st_nlink > 1 or self.links.is_kept(self.host.ino(there)):
            self._share(base, there, remote)
        size = there.st_size if stat.S_ISREG(there.st_mode) else -1
        if remote:
            self._copy(base, there)
            self.inverse.removed(base, there)
            self.draft.outs.append(Out(base, "stage", self._slot(b"t"), size, there.st_mtime_ns))
        else:
            name = self._slot(b"")
            self.inverse.moved(base, there, Origin(self.attic, name))
            self.draft.outs.append(Out(base, "attic", name, size, there.st_mtime_ns))
        self._left(base)

    def _look_through(self, base: bytes, remote: bool) -> None:
        """Everything in a displaced directory: was it changed below the mount? Must it be copied?"""
        if not remote and self.since_ns <= 0:
            return
        for row in self.host.list(Origin(0, base)):
            path = join(base, row.name)
            status = self.claims.status(path)
            if status is None or self.claims.holder(path) is not None:
                continue
            directory = stat.S_ISDIR(status.st_mode)
            if not directory:
                self._check(path, status)
            if directory:
                self._look_through(path, remote)
            if remote:
                if not directory and status.st_nlink > 1:
                    self._share(path, status, remote)
                self._copy(path, status)

    def _copy(self, base: bytes, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            self.inverse.copied(base, status, None)
            return
        name = self._slot(b"")
        self.draft.staged.append(AtticCopy(name, base))
        self.inverse.copied(base, status, Origin(self.attic, name))

    def _share(self, base: bytes, status: os.stat_result, remote: bool) -> None:
        """One of several names of an inode goes. What stays by rename keeps the link count up, so that the other names
        still look into the link table; copies do not, and then the inverse has to name them all.
        """
        self.inverse.shared(base, status)
        self.draft.shared.add(status.st_ino)
        if remote:
            self._copied_links[self.host.ino(status)] = status

    def _name_copied_links(self) -> None:
        for ino, paths in self.host.names(self._copied_links).items():
            for path in paths:
                self.inverse.shared(path, self._copied_links[ino])

    def _check(self, base: bytes, status: os.stat_result) -> None:
        """Note a conflict if what is displaced or changed was changed below the mount."""
        newer = 0 < self.since_ns < status.st_ctime_ns and not stat.S_ISDIR(status.st_mode)
        if newer and self.host.opened_up.get((status.st_dev, status.st_ino)) != status.st_ctime_ns:
            self.draft.conflicts.append(base)

    def _take(self, base: bytes, path: bytes) -> None:
        """The base's object at ``base`` moves to ``path``."""
        status = self.claims.status(base)
        assert status is not None
        slot = self._slot(b"m")
        size = status.st_size if stat.S_ISREG(status.st_mode) else -1
        self.draft.outs.append(Out(base, "stage", slot, size, status.st_mtime_ns))
        self.draft.puts.append(Put(path, slot))
        self.inverse.moved(base, status, Origin(0, path))
        self._left(base)
        self._arrived(path, stat.S_ISDIR(status.st_mode))

    def _left(self, base: bytes) -> None:
        """Something left its directory."""
        above = self.claims.holder(parent(base)[0])
        if above is not None:
            self._touched.add(above)

    def _arrived(self, path: bytes, is_directory: bool) -> None:
        """Something new comes to ``path``."""
        above, name = parent(path)
        self._touched.add(above)
        base = self._real.get(above)
        if base is None and above not in self._targets:
            base = self.claims.fallen(above)
        if base is not None:
            self.inverse.arrived(base, name, is_directory, self.claims.status(join(base, name)) is not None)

    def _fix(self, path: bytes, wanted: Attributes, base: bytes) -> None:
        """What the base had at ``base`` gets the attributes ``wanted``; in the end it is at ``path``."""
        status = self.claims.status(base)
        assert status is not None
        self._check(base, status)
        if not _equal(wanted, self._now(base, status)):
            size = status.st_size if stat.S_ISREG(status.st_mode) else -1
            self.draft.fixes.append(Fix(path, stat.S_IFMT(status.st_mode), wanted, size, status.st_mtime_ns))
            if status.st_nlink > 1 and size >= 0:
                self.draft.shared.add(status.st_ino)
            self.inverse.touched(base, status, wanted.mtime_ns)

    # Hard links

    def _name(
        self, path: bytes, ino: Ino, base: bytes | None, there: os.stat_result | None, inside: bytes | None
    ) -> None:
        group = self.links.group(ino)
        if group is None:
            self.draft.lost.append(path)
            return
        if group.kept is not None and there is not None and self.host.ino(there) == ino:
            return
        self._make_room(base, there)
        self._link(path, group)

    def _link(self, path: bytes, group: Group) -> None:
        """A new name for a group's inode."""
        slot = self._group_slot(group)
        self.draft.puts.append(Put(path, slot, link=True))
        self._arrived(path, is_directory=False)
        if group.kept is None:
            self._wrote(path, slot, group.inode)

    def _group_slot(self, group: Group) -> bytes:
        if group.slot is None:
            group.slot = self._slot(b"s")
            if group.kept is None:
                self.draft.staged.append(StageLeaf(group.slot, group.inode))
            else:
                self.draft.staged.append(StageLink(group.slot, group.kept))
                status = self.claims.status(group.kept)
                assert status is not None
                self.inverse.shared(group.kept, status)
                self.draft.shared.add(status.st_ino)
        return group.slot

    def _other_names(self) -> None:
        """The names in the base, of which the tree says nothing, of inodes that have a row in the link table."""
        for ino in self.links.rows:
            group = self.links.group(ino)
            if group is None:
                self.draft.lost.extend(self.links.shown_names(ino).values())
            elif group.kept is not None:
                self._fix_group(group)
            else:
                for base, path in self.links.shown_names(ino).items():
                    status = self.claims.status(base)
                    assert status is not None
                    self._displace(base, status)
                    self._link(path, group)

    def _fix_group(self, group: Group) -> None:
        """The attributes of an inode that stays the base's."""
        assert group.kept is not None
        status = self.claims.status(group.kept)
        assert status is not None
        if status.st_nlink == 1 and group.ino not in self.claims.linked:
            return  # no name of the tree stands for the row
        if _equal(group.inode.attributes, self._now(group.kept, status)):
            return
        self._check(group.kept, status)
        slot = self._group_slot(group)
        self.draft.staged_fixes.append(Fix(slot, stat.S_IFMT(status.st_mode), group.inode.attributes))
        self.inverse.touched(group.kept, status, group.inode.attributes.mtime_ns)

    # Times

    def _presented(self) -> None:
        """Files that fall through to the base, but were shown with another time."""
        for path, mtime_ns in self.presented.items():
            base = self.claims.fallen(path)
            status = None if base is None else self.claims.status(base)
            if base is None or status is None or stat.S_ISDIR(status.st_mode) or status.st_mtime_ns == mtime_ns:
                continue
            if self.view.row(self.host.ino(status)) is not None or self.links.is_pinned(status, mtime_ns):
                continue
            self._fix(path, self._attributes(path, self.host.entry(Origin(0, base), status)), base)
            if status.st_nlink > 1:
                self.inverse.shared(base, status)


def _equal(a: Attributes, b: Attributes) -> bool:
    return (a.mode, a.uid, a.gid, a.mtime_ns, a.xattrs) == (b.mode, b.uid, b.gid, b.mtime_ns, b.xattrs)


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0
