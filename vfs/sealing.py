"""The thread that seals checkpoints behind the callers' backs, in the order in which they were made.

Owns the queue, what happens when the store is full (it waits and tries again: the journal still holds everything),
and telling the live tree where its bytes are from now on. Does not own how a layer is made (``seal``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from store.errors import NoSpaceError, StoreError
from store.history import History
from store.nodes import FreshRegular, Pages
from store.objects import Objects
from store.refs import CheckpointId
from vfs.errors import FsError
from vfs.live.core import Core
from vfs.live.inode import FileInode
from vfs.live.pending import Pending
from vfs.live.seal import LayerSealer, settle
from vfs.roots import Roots
from vfs.timeline import SealTask

RETRY_SECONDS = 2.0

DELAY_SECONDS = 0.003
"""How long a new task is left alone, so that hashing does not slow down the answer to who asked for the checkpoint."""


class Sealing:
    """Seals what is submitted. ``on_sealed`` and ``on_problem`` are called in its thread."""

    def __init__(
        self,
        core: Core,
        objects: Objects,
        pages: Pages,
        history: History,
        roots: Roots,
        on_sealed: Callable[[CheckpointId], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._core = core
        self._objects = objects
        self._pages = pages
        self._history = history
        self._roots = roots
        self._on_sealed = on_sealed
        self._on_problem = on_problem
        self._queue: deque[SealTask] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._failed: dict[CheckpointId, str] = {}
        self.full = False
        self._thread = threading.Thread(target=self._loop, name="plyfs-seal", daemon=True)

    def start(self) -> None:
        """Begin sealing."""
        self._thread.start()

    def submit(self, task: SealTask) -> None:
        """Seal ``task`` after those before it."""
        with self._changed:
            self._queue.append(task)
            self._changed.notify_all()

    def wait(self, checkpoint: CheckpointId, timeout: float | None = None) -> None:
        """Return when ``checkpoint`` is sealed and durable. Raises StoreError if it cannot be, or not in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while any(task.checkpoint == checkpoint for task in self._queue):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise StoreError(f"checkpoint {checkpoint} is not sealed yet", hint="it goes on in the background")
                if self.full:
                    raise NoSpaceError(
                        f"checkpoint {checkpoint} cannot be sealed: the store is full",
                        hint="free some space; it then goes on",
                    )
                self._changed.wait(left)
            if checkpoint in self._failed:
                raise StoreError(f"checkpoint {checkpoint} could not be sealed: {self._failed[checkpoint]}")

    def drain(self) -> None:
        """Return when everything submitted is sealed, or has failed. Raises NoSpaceError if the store is full."""
        with self._changed:
            while self._queue:
                if self.full:
                    raise NoSpaceError("the store is full, so not everything could be sealed", hint="free some space")
                self._changed.wait(0.5)

    @property
    def waiting(self) -> int:
        """How many checkpoints are not sealed yet."""
        return len(self._queue)

    @property
    def failures(self) -> dict[CheckpointId, str]:
        """The checkpoints that could not be sealed, and why."""
        return dict(self._failed)

    def stop(self) -> None:
        """End the thread after the task in hand; what is left stays in the journals."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
            time.sleep(DELAY_SECONDS)
            if not self.seal_next():
                with self._changed:
                    if not self._stopping:
                        self._changed.wait(RETRY_SECONDS)

    def seal_next(self) -> bool:
        """Seal what has waited longest, in the calling thread; False if the store is full: it is to be tried again."""
        with self._changed:
            task = self._queue[0]
        try:
            self._seal(task)
        except NoSpaceError as error:
            if not self.full:
                self._on_problem(f"the store is full; checkpoint {task.checkpoint} waits to be sealed: {error}")
            with self._changed:
                self.full = True
                self._changed.notify_all()
            return False
        except (StoreError, FsError, OSError) as error:
            self._failed[task.checkpoint] = str(error)
            self._on_problem(f"checkpoint {task.checkpoint} could not be sealed: {error}")
        with self._changed:
            self._queue.popleft()
            self.full = False
            self._changed.notify_all()
        self._on_sealed(task.checkpoint)
        return True

    def _seal(self, task: SealTask) -> None:
        with self._objects.sealing():
            parent = None if task.parent is None else self._history.get(task.parent).layer
            with self._objects.gathering() as together:
                sealer = LayerSealer(together, self._pages)
                ref = sealer.seal(task.root, parent)
            self._objects.flush()
            self._history.seal(task.checkpoint, ref)
        with self._core.tree.lock:
            for entry in sealer.settled_files:
                self._settle(entry)
        self._roots.sealed(task.checkpoint)
        self._core.epochs.drop(task.epoch, self._core.tree.lock)

    def _settle(self, entry: FreshRegular) -> None:
        """Let the live file of ``entry`` cite its stored content instead of working data."""
        tree = self._core.tree
        inode = tree.live(entry.attributes.ino)
        pending = entry.fresh.value
        if not isinstance(inode, FileInode) or not isinstance(pending, Pending) or pending.content is None:
            return
        if inode.entry is entry:
            inode.entry = entry.fresh.sealed
            if not inode.rewritten:
                inode.extents = None
                inode.private = None
                return
        if inode.extents is not None:
            inode.extents = settle(inode.extents, pending.runs, tree.sources.extents(pending.content))
