"""One served workspace and its plain model, driven side by side: every step is done by both and compared.

``Rig`` has a method for each thing that can happen; the state machine calls them with what chance gives it, named
examples call them with what once went wrong.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable
from unittest import mock

import store.journal
import store.nodes
import vfs.live.files
import vfs.live.namespace
import vfs.live.recovery
import vfs.live.seal
from store.refs import Ino
from tests.model import bases
from tests.model.compare import Differs, Served, compare_view, expect
from tests.model.kernel import ME, Kernel, facts, read_all
from tests.model.plain import (
    DIR,
    GIT,
    LNK,
    NOREPLACE,
    REG,
    Node,
    Plain,
    Refused,
    at,
    blur,
    clone,
    keep_git,
    walk,
)
from tests.model.story import Story
from tests.model.world import World
from vfs.channel import Caller
from vfs.errors import FsError

SMALL = {
    (vfs.live.files, "SPOOL_LIMIT"): 256,
    (vfs.live.files, "COPY_AT_ONCE"): 64,
    (vfs.live.seal, "CHUNK_BYTES"): 1024,
    (vfs.live.seal, "INLINE_MAX"): 16,
    (vfs.live.seal, "HOLE_MIN"): 64,
    (vfs.live.namespace, "ROWS_AT_ONCE"): 3,
    (store.nodes, "LEAF_MAX"): 4,
}
"""Limits made small, so that a few bytes and names reach beyond them."""

_serials = itertools.count(1 << 40)


def memory_directory() -> str | None:
    """Where files cost least, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Cursor:
    """A directory being read: where it is, what it saw, and which names were there all the time."""

    def __init__(self, node: Node, ino: int) -> None:
        self.node = node
        self.ino = ino
        self.offset = 0
        self.seen: list[bytes] = []
        self.always = set(node.entries)
        self.ever = set(node.entries)

    def note(self) -> None:
        self.always &= set(self.node.entries)
        self.ever |= set(self.node.entries)


