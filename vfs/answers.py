"""What a workspace answers alike, mounted, scanned, or served by nobody: its log, a look into one tree, its size.

Owns the rows of ``log`` and ``ls``, the bytes of ``cat``, what ``diff`` says of two trees, and how a path given by a
person is understood. Does not own which tree that is, nor whether anything may change meanwhile.
"""

from __future__ import annotations

import os
import posixpath
import stat
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from store.entries import content_size
from store.format import Directory, Regular, Special, Symlink
from store.history import History
from store.nodes import FreshRegular
from vfs.live.pending import Pending
from vfs.trees import patch
from vfs.trees.diff import Changed
from vfs.trees.view import Present, View
from vfs.workspace import DiffResult, ListedEntry, LogRow, WorkspaceError

TYPES = {Regular: "file", Directory: "directory", Symlink: "symlink"}
SPECIAL_TYPES = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}

SIZE_EVERY_SECONDS = 30.0
"""Adding up the store's size takes a walk through it, so it is done no more often."""

Read: TypeAlias = Callable[[Regular, int, int], bytes]
"""Bytes of a file of a tree: entry, offset, length. Raises DamagedError or FsError."""


def log_rows(history: History, head: str, session: str | None) -> list[LogRow]:
    """The checkpoints that are not hidden; of ``session`` alone, if it is given, and the head."""
    return [
        LogRow(
            one.id,
            one.parent,
            one.time_ns / 1e9,
            one.label,
            one.session,
            one.node,
            one.changed,
            one.state,
            one.kind,
        )
        for one in history.all()
        if one.kind != "hidden" and (session is None or one.session == session or one.id == head)
    ]


def slashed(path: bytes) -> bytes:
    """``path`` with slashes between its names, as the store has it on every system."""
    return path.replace(os.sep.encode(), b"/")


def inside(path: str, *tops: bytes) -> bytes:
    """``path``, absolute below one of ``tops`` or relative, as a path in the workspace. Raises WorkspaceError."""
    name = posixpath.normpath(slashed(os.fsencode(path))) if path else b""
    for top in map(slashed, tops):
        if name == top or name.startswith(top + b"/"):
            name = name[len(top) :].lstrip(b"/")
    if name.startswith((b"/", b"../")) or name == b"..":
        raise WorkspaceError(f"{path} is not in the workspace", hint="give paths relative to the workspace")
    return b"" if name == b"." else name


class Looked(NamedTuple):
    """One tree, as somebody looks into it who calls it ``checkpoint``; ``tops`` are where the workspace stands."""

    checkpoint: str
    view: View
    read: Read
    tops: tuple[bytes, ...]

    def cat(self, path: str, offset: int, length: int | None) -> bytes:
        """The content of a file or the target of a symlink. Raises WorkspaceError."""
        entry = self._entry(path)
        if isinstance(entry, Symlink):
            return entry.target[offset:] if length is None else entry.target[offset : offset + length]
        if not isinstance(entry, Regular):
            raise WorkspaceError(f"{path} is not a file in {self.checkpoint}", hint="`plyfs ls` shows what is there")
        return self.read(entry, offset, max(entry_size(entry) - offset, 0) if length is None else length)

    def ls(self, path: str) -> list[ListedEntry]:
        """A directory's children, sorted by name, or the one file that is not a directory. Raises WorkspaceError."""
        entry = self._entry(path)
        if not isinstance(entry, Directory):
            return [listed(os.path.basename(os.fsencode(path)), entry)]
        return [listed(name, child) for name, child in sorted(self.view.list(entry).items())]

    def _entry(self, path: str) -> Present:
        name = inside(path, *self.tops)
        entry = self.view.lookup(name) if name else self.view.root
        if entry is None:
            raise WorkspaceError(
                f"{path} is not in checkpoint {self.checkpoint}", hint=f"`plyfs ls {self.checkpoint}` shows what is"
            )
        return entry


def entry_size(entry: Regular) -> int:
    """The size of a file of any tree, bytes."""
    if isinstance(entry, FreshRegular):
        pending = entry.fresh.value
        assert isinstance(pending, Pending)
        return pending.size
    return content_size(entry.content)


def listed(name: bytes, entry: Present) -> ListedEntry:
    """A row of ``ls``."""
    kind = SPECIAL_TYPES.get(entry.file_type, "device") if isinstance(entry, Special) else ""
    if not kind:
        kind = next(text for form, text in TYPES.items() if isinstance(entry, form))
    size = entry_size(entry) if isinstance(entry, Regular) else 0
    target = os.fsdecode(entry.target) if isinstance(entry, Symlink) else None
    attributes = entry.attributes
    return ListedEntry(os.fsdecode(name), kind, attributes.mode, size, attributes.mtime_ns / 1e9, target)


def compared(
    found: list[Changed], before: View, after: View, read: Read, with_patch: bool, with_lines: bool
) -> DiffResult:
    """What is ``found`` to differ between two trees; if asked, with its text and the number of lines."""
    text = patch.patch(found, before, after, read, read) if with_patch else None
    lines = patch.line_counts(found, before, after, read, read) if with_lines else None
    return DiffResult([one.change() for one in found], text, lines)


class Sized(Protocol):
    """``store.inventory.Inventory`` is one."""

    def bytes_used(self) -> int: ...


class StoreSize:
    """The size of the store, bytes, as it was not long ago. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0.0
        self._size = 0

    def of(self, inventory: Sized) -> int:
        """The size of what ``inventory`` lists."""
        with self._lock:
            if not self._asked or time.monotonic() - self._asked > SIZE_EVERY_SECONDS:
                self._size = inventory.bytes_used()
                self._asked = time.monotonic()
            return self._size
