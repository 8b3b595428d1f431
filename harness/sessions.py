"""Which state of the files belongs to which node of an agent's conversation: State(session, node).

A *session* is one conversation, a *node* an entry of it that never changes. A node has at most one state, for ever; one
that has none of its own has that of the nearest ancestor that has. A session that was forked off another sees what that
one had recorded. Owns the file ``sessions`` beside the workspace's history (docs/format.md) and which checkpoints
garbage collection must leave for their sake. Does not make checkpoints, and does not know the agents' trees: who asks
gives the ancestors.

Concurrency: any thread. One process writes, the one that serves the workspace; ``pinned`` reads beside it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from harness.failure import PlyfsError
from store.disk import Disk
from store.errors import FormatError, StoreError
from store.format import FORMAT_VERSION
from store.frames import EventFile
from store.history import History
from store.home import Home
from store.lock import process_start
from store.refs import CheckpointId

log = logging.getLogger("plyfs.sessions")

FILE_NAME = b"sessions"
SYNC_SECONDS = 0.5
"""A state is on the device so long after it was recorded; killing the daemon loses none."""


class Opened(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="opened"):
    """A session came. ``parent`` is the session that it was forked off, ``file`` where the agent keeps it: while that
    file is there the session lives.
    """

    session: str
    parent: str | None
    file: str | None
    time_ns: int


class Stated(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="stated", gc=False):
    """The files at ``node`` are those of ``checkpoint``."""

    session: str
    node: str
    checkpoint: str


Event: TypeAlias = Opened | Stated

_encode = msgspec.msgpack.Encoder().encode
_events = msgspec.msgpack.Decoder(list[Event])


class State(msgspec.Struct, frozen=True):
    """What a node stands for. ``session`` and ``node`` tell where that was recorded: there, or at an ancestor."""

    checkpoint: str
    session: str
    node: str


class Recorded(msgspec.Struct, frozen=True):
    """The state of a node, and whether it was recorded just now."""

    checkpoint: str
    created: bool


class Came(msgspec.Struct, frozen=True):
    """A session that has come: whether it was known before, and in whose name it works (None: its own)."""

    known: bool
    within: str | None


class _Table:
    """What a file of sessions says."""

    def __init__(self) -> None:
        self.opened: dict[str, Opened] = {}
        self.states: dict[str, dict[str, str]] = {}

    def take(self, payloads: list[bytes], name: bytes) -> None:
        try:
            events = _events.decode(b"\xdd" + len(payloads).to_bytes(4, "big") + b"".join(payloads))
        except msgspec.DecodeError as error:
            raise FormatError(
                f"{os.fsdecode(name)} has an event that is not of format version {FORMAT_VERSION}: {error}"
            ) from error
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        match event:
            case Opened():
                first = self.opened.get(event.session)
                began = event.time_ns if first is None else first.time_ns
                self.opened[event.session] = msgspec.structs.replace(event, time_ns=began)
            case Stated(session, node, checkpoint):
                self.states.setdefault(session, {})[node] = checkpoint

    def family(self, session: str) -> Iterator[str]:
        """The session, the one that it was forked off, and so on."""
        seen: set[str] = set()
        name: str | None = session
        while name is not None and name not in seen:
            seen.add(name)
            yield name
            opened = self.opened.get(name)
            name = None if opened is None else opened.parent


class Sessions:
    """The sessions of one workspace. ``known`` tells whether a checkpoint is still there."""

    def __init__(
        self, directory: str | bytes, known: Callable[[str], bool], now: Callable[[], int], disk: Disk | None = None
    ) -> None:
        self._path = os.path.join(os.fsencode(directory), FILE_NAME)
        self._known = known
        self._now = now
        self._file = EventFile(self._path, "sessions", Disk() if disk is None else disk)
        self._table = _Table()
        self._table.take(self._file.load(), self._path)
        self._guard = threading.Lock()
        self._unsynced = threading.Event()
        self._stopping = False
        self._here: dict[tuple[str, int], str | None] = {}
        self._within: dict[str, str] = {}
        """For each session of a sub-agent that is here, the session that it works for."""
        self._working: set[str] = set()
        """The sessions whose agents are changing files now."""
        self._owner = False
        self._syncer = threading.Thread(target=self._sync, name="plyfs-sessions", daemon=True)
        self._syncer.start()

    def close(self) -> None:
        """Put everything on the device."""
        self._stopping = True
        self._unsynced.set()
        self._syncer.join(timeout=10)
        with self._guard:
            self._file.close()

    # Recording

    def open(
        self,
        session: str,
        parent: str | None = None,
        file: str | None = None,
        pid: int | None = None,
        owns: bool = False,
        within: str | None = None,
    ) -> Came:
        """A session comes (again). ``owns``: it had the workspace served, for its own sake. ``within``: the session
        that it works for, as a sub-agent: if that is here, this one needs no workspace served for its own sake, and
        what it does is done in the name of that one.
        """
        with self._guard:
            return self._open(session, parent, file, pid, owns, within)

    def _open(
        self, session: str, parent: str | None, file: str | None, pid: int | None, owns: bool, within: str | None
    ) -> Came:
        leader = None if within is None else self._within.get(within, within)
        if leader == session or not any(name == leader for name, _ in self._living()):
            leader = None
        if leader is None:
            self._within.pop(session, None)
            if pid is not None:
                self._here[session, pid] = process_start(pid)
            self._owner |= owns
        else:
            self._within[session] = leader
        known = self._table.opened.get(session)
        if parent == session:
            parent = None
        if known is not None:
            parent = parent or known.parent
            file = file or known.file
        if known is None or (known.parent, known.file) != (parent, file):
            self._add(Opened(session, parent, file, self._now()))
        return Came(known is not None, leader)

    def leave(self, session: str, pid: int) -> tuple[int, bool]:
        """A session goes. How many are left, and whether nobody needs the workspace served any more."""
        with self._guard:
            self._here.pop((session, pid), None)
            self._within.pop(session, None)
            self._working.discard(session)
            left = self._living()
            return len(left), self._owner and not left

    def _living(self) -> dict[tuple[str, int], str | None]:
        """The sessions that are here, without those whose process has ended."""
        gone = [key for key, start in self._here.items() if start is None or process_start(key[1]) != start]
        for key in gone:
            del self._here[key]
        return self._here

    def work(self, session: str, working: bool) -> None:
        """The session's agent is changing files from now on, or no longer."""
        with self._guard:
            if working:
                self._working.add(session)
            else:
                self._working.discard(session)

    def author(self, session: str) -> str:
        """Whose doing it is what the session finds changed: its own, or that of the one that it works for; but if that
        one's agent is idle and another's at work, then that other's, which so can lose nothing to an undo of the first.
        """
        with self._guard:
            leader = self._within.get(session, session)
            here = {name for name, _ in self._living()}
            others = sorted((self._working & here) - {leader})
            return leader if not others or leader in self._working else others[0]

    def record(self, session: str, node: str, checkpoint: str) -> Recorded:
        """The files at ``node`` are those of ``checkpoint``, unless the node has its state already."""
        with self._guard:
            known = self._of(session, node)
            if known is not None:
                return Recorded(known.checkpoint, False)
            self._add(Stated(session, node, checkpoint))
            return Recorded(checkpoint, True)

    def _add(self, event: Event) -> None:
        missed = self._file.prepare()
        if missed:
            self._table.take(missed, self._path)
        self._file.append(_encode(event))
        self._table.apply(event)
        self._unsynced.set()

    def _sync(self) -> None:
        while True:
            self._unsynced.wait()
            self._unsynced.clear()
            try:
                self._file.sync()
            except (OSError, StoreError) as error:
                log.error("the states of sessions are not on the device: %s", error)
                with self._guard:
                    self._file.doubt()
            if self._stopping:
                return

    # Finding

    def _own(self, session: str, node: str) -> str | None:
        checkpoint = self._table.states.get(session, {}).get(node)
        return checkpoint if checkpoint is not None and self._known(checkpoint) else None

    def _of(self, session: str, node: str) -> State | None:
        for name in self._table.family(session):
            checkpoint = self._own(name, node)
            if checkpoint is not None:
                return State(checkpoint, name, node)
        return None

    def of(self, session: str, node: str) -> str | None:
        """The state that was recorded for that very node, by the session or one that it was forked off."""
        with self._guard:
            found = self._of(session, node)
            return None if found is None else found.checkpoint

    def find(self, session: str, nodes: Sequence[str]) -> State | None:
        """The state of the first of ``nodes`` (a node and then its ancestors, nearest first) that has one."""
        with self._guard:
            for node in nodes:
                found = self._of(session, node)
                if found is not None:
                    return found
            return None

    def mine(self, session: str) -> dict[str, int | None]:
        """Whose changes the session may take back: its own; and those of the sessions that it was forked off which
        were made before it began (time in ns), because they are its own past.
        """
        with self._guard:
            found: dict[str, int | None] = {}
            until: int | None = None
            for name in self._table.family(self._within.get(session, session)):
                found[name] = until
                opened = self._table.opened.get(name)
                if opened is None:
                    break
                until = opened.time_ns if until is None else min(until, opened.time_ns)
            return found


def pinned(home: Home) -> set[CheckpointId]:
    """Checkpoints that must stay because a living session stands on them, of all workspaces."""
    found: set[CheckpointId] = set()
    for record in home.workspaces():
        store = home.by_id(record.id)
        try:
            found |= _pinned(store.path, store.history)
        finally:
            store.close()
    return found


def _pinned(directory: bytes, history: History) -> set[CheckpointId]:
    path = os.path.join(directory, FILE_NAME)
    table = _Table()
    table.take(EventFile(path, "sessions", Disk()).load(), path)
    living: set[str] = set()
    for name, opened in table.opened.items():
        if opened.file is None or os.path.exists(opened.file):
            living.update(table.family(name))
    found = {CheckpointId(one) for name in living for one in table.states.get(name, {}).values()}
    for one in history.all():
        # Of what scripts have named with --session nobody tells when it ends.
        if one.session is not None and one.session not in table.opened:
            newest = history.find(one.session, one.node)
            found.add(one.id if newest is None else newest.id)
    return found


def no_sessions() -> PlyfsError:
    """Where a workspace is not served there is nothing to record."""
    return PlyfsError("not_mounted", "the states of sessions need a served workspace", "`plyfs mount`, then again")
