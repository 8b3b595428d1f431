"""Verifying a store: every invariant of docs/format.md, what is lost by path, and the repairs that are safe.

Owns the order of the checks and what may be repaired. A repair never gives up anything that can be read: what has to be
cut off or set aside stays beside it under the name ``*.damaged``. A workspace that another process serves is looked at
but not repaired.

Concurrency: beside daemons; nothing is swept meanwhile.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Literal

import msgspec

from store.disk import PRIVATE_DIRECTORY, make_directories, read_file
from store.errors import DamagedError, FormatError, LockedError, StoreError
from store.format import FORMAT_VERSION
from store.frames import frame, scan
from store.history import Checkpoint, events_that_make_sense
from store.home import DIRECTORIES, LAYOUT, WORKSPACE_DIRECTORIES, Home, WorkspaceStore
from store.journal import read_journal
from store.losses import Losses
from store.reach import CitingFile, Reach
from store.refs import CheckpointId, WorkspaceId
from store.sweep import leftovers, needed_layers
from store.whole import read_whole

EXPENDABLE = (b"known", b"overlaid", b"explained", b"scan/state")
"""Without them changes made outside since they were written go unnoticed."""

WHOLE_FILES = (*EXPENDABLE, b"apply/intent", b"apply/plan", b"leaving/applying", b"scan/restore")
"""Files of vfs that are written by ``store.whole``; docs/format.md tells what is in them."""

Severity = Literal["damage", "untidy"]


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as docs/format.md says. ``damage`` loses something; what is ``untidy`` loses nothing.

    ``where`` is a path in the store. ``repaired`` says that it has been put right, as far as that is possible.
    """

    severity: Severity
    where: str
    message: str
    repaired: bool = False


class LostPath(msgspec.Struct, frozen=True):
    """A path that a checkpoint had and that cannot be read any more."""

    workspace: WorkspaceId
    checkpoint: CheckpointId
    path: bytes
    reason: str


class Report(msgspec.Struct, frozen=True):
    """What a check found. ``objects`` and ``bytes`` count what was read, ``unreferenced`` what nothing needs."""

    problems: list[Problem]
    lost: list[LostPath]
    workspaces: int
    checkpoints: int
    objects: int
    bytes: int
    unreferenced: int

    @property
    def is_sound(self) -> bool:
        """True if nothing is lost and no damage is left."""
        return not self.lost and all(one.severity == "untidy" or one.repaired for one in self.problems)


