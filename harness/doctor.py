"""Finding what crashes left behind, and mending it: dead daemons, stale mounts, leftover sockets and locks.

Owns the order in which a dead daemon is buried (its mount detached, its entry withdrawn) and a successor started, which
recovers the changes from the journal. Every command that meets a dead daemon comes here; `plyfs doctor` looks at
everything. Does not verify the store (``commands.fsck``). Never touches a mount whose daemon answers.

Concurrency: the registry's ``starter`` claim makes one process at a time mend one workspace; others wait for it.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from harness.client import Client, NoDaemonError
from harness.failure import PlyfsError
from harness.launch import launch
from harness.places import home_directory
from harness.registry import Claim, Entry, Registry, is_below, unlink_if_there
from harness.systems import system
from store.errors import DamagedError, StoreError
from vfs.channels import mountinfo, mountpoint

if TYPE_CHECKING:
    from typing import Any

    from harness.terminal import Terminal
    from store.home import Home

Choice: TypeAlias = Literal["finish", "back"]
"""What becomes of an interrupted restore."""

POLL_SECONDS = 0.05
SILENT_SECONDS = 3.0
"""A daemon answers ``hello`` at once, whatever else it does."""
DEAF_SECONDS = 5.0
"""A living daemon that says it is ready, but does not listen for so long, is broken."""


STORE = "store"
"""The kind of a finding about the store itself: it is damaged, or of another version."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was not as it should be. ``subject`` is a path or process, ``detail`` for a person."""

    kind: str
    subject: str
    state: Literal["mended", "found", "failed"]
    detail: str


def not_served(path: str) -> PlyfsError:
    """Why nothing serves ``path``."""
    real = os.path.realpath(path)
    for mount in reversed(mountinfo.mounts()):
        if mount.is_ours and is_below(real, os.fsdecode(mount.point)):
            return PlyfsError(
                "not_mounted",
                f"{os.fsdecode(mount.point)} is a plyfs mount that the store {home_directory()} does not know",
                "set PLYFS_HOME as it was at the mount; if the mount is dead, `plyfs doctor` takes it away",
            )
    known = known_workspace(real)
    if known is not None:
        return PlyfsError("not_mounted", f"the workspace {known} is not mounted", f"`plyfs mount {known}`")
    return PlyfsError(
        "not_a_workspace",
        f"{real} is not in a workspace that is mounted",
        "`plyfs mount DIRECTORY` serves one; -C names it from elsewhere",
    )


def known_workspace(path: str) -> str | None:
    """The innermost workspace in the store that ``path`` lies in. Raises StoreError if the store cannot be read."""
    from store.home import Home

    if not os.path.isdir(os.path.join(home_directory(), "workspaces")):
        return None
    try:
        home = Home.open(home_directory())
    except OSError:
        return None
    known = [os.fsdecode(record.path) for record in home.workspaces()]
    found = max((one for one in known if is_below(path, one)), key=len, default=None)
    if found is None and (lost := _lost_workspace(home, path)) is not None:
        raise DamagedError(
            f"what the store knows of the workspace {lost} is damaged: its record cannot be read",
            hint=f"`plyfs mount {lost}` makes the record anew; its checkpoints are untouched",
        )
    return found


def _lost_workspace(home: Home, path: str) -> str | None:
    """The directory, ``path`` or one above it, that is a workspace whose record is damaged."""
    from store.home import WorkspaceIdentity

    lost = home.unreadable()
    while lost:
        try:
            if WorkspaceIdentity.of(path).id() in lost:
                return path
        except OSError:
            return None
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above
    return None


def revive(registry: Registry, entry: Entry, terminal: Terminal) -> Entry:
    """The entry of a daemon that answers, after ``entry``'s did not. Raises PlyfsError if there is none to be had."""
    waiting = terminal.waiting(f"waiting for the daemon of {entry.workspace}")
    started = time.monotonic()
    try:
        while True:
            current = registry.read(entry.workspace)
            if current is None and _is_settled(registry, entry.workspace):
                raise PlyfsError(
                    "not_mounted",
                    f"{entry.workspace} has just been unmounted",
                    f"`plyfs mount {entry.workspace}` serves it again",
                )
            if current is None:
                pass
            elif not current.is_alive():
                successor = _replace(registry, current, terminal)
                if successor is not None:
                    return successor
            elif current.state == "ready" and _listens(current, time.monotonic() - started):
                return current
            time.sleep(POLL_SECONDS)
            if waiting is not None:
                waiting(time.monotonic() - started)
    finally:
        terminal.clear()


