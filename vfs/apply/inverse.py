"""The inverse of an apply: the old base as a tree over the new one.

Owns that tree while a plan is made: it is told where each object of the base goes, what comes in its place and which
attributes change, and makes of it pages that ``translate`` uses from then on.

Concurrency: one thread.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from store.entries import below, link_key
from store.format import Absent, Directory, Entry, Linked, LinkTarget, Origin, Original, Regular, Special, Symlink
from vfs.trees.host import parent

if TYPE_CHECKING:
    from store.nodes import Page, Pages
    from store.refs import Ino
    from vfs.trees.host import Host

Told: TypeAlias = "dict[bytes, Told]"
"""The names of which the inverse says something, as a tree."""


class Shared(NamedTuple):
    """An inode of the base with several names: one of them, what it was, and how many names it had."""

    path: bytes
    inode: Regular | Symlink | Special
    links: int


class Inverse:
    """What is known of the old base. All paths are those of the old base; it is read as long as it still is there."""

    def __init__(self, host: Host, pages: Pages) -> None:
        self._host = host
        self._pages = pages
        self._entries: dict[bytes, Regular | Directory | Symlink | Special] = {}
        self._places: dict[bytes, Origin] = {b"": Origin(0, b"")}
        self._copies: dict[bytes, Origin] = {}
        self._opaque: set[bytes] = set()
        self._mtimes: dict[Ino, int] = {}
        self._absent: dict[bytes, set[bytes]] = {}
        self._taken: Counter[bytes] = Counter()
        self._arrived: Counter[bytes] = Counter()
        self._shared: dict[Ino, Shared] = {}
        self._names: dict[bytes, Ino] = {}
        self.tell(b"", None)

    def tell(self, path: bytes, status: os.stat_result | None) -> Regular | Directory | Symlink | Special:
        """Say something of ``path``: what it was, as the base has it now."""
        entry = self._entries.get(path)
        if entry is None:
            entry = self._entries[path] = self._host.entry(Origin(0, path), status)
        return entry

    def moved(self, path: bytes, status: os.stat_result, place: Origin) -> None:
        """``path`` itself, with all below it, goes to ``place``, a path of the new base or in the attic."""
        self.tell(path, status)
        self._places[path] = place
        self._taken[parent(path)[0]] += stat.S_ISDIR(status.st_mode)

    def copied(self, path: bytes, status: os.stat_result, copy: Origin | None) -> None:
        """``path`` goes, and a regular file's bytes are kept at ``copy``. Of a directory everything in it is told."""
        self.tell(path, status)
        if copy is not None:
            self._copies[path] = copy
        if stat.S_ISDIR(status.st_mode):
            self._opaque.add(path)

    def removed(self, path: bytes, status: os.stat_result) -> None:
        """What was told to be ``copied`` as a whole leaves its directory."""
        self._taken[parent(path)[0]] += stat.S_ISDIR(status.st_mode)

    def arrived(self, directory: bytes, name: bytes, is_directory: bool, replaces: bool) -> None:
        """In the directory that was ``directory``, there is something new by the name ``name``."""
        self._arrived[directory] += is_directory
        if not replaces:
            self._absent.setdefault(directory, set()).add(name)
            if directory not in self._entries:
                self.tell(directory, None)

    def touched(self, path: bytes, status: os.stat_result, mtime_ns: int) -> None:
        """Attributes of ``path`` change; its file has the modification time ``mtime_ns`` from then on."""
        self._mtimes[self.tell(path, status).attributes.ino] = mtime_ns

    def shared(self, path: bytes, status: os.stat_result) -> None:
        """``path`` is one of several names of an inode of which the inverse says something."""
        entry = self.tell(path, status)
        assert not isinstance(entry, Directory)
        ino = entry.attributes.ino
        self._names[path] = ino
        self._shared.setdefault(ino, Shared(path, entry, status.st_nlink))

    def place(self, path: bytes) -> Origin:
        """Where ``path`` is in the end."""
        found = self._places.get(path)
        if found is None:
            head, name = parent(path)
            found = self._places[path] = below(self.place(head), name)
        return found

    def build(self) -> tuple[Directory, Page | None]:
        """The root directory and the link table, stored."""
        told: Told = {}
        for path in [*self._entries, *self._absent]:
            at = told
            for name in path.split(b"/") if path else ():
                at = at.setdefault(name, {})
        root = self._directory(b"", told)
        rows: dict[bytes, Entry | None] = {}
        for ino, shared in self._shared.items():
            inode = self._leaf(shared.path, shared.inode)
            rows[link_key(ino)] = LinkTarget(inode, shared.links)
        links = self._pages.update(None, rows)
        if links is not None:
            self._pages.save(links)
        return root, links

    def _directory(self, path: bytes, told: Told) -> Directory:
        old = self.tell(path, None)
        assert isinstance(old, Directory)
        changes: dict[bytes, Entry | None] = {name: Absent() for name in self._absent.get(path, ())}
        prefix = path + b"/" if path else b""
        for name, inner in told.items():
            changes[name] = self._entry(prefix + name, inner)
        page = self._pages.update(None, changes)
        node = None if page is None else self._pages.save(page)
        if path in self._opaque:
            count = sum(isinstance(entry, Directory) for entry in changes.values())
            return Directory(old.attributes, None, count, node)
        count = self._taken[path] - self._arrived[path]
        return Directory(old.attributes, self.place(path), count, node)

    def _entry(self, path: bytes, told: Told) -> Entry:
        ino = self._names.get(path)
        if ino is not None:
            return Linked(ino)
        old = self.tell(path, None)
        return self._directory(path, told) if isinstance(old, Directory) else self._leaf(path, old)

    def _leaf(self, path: bytes, old: Regular | Symlink | Special) -> Regular | Symlink | Special:
        if not isinstance(old, Regular):
            return old
        assert isinstance(old.content, Original)
        copy = self._copies.get(path)
        if copy is not None:
            return Regular(old.attributes, Original(copy, old.content.size, old.content.mtime_ns))
        mtime_ns = self._mtimes.get(old.attributes.ino, old.content.mtime_ns)
        return Regular(old.attributes, Original(self.place(path), old.content.size, mtime_ns))
