"""A scanned directory and its plain model, driven side by side: a user's steps are system calls on the directory."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import random
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import store.nodes
import vfs.scan.reading
import vfs.scan.statindex
from tests.model import bases
from tests.model.compare import Differs, compare_view, expect
from tests.model.machine import memory_directory
from tests.model.plain import DIR, GIT, LNK, REG, Node, Refused, at, clone, differs, walk
from tests.model.story import Story
from tests.scan.conftest import Scanned
from vfs.scan.policy import Policy
from vfs.scan.statindex import StatIndex

SMALL = {
    (vfs.scan.reading, "CHUNK_BYTES"): 1024,
    (vfs.scan.reading, "INLINE_MAX"): 16,
    (vfs.scan.reading, "HOLE_MIN"): 64,
    (vfs.scan.statindex, "COMPACT_BYTES"): 4096,
    (store.nodes, "LEAF_MAX"): 4,
}
"""Limits made small, so that a few bytes and names reach beyond them."""

TICK_NS = 20_000_000
"""The kernel's clock for file times may be so far behind (ns)."""


class ScanRig(Story):
    """A directory with base number ``base``, served without FUSE, and its model. ``close`` it."""

    def __init__(self, base: int) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="plyfs-model-", dir=memory_directory()))
        self._patches = [mock.patch.object(module, name, value) for (module, name), value in SMALL.items()]
        for patch in self._patches:
            patch.start()
        self.place = os.fsencode(self.top / "workspace")
        os.mkdir(self.place)
        self.plain = bases.base(self.place, base)
        self._without_git(self.plain.root, self.place)
        self.git = os.path.join(self.place, GIT, b"a")
        os.mkdir(os.path.dirname(self.git))
        with open(self.git, "wb") as file:
            file.write(b"nobody's business")
        for path, node in walk(self.plain.root):
            node.mtime = node.tree_mtime = os.lstat(self.at(path)).st_mtime_ns
        self.git_status = os.lstat(self.git)
        self.random = random.Random(0)
        self.one = Scanned(self.top / "workspace", self.top / "home")
        self.one.start()
        self.begin()

    def _without_git(self, node: Node, place: bytes) -> None:
        for name, child in list(node.entries.items()):
            if name == GIT:
                del node.entries[name]
                below = os.path.join(place, name)
                shutil.rmtree(below) if child.kind == DIR else os.unlink(below)
            else:
                self._without_git(child, os.path.join(place, name))

    def close(self) -> None:
        self.one.stop()
        for patch in self._patches:
            patch.stop()
        shutil.rmtree(self.top)

    # What the story asks

    @property
    def timeline(self):
        return self.one.ws.timeline

    @property
    def head(self) -> str:
        return self.timeline.head.head

    @property
    def history(self):
        return self.timeline.store.history

    def way_forward(self) -> list[str]:
        return self.one.ws.log().redo

    def tick(self) -> int:
        return time.time_ns()

    def is_unsaved(self) -> bool:
        status = self.one.ws.status()
        expect(status.dirty == bool(status.changed), "dirty is changed")
        return status.dirty

    def tree_of(self, id: str, with_git: bool) -> Node:
        return clone(self.snaps[id], {})

    def certainly_differ(self, a: Node, b: Node, skip_git: bool = False) -> bool:
        return differs(a, b, skip_git, _same)

    def snap(self, id: str, root: Node) -> None:
        """A file that a restore gave a fresh time may be recorded with that or with the one that it had."""
        super().snap(id, root)
        view = self._view(id)
        present = dict(walk(self.plain.root))
        for path, node in walk(self.snaps[id]):
            entry = view.lookup(path)
            now = present.get(path)
            if entry is None or node.kind == DIR:
                continue
            recorded = entry.attributes.mtime_ns
            expect(recorded in (node.mtime, node.tree_mtime), f"recorded time of {path!r}:", recorded, node.mtime)
            if now is not None and (now.token, now.mtime) == (node.token, node.mtime):
                now.tree_mtime = recorded
            node.tree_mtime = recorded

    def do_checkpoint(self, label: str | None):
        return self.one.ws.checkpoint(label)

    def do_undo(self, count: int):
        return self._kept_nothing(self.one.ws.undo(count))

    def do_redo(self, count: int):
        return self._kept_nothing(self.one.ws.redo(count))

    def do_restore(self, id: str, with_git: bool):
        return self._kept_nothing(self.one.ws.restore(id))

    def would_change(self, id: str, paths: list[bytes]) -> bool:
        return bool(self.one.ws.restore(id, [os.fsdecode(path) for path in paths], dry_run=True).changes)

    def do_restore_paths(self, id: str, paths: list[bytes]):
        return self._kept_nothing(self.one.ws.restore(id, [os.fsdecode(path) for path in paths]))

    @staticmethod
    def _kept_nothing(moved):
        expect(not moved.kept, "kept:", moved.kept)
        return moved

    def become(self, onto: Node, now: int) -> None:
        """What was there and stays is not touched; the rest shows numbers and times of its own."""
        before = dict(walk(self.plain.root))
        self._regroup(onto, before)
        names = dict(walk(onto))
        links = Counter(id(node) for node in (*before.values(), *names.values()))
        untouched = set()
        for path, node in names.items():
            old = before.get(path)
            if old is not None and links[id(node)] == 1 < links[id(old)] and old.tree_mtime != node.tree_mtime:
                continue  # its own again: whether others share it nobody knows, so no time is set in place
            if old is not None and old.token == node.token and (node.kind == DIR or _as_it_was(old, node)):
                untouched.add(id(node))
                node.ino = old.ino
                node.mtime = old.mtime
                if node.kind != DIR and old.tree_mtime != node.tree_mtime:
                    node.mtime = os.lstat(self.at(path)).st_mtime_ns
                    expect(node.mtime in (old.mtime, node.tree_mtime), f"mtime of {path!r}:", node.mtime)
        for path, node in names.items():
            if id(node) in untouched:
                if node.kind == DIR:
                    node.mtime = os.lstat(self.at(path)).st_mtime_ns
                continue
            status = os.lstat(self.at(path))
            old = before.get(path)
            node.ino = status.st_ino
            node.mtime = status.st_mtime_ns
            if node.kind == REG and old is not None and old.kind == REG and self.plain.nlink(old) == 1:
                moved_here = any(one.token == node.token for one in before.values() if one is not old)
                if bytes(old.data) != bytes(node.data) and not moved_here:
                    expect(node.mtime > now - TICK_NS, f"a fresh time of {path!r}", node.mtime, now)
        self.plain.root = onto

    def _regroup(self, onto: Node, before: dict[bytes, Node]) -> None:
        """Equal files that stand on both sides stay one inode, or two, if they are that now: no diff tells of it."""
        names = {path: node for path, node in walk(onto) if node.kind != DIR and path in before}
        shown = {path: os.lstat(self.at(path)).st_ino for path in names if os.path.lexists(self.at(path))}
        for path, other in itertools.combinations(sorted(shown), 2):
            one, two = at(onto, path), at(onto, other)
            linked = before[path] is before[other]
            if (one is two) == linked or (shown[path] == shown[other]) != linked or not _same(one, two):
                continue
            *above, name = other.split(b"/")
            at(onto, b"/".join(above)).entries[name] = one if linked else _split(two)

    # A user's steps

    def at(self, path: bytes) -> bytes:
        return os.path.join(self.place, path) if path else self.place

    def files(self) -> list[tuple[bytes, Node]]:
        return [(path, node) for path, node in walk(self.plain.root) if node.kind == REG]

    def both(self, model: Callable[[int], object], real: Callable[[], object]) -> bool:
        """The model does it, and so must the kernel; or neither. The kernel's clock is the model's."""
        now = time.time_ns()
        times = {id(node): (node.mtime, node.tree_mtime) for _, node in walk(self.plain.root)}
        try:
            model(now)
        except Refused as refused:
            try:
                real()
            except OSError:
                return False
            raise Differs(f"done, not refused with {refused}") from None
        real()
        for path, node in walk(self.plain.root):
            status = os.lstat(self.at(path))
            before = times.get(id(node))
            if node.mtime == now and (before is None or status.st_mtime_ns != before[0]):
                node.mtime = node.tree_mtime = status.st_mtime_ns
            elif node.mtime == now:  # within one tick of the kernel's clock, or the same size again
                node.mtime, node.tree_mtime = before
            elif node.mtime == times[id(node)][0]:
                node.tree_mtime = times[id(node)][1]  # a further name leaves what is recorded as it is
            if node.ino is None:
                node.ino = status.st_ino
        return True

    def make(self, path: bytes, name: bytes, kind: int = REG, mode: int = 0o644, uid: int = 0) -> None:
        parent = at(self.plain.root, path)
        assert parent is not None
        node = Node(kind, 0o777 if kind == LNK else mode & ~0o022, uid, uid)
        place = self.at(path + b"/" + name if path else name)
        if kind == LNK:
            node.target = b"target/%d" % self.random.randrange(1 << 30)
        elif kind == stat.S_IFCHR:
            node.rdev = os.makedev(1, 3)

        def real() -> None:
            if kind == DIR:
                os.mkdir(place)
            elif kind == LNK:
                os.symlink(node.target, place)
            else:
                os.mknod(place, kind | 0o600, node.rdev)
            os.lchown(place, node.uid, node.gid)
            if kind != LNK:
                os.chmod(place, node.mode)

        self.both(lambda now: self.plain.make(parent, name, node, now), real)

    def link(self, path: bytes, node: Node, into: bytes, name: bytes) -> None:
        parent = at(self.plain.root, into)
        assert parent is not None
        self.both(
            lambda now: self.plain.link(node, parent, name, now),
            lambda: os.link(self.at(path), os.path.join(self.at(into), name), follow_symlinks=False),
        )

    def remove(self, path: bytes, name: bytes, directory: bool) -> None:
        parent = at(self.plain.root, path)
        assert parent is not None
        place = os.path.join(self.at(path), name)
        model = self.plain.rmdir if directory else self.plain.unlink
        self.both(lambda now: model(parent, name, now), lambda: os.rmdir(place) if directory else os.unlink(place))

    def rename(self, path: bytes, name: bytes, new_path: bytes, new_name: bytes, flags: int = 0) -> None:
        parent, new_parent = at(self.plain.root, path), at(self.plain.root, new_path)
        assert parent is not None and new_parent is not None
        source, target = os.path.join(self.at(path), name), os.path.join(self.at(new_path), new_name)
        self.both(
            lambda now: self.plain.rename(parent, name, new_parent, new_name, flags, now),
            lambda: _rename(source, target, flags),
        )

    def write(self, path: bytes, node: Node, offset: int, data: bytes, kill: bool = False) -> None:
        def real() -> None:
            with open(self.at(path), "r+b") as file:
                os.pwrite(file.fileno(), data, offset)

        self.both(lambda now: self.plain.write(node, offset, data, now), real)

    def truncate(self, path: bytes, node: Node, size: int) -> None:
        self.both(lambda now: self.plain.truncate(node, size, now), lambda: os.truncate(self.at(path), size))

    def set(self, path: bytes, node: Node, mode=None, uid=None, gid=None, mtime=None) -> None:
        place = self.at(path)

        def model(now: int) -> None:
            node.mode = node.mode if mode is None else mode
            node.uid = node.uid if uid is None else uid
            if mtime is not None:
                node.mtime = node.tree_mtime = mtime

        def real() -> None:
            os.chown(place, node.uid, node.gid)
            os.chmod(place, node.mode)  # chown(2) takes setuid and setgid away
            if mtime is not None:
                os.utime(place, ns=(mtime, mtime))

        self.both(model, real)

    def xattr(self, path: bytes, node: Node, name: bytes, value: bytes | None) -> None:
        place = self.at(path)

        def model(now: int) -> None:
            if value is None and name not in node.xattrs:
                raise Refused(errno.ENODATA)
            if value is None:
                del node.xattrs[name]
            elif node.kind not in (REG, DIR):
                raise Refused(errno.EPERM)
            else:
                node.xattrs[name] = value

        def real() -> None:
            if value is None:
                os.removexattr(place, name, follow_symlinks=False)
            else:
                os.setxattr(place, name, value, follow_symlinks=False)

        self.both(model, real)

    # The daemon's life

    def seal_all(self) -> None:
        self.timeline.sealing.drain()

    def crash(self) -> None:
        """Kill it and start again: nothing is lost."""
        head, redo = self.head, self.way_forward()
        self.one.die()
        self._again(head, redo)

    def reopen(self) -> None:
        """End it and start again."""
        head, redo = self.head, self.way_forward()
        self.one.ws.unmount("keep")
        self.one.ws.close()
        self._again(head, redo)

    def lose_records(self) -> None:
        """End it, lose what it knows of the files, and start again: that only costs time, and the times that restored
        files had in their checkpoint.
        """
        head, redo = self.head, self.way_forward()
        self.one.ws.unmount("keep")
        self.one.ws.close()
        os.unlink(self.timeline.index_path)
        self._again(head, redo, with_records=False)
        for _, node in walk(self.plain.root):
            node.touch()

    def _again(self, head: str, redo: list[str], with_records: bool = True) -> None:
        index = StatIndex.load(self.timeline.index_path, repr(Policy()).encode())
        expect((index is not None) == with_records, "the records can be used")
        ws = self.one.start()
        expect(not ws.notes(), "notes:", ws.notes())
        self.as_before(head, redo)

    # Comparing

    def check(self) -> None:
        """The directory is what the model says, and so is what plyfs says of it."""
        found = {}
        for top, directories, files in os.walk(self.place):
            if top == self.place:
                directories.remove(GIT)
            for name in directories + files:
                where = os.path.join(top, name)
                found[where[len(self.place) + 1 :]] = where
        wanted = dict(walk(self.plain.root))
        del wanted[b""]
        expect(set(found) == set(wanted), "paths:", sorted(set(found) ^ set(wanted)))
        inos: dict[int, int] = {}
        for path, node in wanted.items():
            self._same(path, node)
            expect(inos.setdefault(node.ino, id(node)) == id(node), f"{path!r} has the number of another inode")
        now = os.lstat(self.git)
        was = self.git_status
        expect((now.st_ino, now.st_ctime_ns, now.st_size) == (was.st_ino, was.st_ctime_ns, was.st_size), ".git touched")
        if self.certainly_differ(self.baseline, self.plain.root):
            expect(self.is_unsaved(), "the present differs from the head")

    def _same(self, path: bytes, node: Node) -> None:
        place = self.at(path)
        status = os.lstat(place)
        expect(status.st_mode == node.kind | node.mode, f"mode of {path!r}:", oct(status.st_mode), oct(node.mode))
        expect((status.st_uid, status.st_gid) == (node.uid, node.gid), f"owner of {path!r}")
        expect(status.st_ino == node.ino, f"number of {path!r}:", status.st_ino, node.ino)
        expect(status.st_rdev == node.rdev, f"device of {path!r}")
        if node.kind != DIR:
            expect(status.st_mtime_ns == node.mtime, f"mtime of {path!r}:", status.st_mtime_ns, node.mtime)
            expect(status.st_nlink == self.plain.nlink(node), f"links of {path!r}:", status.st_nlink)
        if node.kind == REG:
            with open(place, "rb") as file:
                content = file.read()
            expect(content == bytes(node.data), f"content of {path!r}:", content, bytes(node.data))
        elif node.kind == LNK:
            expect(os.readlink(place) == node.target, f"target of {path!r}")
        names = os.listxattr(place, follow_symlinks=False)
        xattrs = {os.fsencode(name): os.getxattr(place, name, follow_symlinks=False) for name in names}
        expect(xattrs == node.xattrs, f"xattrs of {path!r}:", xattrs, node.xattrs)

    def _view(self, id: str):
        with self.timeline.working():
            present = self.timeline.scan()
            return self.timeline.targets.view(self.timeline.target(id, present))

    def check_checkpoints(self) -> None:
        """Every checkpoint reads back as it was."""

        def read(entry) -> bytes:
            return self.timeline.read(entry, 0, 1 << 20)

        for id, root in self.snaps.items():
            compare_view(self._view(id), root, read, directory_times=False)

    def check_sealed(self) -> None:
        """As ``check_checkpoints``, from the disk alone."""
        self.seal_all()
        self.reopen()
        self.check()
        self.check_checkpoints()


def _same(a: Node, b: Node) -> bool:
    """Equal, as far as it is certain what is recorded of a file that a restore gave a fresh time."""
    times = a.kind == DIR or a.tree_mtime == b.tree_mtime or a.mtime == b.mtime
    return times and a.value() == b.value()


def _as_it_was(a: Node, b: Node) -> bool:
    return a.version == b.version and _same(a, b)


def _split(node: Node) -> Node:
    """A copy that is another inode."""
    copy = clone(node, {})
    copy.token = Node(REG, 0).token
    return copy


def _rename(source: bytes, target: bytes, flags: int) -> None:
    if not flags:
        os.rename(source, target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, source, -100, target, flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
