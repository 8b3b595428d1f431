"""A file system as plain Python objects: what the served tree is compared with.

Written from POSIX and the design alone, so that the code under test is not its own judge. A ``Node`` is an inode. Its
``token`` is who it is in every tree, its ``serial`` who it is for the kernel: a restore that brings other content gives
a new serial. ``version`` says which of its contents it has: equal versions are equal bytes, not the reverse.
"""

from __future__ import annotations

import errno
import itertools
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

REG, DIR, LNK = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK
GIT = b".git"
NOREPLACE, EXCHANGE = 1, 2

_numbers = itertools.count(1)


class Refused(Exception):
    """What the operation answers instead of doing anything."""

    def __init__(self, *errnos: int) -> None:
        super().__init__(" or ".join(errno.errorcode[number] for number in errnos))
        self.errnos = errnos


@dataclass(eq=False)
class Node:
    """One inode. ``mtime`` is what stat shows, ``tree_mtime`` what the tree says: a restore shows its own time."""

    kind: int
    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    tree_mtime: int = 0
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    target: bytes = b""
    rdev: int = 0
    entries: dict[bytes, Node] = field(default_factory=dict)
    token: int = field(default_factory=lambda: next(_numbers))
    serial: int = field(default_factory=lambda: next(_numbers))
    version: int = field(default_factory=lambda: next(_numbers))
    ino: int | None = None
    came: int = 0
    """The time that a restore showed for its content."""
    renumbered: bool = False
    """A restore gave it its number, which need not outlast the mount."""
    blurred: bool = False
    """Another inode of the tree has the same past (it was moved into a ``.git`` that was kept, and the restore brought
    it back where it had been): which of them shows which number and time is not promised."""

    def touch(self) -> None:
        """The tree now says what is shown."""
        self.tree_mtime = self.mtime

    def written(self, now: int) -> None:
        self.version = next(_numbers)
        self.mtime = now
        self.touch()

    def value(self) -> tuple[object, ...]:
        """What a checkpoint keeps of it, but for what a directory holds."""
        return (
            self.kind,
            self.mode,
            self.uid,
            self.gid,
            tuple(sorted(self.xattrs.items())),
            bytes(self.data),
            self.target,
            self.rdev,
        )

    def same_value(self, other: Node) -> bool:
        """As ``value``, with the mtime where it counts."""
        return self.value() == other.value() and (self.kind == DIR or self.tree_mtime == other.tree_mtime)

    def same_content(self, other: Node) -> bool:
        """Equal bytes."""
        return (self.kind, self.data, self.target, self.rdev) == (other.kind, other.data, other.target, other.rdev)


def clone(node: Node, memo: dict[int, Node]) -> Node:
    """A copy of ``node`` and all below; hard links stay links."""
    known = memo.get(id(node))
    if known is not None:
        return known
    copy = Node(
        node.kind,
        node.mode,
        node.uid,
        node.gid,
        node.mtime,
        node.tree_mtime,
        dict(node.xattrs),
        bytearray(node.data),
        node.target,
        node.rdev,
        {},
        node.token,
        node.serial,
        node.version,
        node.ino,
        node.came,
        node.renumbered,
        node.blurred,
    )
    memo[id(node)] = copy
    for name, child in node.entries.items():
        copy.entries[name] = clone(child, memo)
    return copy


def walk(root: Node, path: bytes = b"") -> Iterator[tuple[bytes, Node]]:
    """(path, node) of everything, a directory before what it holds, sorted."""
    yield path, root
    for name in sorted(root.entries):
        yield from walk(root.entries[name], path + b"/" + name if path else name)


def blur(root: Node, known: set[int]) -> None:
    """Mark inodes that share a past with another, and what is below them. ``known`` are tokens that once did."""
    nodes = {id(node): node for _, node in walk(root)}
    tokens = Counter(node.token for node in nodes.values())
    for node in nodes.values():
        if tokens[node.token] > 1 or node.blurred or node.token in known:
            for _, below in walk(node):
                below.blurred = True
                known.add(below.token)


def at(root: Node, path: bytes) -> Node | None:
    found: Node | None = root
    for name in path.split(b"/") if path else ():
        found = None if found is None else found.entries.get(name)
    return found


