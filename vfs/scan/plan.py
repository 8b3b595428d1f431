"""What a restore of a scanned workspace will do, worked out before anything is touched.

Owns the way from differences to operations, and everything that keeps a restore from harm: paths that either side left
out are kept and told; names that would collide where case does not count, or that the system reserves, refuse the
whole. Does not own carrying it out (``execute``).

Concurrency: values.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from store.format import Directory, Linked
from store.refs import Ino
from vfs.scan.coverage import WHY, Coverage, in_git, under
from vfs.scan.statindex import StatIndex
from vfs.trees.diff import Changed
from vfs.trees.view import Present, View, join
from vfs.workspace import Kept, RefusedError

WHY_NOW = {
    "ignored": "git ignores it now, so what is there was not captured",
    "too big": "what is there is too big to be captured",
    "unreadable": "what is there cannot be read",
    "another file system": "it is on another file system",
}


class Put(NamedTuple):
    """A file, link or special file that comes to ``path``; ``group``: the inode that it shares with other names."""

    path: bytes
    entry: Present
    group: Ino | None
    replaces: bool


class Plan(NamedTuple):
    """Operations in the order of the phases. ``unlinks`` and ``rmdirs`` deepest first, ``mkdirs`` shallowest first."""

    changes: list[Changed]
    kept: list[Kept]
    moves: list[tuple[bytes, bytes]]
    unlinks: list[bytes]
    rmdirs: list[bytes]
    mkdirs: list[tuple[bytes, Directory]]
    puts: list[Put]
    fixes: list[tuple[bytes, Present]]
    anchors: dict[Ino, bytes]
    """A name, as things are now, of each shared inode that comes to further names."""

    def before(self, path: bytes) -> bytes:
        """Where what will be at ``path`` is now: a directory above it may be one that moves."""
        return _before(self.moves, path)

    @property
    def empty(self) -> bool:
        """True if there is nothing to do."""
        return not (self.moves or self.unlinks or self.rmdirs or self.mkdirs or self.puts or self.fixes)


def _before(moves: Iterable[tuple[bytes, bytes]], path: bytes) -> bytes:
    best: tuple[bytes, bytes] | None = None
    for source, new in moves:
        if (path == new or path.startswith(new + b"/")) and (best is None or len(new) > len(best[1])):
            best = source, new
    return path if best is None else best[0] + path[len(best[1]) :]


def make_plan(
    changes: Iterable[Changed],
    index: StatIndex,
    left_out: Mapping[bytes, str],
    onto: View,
    coverage: Coverage,
) -> Plan:
    """The plan that makes ``changes``, from what ``index`` has to ``onto``."""
    return _Planner(index, dict(left_out), onto, coverage).run(changes)


class _Planner:
    def __init__(self, index: StatIndex, left_out: dict[bytes, str], onto: View, coverage: Coverage) -> None:
        self._index = index
        self._left_out = left_out
        self._onto = onto
        self._coverage = coverage
        self._plan = Plan([], [], [], [], [], [], [], [], {})
        self._kept_tops: dict[bytes, str] = {}
        self._moves: list[tuple[bytes, bytes]] = []
        self._apart: dict[Ino, list[tuple[bytes, Present]]] = {}
        """Files that are to become one, of which nothing but attributes differs."""

    def run(self, changes: Iterable[Changed]) -> Plan:
        plan = self._plan
        changes = list(changes)
        self._moves = [(one.source, one.path) for one in changes if one.kind == "rename" and one.source is not None]
        for change in changes:
            if self._is_kept(change):
                continue
            plan.changes.append(change)
            self._add(change)
        deepest = {"key": lambda path: (-path.count(b"/"), path)}
        plan.unlinks.sort(**deepest)  # type: ignore[call-overload]
        plan.rmdirs.sort(**deepest)  # type: ignore[call-overload]
        plan.mkdirs.sort(key=lambda row: (row[0].count(b"/"), row[0]))
        self._anchor()
        plan.puts.sort(key=lambda put: put.path)
        return plan

    def _anchor(self) -> None:
        """Find a name of each shared inode that stays, for those that come to it; where no name stays as it is, one of
        those that stand apart does.
        """
        groups = {put.group for put in self._plan.puts if put.group is not None} | self._apart.keys()
        changing = {put.path for put in self._plan.puts}
        changing |= {path for rows in self._apart.values() for path, _ in rows}
        for held in self._onto.held() if groups else ():
            for name, entry in self._onto.overrides(held.directory):
                path = join(held.path, name)
                if isinstance(entry, Linked) and entry.ino in groups and path not in changing:
                    now = self._plan.before(path)
                    if self._index.file(now) is not None:
                        self._plan.anchors.setdefault(entry.ino, now)
        for group, rows in self._apart.items():
            if group not in self._plan.anchors:
                path, entry = rows.pop(0)
                self._plan.fixes.append((path, entry))
                self._plan.anchors[group] = self._plan.before(path)
            self._plan.puts.extend(Put(path, entry, group, True) for path, entry in rows)

    def _is_kept(self, change: Changed) -> bool:
        """True if the path is none of the restore's business; tells people, once for each top."""
        if in_git(change.path) or (change.source is not None and in_git(change.source)):
            return True
        if change.kind in ("delete", "type") and change.before is not None:
            reason = self._coverage.reason(change.path, isinstance(change.before, Directory))
            if reason is not None:
                return self._keep(change.path, WHY.get(reason, reason))
        if change.kind in ("create", "rename", "overwrite", "type", "mode"):
            now = change.path if change.kind == "rename" else _before(self._moves, change.path)
            found = under(now, self._left_out)
            if found is not None:
                return self._keep(found[0], WHY_NOW.get(found[1], found[1]))
        return False

    def _keep(self, path: bytes, reason: str) -> bool:
        if path not in self._kept_tops:
            self._kept_tops[path] = reason
            self._plan.kept.append(Kept(os.fsdecode(path), reason))
        return True

    def _add(self, change: Changed) -> None:
        plan = self._plan
        path, before, after = change.path, change.before, change.after
        if change.kind == "rename":
            assert change.source is not None
            plan.moves.append((change.source, path))
            return
        if change.kind == "delete":
            (plan.rmdirs if isinstance(before, Directory) else plan.unlinks).append(path)
            return
        assert after is not None
        if change.kind == "type":
            if isinstance(before, Directory):
                plan.rmdirs.append(path)
            elif isinstance(after, Directory):
                plan.unlinks.append(path)
        if isinstance(after, Directory):
            if change.kind == "mode":
                plan.fixes.append((path, after))
            else:
                plan.mkdirs.append((path, after))
            return
        group = self._group(path)
        if change.kind == "mode" and group is not None and self._stands_apart(path, group):
            self._apart.setdefault(group, []).append((path, after))
            return
        if change.kind == "mode" and not self._shares(path, group):
            plan.fixes.append((path, after))
            return
        plan.puts.append(Put(path, after, group, change.kind in ("overwrite", "mode") or self._stands(change)))

    @staticmethod
    def _stands(change: Changed) -> bool:
        """True if a file of another type is replaced by one rename."""
        return change.kind == "type" and not isinstance(change.before, Directory)

    def _group(self, path: bytes) -> Ino | None:
        head, _, name = path.rpartition(b"/")
        directory = self._onto.lookup(head)
        if not isinstance(directory, Directory):
            return None
        override = self._onto.override(directory, name)
        return override.ino if isinstance(override, Linked) else None

    def _shares(self, path: bytes, group: Ino | None) -> bool:
        """True if changing the file in place would change another that is not to be changed."""
        record = self._index.file(_before(self._moves, path))
        return record is not None and record.linked and record.entry.attributes.ino != group

    def _stands_apart(self, path: bytes, group: Ino) -> bool:
        """True if the file has one name now, and is to be one with others."""
        record = self._index.file(_before(self._moves, path))
        row = self._onto.row(group)
        return record is not None and not record.linked and row is not None and row.links > 1


