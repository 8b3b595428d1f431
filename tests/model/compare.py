"""Comparing a served tree, and the trees of checkpoints, with the plain model."""

from __future__ import annotations

import os
import stat

from store.format import Directory, Regular, Special, Symlink
from store.refs import Ino
from tests.model.kernel import ROOT, facts, list_all, read_all
from tests.model.plain import DIR, LNK, REG, Node, Plain, walk
from vfs.trees.view import View


class Differs(AssertionError):
    """The served tree is not what the model says."""


def expect(condition: bool, what: str, *rest: object) -> None:
    if not condition:
        raise Differs(" ".join([what, *map(repr, rest)]))


class Served:
    """Compares what ``core`` serves with ``plain``, and remembers who had which number in this mount."""

    def __init__(self, core, plain: Plain, base_nlink: bool, base_linked: set[int]) -> None:
        self.base_linked = base_linked
        self.core = core
        self.plain = plain
        self.base_nlink = base_nlink
        self.owner: dict[int, int] = {ROOT: plain.root.serial}
        """Inode number to the serial of whom it belongs to."""

    def own(self, node: Node, path: bytes) -> None:
        if node.blurred:
            return
        serial = self.owner.setdefault(node.ino, node.serial)
        expect(serial == node.serial, f"{path!r} has the number of another inode:", node.ino)

    def check(self) -> None:
        """The whole tree, asked for afresh."""
        root = facts(self.core.getattr(Ino(ROOT)))
        self._attributes(b"", self.plain.root, root)
        self._directory(b"", self.plain.root)

    def _directory(self, path: bytes, node: Node) -> None:
        expect(node.ino is not None, "no number for", path)
        listed = list_all(self.core, node.ino)
        expect(set(listed) == set(node.entries), f"names in {path!r}:", sorted(listed), sorted(node.entries))
        for name, child in sorted(node.entries.items()):
            below = path + b"/" + name if path else name
            inode = self.core.lookup(Ino(node.ino), name)
            try:
                number = inode.ino if not child.blurred else listed[name][0]
                expect(listed[name] == (number, inode.mode >> 12), f"d_ino of {below!r}:", listed[name], inode.ino)
                if child.ino is None or child.blurred:
                    child.ino = inode.ino
                self._attributes(below, child, facts(inode))
                self._content(below, child)
                if child.kind == DIR:
                    self._directory(below, child)
            finally:
                self.core.forget(inode.ino, 1)
        for name in (b"never there", b"\xc3\xa9"):
            expect(name in node.entries or self._absent(node, name), "found", path, name)

    def _absent(self, node: Node, name: bytes) -> bool:
        return self.core.names.lookup is not None and _missing(self.core, node.ino, name)

    def _attributes(self, path: bytes, node: Node, found: tuple[int, ...]) -> None:
        ino, mode, nlink, uid, gid, rdev, size, _, mtime, _ = found
        expect(ino == node.ino, f"number of {path!r}:", ino, node.ino)
        self.own(node, path)
        expect(mode == node.kind | node.mode, f"mode of {path!r}:", oct(mode), oct(node.kind | node.mode))
        expect((uid, gid) == (node.uid, node.gid), f"owner of {path!r}:", (uid, gid), (node.uid, node.gid))
        expect(mtime == node.mtime or node.blurred, f"mtime of {path!r}:", mtime, node.mtime, node.tree_mtime)
        if node.kind != DIR or self.base_nlink:
            links = self.plain.nlink(node)
            # Names in a directory that paths of a checkpoint took away as a whole are not counted one by one.
            more = node.token in self.base_linked and nlink > links
            expect(nlink == links or more, f"links of {path!r}:", nlink, links)
        if node.kind == REG:
            expect(size == len(node.data), f"size of {path!r}:", size, len(node.data))
        if node.kind == LNK:
            expect(size == len(node.target), f"size of {path!r}:", size, len(node.target))
        if node.kind in (stat.S_IFCHR, stat.S_IFBLK):
            expect(rdev == node.rdev, f"device of {path!r}:", rdev, node.rdev)

    def _content(self, path: bytes, node: Node) -> None:
        ino = Ino(node.ino)
        if node.kind == REG:
            content = read_all(self.core, ino)
            expect(content == bytes(node.data), f"content of {path!r}:", content, bytes(node.data))
            self._holes(path, node)
        elif node.kind == LNK:
            expect(self.core.readlink(ino) == node.target, "target of", path)
        names = self.core.listxattr(ino)
        xattrs = {name: self.core.getxattr(ino, name) for name in names}
        expect(xattrs == node.xattrs, f"xattrs of {path!r}:", xattrs, node.xattrs)

    def _holes(self, path: bytes, node: Node) -> None:
        """What lseek(2) calls a hole reads as zeros."""
        at, size = 0, len(node.data)
        while at < size:
            try:
                data = self.core.lseek(Ino(node.ino), at, os.SEEK_DATA)
            except Exception:  # ENXIO: nothing but a hole to the end
                data = size
            expect(at <= data <= size and not any(node.data[at:data]), f"a hole in {path!r}", at, data)
            if data == size:
                break
            at = self.core.lseek(Ino(node.ino), data, os.SEEK_HOLE)
            expect(data < at <= size, f"data in {path!r}", data, at)


def _missing(core, ino: int, name: bytes) -> bool:
    try:
        inode = core.lookup(Ino(ino), name)
    except Exception:
        return True
    core.forget(inode.ino, 1)
    return False


def compare_view(view: View, root: Node, read, directory_times: bool = True) -> None:
    """A checkpoint's tree is ``root`` as it was then; a scan does not note when a directory was last changed."""
    found = dict(view.walk())
    wanted = dict(walk(root))
    expect(set(found) == set(wanted), "paths of the checkpoint:", sorted(found), sorted(wanted))
    numbers: dict[int, int] = {}
    for path, node in wanted.items():
        entry = found[path]
        attributes = entry.attributes
        expect(attributes.mode == node.mode or node.kind == LNK, f"mode of {path!r}", attributes.mode, node.mode)
        expect((attributes.uid, attributes.gid) == (node.uid, node.gid), f"owner of {path!r}")
        same_time = attributes.mtime_ns == node.tree_mtime or node.blurred
        same_time = same_time or (node.kind == DIR and not directory_times)
        expect(same_time, f"mtime of {path!r}", attributes.mtime_ns, node.tree_mtime)
        expect(dict(attributes.xattrs) == node.xattrs, f"xattrs of {path!r}", attributes.xattrs, node.xattrs)
        match entry:
            case Regular():
                expect(node.kind == REG, f"type of {path!r}")
                content = read(entry)
                expect(content == bytes(node.data), f"content of {path!r}:", content, bytes(node.data))
            case Directory():
                expect(node.kind == DIR, f"type of {path!r}")
            case Symlink():
                expect(node.kind == LNK and entry.target == node.target, f"target of {path!r}")
            case Special():
                expect((entry.file_type, entry.rdev) == (node.kind, node.rdev), f"type of {path!r}")
        if node.kind != DIR:
            numbers.setdefault(id(node), attributes.ino)
            expect(numbers[id(node)] == attributes.ino, f"{path!r} is no link any more")