def _is_settled(registry: Registry, workspace: str) -> bool:
    """True if there is no entry, and nobody who is about to write one."""
    with Claim(registry, workspace, "starter"):
        return registry.read(workspace) is None


def _listens(entry: Entry, seconds: float) -> bool:
    try:
        Client(entry.endpoint).close()
    except NoDaemonError:
        if seconds < DEAF_SECONDS:
            return False
        raise PlyfsError(
            "daemon_silent",
            f"process {entry.pid} serves {entry.workspace} but does not listen at {entry.socket}",
            f"`{system.end_command(entry.pid)}` lets it keep the changes and end; then run the command again",
        ) from None
    return True


def _replace(registry: Registry, dead: Entry, terminal: Terminal) -> Entry | None:
    """Start a successor for ``dead``; None if somebody else has done something about it meanwhile."""
    with Claim(registry, dead.workspace, "starter"):
        current = registry.read(dead.workspace)
        if current is None or current.is_alive():
            return None
        terminal.note(f"plyfs: the daemon of {dead.workspace} (process {dead.pid}) is dead; starting another")
        # The entry stays until the successor writes its own, so that others who look meanwhile do not find nothing.
        if current.mountpoint is not None:
            detach(current.mountpoint)
        try:
            result = launch(current.request, terminal.waiting(f"recovering {dead.workspace}"))
        except BaseException:
            registry.remove(current)
            raise
        for note in result.get("notes", []):
            terminal.note(f"plyfs: {note}")
        return registry.read(dead.workspace)


def clear_way(registry: Registry, entry: Entry, terminal: Terminal) -> bool:
    """Bury ``entry`` if its daemon is dead, so that the directory can be looked at; True if it lives."""
    with Claim(registry, entry.workspace, "starter"):
        current = registry.read(entry.workspace)
        if current is None:
            return False
        if current.is_alive():
            return True
        if bury(registry, current):
            terminal.note(f"plyfs: took away the mount of a dead daemon (process {current.pid})")
        return False


def bury(registry: Registry, dead: Entry) -> bool:
    """Detach the mount of a dead daemon and withdraw its entry; True if there was a mount."""
    was_mounted = dead.mountpoint is not None and detach(dead.mountpoint)
    registry.remove(dead)
    return was_mounted


def detach(point: str) -> bool:
    """Take away a mount of ours whose daemon is dead; True if there was one."""
    place = os.fsencode(point)
    found = mountpoint.mend(place)
    if mountpoint.state(place) == "unresponsive":
        # Something still holds the dead daemon's descriptor: only breaking the connection lets go whoever waits.
        try:
            mountpoint.abort(place)
        except mountpoint.MountError:
            pass
        mountpoint.unmount(place, lazy=True)
        found = True
    return found


def examine(registry: Registry, terminal: Terminal, restores: Choice | None = None) -> list[Finding]:
    """Look at everything, mend what can be mended, and tell. ``restores``: what becomes of those that were
    interrupted; without a choice they wait for it, or for the next command there, which finishes them.
    """
    found = _permissions(registry)
    interrupted, waiting = _restores(registry, terminal, restores)
    found += interrupted
    for entry in registry.all():
        if entry.workspace not in waiting:
            found += _daemon(registry, entry, terminal)
    found += _mounts(registry)
    found += _leftovers(registry)
    return found


def _permissions(registry: Registry) -> list[Finding]:
    found = []
    for path in (home_directory(), registry.directory):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        if status.st_uid != system.user_id():
            found.append(Finding("owner", path, "found", f"it belongs to user {status.st_uid}: set PLYFS_HOME"))
        elif status.st_mode & 0o077 and not system.IS_WINDOWS:
            os.chmod(path, 0o700)
            found.append(Finding("mode", path, "mended", f"its mode was {stat.S_IMODE(status.st_mode):o}, now 700"))
    return found


def _daemon(registry: Registry, entry: Entry, terminal: Terminal) -> list[Finding]:
    if not entry.is_alive():
        detail = f"process {entry.pid} was dead"
        try:
            successor = revive(registry, entry, terminal)
        except (PlyfsError, StoreError) as error:
            return [Finding("daemon", entry.workspace, "failed", f"{detail}; {error.message}")]
        return [Finding("daemon", entry.workspace, "mended", f"{detail}; process {successor.pid} serves it now")]
    if entry.state != "ready":
        return []
    try:
        client = Client(entry.endpoint)
        try:
            client.greet(SILENT_SECONDS)
        finally:
            client.close()
    except PlyfsError as error:
        detail = f"process {entry.pid}: {error.message}; {system.ending(entry.pid)}"
        return [Finding("daemon", entry.workspace, "found", detail)]
    if entry.mode == "fuse" and entry.mountpoint is not None:
        state = mountpoint.state(os.fsencode(entry.mountpoint))
        if state in ("dead", "unresponsive"):
            detail = f"process {entry.pid} answers, but its mount is {state}; `kill {entry.pid}` and mount again"
            return [Finding("mount", entry.mountpoint, "found", detail)]
    return []


