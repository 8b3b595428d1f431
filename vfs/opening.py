"""Opening a workspace's store and bringing back where it stood: everything between the lock and the first request.

Owns the order: the lock; an apply that a crash left half done; what changed in the base meanwhile; the head; the
journals. Serves nothing yet. Runs in one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from store.errors import DamagedError
from store.format import Origin
from store.head import Head
from store.home import Home, WorkspaceIdentity, WorkspaceStore
from store.lock import Lock
from store.refs import CheckpointId, LayerRef
from vfs.live.core import Core
from vfs.live.folding import fold
from vfs.live.inode import FIRST_NEW_INO
from vfs.live.records import JOURNAL_VERSION, Start
from vfs.live.recovery import Journal, Replay, cut_off, first_free_ino, read_journals, remove_lost
from vfs.live.seal import LayerSealer
from vfs.live.swap import Swap
from vfs.live.tree import Root
from vfs.roots import Roots
from vfs.timeline import SealTask
from vfs.translations import Translations
from vfs.trees.graft import Grafter
from vfs.trees.host import Host


class Opened(NamedTuple):
    """An open workspace, not served yet. ``tasks`` are checkpoints that wait to be sealed; ``notes`` for people."""

    store: WorkspaceStore
    lock: Lock
    host: Host
    base_fd: int
    core: Core
    roots: Roots
    head: Head
    baseline: Root
    tasks: list[SealTask]
    notes: list[str]


def open_store(home: Home, base_fd: int, path: bytes) -> tuple[WorkspaceStore, Lock]:
    """The workspace's store, locked. Raises LockedError, DamagedError or FormatError."""
    store = home.workspace(WorkspaceIdentity.of(base_fd), path)
    return store, store.lock()


def open_workspace_tree(
    home: Home, store: WorkspaceStore, lock: Lock, base_fd: int, now: Callable[[], int], notes: list[str]
) -> Opened:
    """Bring back the tree. Raises StoreError; then nothing has been changed."""
    host = Host({0: base_fd})
    host.open_attic(store.attic_dir)
    translations = Translations(home, store)
    translations.begin()
    roots = Roots(home.objects, home.pages, host, store.history, store.generations, translations)
    head = store.history.read_head()
    if head is None:
        head = _first_head(home, store, host)
    notes += store.history.problems + store.generations.problems
    opening = _Opening(home, store, lock, base_fd, host, roots, now, notes)
    return opening.run(head)


def check_generations(store: WorkspaceStore) -> None:
    """Raise DamagedError if the end of a generation was recorded and is lost: trees would be taken for others."""
    head = store.history.read_head()
    if head is None:
        return
    spoken_of = max([head.generation, *(one.generation for one in store.history.all())])
    if spoken_of > store.generations.current:
        name = os.fsdecode(os.path.join(store.path, b"generations"))
        raise DamagedError(
            f"{name} has lost what it knew of generation {store.generations.current} of the directory",
            hint="put that file back from a copy; the directory itself and the checkpoints are untouched",
        )


def base_root(host: Host, generation: int) -> Root:
    """The base as it is, without any override."""
    directory = host.entry(Origin(0, b""))
    return Root(directory, None, generation)  # type: ignore[arg-type]


def store_layer(home: Home, root: Root) -> LayerRef:
    """The layer of a tree, durably stored. Raises NoSpaceError."""
    ref = LayerSealer(home.objects, home.pages).seal(root, None)
    home.objects.flush()
    return ref


def _first_head(home: Home, store: WorkspaceStore, host: Host) -> Head:
    generation = store.generations.current
    with home.objects.sealing():
        ref = store_layer(home, base_root(host, generation))
        first = store.history.begin(None, kind="base", label="base", generation=generation, layer=ref)
    head = Head(head=first.id, base=first.id, epoch=0, generation=generation, next_ino=FIRST_NEW_INO)
    store.history.write_head(head, sync=True)
    return head


POWER_LOSS = "after a power loss: what was written after the last fsync or checkpoint is gone"


