"""Before a mount begins on the head of a scan: the last scan, after which the base is the mount's.

Owns the order: whatever a crash left of the scanned workspace is settled; what was unsaved becomes a checkpoint; the
generation of the scans ends. From then on the head is the base as it is, without any override, and no index of the base
from before counts. Does nothing where the directory was a mount's last.

Concurrency: one thread, under the workspace's store lock.
"""

from __future__ import annotations

import os

from store.errors import StoreError
from store.home import Home, WorkspaceStore
from store.lock import Lock
from vfs.scan.coverage import load_scope
from vfs.scan.policy import Policy
from vfs.scan.state import ScanState, StateFile

STALE = (b"known", b"survey", b"explained")
"""Files in which mounts remember what the base was (``vfs.base.absence``)."""


def from_scan(home: Home, store: WorkspaceStore, lock: Lock, workspace: bytes) -> list[str]:
    """Make the base ready for a mount; returns notes for people. Raises StoreError."""
    scan_directory = os.path.join(store.path, b"scan")
    if not os.path.isdir(scan_directory):
        return []
    peek = home.by_id(store.id)
    try:
        policy = _policy(home, peek, StateFile(scan_directory, home.disk).read())
    finally:
        peek.close()
    if policy is None:
        return []
    # Not before: a workspace that is never scanned need not load the scanner.
    from vfs.scan.scanned import ScannedWorkspace

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


def _policy(home: Home, peek: WorkspaceStore, state: ScanState | None) -> Policy | None:
    """How the directory was scanned last, None if it was a mount's last."""
    if state is not None and state.generation == peek.generations.current:
        try:
            scope = load_scope(home.objects, state.scope)
        except StoreError:
            pass
        else:
            return Policy(scope.rules, scope.max_bytes)
    from vfs.scan.bridge import is_scanned

    if not is_scanned(home, peek):
        return None
    head = peek.history.read_head()
    ref = None if head is None else peek.history.scope(head.head)
    if ref is None:
        return Policy()
    scope = load_scope(home.objects, ref)
    return Policy(scope.rules, scope.max_bytes)
