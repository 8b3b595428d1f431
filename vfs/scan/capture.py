"""One scan of the workspace, from the first look to a tree: what is there now, exactly, or a loud failure.

Owns the order: walk; read what is new or changed; look again where anything was, until nothing moves any more; then
new pages for the directories that changed. A scan that meets a file which is being written to tries again and in the
end names it. Does not own how directories are compared (``walker``) or files read (``reading``).

Concurrency: one scan at a time (the workspace's lock); reading threads end before ``run`` returns.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from store.disk import Disk
from store.entries import link_key
from store.errors import StoreError
from store.format import (
    FORMAT_VERSION,
    Attributes,
    Directory,
    Entry,
    Layer,
    LeftOut,
    Linked,
    LinkTarget,
    Repository,
    Scope,
    encode,
)
from store.gathering import Gathering
from store.nodes import Page, Pages
from store.objects import Objects
from store.refs import Ino, LayerRef, NodeRef
from vfs.live.tree import Root
from vfs.scan.platform import Handle, Platform
from vfs.scan.policy import Policy
from vfs.scan.reading import Read, Reader, Unreadable, Unstable
from vfs.scan.repository import Repositories
from vfs.scan.ruling import Context
from vfs.scan.statindex import DirectoryRecord, FileRecord, Inode, StatIndex, now_ns, record_of
from vfs.scan.walker import Walk, Wanted
from vfs.scan.workers import in_order
from vfs.trees.diff import same
from vfs.trees.view import View, join
from vfs.workspace import WorkspaceError

ROUNDS = 8
"""How often a scan looks again where something moved, before it gives up."""

BATCH = 64
"""Files that are read at a time, by one thread."""


class Present(NamedTuple):
    """What the workspace is: its tree, the layer and scope that hold it, and what was left out."""

    root: Root
    layer: LayerRef
    scope: NodeRef
    left_out: dict[bytes, str]


class Scanner:
    """Scans one workspace. ``progress`` is told how many files of how many have been read."""

    def __init__(
        self,
        platform: Platform,
        top: Handle,
        path: str,
        policy: Policy,
        objects: Objects,
        pages: Pages,
        index: StatIndex | None,
        before: View | None = None,
    ) -> None:
        self.index = index or StatIndex()
        self.platform = platform
        self.top = top
        self.policy = policy
        self.repositories = Repositories()
        self.progress: Callable[[int, int], None] = lambda done, of: None
        self._path = path
        self._objects = objects
        self._pages = pages
        self._links: dict[int, set[tuple[int, str]]] = {}
        self._by_inode: dict[int, FileRecord] = {}
        self._records: dict[int, DirectoryRecord] = {}
        self._link_page: Page | None = None
        self._made: Present | None = None
        self._first = index is None
        self._careful = False
        """True after a scan that did not come to its end: names that it met may not be in the records."""
        self._before = before
        """What the scan before saw, if its records are lost: paths keep their numbers."""

    # --- scanning --------------------------------------------------------------------------------------------------

    def run(self, generation: int) -> Present:
        """The present. Raises WorkspaceError if it does not hold still, StoreError or OSError."""
        with self._objects.gathering() as together:
            changed_scope = self._look(Reader(self.platform, together))
            return self._build_into(together, generation, changed_scope)

    def _look(self, reader: Reader) -> bool:
        """Bring the records up to date; True if what is left out may have changed."""
        walk = self._walk()
        careful, self._careful = self._careful, True  # until this scan has seen everything
        try:
            walk.run(self.platform.threads if self._first else 1, careful=careful)
            if walk.ruling.rules_changed and walk.ruling.tracked_changed():
                again = self._walk()
                again.opened_up = walk.opened_up
                again.run(1)
                again.gone += walk.gone
                again.made += walk.made
                again.gone_directories += walk.gone_directories
                again.scope_changed = True
                walk = again
            self._settle(walk, reader)
            changed_scope = walk.scope_changed or walk.ruling.repositories_changed
        finally:
            for at, name, mode in reversed(walk.opened_up):
                self.platform.close_again(at, name, mode)
                if at != self.top:
                    self.platform.close(at)
        self._first = self._careful = False
        self._before = None
        return changed_scope

    def _walk(self) -> Walk:
        return Walk(self.index, self.platform, self.top, self._path, self.policy, self.repositories)

    def _settle(self, walk: Walk, reader: Reader) -> None:
        """Read what the walk wants, and look again where anything was, until nothing is wanted."""
        moving: set[bytes] = set()
        for round_number in range(ROUNDS):
            self._identify(walk)
            wanted, walk.wanted = walk.wanted, []
            touched = {id(one.directory): one.directory for one in wanted}
            touched |= {id(one): one for one in walk.made}
            walk.made = []
            if not touched and not moving:
                return
            moving = self._read_all(walk, wanted, reader)
            if round_number == ROUNDS - 1:
                break
            walk.run_in([record for record in touched.values() if self._is_there(record)])
            if not walk.wanted and not walk.made and not moving:
                self._identify(walk)
                return
        names = sorted(moving | {join(one.directory.path, os.fsencode(one.name)) for one in walk.wanted})
        raise WorkspaceError(
            f"{os.fsdecode(names[0]) if names else 'a directory'} is being written to: {ROUNDS} scans in a row did not "
            "see one state of it; no checkpoint was made",
            hint="wait until what writes there is done, or let git ignore it",
        )

    def _is_there(self, record: DirectoryRecord) -> bool:
        """False for a directory that was lost from the records since it was looked at."""
        at = record
        while at.parent is not None:
            if at.parent.directories.get(at.name) is not at:
                return False
            at = at.parent
        return at is self.index.root

    def _identify(self, walk: Walk) -> None:
        """Give a directory that was moved the number that it had."""
        gone = {record.ino: record for record in walk.gone_directories if record.attributes is not None}
        for record in walk.made:
            assert record.attributes is not None
            old = gone.pop(record.ino, None)
            if old is not None and old.attributes is not None:
                ino = old.attributes.ino
            elif record.parent is None:
                continue
            elif self._before is not None and isinstance(seen := self._before.lookup(record.path), Directory):
                ino = seen.attributes.ino
            elif self._first and self._before is None:
                continue
            else:
                ino = Ino(self.index.fresh_ino())
            record.attributes = _numbered(record.attributes, ino)
        for file in walk.gone:
            self._by_inode.setdefault(file.ino, file)

    # --- reading ---------------------------------------------------------------------------------------------------

    def _read_all(self, walk: Walk, wanted: list[Wanted], reader: Reader) -> set[bytes]:
        """Read files and record them; returns the paths that moved while that was done."""
        by_directory: dict[int, list[Wanted]] = {}
        for one in wanted:
            by_directory.setdefault(id(one.directory), []).append(one)
        groups = [group[at : at + BATCH] for group in by_directory.values() for at in range(0, len(group), BATCH)]
        moving: set[bytes] = set()
        done = 0

        late: list[tuple[Wanted, Read]] = []

        def take(results: list[tuple[Wanted, Read | Exception]]) -> None:
            nonlocal done
            for one, result in results:
                if isinstance(result, Read) and result.status.st_nlink > 1 and not result.entry.attributes.ino:
                    late.append((one, result))  # after the other names of the file, which has a number already
                else:
                    self._take(walk, one, result, moving)
            done += len(results)
            self.progress(done, len(wanted))

        for results in in_order(partial(self._read_group, reader=reader), groups, self.platform.threads):
            take(results)
        for one, result in late:
            self._take(walk, one, result, moving)
        return moving

    def _read_group(self, group: list[Wanted], reader: Reader) -> list[tuple[Wanted, Read | Exception]]:
        directory = group[0].directory
        results: list[tuple[Wanted, Read | Exception]] = []
        at = self.reach(directory.path)
        if at is None:
            return [(one, Unstable()) for one in group]
        try:
            for one in group:
                moved = self._by_inode.get(one.status.st_ino)
                if moved is not None and moved.unchanged(one.status):  # the directory above it was moved
                    results.append((one, Read(moved.entry, one.status, now_ns())))
                    continue
                try:
                    results.append((one, reader.read(at, one.name, self._number(one))))
                except (Unstable, Unreadable) as problem:
                    results.append((one, problem))
        finally:
            if at != self.top:
                self.platform.close(at)
        return results

    def reach(self, path: bytes) -> Handle | None:
        """An open directory of the workspace, None if it is not there. Follows no link."""
        handle = self.top
        for name in os.fsdecode(path).split("/") if path else ():
            try:
                inner = self.platform.open_directory(handle, name)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno != errno.ELOOP:  # a link took its place
                    raise
                return None
            finally:
                if handle != self.top:
                    self.platform.close(handle)
            handle = inner
        return handle

    def _number(self, one: Wanted) -> Ino:
        """The number of the inode that a path stands for: the one it had, under whatever name."""
        known = one.directory.files.get(one.name)
        if known is not None:
            return known.entry.attributes.ino
        moved = self._by_inode.get(one.status.st_ino)
        if moved is not None and (
            moved.linked or (moved.size, moved.mtime) == (one.status.st_size, one.status.st_mtime_ns)
        ):
            return moved.entry.attributes.ino
        if self._before is not None:
            seen = self._before.lookup(join(one.directory.path, os.fsencode(one.name)))
            if seen is not None and not isinstance(seen, Directory):
                return seen.attributes.ino
        elif self._first:
            return Ino(one.status.st_ino)
        return Ino(0)  # given when it is recorded

    def _take(self, walk: Walk, one: Wanted, result: Read | Exception, moving: set[bytes]) -> None:
        directory, name = one.directory, one.name
        if isinstance(result, Unstable):
            moving.add(join(directory.path, os.fsencode(name)))
            return
        if isinstance(result, Unreadable):
            walk.leave(directory, name, "unreadable", False)
            return
        assert isinstance(result, Read)
        known = directory.files.get(name)
        entry = result.entry
        status = result.status
        if entry.attributes.ino == 0 or (known is not None and known.linked and known.ino != status.st_ino):
            entry = _with_ino(entry, Ino(self.index.fresh_ino()))
        if status.st_nlink > 1:
            shared = self._by_inode.get(status.st_ino)
            if shared is not None and shared.linked and shared.ctime == status.st_ctime_ns:
                entry = _with_ino(entry, shared.entry.attributes.ino)
        if known is not None:
            entry = _recorded(known, entry, status)
        if known is None or entry is not known.entry or known.linked != (status.st_nlink > 1):
            directory.touch(name)
        directory.files[name] = made = record_of(status, entry, result.looked_ns)
        directory.unsaved = True
        directory.left.pop(name, None)
        if made.linked:
            self._by_inode[made.ino] = made

    # --- the tree --------------------------------------------------------------------------------------------------

    def build(self, generation: int, changed_scope: bool = True) -> Present:
        """The tree of the records. Raises NoSpaceError."""
        with self._objects.gathering() as together:
            return self._build_into(together, generation, changed_scope)

    def _build_into(self, into: Gathering, generation: int, changed_scope: bool) -> Present:
        made = self._made
        root_record = self.index.root
        if made is not None and root_record.entry is not None and not changed_scope:
            return made
        if root_record.entry is None or made is None:
            links = self._build_links()
            directory = self._build(root_record, into)
        else:
            directory, links = root_record.entry, self._link_page
        root = Root(directory, links, generation)
        links_ref = None if links is None else self._pages.save(links, into)
        layer = Layer(FORMAT_VERSION, None, generation, directory, links_ref)
        left_out = self._left_out() if made is None or changed_scope else made.left_out
        scope = Scope(
            FORMAT_VERSION,
            "git" if self.policy.rules == "git" else "all",
            self.policy.max_bytes,
            self._scope_repositories(),
            tuple(LeftOut(path, reason) for path, reason in sorted(left_out.items())),
        )
        layer_ref = LayerRef(into.put_node(encode(layer)))
        self._made = Present(root, layer_ref, into.put_node(encode(scope)), left_out)
        self.index.present = layer_ref
        return self._made

    def _build(self, top: DirectoryRecord, into: Gathering) -> Directory:
        waiting: list[DirectoryRecord] = []
        stack = [top]
        while stack:
            record = stack.pop()
            if record.entry is None:
                waiting.append(record)
                stack.extend(record.directories.values())
        for record in reversed(waiting):
            self._build_one(record, into)
        assert top.entry is not None
        return top.entry

    def _build_one(self, record: DirectoryRecord, into: Gathering) -> None:
        assert record.attributes is not None
        page = None if record.built is None else self._pages.page_of(record.built)
        names = {*record.files, *record.directories} if record.built is None else record.pending
        page = self._pages.update(page, {os.fsencode(name): _entry(record, name) for name in names})
        record.entry = record.built = Directory(
            record.attributes, None, len(record.directories), None if page is None else self._pages.save(page, into)
        )
        record.pending.clear()

    def _build_links(self) -> Page | None:
        """The table of inodes with several names. Two inodes never share a number there, whatever is recorded."""
        count: dict[Ino, int] = {}
        inodes: dict[Ino, Inode] = {}
        owners: dict[Ino, int] = {}
        others: dict[int, Ino] = {}
        for record in self.index.root.all():
            for name, file in record.files.items():
                if file.linked:
                    ino = file.entry.attributes.ino
                    if owners.setdefault(ino, file.ino) != file.ino:
                        ino = others.setdefault(file.ino, Ino(self.index.fresh_ino()))
                        file.entry = _with_ino(file.entry, ino)
                        owners[ino] = file.ino
                        record.touch(name)
                    count[ino] = count.get(ino, 0) + 1
                    inodes[ino] = file.entry
        self._by_inode = {}
        rows: dict[bytes, Entry | None] = {link_key(ino): LinkTarget(inodes[ino], count[ino]) for ino in count}
        self._link_page = self._pages.update(None, rows)
        return self._link_page

    def _left_out(self) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        for record in self.index.root.all():
            for name, left in record.left.items():
                found[join(record.path, os.fsencode(name))] = left.reason
        return found

    def _scope_repositories(self) -> tuple[Repository, ...]:
        found = {}
        for record in self.index.root.all():
            repo = record.repo
            if isinstance(repo, Context):
                found[repo.record.path] = repo.record
        return tuple(found[path] for path in sorted(found))

    def save_index(self, path: bytes, disk: Disk) -> None:
        """Keep the records for the next start. Raises NoSpaceError."""
        self.index.save(path, repr(self.policy).encode(), disk)


def _entry(record: DirectoryRecord, name: str) -> Entry | None:
    """What stands for ``name`` in the directory's pages, None for nothing."""
    file = record.files.get(name)
    if file is not None:
        return Linked(file.entry.attributes.ino) if file.linked else file.entry
    inner = record.directories.get(name)
    return None if inner is None else inner.entry