def check_names(plan: Plan, onto: View, fold: bool, problem: Callable[[str], str | None]) -> None:
    """Raise RefusedError if ``plan`` makes names that cannot be, or that are one name where case does not count."""
    made = [put.path for put in plan.puts] + [path for path, _ in plan.mkdirs] + [path for _, path in plan.moves]
    for path in made:
        for part in os.fsdecode(path).split("/"):
            why = problem(part)
            if why is not None:
                raise RefusedError(
                    f"{os.fsdecode(path)} cannot be made here: {why}; nothing was changed",
                    hint="`plyfs restore ID PATH...` brings back the rest",
                )
    if not fold:
        return
    for directory in sorted({path.rpartition(b"/")[0] for path in made}):
        entry = onto.lookup(directory)
        if not isinstance(entry, Directory):
            continue
        seen: dict[str, bytes] = {}
        for name in sorted(onto.names(entry)):
            other = seen.setdefault(folded(os.fsdecode(name)), name)
            if other != name:
                both = f"{os.fsdecode(join(directory, other))} and {os.fsdecode(join(directory, name))}"
                raise RefusedError(
                    f"{both} are one name on this file system, where case does not count; nothing was changed",
                    hint="restore where case counts, or `plyfs restore ID PATH...` one of the two",
                )


def folded(name: str) -> str:
    """What a file system that does not tell case apart takes ``name`` for."""
    return unicodedata.normalize("NFC", name).casefold()