def _restores(registry: Registry, terminal: Terminal, choice: Choice | None) -> tuple[list[Finding], set[str]]:
    """Restores of scanned workspaces that a crash interrupted, and that no daemon has finished yet; and the workspaces
    that wait for a choice.
    """
    if not os.path.isdir(os.path.join(home_directory(), "workspaces")):
        return [], set()
    from store.home import Home
    from vfs.scan.restoring import RestoreFile

    found: list[Finding] = []
    waiting: set[str] = set()
    try:
        home = Home.open()
        for record in home.workspaces():
            path = os.fsdecode(record.path)
            with Claim(registry, path, "starter"):
                entry = registry.read(path)
                if entry is not None and entry.is_alive():
                    continue
                file = RestoreFile(os.path.join(home.by_id(record.id).path, b"scan"), home.disk)
                restoring = file.read()
                if restoring is None:
                    continue
                if choice is None:
                    waiting.add(path)
                    detail = (
                        f"a restore to {restoring.target} was interrupted: `plyfs doctor --finish` finishes it, as the "
                        "next command there does; `plyfs doctor --go-back` takes it back instead"
                    )
                    found.append(Finding("restore", path, "found", detail))
                    continue
                with home.by_id(record.id).lock():
                    file.choose("moving" if choice == "finish" else "returning")
                request = entry.request if entry is not None else {"workspace": path, "mode": "scan"}
                found.append(_settled(request, restoring.target, choice, terminal))
    except DamagedError as error:
        found.append(Finding(STORE, home_directory(), "failed", str(error)))
    except (StoreError, PlyfsError, OSError) as error:
        found.append(Finding("restore", home_directory(), "failed", str(error)))
    return found, waiting


def _settled(request: dict[str, Any], target: str, choice: Choice, terminal: Terminal) -> Finding:
    """Start what serves the workspace, which does as was chosen."""
    path = str(request["workspace"])
    try:
        launch(request, terminal.waiting(f"recovering {path}"))
    except (PlyfsError, StoreError) as error:
        return Finding("restore", path, "failed", f"a restore to {target} was interrupted; {error.message}")
    finally:
        terminal.clear()
    if choice == "finish":
        detail = f"a restore to {target} was interrupted and is finished; the workspace is served"
    else:
        detail = f"a restore to {target} was interrupted and is taken back; the workspace is served"
    return Finding("restore", path, "mended", detail)


def _mounts(registry: Registry) -> list[Finding]:
    """This user's mounts that no entry speaks of. A living one is some other store's."""
    known = {entry.mountpoint for entry in registry.all()}
    found = []
    mine = b"user_id=%d" % system.user_id()
    mounts = [mount for mount in mountinfo.mounts() if mount.is_ours and mine in mount.super_options.split(b",")]
    for point in {os.fsdecode(mount.point) for mount in mounts}:
        if point in known:
            continue
        state = mountpoint.state(os.fsencode(point))
        if state == "unresponsive":
            found.append(Finding("mount", point, "found", "its daemon does not answer, and is not of this store"))
        elif state == "dead":
            try:
                detach(point)
            except StoreError as error:
                found.append(Finding("mount", point, "failed", error.message))
            else:
                found.append(Finding("mount", point, "mended", "its daemon was gone; the directory is itself again"))
    return found


def _leftovers(registry: Registry) -> list[Finding]:
    """Sockets, locks and half-written entries that nobody has any use for."""
    found = []
    names = registry.names("")
    for name in names:
        key, _, suffix = name.partition(".")
        path = os.path.join(registry.directory, name)
        if suffix in ("owner.lock", "starter.lock"):
            if Claim.discard(path):
                found.append(Finding("lock", path, "mended", "nobody held it"))
        elif (suffix == "sock" or suffix.endswith(".new")) and f"{key}.json" not in names:
            unlink_if_there(path)
            found.append(Finding("leftover", path, "mended", "nobody used it"))
    return found