def _recorded(known: FileRecord, entry: Inode, status: os.stat_result) -> Inode:
    """``entry``, but where the disk shows what it showed when ``known`` was made, with what is recorded of that."""
    old, new = known.entry.attributes, entry.attributes
    kept = Attributes(
        new.ino,
        old.mode if known.mode == status.st_mode else new.mode,
        old.uid if known.uid == status.st_uid else new.uid,
        old.gid if known.gid == status.st_gid else new.gid,
        old.mtime_ns if (known.mtime, known.ino) == (status.st_mtime_ns, status.st_ino) else new.mtime_ns,
        new.ctime_ns,
        new.xattrs,
    )
    entry = _with(entry, kept)
    return known.entry if new.ino == old.ino and same(known.entry, entry) else entry


def _numbered(attributes: Attributes, ino: Ino) -> Attributes:
    return Attributes(
        ino,
        attributes.mode,
        attributes.uid,
        attributes.gid,
        attributes.mtime_ns,
        attributes.ctime_ns,
        attributes.xattrs,
    )


def _with(entry: Inode, attributes: Attributes) -> Inode:
    return msgspec.structs.replace(entry, attributes=attributes)


def _with_ino(entry: Inode, ino: Ino) -> Inode:
    return _with(entry, _numbered(entry.attributes, ino))


__all__ = ["Present", "Scanner", "StoreError"]
