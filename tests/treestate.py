"""The exact state of a directory tree as a user can see it, and what differs between two such states.

Owns no files; reads with lstat and never follows a symlink. Two trees are the same if every name, type, mode, owner,
time of modification, size, content, link target, device number, extended attribute and group of hard links is.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Facts:
    """What one path is. ``links`` names all paths of the same inode, if there are several."""

    kind: int
    mode: int
    owner: tuple[int, int]
    mtime_ns: int | None
    size: int | None
    content: str | None
    xattrs: tuple[tuple[str, bytes], ...]
    rdev: int
    links: tuple[str, ...] = ()


@dataclass
class TreeState:
    """Facts by path relative to the root; the root itself is ``"."``."""

    paths: dict[str, Facts] = field(default_factory=dict)

    def untimed(self) -> TreeState:
        """The same without times: what is left to compare once a restore has given changed files a fresh time."""
        return TreeState({path: replace(facts, mtime_ns=None) for path, facts in self.paths.items()})

    def differences(self, wanted: TreeState) -> list[str]:
        """One line for each path that is not as in ``wanted``."""
        lines = []
        for path in sorted(self.paths.keys() | wanted.paths.keys()):
            found, want = self.paths.get(path), wanted.paths.get(path)
            if found == want:
                continue
            if found is None:
                lines.append(f"missing: {path!r}")
            elif want is None:
                lines.append(f"left over: {path!r}")
            else:
                parts = [
                    f"{name} {getattr(found, name)!r} instead of {getattr(want, name)!r}"
                    for name in Facts.__dataclass_fields__
                    if getattr(found, name) != getattr(want, name)
                ]
                lines.append(f"wrong: {path!r}: {'; '.join(parts)}")
        return lines


def _content(path: bytes) -> str:
    digest = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
    except OSError:
        return ()
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)


def _facts(path: bytes, status: os.stat_result, times: bool) -> Facts:
    kind = stat.S_IFMT(status.st_mode)
    content = None
    if kind == stat.S_IFREG:
        content = _content(path)
    elif kind == stat.S_IFLNK:
        content = os.fsdecode(os.readlink(path))
    return Facts(
        kind=kind,
        mode=stat.S_IMODE(status.st_mode),
        owner=(status.st_uid, status.st_gid),
        # A directory's time says when entries came and went, which copying a tree by hand does not reproduce.
        mtime_ns=status.st_mtime_ns if times and kind != stat.S_IFDIR else None,
        size=None if kind == stat.S_IFDIR else status.st_size,
        content=content,
        xattrs=_xattrs(path),
        rdev=status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0,
    )


def capture(root: str | os.PathLike[str], skip: frozenset[str] = frozenset(), times: bool = True) -> TreeState:
    """The state of everything below ``root``, leaving out directories and files whose name is in ``skip``.

    ``times`` False leaves out when files were modified.
    """
    top = os.fsencode(os.fspath(root))
    state = TreeState({".": _facts(top, os.lstat(top), times)})
    groups: dict[tuple[int, int], list[str]] = {}
    waiting = [top]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if os.fsdecode(entry.name) in skip:
                    continue
                status = os.lstat(entry.path)
                relative = os.fsdecode(os.path.relpath(entry.path, top))
                state.paths[relative] = _facts(entry.path, status, times)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
                elif status.st_nlink > 1:
                    groups.setdefault((status.st_dev, status.st_ino), []).append(relative)
    for names in groups.values():
        for name in names if len(names) > 1 else ():
            state.paths[name] = replace(state.paths[name], links=tuple(sorted(names)))
    return state


def assert_same(found: TreeState, wanted: TreeState, when: str = "") -> None:
    """Raises AssertionError that names every path that differs."""
    lines = found.differences(wanted)
    if lines:
        more = [f"... and {len(lines) - 40} more"] if len(lines) > 40 else []
        raise AssertionError("\n".join([f"the tree is not as it should be {when}".rstrip() + ":", *lines[:40], *more]))


def capture_and_compare(a: Path, b: Path, times: bool = True) -> None:
    """Raises AssertionError unless the two trees are the same."""
    assert_same(capture(a, times=times), capture(b, times=times), f"in {a} against {b}")