class Plain:
    """The whole file system. Each operation does what it should or raises Refused."""

    def __init__(self) -> None:
        self.root = Node(DIR, 0o755, ino=1)

    # Looking

    def paths(self) -> dict[bytes, Node]:
        return dict(walk(self.root))

    def nlink(self, node: Node) -> int:
        if node.kind == DIR:
            return 2 + sum(child.kind == DIR for child in node.entries.values()) if self.has_name(node) else 0
        return sum(child is node for _, parent in walk(self.root) for child in parent.entries.values())

    def has_name(self, node: Node) -> bool:
        return any(found is node for _, found in walk(self.root))

    def _within(self, node: Node, above: Node) -> bool:
        return any(found is node for _, found in walk(above))

    # Making

    def make(self, parent: Node, name: bytes, node: Node, now: int) -> Node:
        if not self.has_name(parent):
            raise Refused(errno.ENOENT)
        if name in parent.entries:
            raise Refused(errno.EEXIST)
        node.mtime = node.tree_mtime = now
        if parent.mode & stat.S_ISGID:
            node.gid = parent.gid
            if node.kind == DIR:
                node.mode |= stat.S_ISGID
        self._changed(parent, now)
        parent.entries[name] = node
        return node

    def link(self, node: Node, parent: Node, name: bytes, now: int) -> None:
        if node.kind == DIR:
            raise Refused(errno.EPERM)
        if name in parent.entries:
            raise Refused(errno.EEXIST)
        node.touch()
        self._changed(parent, now)
        parent.entries[name] = node

    def _changed(self, directory: Node, now: int) -> None:
        directory.mtime = directory.tree_mtime = now

    # Removing

    def unlink(self, parent: Node, name: bytes, now: int) -> Node:
        node = parent.entries.get(name)
        if node is None:
            raise Refused(errno.ENOENT)
        if node.kind == DIR:
            raise Refused(errno.EISDIR)
        return self._drop(parent, name, now)

    def rmdir(self, parent: Node, name: bytes, now: int) -> Node:
        node = parent.entries.get(name)
        if node is None:
            raise Refused(errno.ENOENT)
        if node.kind != DIR:
            raise Refused(errno.ENOTDIR)
        if node.entries:
            raise Refused(errno.ENOTEMPTY)
        return self._drop(parent, name, now)

    def _drop(self, parent: Node, name: bytes, now: int) -> Node:
        self._changed(parent, now)
        node = parent.entries.pop(name)
        if node.kind != DIR and self.nlink(node):
            node.touch()
        return node

    def rename(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int, now: int) -> None:
        if flags & ~(NOREPLACE | EXCHANGE) or flags == NOREPLACE | EXCHANGE:
            raise Refused(errno.EINVAL)
        node, other = parent.entries.get(name), new_parent.entries.get(new_name)
        if node is None or (flags & EXCHANGE and other is None):
            raise Refused(errno.ENOENT)
        if node.kind == DIR and self._within(new_parent, node):
            raise Refused(errno.EINVAL, errno.EEXIST)
        if flags & NOREPLACE and other is not None:
            raise Refused(errno.EEXIST)
        if other is node:
            return
        if flags & EXCHANGE:
            assert other is not None
            if other.kind == DIR and self._within(parent, other):
                raise Refused(errno.EINVAL)
            parent.entries[name], new_parent.entries[new_name] = other, node
            other.touch()
        else:
            if other is not None:
                if other.kind == DIR and self._within(parent, other):
                    raise Refused(errno.ENOTEMPTY, errno.EISDIR)
                if node.kind == DIR and other.kind != DIR:
                    raise Refused(errno.ENOTDIR)
                if node.kind != DIR and other.kind == DIR:
                    raise Refused(errno.EISDIR)
                if other.kind == DIR and other.entries:
                    raise Refused(errno.ENOTEMPTY)
            del parent.entries[name]
            new_parent.entries[new_name] = node
            if other is not None and other.kind != DIR and self.nlink(other):
                other.touch()
        node.touch()
        self._changed(parent, now)
        self._changed(new_parent, now)

    # Content

    def write(self, node: Node, offset: int, data: bytes, now: int) -> None:
        if not data:
            return
        node.data.extend(bytes(max(0, offset - len(node.data))))
        node.data[offset : offset + len(data)] = data
        node.written(now)

    def truncate(self, node: Node, size: int, now: int) -> None:
        del node.data[size:]
        node.data.extend(bytes(size - len(node.data)))
        node.written(now)

    def zero(self, node: Node, offset: int, length: int, keep_size: bool, now: int) -> None:
        end = min(offset + length, len(node.data))
        if offset < end:
            node.data[offset:end] = bytes(end - offset)
            node.written(now)
        if not keep_size and offset + length > len(node.data):
            self.truncate(node, offset + length, now)

    def copy_range(self, source: Node, offset: int, target: Node, target_offset: int, length: int, now: int) -> int:
        data = bytes(source.data[offset : offset + length])
        self.write(target, target_offset, data, now)
        return len(data)