class Rig(Story):
    """A world with base number ``base`` and its model. ``close`` it."""

    def __init__(self, base: int) -> None:
        self.top = os.fsencode(tempfile.mkdtemp(prefix="plyfs-model-", dir=memory_directory()))
        self.world = World(self.top)
        self._patches = [mock.patch.object(module, name, value) for (module, name), value in SMALL.items()]
        for module in (store.journal, vfs.live.recovery):
            self._patches.append(mock.patch.object(module, "boot_id", lambda: self.world.boot))
        for patch in self._patches:
            patch.start()
        self.plain = bases.base(self.world.base, base)
        status = os.lstat(self.world.base)
        self.base_nlink = status.st_nlink == 2 + sum(node.kind == DIR for node in self.plain.root.entries.values())
        names = Counter(child.token for _, node in walk(self.plain.root) for child in node.entries.values())
        self.base_linked = {token for token, count in names.items() if count > 1}
        self.restored: set[int] = set()
        """The times of all restores."""
        self.blurred: set[int] = set()
        """Tokens of inodes that once were blurred."""
        self.random = random.Random(0)
        self.open: list[Node] = []
        self.cursors: list[Cursor] = []
        self.unnamed: set[int] = set()
        """Serials of files that never had a name: these can be given one."""
        self._start()
        self.begin()

    def _start(self) -> None:
        self.world.open()
        self.kernel = Kernel(self.world.core)
        self.served = Served(self.world.core, self.plain, self.base_nlink, self.base_linked)
        self.open = []
        self.cursors = []
        self.unnamed = set()

    def close(self) -> None:
        try:
            self.world.crash()
        except AttributeError:  # it did not open
            pass
        for patch in self._patches:
            patch.stop()
        shutil.rmtree(self.top)

    # Choosing

    @property
    def core(self):
        return self.world.core

    def files(self) -> list[tuple[bytes | None, Node]]:
        """Regular files by path, and those that are only open."""
        named = [(path, node) for path, node in walk(self.plain.root) if node.kind == REG]
        return [*named, *((None, node) for node in self.open if node.kind == REG and not self.plain.has_name(node))]

    # Addressing

    def ino(self, path: bytes | None, node: Node) -> int:
        """The number of ``node``, as the kernel finds it."""
        if path is None:
            assert node.ino is not None
            return node.ino
        ino = self.kernel.walk(path)
        if node.ino is None or node.blurred:
            node.ino = ino
        expect(ino == node.ino, f"number of {path!r}:", ino, node.ino)
        self.served.own(node, path)
        return ino

    def both(self, model: Callable[[], object], real: Callable[[], object]) -> object:
        """Both do it, or both refuse with one errno. Returns what the real one does; None if refused."""
        refused: Refused | None = None
        try:
            model()
        except Refused as error:
            refused = error
        try:
            result = real()
        except FsError as error:
            if refused is None:
                raise Differs(f"refused with {errno.errorcode[error.errno]}") from error
            expect(error.errno in refused.errnos, f"refused with {errno.errorcode[error.errno]}, not {refused}")
            return None
        expect(refused is None, f"done, not refused with {refused}")
        for cursor in self.cursors:
            cursor.note()
        return result

    # Names

    def make(self, path: bytes, name: bytes, kind: int = REG, mode: int = 0o644, uid: int = 0) -> Node | None:
        now = self.world.clock.tick()
        parent = at(self.plain.root, path)
        assert parent is not None
        ino = self.ino(path, parent)
        caller = Caller(uid, uid, 1, 0o022)
        node = Node(kind, 0o777 if kind == LNK else mode & ~0o022, uid, uid)
        rdev = 0
        if kind == LNK:
            node.target = b"target/%d" % self.random.randrange(1 << 30)
        elif kind == stat.S_IFCHR:
            rdev = node.rdev = os.makedev(1, 3)

        def real():
            if kind == DIR:
                return self.core.mkdir(Ino(ino), name, mode, caller)
            if kind == LNK:
                return self.core.symlink(Ino(ino), name, node.target, caller)
            return self.core.mknod(Ino(ino), name, kind | mode, rdev, caller)

        inode = self.both(lambda: self.plain.make(parent, name, node, now), real)
        if inode is None:
            return None
        node.ino = self.kernel.entry((ino, name), inode)
        self.kernel.changed(ino)
        self.served.own(node, name)
        return node

    def tmpfile(self, path: bytes) -> Node:
        now = self.world.clock.tick()
        parent = at(self.plain.root, path)
        assert parent is not None
        inode = self.core.tmpfile(Ino(self.ino(path, parent)), 0o600, ME)
        node = Node(REG, 0o600, mtime=now, tree_mtime=now, ino=inode.ino)
        node.gid = parent.gid if parent.mode & stat.S_ISGID else 0
        self.kernel.lookups[inode.ino] += 1
        self.kernel.hold(inode.ino)
        self.open.append(node)
        self.unnamed.add(node.serial)
        self.served.own(node, b"")
        return node

    def link(self, path: bytes | None, node: Node, into: bytes, name: bytes) -> None:
        now = self.world.clock.tick()
        parent = at(self.plain.root, into)
        assert parent is not None
        ino, directory = self.ino(path, node), self.ino(into, parent)
        inode = self.both(
            lambda: self.plain.link(node, parent, name, now), lambda: self.core.link(Ino(ino), Ino(directory), name)
        )
        if inode is not None:
            self.unnamed.discard(node.serial)
            self.kernel.entry((directory, name), inode)
            self.kernel.changed(ino, directory)

    def remove(self, path: bytes, name: bytes, directory: bool) -> None:
        now = self.world.clock.tick()
        parent = at(self.plain.root, path)
        assert parent is not None
        ino = self.ino(path, parent)
        gone = parent.entries.get(name)
        if gone is not None:  # the kernel looks before it asks
            self.ino(path + b"/" + name if path else name, gone)
        real = self.core.rmdir if directory else self.core.unlink
        model = self.plain.rmdir if directory else self.plain.unlink
        done = []
        self.both(lambda: done.append(model(parent, name, now)), lambda: real(Ino(ino), name))
        if done:
            self.kernel.gone(ino, name)

    def rename(self, path: bytes, name: bytes, new_path: bytes, new_name: bytes, flags: int = 0) -> None:
        now = self.world.clock.tick()
        parent, new_parent = at(self.plain.root, path), at(self.plain.root, new_path)
        assert parent is not None and new_parent is not None
        ino, new_ino = self.ino(path, parent), self.ino(new_path, new_parent)
        for above, directory, last in ((path, parent, name), (new_path, new_parent, new_name)):
            child = directory.entries.get(last)
            if child is not None:
                self.ino(above + b"/" + last if above else last, child)
        same = parent.entries.get(name) is not None and parent.entries.get(name) is new_parent.entries.get(new_name)
        done = []
        self.both(
            lambda: done.append(self.plain.rename(parent, name, new_parent, new_name, flags, now)),
            lambda: self.core.rename(Ino(ino), name, Ino(new_ino), new_name, flags),
        )
        if done and not same:
            self.kernel.moved(ino, name, new_ino, new_name, flags == 2)

    # Content and attributes

    def write(self, path: bytes | None, node: Node, offset: int, data: bytes, kill: bool = False) -> None:
        ino = self.ino(path, node)
        now = self.world.clock.tick()
        self.plain.write(node, offset, data, now)
        if kill:
            node.mode &= ~stat.S_ISUID
            if node.mode & stat.S_IXGRP:
                node.mode &= ~stat.S_ISGID
        buffer = bytearray(data)
        expect(self.core.write(Ino(ino), offset, memoryview(buffer), kill) == len(data), "written")
        buffer[:] = bytes(len(buffer))  # it was borrowed
        self.kernel.changed(ino)

    def truncate(self, path: bytes | None, node: Node, size: int) -> None:
        ino = self.ino(path, node)
        now = self.world.clock.tick()
        self.plain.truncate(node, size, now)
        self.core.setattr(Ino(ino), size=size)
        self.kernel.changed(ino)

    def hole(self, path: bytes | None, node: Node, offset: int, length: int, zero: bool, keep: bool) -> None:
        ino = self.ino(path, node)
        now = self.world.clock.tick()
        keep = keep or not zero
        self.plain.zero(node, offset, length, keep, now)
        mode = (vfs.live.files.FALLOC_ZERO_RANGE if zero else vfs.live.files.FALLOC_PUNCH_HOLE) | int(keep)
        self.core.fallocate(Ino(ino), mode, offset, length)
        self.kernel.changed(ino)

    def copy(self, source: tuple[bytes | None, Node], at_: int, target: tuple[bytes | None, Node], to: int, n: int):
        one, other = self.ino(*source), self.ino(*target)
        if one == other and at_ < to + n and to < at_ + n:
            return
        now = self.world.clock.tick()
        most = min(n, len(source[1].data) - at_)
        count = self.core.copy_file_range(Ino(one), at_, Ino(other), to, n)
        expect(0 < count <= most if most > 0 else count == 0, "copied", count, most)
        if count:
            self.plain.copy_range(source[1], at_, target[1], to, count, now)
        self.kernel.changed(other)

    def set(self, path: bytes | None, node: Node, mode=None, uid=None, gid=None, mtime=None) -> None:
        ino = self.ino(path, node)
        self.world.clock.tick()
        inode = self.core.setattr(Ino(ino), mode=mode, uid=uid, gid=gid, mtime_ns=mtime)
        node.mode = node.mode if mode is None else mode
        node.uid = node.uid if uid is None else uid
        node.gid = node.gid if gid is None else gid
        node.mtime = node.mtime if mtime is None else mtime
        if not mode is uid is gid is mtime is None:
            node.touch()
        self.kernel.changed(ino)
        self.kernel.attributes[ino] = facts(inode)

    def xattr(self, path: bytes | None, node: Node, name: bytes, value: bytes | None) -> None:
        ino = self.ino(path, node)
        self.world.clock.tick()

        def model():
            if value is None and name not in node.xattrs:
                raise Refused(errno.ENODATA)
            if value is None:
                del node.xattrs[name]
            elif node.kind not in (REG, DIR):
                raise Refused(errno.EPERM)
            else:
                node.xattrs[name] = value
            node.touch()

        def real():
            if value is None:
                self.core.removexattr(Ino(ino), name)
            else:
                self.core.setxattr(Ino(ino), name, value, 0)

        self.both(model, real)
        self.kernel.changed(ino)

    # The kernel's own

    def look(self, path: bytes, node: Node) -> None:
        """Somebody looks: the kernel remembers."""
        ino = self.ino(path, node)
        self.kernel.stat(ino)
        if node.kind == REG:
            expect(self.kernel.read(ino) == bytes(node.data), f"content of {path!r}")
        elif node.kind == DIR:
            expect(set(self.kernel.list(ino)) == set(node.entries), f"names in {path!r}")
            for name in (b"a", b"d", b"missing"):
                if name not in node.entries:
                    try:
                        expect(self.kernel.lookup(ino, name) is None, f"found {name!r} in {path!r}")
                    except FsError as error:
                        expect(error.errno == errno.ENOENT, "errno of lookup", error.errno)

    def hold(self, path: bytes, node: Node) -> None:
        """Somebody opens it."""
        self.kernel.hold(self.ino(path, node))
        self.open.append(node)

    def let_go(self, index: int) -> None:
        node = self.open.pop(index)
        assert node.ino is not None
        self.kernel.let_go(node.ino)

    def begin_reading(self, path: bytes, node: Node) -> None:
        ino = self.ino(path, node)
        self.kernel.hold(ino)
        self.cursors.append(Cursor(node, ino))

    def read_on(self, index: int) -> None:
        cursor = self.cursors[index]
        rows = list(self.core.readdir(Ino(cursor.ino), cursor.offset))
        for offset, name, _, _ in rows:
            expect(offset > cursor.offset, "offsets grow")
            cursor.offset = offset
            if name not in (b".", b".."):
                cursor.seen.append(name)
        if not rows:
            self.cursors.pop(index)
            self.kernel.let_go(cursor.ino)
            missed = cursor.always - set(cursor.seen)
            expect(not missed, "names that were there all the time were skipped:", missed)
            twice = {name for name in cursor.always if cursor.seen.count(name) > 1}
            expect(not twice, "names that were there all the time were seen twice:", twice)
            expect(set(cursor.seen) <= cursor.ever, "names that never were there")

    # What the story asks of the served tree

    @property
    def head(self) -> str:
        return self.world.timeline.head.head

    @property
    def history(self):
        return self.world.history

    def way_forward(self) -> list[str]:
        return list(self.world.timeline.head.redo)

    def tick(self) -> int:
        return self.world.clock.tick()

    def is_unsaved(self) -> bool:
        timeline = self.world.timeline
        return timeline.differs(timeline.baseline, timeline.fold()[0], skip_git=True)

    def tree_of(self, id: str, with_git: bool) -> Node:
        return clone(self.snaps[id], {}) if with_git else keep_git(self.snaps[id], self.plain.root)

    def do_checkpoint(self, label: str | None):
        return self.world.timeline.checkpoint(label=label)

    def do_undo(self, count: int):
        return self._make(self.world.timeline.undo(count))

    def do_redo(self, count: int):
        return self._make(self.world.timeline.redo(count))

    def do_restore(self, id: str, with_git: bool):
        return self._make(self.world.timeline.go(id, None, with_git))

    def would_change(self, id: str, paths: list[bytes]) -> bool:
        return bool(self.world.timeline.go(id, paths).changes)

    def do_restore_paths(self, id: str, paths: list[bytes]):
        return self._make(self.world.timeline.go(id, paths))

    def _make(self, move):
        moved = self.world.timeline.make(move)
        self.world.timeline.finish()
        while self.world.told:
            self.kernel.told(self.world.told.pop(0)[0])
        return moved

    # Beyond what every workspace does

    def fold(self) -> None:
        """As asking for the status does."""
        self.world.timeline.fold()

    def seal_all(self) -> None:
        self.world.seal_all()

    def seal_one(self) -> None:
        if self.world.sealing.waiting:
            self.world.sealing.seal_next()
            expect(not self.world.problems, "sealing:", self.world.problems)

    def become(self, onto: Node, now: int) -> None:
        """The model becomes ``onto``: what is kept keeps its number, the rest gets a new one and the time ``now``."""
        blur(onto, self.blurred)
        self.restored.add(now)
        present = self.plain.root
        by_token: dict[int, list[Node]] = {}
        for _, node in walk(present):
            by_token.setdefault(node.token, []).append(node)
        places: dict[int, list[bytes]] = {}
        nodes: dict[int, Node] = {}
        for path, node in walk(onto):
            places.setdefault(id(node), []).append(path)
            nodes[id(node)] = node
        unsure: list[Node] = []
        kept: dict[int, Node] = {}
        for key, node in nodes.items():
            there = [found for path in places[key] if (found := at(present, path)) is not None]
            if node.kind == DIR:
                found = next((one for one in there if one.kind == DIR), None)
                if found is not None:
                    self._keep(node, found, kept)
                else:
                    self._new(node, by_token.get(node.token, []), unsure)
                node.mtime = node.tree_mtime
                continue
            found = next((one for one in there if one.token == node.token and one.version == node.version), None)
            if found is None:
                maybe = [one for one in [*by_token.get(node.token, []), *there] if one.same_content(node)]
                shown = node.mtime
                self._new(node, maybe, unsure)
                node.mtime = node.came = now
                if node.token in self.base_linked and not maybe:
                    # Whether all names of a base file with several were gone before is not known for certain.
                    unsure.append(node)
                    node.mtimes = {now, shown, node.tree_mtime, *self.restored}
                if maybe:
                    node.mtimes = {now, shown, node.tree_mtime}
                    for one in maybe:
                        node.mtimes |= {one.mtime, one.came}
            else:
                self._keep(node, found, kept)
                if found.tree_mtime == node.tree_mtime:
                    node.mtime = found.mtime
                else:
                    node.mtimes = {node.mtime, node.tree_mtime, found.came}
                    unsure.append(node)
        self.plain.root = onto
        self._adopt(unsure, kept)
        self.open = [kept.get(node.serial, node) for node in self.open]
        for cursor in self.cursors:
            cursor.node = kept.get(cursor.node.serial, Node(DIR, 0))
            cursor.note()

    @staticmethod
    def _keep(node: Node, found: Node, kept: dict[int, Node]) -> None:
        node.ino, node.serial, node.renumbered = found.ino, found.serial, found.renumbered
        node.came = found.came
        node.blurred |= found.blurred
        kept[found.serial] = node

    @staticmethod
    def _new(node: Node, maybe: list[Node], unsure: list[Node]) -> None:
        node.ino, node.serial, node.renumbered = None, next(_serials), True
        node.maybe = maybe
        if maybe:
            unsure.append(node)

    def _adopt(self, unsure: list[Node], kept: dict[int, Node]) -> None:
        """Look at what the model cannot know for certain, and take it over if it may be so."""
        wanted = set(map(id, unsure))
        for path, node in walk(self.plain.root):
            if id(node) not in wanted:
                continue
            wanted.discard(id(node))
            inode = self._look_up(path)
            for old in getattr(node, "maybe", ()):
                if old.ino == inode.ino:
                    self._keep(node, old, kept)
            if node.ino is None:
                node.ino = inode.ino
                if node.token in self.base_linked:
                    self.served.owner[node.ino] = node.serial
            if node.kind != DIR:
                allowed = node.mtimes
                expect(node.blurred or inode.mtime_ns in allowed, f"mtime of {path!r}:", inode.mtime_ns, allowed)
                node.mtime = inode.mtime_ns

    def _look_up(self, path: bytes):
        """The inode at ``path``; the lookups are given back."""
        ino = 1
        held = []
        for name in path.split(b"/"):
            ino = self.core.lookup(Ino(ino), name).ino
            held.append(ino)
        inode = self.core.getattr(Ino(ino))
        found = type("Found", (), {"ino": inode.ino, "mtime_ns": inode.mtime_ns})
        for ino in reversed(held):
            self.core.forget(Ino(ino), 1)
        return found

    # The daemon's life

    def crash(self) -> None:
        """Kill it and start again: nothing is lost."""
        head, redo = self.head, self.way_forward()
        self.world.crash()
        self._again(head, redo, certain=False)

    def reopen(self) -> None:
        """Unmount with ``--keep`` and mount again."""
        head, redo = self.head, self.way_forward()
        self.kernel.shrink_all()
        self.world.close()
        self._again(head, redo, certain=True)

    def restart(self) -> list[str]:
        """Start again after whatever end, and expect nothing yet; returns what a person is told."""
        self._start()
        return list(self.world.notes)

    def _again(self, head: str, redo: list[str], certain: bool) -> None:
        self._start()
        expect(not self.world.notes, "notes:", self.world.notes)
        self.as_before(head, redo)
        for path, node in walk(self.plain.root):
            if node.kind == DIR and GIT in path.split(b"/"):
                # A .git that a restore kept had its times saved only if something else in it differed.
                found = [at(root, path) for root in self.snaps.values()]
                node.mtimes = {node.mtime, *(one.mtime for one in found if one is not None)}
                mtime = self._look_up(path).mtime_ns
                expect(mtime in node.mtimes, f"mtime of {path!r}:", mtime, node.mtimes)
                node.mtime = node.tree_mtime = mtime
        if not certain:
            unsure = []
            for _, node in walk(self.plain.root):
                if node.renumbered and node not in unsure:
                    node.ino = None
                    node.maybe = []
                    node.mtimes = {node.mtime}
                    unsure.append(node)
            self._adopt(unsure, {})

    def barrier(self) -> None:
        self.core.barrier()

    # Comparing

    def check(self) -> None:
        self.served.check()
        for node in self.open:
            if node.kind == REG:
                content = read_all(self.core, node.ino)
                expect(content == bytes(node.data), "content of an open file:", content, bytes(node.data))
            links = self.core.getattr(Ino(node.ino)).nlink
            if node.kind != DIR or self.base_nlink:
                more = node.token in self.base_linked and links > self.plain.nlink(node)
                expect(links == self.plain.nlink(node) or more, "links of an open file:", links, self.plain.nlink(node))
        wrong = self.kernel.incoherent()
        expect(not wrong, "the kernel would be wrong:", *wrong)

    def check_checkpoints(self) -> None:
        """Every checkpoint reads back as it was."""
        for id, root in self.snaps.items():
            compare_view(self.world.roots.view(self.world.roots.of(id)), root, self.world.read_entry)

    def check_sealed(self) -> None:
        """As ``check_checkpoints``, from the disk alone."""
        self.world.seal_all()
        self.reopen()
        self.check()
        self.check_checkpoints()


__all__ = ["NOREPLACE", "Plain", "Rig", "facts"]
