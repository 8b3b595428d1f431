"""Garbage collection: which checkpoints the retention rules let go, and deleting what nothing needs any more.

Owns the rules and the order of steps. First checkpoints are forgotten, durably; then objects that nothing reaches are
deleted, a batch at a time, while nobody seals; then what dead processes left. Being killed after any step is harmless:
what is left over is unreachable, and the next sweep takes it.

A workspace that another process serves keeps all its checkpoints: only who holds its lock forgets them.

Concurrency: any number of sweeps and of daemons at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby
from typing import NamedTuple

import msgspec

from store import attic
from store.errors import DamagedError, LockedError
from store.history import Checkpoint
from store.home import Home, WorkspaceStore
from store.inventory import Found, put_at
from store.reach import CitingFile, Reach
from store.refs import CheckpointId, LayerRef, WorkspaceId

BATCH = 1000
"""So many objects are deleted while sealing has to wait (about 10 ms)."""

WORTH = 3
"""A pack is copied to get rid of what is dead in it if that is at least one byte for so many that are needed."""

DAY_NS = 24 * 3600 * 1_000_000_000


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checkpoints may go. The default lets none go.

    With ``keep_last`` or ``keep_days`` a checkpoint goes that is neither among the newest so many of its workspace nor
    younger than so many days. With ``max_bytes`` the oldest go, of all workspaces, until what the rest needs fits.

    Never let go: the head, the way forward (redo) and the base; what is labelled; what a journal or an apply under way
    cites, or is still being sealed; and, unless ``sessions`` is False, the newest checkpoint of each session and node.
    """

    keep_last: int | None = None
    keep_days: int | None = None
    max_bytes: int | None = None
    sessions: bool = True

    @property
    def keeps_all(self) -> bool:
        """True if no checkpoint ever goes."""
        return self.keep_last is None and self.keep_days is None and self.max_bytes is None


class Swept(msgspec.Struct, frozen=True):
    """What a sweep took, or would take. ``skipped`` tells people what could not be looked after, and why."""

    checkpoints: list[tuple[WorkspaceId, CheckpointId]]
    objects: int
    bytes: int
    temporaries: int
    attic: int
    kept_objects: int
    kept_bytes: int
    skipped: list[str]
    dry_run: bool


CLOCK_SLACK_NS = 2 * 1_000_000_000
"""How far the clock of the file system's times may be behind the one that checkpoints are stamped with."""


class _Pack(NamedTuple):
    """A pack, with what is needed of it and what is not."""

    path: bytes
    needed: list[Found]
    dead: list[Found]

    @property
    def is_worth_its_space(self) -> bool:
        """True if too little of it is dead for the rest to be copied."""
        return WORTH * sum(found.size for found in self.dead) < sum(found.size for found in self.needed)


class _Workspace:
    """One workspace during a sweep. ``mine`` is false if another process serves it.

    ``reach`` is what it needs: one for each workspace, because the numbers of attic folders are its own.
    """

    def __init__(self, home: Home, store: WorkspaceStore, mine: bool) -> None:
        self.store = store
        self.mine = mine
        self.cited: set[CheckpointId] = set()
        self.reach = Reach(home.objects)
        self._home = home
        self._journals: dict[bytes, CitingFile] = {}
        self._seen: list[tuple[int, int]] | None = None
        self.sealing_since: int | None = None

    def now(self) -> WorkspaceStore:
        """What is recorded of it now, also by another process."""
        return self.store if self.mine else self._home.by_id(self.store.id)

    def take_journals(self) -> None:
        """Note what its journals cite: checkpoints, and objects with all below them."""
        for path in self.store.citing():
            refs, checkpoints = self._journals.setdefault(path, CitingFile(path)).new()
            self.cited |= checkpoints
            for ref in refs:
                self.reach.add_possible(ref)

    def take_layers(self, gone: Collection[CheckpointId]) -> None:
        """Note what its checkpoints need, but for those that go; nothing is read again if nothing was added."""
        paths = [os.path.join(self.store.path, name) for name in (b"history", b"generations")]
        seen = [(found.st_ino, found.st_size) for found in map(os.stat, filter(os.path.exists, paths))]
        if seen != self._seen:
            store = self.now()
            everything = store.history.all()
            for layer in needed_layers(store, [one for one in everything if one.id not in gone]):
                self.reach.add(layer)
            self.sealing_since = sealing_since(store, everything)
        self._seen = seen


