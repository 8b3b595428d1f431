"""The thread that makes scanned checkpoints durable behind the callers' backs.

A scanned checkpoint is whole when it is answered for: its objects are in the store, and the state file names its layer.
What is left is waiting for the device. Owns the queue; does not own scanning.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from store.errors import NoSpaceError, StoreError
from store.history import History
from store.objects import Objects
from store.refs import CheckpointId, LayerRef

RETRY_SECONDS = 2.0


class ScanSealing:
    """Seals what is submitted, in order. ``on_sealed`` is called in its thread."""

    def __init__(
        self,
        objects: Objects,
        history: History,
        on_sealed: Callable[[CheckpointId], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._objects = objects
        self._history = history
        self._on_sealed = on_sealed
        self._on_problem = on_problem
        self._queue: deque[tuple[CheckpointId, LayerRef]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="plyfs-scan-seal", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, id: CheckpointId, layer: LayerRef) -> None:
        """Make it durable, after those before it."""
        with self._changed:
            self._queue.append((id, layer))
            self._changed.notify_all()

    def drain(self) -> None:
        """Return when all is durable. Raises NoSpaceError."""
        with self._changed:
            while self._queue and self._thread.is_alive():
                self._changed.wait(0.5)

    def stop(self) -> None:
        """End the thread; what is left is taken up again by the next start."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                task = self._queue[0]
            if self._seal(*task):
                with self._changed:
                    self._queue.popleft()
                    self._changed.notify_all()
                self._on_sealed(task[0])

    def _seal(self, id: CheckpointId, layer: LayerRef) -> bool:
        try:
            self._objects.flush()
            self._history.seal(id, layer)
        except (NoSpaceError, OSError) as error:
            self._on_problem(f"checkpoint {id} cannot be made durable yet: {error}")
            with self._changed:
                if not self._stopping:
                    self._changed.wait(RETRY_SECONDS)
            return self._stopping
        except StoreError as error:
            self._on_problem(f"checkpoint {id} could not be made durable: {error}")
        return True
