"""What a scanned workspace remembers from one process to the next, beside its history and its records.

Owns the file ``scan/state``: the tree that the last scan saw, the tree that the head stands for in the workspace (which
differs from the head's own where a restore kept something), and the checkpoints that are not known to be on the device.
It names layers, so that the sweep keeps what they need. Replaced by rename.

Concurrency: the workspace's lock.
"""

from __future__ import annotations

import os

import msgspec

from store.disk import Disk, boot_id, make_directories
from store.errors import DamagedError
from store.refs import CheckpointId, LayerRef, NodeRef
from store.whole import read_whole, write_whole

STATE_VERSION = 2


class ScanState(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="scanned"):
    """``present`` is what the last scan saw, ``before`` what the records on disk may still speak of, ``baseline`` what
    the present is compared with while ``head`` is the head; ``pending`` are checkpoints that were answered for and may
    not be on the device; ``boot`` names the kernel's run. The directory is the scanner's, not a mount's, as long as
    ``generation`` is the present one.
    """

    version: int
    boot: str
    head: CheckpointId
    present: LayerRef
    scope: NodeRef
    baseline: LayerRef
    pending: tuple[tuple[CheckpointId, LayerRef], ...] = ()
    before: LayerRef | None = None
    generation: int = 0


class StateFile:
    """The state in ``directory``."""

    def __init__(self, directory: bytes, disk: Disk) -> None:
        self._directory = directory
        self._path = os.path.join(directory, b"state")
        self._disk = disk

    def write(
        self,
        head: CheckpointId,
        present: LayerRef,
        scope: NodeRef,
        baseline: LayerRef,
        pending: tuple[tuple[CheckpointId, LayerRef], ...],
        before: LayerRef | None,
        generation: int,
    ) -> None:
        """Replace the state. Raises NoSpaceError."""
        make_directories(self._disk, self._directory)
        state = ScanState(STATE_VERSION, boot_id(), head, present, scope, baseline, pending, before, generation)
        write_whole(self._disk, self._path, msgspec.msgpack.encode(state), sync=False)

    def read(self) -> ScanState | None:
        """The state; None if there is none that can be used: then the head's tree stands in."""
        try:
            state = msgspec.msgpack.decode(read_whole(self._path), type=ScanState)
        except (OSError, DamagedError, msgspec.DecodeError):
            return None
        return state if state.version == STATE_VERSION else None
