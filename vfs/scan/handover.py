"""Before a mount begins on the head of a scan: the last scan, after which the base is the mount's.

Owns the order: whatever a crash left of the scanned workspace is settled; what was unsaved becomes a checkpoint; the
generation of the scans ends. From then on the head is the base as it is, without any override, and no index of the base
from before counts. Does nothing where the directory was a mount's last.

Concurrency: one thread, under the workspace's store lock.
"""

from __future__ import annotations

import os

from store.home import Home, WorkspaceStore
from store.lock import Lock
from vfs.scan.coverage import load_scope
from vfs.scan.state import StateFile

STALE = (b"known", b"survey", b"explained")
"""Files in which mounts remember what the base was (``vfs.base.absence``)."""


def from_scan(home: Home, store: WorkspaceStore, lock: Lock, workspace: bytes) -> list[str]:
    """Make the base ready for a mount; returns notes for people. Raises StoreError."""
    state = StateFile(os.path.join(store.path, b"scan"), home.disk).read()
    peek = home.by_id(store.id)
    try:
        if state is None or state.generation != peek.generations.current:
            return []
        scope = load_scope(home.objects, state.scope)
    finally:
        peek.close()
    # Not before: a workspace that is never scanned need not load the scanner.
    from vfs.scan.policy import Policy
    from vfs.scan.scanned import ScannedWorkspace

    policy = Policy(scope.rules, scope.max_bytes)
    scanned = ScannedWorkspace(os.fsdecode(workspace), os.fsdecode(home.root), policy, lambda name, data: None)
    scanned.start(lock)
    try:
        scanned.hand_over()
        notes = scanned.notes()
    finally:
        scanned.close()
    for name in STALE:
        try:
            os.unlink(os.path.join(store.path, name))
        except FileNotFoundError:
            pass
    return notes
