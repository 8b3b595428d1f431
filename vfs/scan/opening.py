"""Opening a scanned workspace: everything between the store's lock and the first request.

Owns the order: checkpoints that had not reached the device; what a restore left half done, put where it can be seen;
an apply that was interrupted, and what a mount kept; the first scan; the head; the rest of the restore. One thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from store.disk import boot_id
from store.errors import StoreError
from store.head import Head
from store.home import Home, WorkspaceStore
from store.journal import read_journal
from store.reach import Reach
from store.refs import LayerRef
from vfs.roots import Roots, load_layer
from vfs.scan import bridge
from vfs.scan.capture import Present, Scanner
from vfs.scan.coverage import load_scope
from vfs.scan.execute import Executor
from vfs.scan.moves import Moves
from vfs.scan.platform import Handle, Platform
from vfs.scan.policy import Policy
from vfs.scan.reading import Reader
from vfs.scan.restoring import RestoreFile, clear_away
from vfs.scan.state import ScanState, StateFile
from vfs.scan.statindex import StatIndex
from vfs.scan.targets import Targets
from vfs.scan.timeline import ScanTimeline
from vfs.trees.host import Host
from vfs.workspace import RefusedError

SHOWN = 5
"""So many paths that are not captured are named to people."""


class Opening:
    """One opening. ``timeline`` and ``moves`` are there from the start; ``run`` makes them what they should be."""

    def __init__(
        self,
        home: Home,
        store: WorkspaceStore,
        platform: Platform,
        top: Handle,
        workspace: str,
        policy: Policy,
        executor: type[Executor],
        listener: Callable[[str, object], None],
        problem: Callable[[str], None],
        notes: list[str],
    ) -> None:
        self._workspace = workspace
        self._policy = policy
        self._notes = notes
        self._from_mount = False
        scan_dir = os.path.join(store.path, b"scan")
        host = Host({0: top} if isinstance(top, int) else {})
        host.open_attic(store.attic_dir)
        roots = Roots(home.objects, home.pages, host, store.history, store.generations)
        targets = Targets(home.objects, home.pages, host, store.history, roots, Reader(platform, home.objects))
        files = (
            StateFile(scan_dir, home.disk),
            RestoreFile(scan_dir, home.disk),
            os.path.join(store.path, b"scanned"),
        )
        self.timeline = ScanTimeline(home, store, platform, top, workspace, host, targets, files, listener, problem)
        self.moves = Moves(self.timeline, executor, notes)

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Bring everything to where it was left. Raises StoreError."""
        timeline = self._timeline = self.timeline
        store, home, history = timeline.store, timeline.home, timeline.store.history
        head = history.read_head()
        self._notes += history.problems + store.generations.problems
        state = timeline.state_file.read()
        is_ours = state is not None and state.generation == store.generations.current
        if head is not None and not (state is not None and is_ours and self._is_readable(state)):
            is_ours = bridge.is_scanned(home, store)
            if is_ours:
                state = None
                self._notes.append("what the last scan remembered was lost or damaged: everything is read again")
        if state is not None or is_ours:
            self._settle_pending(state)
            head = history.read_head()
        timeline.scanner = self._scanner(state)
        timeline.scanner.progress = progress
        if head is not None:
            timeline.scanner.index.next_ino = max(timeline.scanner.index.next_ino, head.next_ino)
        timeline.sealing.start()
        unfinished = timeline.restore_file.read()
        if unfinished is not None:
            clear_away(timeline.platform, timeline.top, unfinished)
        self._from_mount = head is not None and not is_ours
        if head is not None and self._from_mount:
            self._refuse_kept(head)
            if isinstance(timeline.top, int):
                # Not every system that can be scanned has what these need.
                from vfs.apply.apart import set_apart
                from vfs.leaving import catch_up

                catch_up(home, store, timeline.top, self._notes)
                self._notes += set_apart(home.disk, store.attic_dir)
                timeline.host.open_attic(store.attic_dir)
                head = history.read_head()
        with home.objects.sealing():
            present = timeline.scanner.run(store.generations.current + self._from_mount)
            if head is None:
                self._begin(present)
            else:
                known = state is not None and is_ours and state.head == head.head
                self._go_on(head, present, state.baseline if state is not None and known else None)
        self._notes += timeline.scanner.repositories.notes
        self._tell_left_out(present)
        if unfinished is not None:
            self.moves.settle(unfinished)

    def _scanner(self, state: ScanState | None) -> Scanner:
        """A scanner with the records of the last scan, as far as they can be used."""
        timeline = self._timeline
        index = StatIndex.load(timeline.index_path, repr(self._policy).encode())
        if index is not None and (state is None or index.present not in (state.present, state.before)):
            index = None  # what it knows may not be in the store any more
        seen = None if state is None or index is not None else timeline.targets.view(timeline.root(state.present))
        objects, pages = timeline.home.objects, timeline.home.pages
        return Scanner(timeline.platform, timeline.top, self._workspace, self._policy, objects, pages, index, seen)

    def _is_readable(self, state: ScanState) -> bool:
        """True if what ``state`` names is in the store."""
        try:
            load_layer(self._timeline.home.objects, state.present)
            load_layer(self._timeline.home.objects, state.baseline)
            load_scope(self._timeline.home.objects, state.scope)
        except StoreError:
            return False
        return True

    def _settle_pending(self, state: ScanState | None) -> None:
        """Checkpoints that were answered for when the process before ended; and those that were not. Without the
        state nobody knows the one from the other.
        """
        history = self._timeline.store.history
        known = {} if state is None else dict(state.pending)
        lost = []
        for checkpoint in history.all():
            if checkpoint.state != "sealing" or history.scope(checkpoint.id) is None:
                continue
            layer = known.get(checkpoint.id)
            if layer is None or state is None or not self._is_whole(layer, state.boot != boot_id()):
                lost.append(checkpoint.id)
                if layer is not None or state is None:
                    self._notes.append(f"checkpoint {checkpoint.id} had not reached the disk and is lost")
            else:
                self._timeline.home.objects.flush()
                history.seal(checkpoint.id, layer)
        history.remove(lost)

    def _is_whole(self, layer: LayerRef, verify_all: bool) -> bool:
        reach = Reach(self._timeline.home.objects)
        try:
            reach.add(layer)
            for ref in reach.refs if verify_all else ():
                self._timeline.home.objects.verify(ref)
        except StoreError:
            return False
        return verify_all or all(self._timeline.home.objects.has(ref) for ref in reach.refs)

    def _refuse_kept(self, head: Head) -> None:
        """A mount that was left with --keep holds work that the directory has not."""
        journals = [self._timeline.store.journal_path(epoch) for epoch in self._timeline.store.epochs()]
        if head.head == head.base and not any(read_journal(path).records for path in journals):
            for path in journals:
                self._timeline.home.disk.unlink(path)
            return
        if head.head != head.base or journals:
            raise RefusedError(
                f"changes to {self._workspace} wait in the store, where its last mount left them; scanning would not "
                "see them",
                hint="`plyfs mount --mode fuse`, then `plyfs unmount`, writes them into the directory",
            )

    def _begin(self, present: Present) -> None:
        """The first checkpoint."""
        store = self._timeline.store
        made = store.history.begin(
            None,
            kind="base",
            label="base",
            generation=store.generations.current,
            next_ino=self._timeline.scanner.index.next_ino,
            scope=present.scope,
        )
        self._timeline.head = Head(
            head=made.id,
            base=made.id,
            epoch=0,
            generation=store.generations.current,
            next_ino=self._timeline.scanner.index.next_ino,
            mounted=True,
        )
        self._timeline.baseline = present.root
        self._timeline.baseline_layer = present.layer
        self._timeline.pending[made.id] = present.layer
        self._timeline.targets.freeze(made.id, present.root)
        self._timeline.write_state(present)
        store.history.write_head(self._timeline.head)
        self._timeline.sealing.submit(made.id, present.layer)

    def _go_on(self, head: Head, present: Present, baseline: LayerRef | None) -> None:
        """Take up the workspace where it stands."""
        store = self._timeline.store
        if self._from_mount:
            citing = bridge.cited(self._timeline.scanner.index.root, present.left_out)
            bridge.begin_scanning(self._timeline.home, store, self._timeline.host, present.root, citing)
        self._timeline.head = msgspec.structs.replace(
            head,
            base=head.head,
            generation=store.generations.current,
            next_ino=self._timeline.scanner.index.next_ino,
            mounted=True,
        )
        if baseline is None:
            self._timeline.baseline = self._timeline.target(self._timeline.head.head, present)
            self._timeline.baseline_layer = self._timeline.layer_of(self._timeline.baseline)
        else:
            self._timeline.baseline = self._timeline.root(baseline)
            self._timeline.baseline_layer = baseline
        self._timeline.write_state(present)
        store.history.write_head(self._timeline.head)

    def _tell_left_out(self, present: Present) -> None:
        rest = {path: why for path, why in present.left_out.items() if why != "ignored"}
        for path, why in sorted(rest.items())[:SHOWN]:
            self._notes.append(f"{os.fsdecode(path)} is not captured: {why}")
        if len(rest) > SHOWN:
            self._notes.append(f"{len(rest) - SHOWN} more paths are not captured")
