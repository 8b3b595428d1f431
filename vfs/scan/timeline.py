"""Where a scanned workspace stands: its head, what the present is compared with, and making checkpoints.

Owns the order in which a checkpoint comes to be: its record in the history, then the state that names its layer, then
the head, by rename. Does not own moving between checkpoints (``moves``), nor how the directory is scanned
(``capture``).

Concurrency: ``working`` lets one thread work at a time, because the directory is one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from store.errors import StoreError
from store.format import Layer, Regular, decode
from store.head import Head
from store.history import Checkpoint, CheckpointKind
from store.home import Home, WorkspaceStore
from store.nodes import Page, same_entry
from store.refs import CheckpointId, Ino, LayerRef, NodeRef
from vfs.live.tree import Root
from vfs.scan import bridge
from vfs.scan.capture import Present, Scanner
from vfs.scan.coverage import Coverage, load_scope
from vfs.scan.picking import pick
from vfs.scan.platform import Handle, Platform
from vfs.scan.restoring import RestoreFile
from vfs.scan.sealing import ScanSealing
from vfs.scan.state import StateFile
from vfs.scan.targets import Targets
from vfs.trees import diff
from vfs.trees.contents import Contents
from vfs.trees.diff import Changed
from vfs.trees.host import Host
from vfs.workspace import CheckpointResult, GoneError, WorkspaceError


class ScanTimeline:
    """The checkpoints of one scanned workspace. ``head`` and ``baseline`` are set by whoever opens it."""

    head: Head
    baseline: Root
    """What the head stands for in the directory: its own tree but for what a restore kept."""
    baseline_layer: LayerRef
    scanner: Scanner

    def __init__(
        self,
        home: Home,
        store: WorkspaceStore,
        platform: Platform,
        top: Handle,
        place: str,
        host: Host,
        targets: Targets,
        files: tuple[StateFile, RestoreFile, bytes],
        listener: Callable[[str, object], None],
        problem: Callable[[str], None],
    ) -> None:
        self.home = home
        self.store = store
        self.platform = platform
        self.top = top
        self._place = place
        status = platform.stat_directory(top)
        self._identity = status.st_dev, status.st_ino
        self.host = host
        self.targets = targets
        self.contents = Contents(home.objects, host)
        self.state_file, self.restore_file, self.index_path = files
        self.listener = listener
        self.sealing = ScanSealing(home.objects, store.history, self._sealed, problem)
        self.pending: dict[CheckpointId, LayerRef] = {}
        """Checkpoints that are not known to be on the device."""
        self.kept_present: LayerRef | None = None
        """What the records on disk speak of."""
        self.lock = threading.RLock()
        self.over = threading.Event()
        self._problem = problem

    def _sealed(self, id: CheckpointId) -> None:
        with self.lock:
            self.pending.pop(id, None)
            self.targets.sealed(id)
        self.listener("sealed", {"id": id})

    @contextmanager
    def working(self, anywhere: bool = False) -> Iterator[None]:
        """While this lasts nobody else works on the workspace, and no sweep takes what is put. Raises GoneError if the
        directory was moved, be there another at its path or not; unless that does not matter.
        """
        with self.lock, self.home.objects.sealing():
            if self.over.is_set():
                raise WorkspaceError("the workspace is no longer served")
            if not anywhere:
                self._look_where_it_is()
            try:
                yield
            finally:
                self.targets.forget()

    def _look_where_it_is(self) -> None:
        try:
            status = os.stat(self._place)
        except (FileNotFoundError, NotADirectoryError):
            what = f"the workspace {self._place} is gone: it was moved or removed"
        else:
            if (status.st_dev, status.st_ino) == self._identity:
                return
            what = f"{self._place} is not the directory that was a workspace there: that one was moved or removed"
        raise GoneError(what, hint="put it back; or `plyfs unmount` here, then `plyfs mount` it where it is now")

    def scan(self) -> Present:
        """The present. Raises WorkspaceError if it does not hold still."""
        before = self.scanner.index.present
        present = self.scanner.run(self.store.generations.current)
        if present.layer != before:
            self.write_state(present)
        return present

    def target(self, id: CheckpointId, present: Present) -> Root:
        """The tree of a checkpoint, as a scan can be compared with it."""
        return self.targets.of(id, self.scanner.index, present.left_out)

    def recorded(self, id: CheckpointId) -> Root:
        """The tree of a checkpoint, to be looked at: however busy the directory is, if a scan made it."""
        return (
            self.targets.of(id, self.scanner.index, {}) if self.targets.is_whole(id) else self.target(id, self.scan())
        )

    def differs(self, a: Root, b: Root) -> bool:
        """True if two trees differ in anything that a diff would tell."""
        if same_entry(a.directory, b.directory) and same_page(a.links, b.links):
            return False
        return next(iter(diff.differences(self.targets.view(a), self.targets.view(b))), None) is not None

    def changes(self, a: Root, b: Root) -> list[Changed]:
        """What changes from ``a`` to ``b``."""
        if same_entry(a.directory, b.directory) and same_page(a.links, b.links):
            return []
        return diff.changes(self.targets.view(a), self.targets.view(b), skip_git=True)

    def resolve(self, spec: str) -> Checkpoint:
        """The checkpoint that a person or program names. Raises UnknownCheckpointError."""
        return self.store.history.resolve(spec, self.head)

    def coverage(self, id: CheckpointId, root: Root) -> Coverage:
        """What the checkpoint with that tree speaks of."""
        ref = self.store.history.scope(id)
        scope = None if ref is None else load_scope(self.home.objects, ref)
        return Coverage(scope, self.targets.view(root), self.read)

    def read(self, entry: Regular, offset: int, length: int) -> bytes:
        """Bytes of a file of any tree."""
        return self.contents.read(entry.content, offset, length)

    def root(self, ref: LayerRef) -> Root:
        """The tree of a layer."""
        layer = decode(self.home.objects.get_node(NodeRef(ref)))
        assert isinstance(layer, Layer)
        links = None if layer.links is None else self.home.pages.load(layer.links)
        return Root(layer.root, links, layer.generation)

    def layer_of(self, root: Root) -> LayerRef:
        """The layer of a tree whose pages are stored."""
        links = None if root.links is None else self.home.pages.save(root.links)
        return bridge.put_layer(self.home, root.directory, links, root.generation)

    def picked(self, onto: Root, source: Root, paths: Iterable[bytes]) -> Root:
        """``onto`` with ``paths`` as ``source`` has them."""
        return pick(self.home.pages, onto, source, paths, lambda: Ino(self.scanner.index.fresh_ino()))

    def record(
        self,
        present: Present,
        label: str | None,
        session: str | None,
        node: str | None,
        kind: CheckpointKind,
        began: float,
    ) -> CheckpointResult:
        """The checkpoint of ``present``; without a change since the head, the head again."""
        changed = len(self.changes(self.baseline, present.root))
        if not changed:
            head = self.store.history.get(self.head.head)
            if label is not None and head.label is None:
                head = self.store.history.label(head.id, label)
            return result_of(head, False, began)
        made = self.freeze(present, changed, kind, label, session, node)
        self.set_head(made.id, (), present)
        return result_of(made, True, began)

    def freeze(
        self,
        present: Present,
        changed: int,
        kind: CheckpointKind,
        label: str | None = None,
        session: str | None = None,
        node: str | None = None,
        parent: CheckpointId | None = None,
    ) -> Checkpoint:
        """Record the checkpoint of ``present``; the state that names its layer is written before the head moves."""
        made = self.store.history.begin(
            parent or self.head.head,
            kind=kind,
            label=label,
            session=session,
            node=node,
            changed=changed,
            generation=self.store.generations.current,
            next_ino=self.scanner.index.next_ino,
            scope=present.scope,
        )
        self.targets.freeze(made.id, present.root)
        self.pending[made.id] = present.layer
        self.write_state(present)
        self.sealing.submit(made.id, present.layer)
        return made

    def set_head(
        self, id: CheckpointId, redo: tuple[CheckpointId, ...], present: Present, baseline: LayerRef | None = None
    ) -> None:
        """``present``, or ``baseline``, is what ``id`` stands for from now on."""
        self.baseline = present.root if baseline is None else self.root(baseline)
        self.baseline_layer = baseline or present.layer
        before = self.head.head
        self.head = msgspec.structs.replace(self.head, head=id, redo=redo, next_ino=self.scanner.index.next_ino)
        self.write_state(present)
        self.store.history.write_head(self.head)
        if id != before:
            self.listener("head", {"head": id})

    def write_state(self, present: Present) -> None:
        """Remember ``present``, and the records that speak of it."""
        pending = tuple(self.pending.items())
        self.state_file.write(
            self.head.head,
            present.layer,
            present.scope,
            self.baseline_layer,
            pending,
            self.kept_present,
            self.store.generations.current,
        )
        self.scanner.save_index(self.index_path, self.home.disk)
        self.kept_present = present.layer

    def save_index(self) -> None:
        """Keep the records, as the last thing that is done."""
        with self.lock:
            try:
                self.scanner.save_index(self.index_path, self.home.disk)
            except (StoreError, OSError) as error:
                self._problem(f"the records of the last scan could not be kept: {error}")


def same_page(a: Page | None, b: Page | None) -> bool:
    """True if both are certainly the same."""
    return a is b or (a is not None and b is not None and a.ref is not None and a.ref == b.ref)


def result_of(checkpoint: Checkpoint, created: bool, began: float) -> CheckpointResult:
    return CheckpointResult(
        checkpoint.id,
        checkpoint.parent,
        created,
        checkpoint.changed,
        checkpoint.label,
        checkpoint.session,
        checkpoint.node,
        time.perf_counter() - began,
    )