def sealing_since(store: WorkspaceStore, everything: Iterable[Checkpoint]) -> int | None:
    """A time before anything was put for a checkpoint that is not sealed yet; None if all are.

    Sealing may have failed half-way, because the disk was full, and go on later from what it had put.
    """
    times = []
    for checkpoint in everything:
        if checkpoint.state == "sealing":
            times.append(checkpoint.time_ns)
            try:  # the clock may have jumped back, and checkpoints do not show that
                times.append(os.stat(store.journal_path(checkpoint.epoch)).st_mtime_ns)
            except FileNotFoundError:
                pass
    return min(times) - CLOCK_SLACK_NS if times else None


def needed_layers(store: WorkspaceStore, kept: Iterable[Checkpoint]) -> Iterator[LayerRef]:
    """The layers that keeping ``kept`` needs: their own and their scopes, and those that translate them to the present
    base.
    """
    oldest: int | None = None
    for checkpoint in kept:
        if checkpoint.layer is not None:
            yield checkpoint.layer
        scope = store.history.scope(checkpoint.id)
        if scope is not None:
            yield LayerRef(scope)
        oldest = checkpoint.generation if oldest is None else min(oldest, checkpoint.generation)
    if oldest is not None:
        for generation in store.generations.since(oldest):
            yield generation.applied
            yield generation.inverse