class _Opening:
    """One opening, after the head is known."""

    def __init__(
        self,
        home: Home,
        store: WorkspaceStore,
        lock: Lock,
        base_fd: int,
        host: Host,
        roots: Roots,
        now: Callable[[], int],
        notes: list[str],
    ) -> None:
        self._home = home
        self._store = store
        self._lock = lock
        self._base_fd = base_fd
        self._host = host
        self._roots = roots
        self._now = now
        self._notes = notes
        self._tasks: list[SealTask] = []

    def _core(self, root: Root, next_ino: int, epoch: int) -> Core:
        return Core(
            root,
            self._host,
            self._home.pages,
            self._home.objects,
            self._store.journal_dir,
            self._store.working_dir,
            self._home.disk,
            self._now,
            next_ino,
            epoch,
        )

    def run(self, head: Head) -> Opened:
        core = self._core(self._root_of_head(head), head.next_ino, head.epoch)
        journals = self._unsealed(core, read_journals(core.epochs, head, self._store.history.__contains__))
        if not journals or journals[0].start.generation != self._store.generations.current:
            if not journals and (head.mounted or head.left == "keep"):
                self._notes.append(f"the journal is lost: what was not checkpointed after {head.head} is gone")
            head = self._stored_head(head)
            baseline = self._fresh(core, head)
            head = msgspec.structs.replace(head, epoch=core.tree.epoch, mounted=True)
        else:
            core, baseline = self._replay(journals)
            last = journals[-1].start
            if journals[-1].cut or last.epoch < head.epoch:
                self._notes.append(POWER_LOSS)
            head = msgspec.structs.replace(
                head,
                head=head.head if last.epoch == head.epoch else last.head,
                redo=head.redo if last.epoch == head.epoch else (),
                epoch=last.epoch,
                next_ino=core.tree.next_ino,
                mounted=True,
            )
        self._store.history.write_head(head)
        return Opened(
            self._store,
            self._lock,
            self._host,
            self._base_fd,
            core,
            self._roots,
            head,
            baseline,
            self._tasks,
            self._notes,
        )

    def _unsealed(self, core: Core, journals: list[Journal]) -> list[Journal]:
        """``journals`` but for those that ended in a checkpoint which is stored: their working data may be gone."""
        history = self._store.history
        needed = 0
        for index, journal in enumerate(journals):
            closed = journal.start.closed
            if index and closed is not None and history.get(closed).state == "sealed":
                needed = index
        for journal in journals[:needed]:
            os.unlink(core.epochs.path(journal.start.epoch))
        return journals[needed:]

    def _root_of_head(self, head: Head) -> Root:
        """The head's tree; if it never came to be sealed, the nearest ancestor's, which a replay then replaces."""
        at = self._nearest_sealed(head.head)
        return base_root(self._host, self._store.generations.current) if at is None else self._roots.of(at)

    def _nearest_sealed(self, id: CheckpointId) -> CheckpointId | None:
        at: CheckpointId | None = id
        while at is not None:
            checkpoint = self._store.history.get(at)
            if checkpoint.layer is not None:
                return at
            at = checkpoint.parent
        return None

    def _stored_head(self, head: Head) -> Head:
        """``head``, or the nearest before it that is stored: a power loss can take a journal that promised nothing."""
        at = self._nearest_sealed(head.head)
        if at is None or at == head.head:
            return head
        self._notes.append(POWER_LOSS)
        history = self._store.history
        head = msgspec.structs.replace(head, head=at, redo=())
        history.write_head(head)
        history.remove([one.id for one in history.all() if one.state == "sealing"])
        return head

    def _fresh(self, core: Core, head: Head) -> Root:
        """Begin an epoch on the head, there being no journal to go on with."""
        for number in core.epochs.on_disk():
            os.unlink(core.epochs.path(number))
        core.identities.clear()
        core.working.sweep(set())
        core.tree.epoch = head.epoch + 1
        core.epochs.begin(
            Start(
                JOURNAL_VERSION,
                core.tree.epoch,
                core.tree.generation,
                head.head,
                None,
                None,
                core.tree.next_ino,
                core.working.next_number,
                None,
                self._now(),
            )
        )
        return fold(core.tree)

    def _replay(self, journals: list[Journal]) -> tuple[Core, Root]:
        first = journals[0].start
        made_of = self._made_of(first)
        root = self._start_root(None, first) if made_of is None else self._roots.of(made_of)
        core = self._core(root, first.next_ino, first.epoch)
        core.tree.next_ino = max(core.tree.next_ino, first_free_ino(journals))
        core.identities.load(core.tree, before=first.epoch + (made_of is None))
        replay = Replay(core)
        baseline = fold(core.tree)
        made_again = made_of is not None
        for index, journal in enumerate(journals):
            start = journal.start
            if index or made_of is not None:
                made_of = self._made_of(start)
                made_again |= made_of is not None
                root = self._start_root(core, start)
                fold(core.tree)
                Swap(core.tree, root, start.time_ns).run()
            baseline = fold(core.tree)
            core.tree.epoch = start.epoch
            if index and not made_again:  # what is made again has other keys than what was kept speaks of
                core.identities.load(core.tree, exactly=start.epoch)
            replay.run(journal.records)
            if index == len(journals) - 1:
                remove_lost(core.epochs, start.epoch)
                core.identities.clear(after=start.epoch)
                contents = cut_off(core.epochs, journal) if journal.cut else journal.contents
                core.epochs.resume(start, contents)
                break
            closed = journals[index + 1].start.closed
            if closed is not None:
                self._refreeze(core, closed, start.epoch)
            core.epochs.replayed(start, journal.contents)
        self._remove_unanswered(journals[-1].start.epoch)
        core.working.sweep(core.epochs.working_numbers())
        if core.tree.shown:
            core.keep_identities()
        self._notes += replay.problems
        return core, baseline

    def _refreeze(self, core: Core, id: CheckpointId, epoch: int) -> None:
        """The checkpoint that ended ``epoch`` is frozen again, if it was not sealed."""
        checkpoint = self._store.history.get(id)
        if checkpoint.state == "sealing":
            root = fold(core.tree)
            self._roots.freeze(id, root)
            self._tasks.append(SealTask(id, checkpoint.parent, root, epoch))

    def _remove_unanswered(self, epoch: int) -> None:
        """Checkpoints that were recorded when the daemon died, before their callers had an answer."""
        known = {task.checkpoint for task in self._tasks}
        history = self._store.history
        history.remove(
            [one.id for one in history.all() if one.state == "sealing" and one.epoch >= epoch and one.id not in known]
        )

    def _is_made(self, start: Start) -> bool:
        """True if the epoch's head was made for it, by bringing paths of another checkpoint into what there was."""
        checkpoint = self._store.history.get(start.head)
        ended_epoch = checkpoint.kind == "user" and checkpoint.epoch == start.epoch - 1
        return start.picked is not None and ended_epoch and checkpoint.id != start.closed

    def _made_of(self, start: Start) -> CheckpointId | None:
        """The checkpoint into which paths were brought to make the epoch's head, if that has to be done again."""
        checkpoint = self._store.history.get(start.head)
        return checkpoint.parent if checkpoint.state == "sealing" and self._is_made(start) else None

    def _start_root(self, core: Core | None, start: Start) -> Root:
        """The tree that an epoch starts from. Raises StoreError if what it is made of is lost."""
        made_of = self._made_of(start)
        if made_of is not None and start.picked is not None and core is not None:
            source, paths = start.picked
            root = Grafter(core.tree, fold(core.tree), self._roots.of(source), self._roots.view).pick(list(paths))
            self._roots.freeze(start.head, root)
            self._tasks.append(SealTask(start.head, made_of, root, start.epoch - 1))
            return root
        root = self._roots.of(start.head)
        tree = core.tree if core is not None else self._core(root, FIRST_NEW_INO, 0).tree
        if start.graft is not None and start.graft != start.head:
            root = Grafter(tree, root, self._roots.of(start.graft), self._roots.view).keep_git()
        if start.picked is not None and not self._is_made(start):
            source, paths = start.picked
            root = Grafter(tree, root, self._roots.of(source), self._roots.view).keep(list(paths))
        return root