def check(
    home: Home,
    repair: bool = False,
    *,
    owned: Mapping[WorkspaceId, WorkspaceStore] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Verify the whole store, reading every object; with ``repair`` put right what can be.

    ``owned`` are the workspaces whose locks the caller holds; they are not repaired. ``progress`` is told how many
    objects have been read.
    """
    with home.objects.sealing():
        return _Check(home, repair, owned or {}).run(progress)


class _Check:
    def __init__(self, home: Home, repair: bool, owned: Mapping[WorkspaceId, WorkspaceStore]) -> None:
        self._home = home
        self._disk = home.disk
        self._repair = repair
        self._owned = owned
        self._problems: list[Problem] = []
        self._lost: list[LostPath] = []
        self._bad: dict[bytes, str] = {}
        self._needed: set[bytes] = set()
        self._all_needed_known = True
        self._checkpoints = 0

    def run(self, progress: Callable[[int], None] | None) -> Report:
        self._layout()
        objects, size = self._read_objects(progress)
        workspaces = 0
        for name in self._home.unreadable():
            self._all_needed_known = False
            self._tell("damage", os.path.join(self._home.workspaces_dir, os.fsencode(name)), "its record is damaged")
        for record in self._home.workspaces():
            workspaces += 1
            with ExitStack() as held:
                self._workspace(self._home.by_id(record.id), held)
        unreferenced = self._unreferenced()
        self._damaged_packs()
        return Report(self._problems, self._lost, workspaces, self._checkpoints, objects, size, unreferenced)

    def _tell(self, severity: Severity, where: bytes, message: str, repaired: bool = False) -> None:
        self._problems.append(Problem(severity, os.fsdecode(where), message, repaired))

    # Layout and permissions

    def _layout(self) -> None:
        home = self._home
        for name in sorted(set(os.listdir(home.root)) - LAYOUT):
            self._tell("untidy", os.path.join(home.root, name), "does not belong to the store")
        for path in (home.root, *(os.path.join(home.root, name) for name in DIRECTORIES)):
            self._directory(path)

    def _directory(self, path: bytes, may_repair: bool = True) -> None:
        """A directory of the store is there and is private."""
        repair = self._repair and may_repair
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            if repair:
                make_directories(self._disk, path)
            self._tell("damage", path, "is missing", repair)
            return
        if not stat.S_ISDIR(found.st_mode):
            self._tell("damage", path, "is not a directory")
        elif sys.platform != "win32" and stat.S_IMODE(found.st_mode) != PRIVATE_DIRECTORY:
            if repair:
                self._disk.chmod(path, PRIVATE_DIRECTORY)
            self._tell("damage", path, f"others may get in (mode {stat.S_IMODE(found.st_mode):o})", repair)

    def _file_mode(self, path: bytes, may_repair: bool = True) -> None:
        """A file of the store is nobody else's to read."""
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if sys.platform != "win32" and mode & 0o077:
            repair = self._repair and may_repair
            if repair:
                self._disk.chmod(path, mode & ~0o077)
            self._tell("damage", path, f"others may read it (mode {mode:o})", repair)

    # Objects

    def _read_objects(self, progress: Callable[[int], None] | None) -> tuple[int, int]:
        objects = self._home.objects
        count = size = 0
        path = b""
        for found in objects.inventory.walk():
            try:
                objects.verify(found.ref)
            except DamagedError as error:
                self._bad[found.ref] = error.message
            if found.path != path:  # those of a pack come one after the other
                path = found.path
                self._file_mode(path)
            count += 1
            size += found.size
            if progress is not None:
                progress(count)
        for path in objects.inventory.strays():
            self._tell("untidy", path, "is not an object")
        return count, size

    def _unreferenced(self) -> int:
        """Count what nothing needs; damaged objects among it go, others are for the sweep."""
        count = 0
        for found in self._home.objects.inventory.walk():
            ref = found.ref
            if ref not in self._needed:
                count += 1
                if ref in self._bad:
                    repair = (
                        self._repair and self._all_needed_known and not self._home.objects.inventory.is_pack(found.path)
                    )
                    if repair:
                        self._home.objects.delete(ref)
                        del self._bad[ref]
                    self._tell("untidy", found.path, f"object {ref.hex()} is damaged, but nothing needs it", repair)
            elif ref in self._bad:
                self._tell("damage", found.path, self._bad[ref])
        return count

    def _damaged_packs(self) -> None:
        """What can be read of them is put elsewhere; then they go, if nothing that is needed may be in the rest."""
        objects = self._home.objects
        for path, readable in objects.inventory.damaged_packs().items():
            repair = self._repair and self._all_needed_known and not self._lost
            if repair:
                objects.copy_out(path, {found.ref for found in objects.inventory.in_pack(path)})
                objects.delete_pack(path)
            message = f"is a pack whose index is damaged; {readable} objects in it can be read"
            self._tell("damage" if self._lost else "untidy", path, message, repair)

    # Workspaces

    def _workspace(self, store: WorkspaceStore, held: ExitStack) -> None:
        mine = False
        if store.id not in self._owned:
            try:
                held.enter_context(store.lock())
                mine = True
            except LockedError:
                pass
        held.callback(store.close)
        self._directory(store.path, mine)
        for name in WORKSPACE_DIRECTORIES:
            self._directory(os.path.join(store.path, name), mine)
        for name in os.listdir(store.path):
            path = os.path.join(store.path, name)
            if os.path.isfile(path):
                self._file_mode(path, mine)
        if not self._histories(store, mine):
            self._all_needed_known = False
            return
        self._whole(store, mine)
        self._head(store, mine)
        self._journals(store, mine)
        self._standing(store, mine)
        self._layers(store)
        if mine and (count := len(leftovers(store))):
            self._tell("untidy", store.path, f"{count} files that a killed process left; `plyfs gc` removes them")

    def _whole(self, store: WorkspaceStore, mine: bool) -> None:
        """What is replaced as one is whole; what only tells people something is set aside."""
        for name in WHOLE_FILES:
            path = os.path.join(store.path, name)
            try:
                read_whole(path)
            except FileNotFoundError:
                continue
            except DamagedError:
                repair = self._repair and mine and name in EXPENDABLE
                if repair:
                    self._set_aside(path)
                    self._disk.unlink(path)
                self._tell("damage", path, "is damaged", repair)

    def _histories(self, store: WorkspaceStore, mine: bool) -> bool:
        """The files of events can be read, after a repair if need be."""
        good = True
        for path, kind in ((os.path.join(store.path, b"history"), "history"), (store.path + b"/generations", "")):
            try:
                problems = store.history.problems if kind else store.generations.problems
            except DamagedError as error:
                repair = bool(self._repair and mine and kind) and not isinstance(error, FormatError)
                if repair:
                    self._salvage(store, path)
                self._tell("damage", path, error.message, repair)
                good &= repair
                continue
            for problem in problems:
                if self._repair and mine:
                    self._cut(path)
                self._tell("untidy", path, problem, self._repair and mine)
        return good

    def _salvage(self, store: WorkspaceStore, path: bytes) -> None:
        """Make a history of the events that can be read in a damaged one, which is kept beside it."""
        data = read_file(path)
        payloads: list[bytes] = []
        at: int | None = 0
        while at is not None:
            found = scan(data, at)
            payloads += found.payloads
            at = found.resumes
        events = events_that_make_sense(payloads)
        self._set_aside(path)
        header = frame(msgspec.msgpack.encode(("history", FORMAT_VERSION)), mark=True)
        self._disk.replace(path, header + b"".join(frame(event) for event in events), sync=True)
        store.__dict__.pop("history", None)

    def _set_aside(self, path: bytes) -> None:
        """Keep a copy of a damaged file as it was found."""
        aside = path + b".damaged"
        number = 0
        while os.path.exists(aside):
            number += 1
            aside = path + b".damaged-%d" % number
        self._disk.write_new(aside, read_file(path), sync=True)

    def _cut(self, path: bytes) -> None:
        """Cut off a torn end."""
        end = scan(read_file(path)).end
        fd = self._disk.open_append(path)
        try:
            self._disk.truncate(fd, end)
            self._disk.sync_file(fd)
        finally:
            os.close(fd)

    def _head(self, store: WorkspaceStore, mine: bool) -> None:
        history = store.history
        before = len(history.problems)
        try:
            head = history.read_head()
            if not mine and len(history.problems) > before:  # it may name a checkpoint made since the history was read
                history = self._home.by_id(store.id).history
                before = len(history.problems)
                head = history.read_head()
        except DamagedError as error:
            self._tell("damage", history.head_file.path, error.message)
            return
        found = history.problems[before:]
        repair = self._repair and mine and head is not None
        if repair and found:
            assert head is not None
            if os.path.exists(history.head_file.path):
                self._set_aside(history.head_file.path)
            history.write_head(head, sync=True)
        for problem in found:
            self._tell("damage", history.head_file.path, problem, repair)
        if head is not None and head.generation > store.generations.current:
            self._tell("damage", history.head_file.path, f"speaks of generation {head.generation}, which has not begun")

    def _journals(self, store: WorkspaceStore, mine: bool) -> None:
        epochs = store.epochs()
        for epoch in epochs:
            path = store.journal_path(epoch)
            try:
                contents = read_journal(path)
            except FileNotFoundError:  # its checkpoint was sealed just now
                continue
            except DamagedError as error:
                repair = self._repair and mine and not isinstance(error, FormatError)
                if repair:
                    self._set_aside(path)
                    self._cut(path)
                self._tell("damage", path, error.message, repair)
                continue
            if contents.header.epoch != epoch:
                self._tell("damage", path, f"is the journal of epoch {contents.header.epoch}")
            if contents.torn_at is not None and mine:
                repair = self._repair and contents.torn_at > 0
                if repair:
                    self._cut(path)
                self._tell("untidy", path, f"{contents.dropped} bytes of an unfinished record", repair)
        for checkpoint in store.history.all():
            scanned = store.history.scope(checkpoint.id) is not None  # its layer stands in scan/state
            if checkpoint.state == "sealing" and checkpoint.epoch not in epochs and mine and not scanned:
                self._lose(store, checkpoint, b"", "it was not sealed, and its journal is gone")

    def _standing(self, store: WorkspaceStore, mine: bool) -> None:
        """The head, and what each journal goes on from, can be had: sealed, or made by a journal that is there."""
        history = store.history
        going_on: list[int] = []

        def is_lost(id: CheckpointId | None) -> bool:
            if id is None or id not in history:
                return id is not None
            if history.scope(id) is not None:  # its layer stands in scan/state
                return False
            checkpoint = history.get(id)
            return checkpoint.layer is None and checkpoint.epoch not in going_on

        for epoch in store.epochs():
            path = store.journal_path(epoch)
            try:
                start = read_journal(path).header.head
            except (FileNotFoundError, DamagedError):
                continue
            if not is_lost(start):
                going_on.append(epoch)
            elif mine:
                if self._repair:
                    self._set_aside(path)
                    self._disk.unlink(path)
                self._tell("damage", path, f"goes on from checkpoint {start}, which is lost", self._repair)
        head = history.read_head()
        if head is None or not mine or not is_lost(head.head):
            return
        at = next((one.id for one in history.ancestors(head.head) if not is_lost(one.id)), None)
        repair = self._repair and at is not None
        if repair and at is not None:
            self._set_aside(history.head_file.path)
            history.write_head(msgspec.structs.replace(head, head=at, redo=()), sync=True)
        self._tell("damage", history.head_file.path, f"stands on checkpoint {head.head}, which is lost", repair)

    # Layers

    def _layers(self, store: WorkspaceStore) -> None:
        history = store.history
        losses = Losses(self._home.objects, self._bad, store.attic_dir)
        everything = history.all()
        self._checkpoints += len(everything)
        self._order(store, everything)
        for checkpoint in everything:
            if checkpoint.generation > store.generations.current:
                self._lose(store, checkpoint, b"", f"it speaks of generation {checkpoint.generation}")
            if checkpoint.layer is not None:
                for loss in losses.of(checkpoint.layer, checkpoint.generation):
                    self._lose(store, checkpoint, loss.path, loss.reason)
        oldest = min((one.generation for one in everything), default=0)
        for generation in store.generations.since(oldest):
            for layer, number in ((generation.applied, generation.number), (generation.inverse, generation.number + 1)):
                for loss in losses.of(layer, number):
                    where = os.path.join(store.path, b"generations")
                    name = os.fsdecode(loss.path)
                    self._tell("damage", where, f"end of generation {generation.number}: {name!r}: {loss.reason}")
        reach = Reach(self._home.objects)
        try:
            for layer in needed_layers(store, everything):
                reach.add(layer)
            for path in store.citing():
                for ref in CitingFile(path).new()[0]:
                    reach.add_possible(ref)
        except StoreError:
            # Told by path above. What lies behind is unknown, so nothing may be taken for unneeded.
            self._all_needed_known = False
        self._needed |= reach.refs

    def _order(self, store: WorkspaceStore, everything: list[Checkpoint]) -> None:
        path = store.history.path
        seen: set[CheckpointId] = set()
        before = 0
        for checkpoint in everything:
            if checkpoint.parent is not None and checkpoint.parent not in seen:
                self._tell("damage", path, f"the parent {checkpoint.parent} of {checkpoint.id} is not before it")
            if checkpoint.time_ns < before:
                self._tell("damage", path, f"{checkpoint.id} is older than the checkpoint before it")
            if (checkpoint.layer is None) != (checkpoint.state == "sealing"):
                self._tell("damage", path, f"{checkpoint.id} is {checkpoint.state} but for its layer")
            before = checkpoint.time_ns
            seen.add(checkpoint.id)

    def _lose(self, store: WorkspaceStore, checkpoint: Checkpoint, path: bytes, reason: str) -> None:
        self._lost.append(LostPath(store.id, checkpoint.id, path, reason))