def sweep(
    home: Home,
    retention: Retention | None = None,
    *,
    dry_run: bool = False,
    pinned: Collection[CheckpointId] = (),
    roots: Iterable[bytes] = (),
    owned: Mapping[WorkspaceId, WorkspaceStore] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Swept:
    """Forget checkpoints by ``retention`` and delete what nothing needs; with ``dry_run`` only tell.

    ``pinned`` checkpoints stay; ``roots`` are names of objects that stay with all below them, known only to the
    caller; ``owned`` are the workspaces whose locks the caller holds. ``progress`` is told deleted and all objects.
    Raises DamagedError, having deleted nothing, if something needed cannot be read.
    """
    return _Sweep(home, retention or Retention(), dry_run, frozenset(pinned), list(roots), owned or {}).run(progress)


class _Sweep:
    def __init__(
        self,
        home: Home,
        retention: Retention,
        dry_run: bool,
        pinned: frozenset[CheckpointId],
        roots: list[bytes],
        owned: Mapping[WorkspaceId, WorkspaceStore],
    ) -> None:
        self._home = home
        self._retention = retention
        self._dry_run = dry_run
        self._pinned = pinned
        self._roots = roots
        self._owned = owned
        self._skipped: list[str] = []
        self._given = Reach(home.objects)
        self._workspaces: list[_Workspace] = []
        self._going: dict[WorkspaceId, list[Checkpoint]] = {}
        self._kept_since: int | None = None

    def run(self, progress: Callable[[int, int], None] | None) -> Swept:
        with ExitStack() as held:
            self._open(held)
            self._choose()
            self._mark()  # reads all that is needed: damage there stops the sweep before it has done anything
            if not self._dry_run:
                for workspace in self._workspaces:
                    workspace.store.history.remove([one.id for one in self._going.get(workspace.store.id, ())])
            objects, size, kept, kept_size = self._delete(progress)
            return Swept(
                checkpoints=[(id, one.id) for id, them in self._going.items() for one in them],
                objects=objects,
                bytes=size,
                temporaries=self._temporaries(),
                attic=self._attic(),
                kept_objects=kept,
                kept_bytes=kept_size,
                skipped=self._skipped,
                dry_run=self._dry_run,
            )

    def _open(self, held: ExitStack) -> None:
        unreadable = self._home.unreadable()
        if unreadable:
            raise DamagedError(
                f"the record of workspace {unreadable[0]} is damaged, so what it needs is not known",
                hint="run `plyfs fsck` first",
            )
        for record in self._home.workspaces():
            store = self._owned.get(record.id)
            mine = store is not None
            if store is None:
                store = self._home.by_id(record.id)
                held.callback(store.close)
                try:
                    held.enter_context(store.lock())
                    mine = True
                except LockedError as error:
                    if not self._retention.keeps_all:
                        self._skipped.append(f"{os.fsdecode(record.path)} keeps all its checkpoints: {error.message}")
            self._workspaces.append(_Workspace(self._home, store, mine))

    # Which checkpoints go

    def _choose(self) -> None:
        for workspace in self._workspaces:
            workspace.take_journals()
        if self._retention.keeps_all:
            return
        candidates: list[tuple[int, int, _Workspace, Checkpoint]] = []
        for workspace in self._workspaces:
            if not workspace.mine:
                continue
            everything = workspace.store.history.all()
            pinned = self._pins(workspace, everything)
            for age, checkpoint in enumerate(reversed(everything)):
                if checkpoint.id in pinned:
                    continue
                if self._is_old(age, checkpoint):
                    self._going.setdefault(workspace.store.id, []).append(checkpoint)
                else:
                    candidates.append((checkpoint.time_ns, -age, workspace, checkpoint))
        if self._retention.max_bytes is not None:
            candidates.sort(key=lambda row: row[:2], reverse=True)
            self._fit([row[2:] for row in candidates], self._retention.max_bytes)

    def _pins(self, workspace: _Workspace, everything: list[Checkpoint]) -> set[CheckpointId]:
        history = workspace.store.history
        pinned = self._pinned | workspace.cited
        head = history.read_head()
        if head is not None:
            pinned |= {head.head, head.base, *head.redo}
        for checkpoint in everything:
            if checkpoint.label is not None or checkpoint.state == "sealing":
                pinned |= {checkpoint.id}
            elif self._retention.sessions and checkpoint.session is not None:
                newest = history.find(checkpoint.session, checkpoint.node)
                pinned |= {checkpoint.id} if newest is None else {newest.id}
        return set(pinned)

    def _is_old(self, age: int, checkpoint: Checkpoint) -> bool:
        """``age`` counts the checkpoints after it."""
        last, days = self._retention.keep_last, self._retention.keep_days
        if last is None and days is None:
            return False
        among_last = last is not None and age < last
        young = days is not None and checkpoint.time_ns > self._home.clock.time_ns() - days * DAY_NS
        return not among_last and not young

    def _fit(self, candidates: list[tuple[_Workspace, Checkpoint]], limit: int) -> None:
        """Of ``candidates``, newest first, let the oldest go until what is needed has at most ``limit`` bytes."""
        reach = Reach(self._home.objects)
        may_go = {one.id for _, one in candidates} | {one.id for them in self._going.values() for one in them}
        total = 0
        for workspace in self._workspaces:
            store = workspace.now()
            kept = [one for one in store.history.all() if not workspace.mine or one.id not in may_go]
            total += self._added(reach, needed_layers(store, kept))
        for number, (workspace, checkpoint) in enumerate(candidates):
            total += self._added(reach, needed_layers(workspace.store, [checkpoint]))
            if total > limit:
                for late_workspace, late in candidates[number:]:
                    self._going.setdefault(late_workspace.store.id, []).append(late)
                return

    def _added(self, reach: Reach, layers: Iterable[LayerRef]) -> int:
        return sum(self._home.objects.size(ref) for layer in layers for ref in reach.add(layer))

    # What is needed

    def _mark(self) -> None:
        """Reach what is needed; cheap if nothing has changed since the last call."""
        for root in self._roots:
            self._given.add_possible(root)
        for workspace in self._workspaces:
            workspace.take_layers({one.id for one in self._going.get(workspace.store.id, ())})
            workspace.take_journals()

        since = [workspace.sealing_since for workspace in self._workspaces if workspace.sealing_since is not None]
        self._kept_since = min(since, default=None)

    def _is_needed(self, found: Found) -> bool:
        if self._kept_since is not None and found.put_ns >= self._kept_since:
            return True
        ref = found.ref
        return ref in self._given.refs or any(ref in workspace.reach.refs for workspace in self._workspaces)

    # What goes

    def _delete(self, progress: Callable[[int, int], None] | None) -> tuple[int, int, int, int]:
        """Delete unreached objects; their number and bytes, and those of the rest."""
        objects = self._home.objects
        inventory = objects.inventory
        unreached: list[Found] = []
        packs: list[_Pack] = []
        damaged = inventory.damaged_packs()
        self._skipped += [f"{os.fsdecode(path)} is damaged; `plyfs fsck --repair` looks after it" for path in damaged]
        kept = kept_size = 0
        for path, found_there in groupby(inventory.walk(), lambda found: found.path):
            needed: list[Found] = []
            dead: list[Found] = []
            for found in found_there:
                (needed if self._is_needed(found) else dead).append(found)
            if inventory.is_pack(path):
                pack = _Pack(path, needed, dead)
                if pack.is_worth_its_space or path in damaged:
                    needed, dead = needed + dead, []
                else:
                    packs.append(pack)
            kept += len(needed)
            kept_size += sum(found.size for found in needed)
            if not inventory.is_pack(path):
                unreached += dead
        if self._dry_run:
            unreached += (found for pack in packs for found in pack.dead)
            return len(unreached), sum(found.size for found in unreached), kept, kept_size
        deleted = size = 0
        for start in range(0, len(unreached), BATCH):
            with objects.sweeping():
                # Whoever sealed meanwhile may have referred to something that was unreached before.
                self._mark()
                for found in unreached[start : start + BATCH]:
                    if self._is_needed(found._replace(put_ns=put_at(found.path))):
                        kept += 1
                        kept_size += found.size
                        continue
                    objects.delete(found.ref)
                    deleted += 1
                    size += found.size
            if progress is not None:
                progress(start + BATCH, len(unreached))
        for pack in packs:
            gone = self._take_apart(pack)
            deleted += len(gone)
            size += sum(found.size for found in gone)
            kept += len(pack.dead) - len(gone)
            kept_size += sum(found.size for found in pack.dead) - sum(found.size for found in gone)
        return deleted, size, kept, kept_size

    def _take_apart(self, pack: _Pack) -> list[Found]:
        """Put what is needed of a pack elsewhere and delete the pack; returns what went with it."""
        objects = self._home.objects
        copied = {found.ref for found in pack.needed}
        try:
            with objects.sealing():
                objects.copy_out(pack.path, copied)
            with objects.sweeping():
                self._mark()
                now = list(objects.inventory.in_pack(pack.path))
                late = {found.ref for found in now if found.ref not in copied and self._is_needed(found)}
                objects.copy_out(pack.path, late)
                objects.delete_pack(pack.path)
        except DamagedError as error:  # it may be mended by being put again, or be read by somebody who knows how
            self._skipped.append(f"{os.fsdecode(pack.path)} stays as it is: {error.message}")
            return []
        return [found for found in pack.dead if found.ref not in late]

    def _idle(self) -> Iterator[WorkspaceStore]:
        """The workspaces that nobody serves, not even the caller."""
        for workspace in self._workspaces:
            if workspace.mine and workspace.store.id not in self._owned:
                yield workspace.store

    def _temporaries(self) -> int:
        """Remove files that processes were writing when they died; their number."""
        paths = self._home.objects.inventory.abandoned()
        for store in self._idle():
            paths += leftovers(store)
        if not self._dry_run:
            for path in paths:
                try:
                    self._home.disk.unlink(path)
                except FileNotFoundError:
                    pass
        return len(paths)

    def _attic(self) -> int:
        """Remove folders of the attic that no tree cites; their number.

        Only where the last unmount was clean and left nothing to go on with: else one may just be being filled.
        """
        count = 0
        trees = {workspace.store.id: workspace.reach.trees for workspace in self._workspaces}
        for store in self._idle():
            head = store.history.read_head()
            if head is None or head.mounted or store.epochs() or store.under_way():
                continue
            for number in attic.folders(store.attic_dir):
                if number not in trees[store.id]:
                    count += 1
                    if not self._dry_run:
                        attic.remove_folder(self._home.disk, store.attic_dir, number)
            if not self._dry_run:
                count += attic.remove_leftovers(self._home.disk, store.attic_dir)
        return count


def leftovers(store: WorkspaceStore) -> list[bytes]:
    """Files of a workspace that nobody serves which nothing speaks of: half-made ones, and working data without any
    journal to cite it.
    """
    paths = []
    for directory in (store.path, store.journal_dir):
        paths += [os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(b".new")]
    if not store.epochs() and not store.under_way():
        for directory, _, names in os.walk(store.working_dir):
            paths += [os.path.join(directory, name) for name in names]
    return paths