# Whole trees


def differs(
    a: Node, b: Node, skip_git: bool = False, same_value: Callable[[Node, Node], bool] = Node.same_value
) -> bool:
    """True if the trees certainly differ in what a checkpoint is about."""
    if not same_value(a, b):
        return True
    names = (set(a.entries) | set(b.entries)) - ({GIT} if skip_git else set())
    for name in names:
        one, other = a.entries.get(name), b.entries.get(name)
        if one is None or other is None or differs(one, other, skip_git, same_value):
            return True
    return False


def keep_git(onto: Node, present: Node) -> Node:
    """``onto``, with the ``.git`` of ``present`` wherever both have the directory that holds it. Copies both."""
    memo: dict[int, Node] = {}
    root = clone(onto, memo)
    present_memo: dict[int, Node] = {}

    def graft(ours: Node, theirs: Node) -> None:
        for name, child in theirs.entries.items():
            own = ours.entries.get(name)
            if name == GIT:
                ours.entries[name] = clone(child, present_memo)
            elif own is not None and own.kind == child.kind == DIR:
                graft(own, child)

    graft(root, present)
    _rejoin(root, set(map(id, present_memo.values())), onto, present)
    return root


def pick(present: Node, source: Node, paths: list[bytes]) -> Node:
    """``present`` with ``paths`` as ``source`` has them. Copies both."""
    if b"" in paths:
        return clone(source, {})
    root = clone(present, {})
    memo: dict[int, Node] = {}
    for path in sorted(paths):
        *above, name = path.split(b"/")
        ours: Node | None = root
        theirs: Node | None = source
        wanted = at(source, path)
        for step in above:
            theirs = None if theirs is None else theirs.entries.get(step)
            found = ours.entries.get(step)
            if found is None or found.kind != DIR:
                if wanted is None or theirs is None:
                    ours = None
                    break
                found = clone(Node(DIR, 0), {})
                for what in ("mode", "uid", "gid", "mtime", "tree_mtime", "token"):
                    setattr(found, what, getattr(theirs, what))
                found.xattrs = dict(theirs.xattrs)
                ours.entries[step] = found
            ours = found
        if ours is None:
            continue
        if wanted is None:
            ours.entries.pop(name, None)
        else:
            ours.entries[name] = clone(wanted, memo)
    _rejoin(root, set(map(id, memo.values())), present, source)
    return root


def _rejoin(root: Node, foreign: set[int], onto: Node, source: Node) -> None:
    """Hard links that came from two trees are one inode still if it is the same in both, with several names in each;
    else there are two.
    """
    own: dict[int, Node] = {}
    names, own_names = (
        Counter(one.token for _, node in walk(top) for one in node.entries.values()) for top in (source, onto)
    )
    for _, node in walk(root):
        if id(node) not in foreign and node.kind != DIR:
            own.setdefault(node.token, node)
    split: list[Node] = []
    for _, directory in list(walk(root)):
        for name, child in directory.entries.items():
            if child.kind != DIR and id(child) in foreign and child.token in own:
                mine = own[child.token]
                if (
                    min(names[child.token], own_names[child.token]) > 1
                    and mine.version == child.version
                    and mine.same_value(child)
                ):
                    directory.entries[name] = mine
                else:
                    split.append(child)
                    child.blurred = mine.blurred = True
    for child in split:
        child.token = next(_numbers)
