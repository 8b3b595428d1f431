"""The checkpoints of one workspace: a tree in the order in which they were made, and the head.

Owns ``history``, an append-only file of events, and what the head is taken to be after a failure. Does not own the
head's file (``head``), what a layer holds, nor when a checkpoint may be called sealed: the sealer says so after it has
flushed the objects.

Concurrency: any thread; one process writes (the holder of the workspace's lock), others read what was there when
they looked.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from store.disk import Clock, Disk, Ids
from store.errors import FormatError, NoSpaceError, UnknownCheckpointError
from store.format import FORMAT_VERSION
from store.frames import EventFile
from store.head import Head, HeadFile
from store.refs import CheckpointId, LayerRef, NodeRef

CheckpointKind = Literal["base", "user", "automatic", "outside", "hidden"]
CheckpointState = Literal["sealing", "sealed"]

RESERVED_BYTES = 16 * 1024
"""Space set aside for what must be recorded when the disk is full."""

PREFIX_MIN = 4
"""A shorter prefix of an id names nothing."""


class Checkpoint(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="checkpoint", gc=False, kw_only=True
):
    """A named, ordered reference to a layer.

    ``time_ns`` never goes back from one checkpoint to the next. ``session`` and ``node`` are the harness's names of
    what it belongs to; ``changed`` counts paths that differ from ``parent``. ``kind``: base (the state that was found),
    user (asked for), automatic (saved before a restore), outside (changed below plyfs), hidden (not for people).
    ``generation`` is the state of the base that its layer speaks of, ``epoch`` the journal that it ended, and
    ``next_ino`` the counter of inode numbers then. ``outside`` lists paths that changed below plyfs, if that is why
    it was made. While ``state`` is sealing there is no ``layer`` and the journal still holds what it needs.
    """

    id: CheckpointId
    parent: CheckpointId | None
    time_ns: int
    label: str | None
    session: str | None
    node: str | None
    changed: int
    kind: CheckpointKind
    generation: int
    state: CheckpointState
    layer: LayerRef | None
    epoch: int
    next_ino: int
    outside: tuple[bytes, ...]


class Scoped(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="scoped"):
    """The checkpoint was scanned and speaks of no more than this scope. Stands before the checkpoint itself: one that
    never came to be does no harm.
    """

    id: CheckpointId
    scope: NodeRef


class Sealed(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="sealed", gc=False):
    """The checkpoint's layer and all below it are on the device."""

    id: CheckpointId
    layer: LayerRef


class Labelled(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="labelled"):
    """The checkpoint has this label from now on."""

    id: CheckpointId
    label: str | None


class Removed(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="removed"):
    """The checkpoints are gone; their children hang on the nearest ancestors that are left."""

    ids: tuple[CheckpointId, ...]


Event: TypeAlias = Checkpoint | Scoped | Sealed | Labelled | Removed


_encode = msgspec.msgpack.Encoder().encode
_events = msgspec.msgpack.Decoder(list[Event])

_BACK = re.compile(r"@~([0-9]{1,9})")


class History:
    """The checkpoints recorded in ``directory``. ``problems`` tells, for people, what reading had to leave out."""

    def __init__(self, directory: bytes, disk: Disk, clock: Clock, ids: Ids) -> None:
        self.path = os.path.join(directory, b"history")
        self.head_file = HeadFile(directory, disk)
        self.problems: list[str] = []
        self._disk = disk
        self._clock = clock
        self._ids = ids
        self._file = EventFile(self.path, "history", disk)
        self._guard = threading.Lock()
        self._scopes: dict[CheckpointId, NodeRef] = {}
        self._all: dict[CheckpointId, Checkpoint] = {}
        """In the order in which they were made."""
        self._shared = False
        """True once others may have seen the checkpoints, which then are never changed in place."""
        self._last_ns = 0
        self._children: dict[CheckpointId | None, list[CheckpointId]] | None = None
        self._by_node: dict[tuple[str | None, str | None], CheckpointId] | None = None
        self._take(self._file.load())
        if self._file.torn:
            self.problems.append(f"{os.fsdecode(self.path)}: {self._file.torn} bytes of an unfinished record left out")

    # Reading

    def _take(self, payloads: list[bytes]) -> None:
        name = os.fsdecode(self.path)
        known = self._all
        try:
            # As one array: decoding ten thousand events one by one would take three times as long.
            events = _events.decode(b"\xdd" + len(payloads).to_bytes(4, "big") + b"".join(payloads))
            for event in events:
                if type(event) is Checkpoint:
                    known[event.id] = event
                elif type(event) is Sealed:
                    checkpoint = known[event.id]
                    if not self._shared:
                        force_setattr(checkpoint, "layer", event.layer)
                        force_setattr(checkpoint, "state", "sealed")
                    else:
                        self._apply(event)
                else:
                    self._apply(event)
        except msgspec.DecodeError as error:
            raise FormatError(f"{name} has an event that is not of format version {FORMAT_VERSION}: {error}") from error
        except KeyError as error:
            raise FormatError(f"{name} speaks of checkpoint {error} before it was made") from error
        self._shared = True
        if known:
            self._last_ns = max(self._last_ns, next(reversed(known.values())).time_ns)
        self._children = self._by_node = None

    def _apply(self, event: Event) -> None:
        known = self._all
        match event:
            case Checkpoint():
                known[event.id] = event
            case Scoped():
                self._scopes[event.id] = event.scope
            case Sealed():
                known[event.id] = msgspec.structs.replace(known[event.id], layer=event.layer, state="sealed")
            case Labelled():
                known[event.id] = msgspec.structs.replace(known[event.id], label=event.label)
            case Removed():
                gone = {id: known.pop(id) for id in event.ids}
                for id in gone:
                    self._scopes.pop(id, None)
                for id, checkpoint in known.items():
                    parent = checkpoint.parent
                    if parent in gone:
                        while parent in gone:
                            parent = gone[parent].parent
                        known[id] = msgspec.structs.replace(checkpoint, parent=parent)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, id: CheckpointId) -> bool:
        return id in self._all

    def all(self) -> list[Checkpoint]:
        """Every checkpoint, oldest first."""
        with self._guard:
            return list(self._all.values())

    def newest(self) -> Checkpoint | None:
        """The checkpoint made last."""
        with self._guard:
            return next(reversed(self._all.values()), None)

    def get(self, id: CheckpointId) -> Checkpoint:
        """The checkpoint of that id. Raises UnknownCheckpointError."""
        try:
            return self._all[id]
        except KeyError:
            raise UnknownCheckpointError(
                f"there is no checkpoint {id}", hint="`plyfs log` lists the checkpoints"
            ) from None

    def scope(self, id: CheckpointId) -> NodeRef | None:
        """What a scanned checkpoint speaks of; None for one of a mount, which speaks of everything."""
        return self._scopes.get(id)

    def children(self, id: CheckpointId | None) -> list[Checkpoint]:
        """The checkpoints made on top of ``id``, oldest first; for None those without a parent."""
        with self._guard:
            if self._children is None:
                self._children = {}
                for checkpoint in self._all.values():
                    self._children.setdefault(checkpoint.parent, []).append(checkpoint.id)
            return [self._all[child] for child in self._children.get(id, ())]

    def ancestors(self, id: CheckpointId) -> Iterator[Checkpoint]:
        """The parent of ``id``, its parent, and so on to the root. Raises UnknownCheckpointError."""
        parent = self.get(id).parent
        while parent is not None:
            checkpoint = self.get(parent)
            yield checkpoint
            parent = checkpoint.parent

    def find(self, session: str | None, node: str | None) -> Checkpoint | None:
        """The newest checkpoint of that session and node."""
        with self._guard:
            if self._by_node is None:
                self._by_node = {(one.session, one.node): one.id for one in self._all.values()}
            id = self._by_node.get((session, node))
            return None if id is None else self._all[id]

    def resolve(self, spec: str, head: Head) -> Checkpoint:
        """The checkpoint that a person names: an id, a unique prefix, a label (its newest), ``@``, ``@~N``, ``base``.

        Raises UnknownCheckpointError.
        """
        if spec == "@":
            return self.get(head.head)
        if spec == "base":
            return self.get(head.base)
        if back := _BACK.fullmatch(spec):
            return self._back(head.head, int(back[1]))
        if (known := self._all.get(CheckpointId(spec))) is not None:
            return known
        everything = self.all()
        for checkpoint in reversed(everything):
            if checkpoint.label == spec:
                return checkpoint
        found = [one for one in everything if one.id.startswith(spec)] if len(spec) >= PREFIX_MIN else []
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(one.id for one in found[:5])
            raise UnknownCheckpointError(
                f"{spec!r} is the beginning of {len(found)} checkpoints: {some}", hint="give more digits of the id"
            )
        raise UnknownCheckpointError(f"there is no checkpoint {spec!r}", hint="`plyfs log` lists the checkpoints")

    def _back(self, id: CheckpointId, steps: int) -> Checkpoint:
        checkpoint = self.get(id)
        for done in range(steps):
            if checkpoint.parent is None:
                raise UnknownCheckpointError(
                    f"there is no checkpoint '@~{steps}': the head has {done} ancestors",
                    hint="`plyfs log` lists the checkpoints",
                )
            checkpoint = self.get(checkpoint.parent)
        return checkpoint

    # Writing

    def begin(
        self,
        parent: CheckpointId | None,
        *,
        kind: CheckpointKind = "user",
        label: str | None = None,
        session: str | None = None,
        node: str | None = None,
        changed: int = 0,
        generation: int = 0,
        epoch: int = 0,
        next_ino: int = 0,
        outside: tuple[bytes, ...] = (),
        layer: LayerRef | None = None,
        scope: NodeRef | None = None,
    ) -> Checkpoint:
        """Record a new checkpoint on top of ``parent``, sealed already if its ``layer`` is given.

        Not durable until ``sync``. Raises UnknownCheckpointError or NoSpaceError, and then there is none.
        """
        with self._guard:
            if parent is not None:
                self.get(parent)
            self._prepare()
            id = self._ids.checkpoint()
            while id in self._all:
                id = self._ids.checkpoint()
            checkpoint = Checkpoint(
                id=id,
                parent=parent,
                time_ns=max(self._clock.time_ns(), self._last_ns),
                label=label,
                session=session,
                node=node,
                changed=changed,
                kind=kind,
                generation=generation,
                state="sealing" if layer is None else "sealed",
                layer=layer,
                epoch=epoch,
                next_ino=next_ino,
                outside=outside,
            )
            if scope is not None:
                self._file.append(_encode(Scoped(id, scope)))
                self._scopes[id] = scope
            if not self._file.reserve(RESERVED_BYTES):
                raise NoSpaceError("the store is full: the checkpoint cannot be recorded", hint="free some space")
            self._file.append(_encode(checkpoint))
            self._all[id] = checkpoint
            self._last_ns = checkpoint.time_ns
            if self._children is not None:
                self._children.setdefault(parent, []).append(id)
            if self._by_node is not None:
                self._by_node[session, node] = id
            return checkpoint

    def seal(self, id: CheckpointId, layer: LayerRef, sync: bool = True) -> Checkpoint:
        """Record that the layer of ``id`` is stored and flushed; durable on return, so that its journal may go.

        Raises UnknownCheckpointError or NoSpaceError.
        """
        checkpoint = self._record(id, Sealed(id, layer))
        if sync:
            self.sync()
        return checkpoint

    def label(self, id: CheckpointId, label: str | None) -> Checkpoint:
        """Give a checkpoint a label, or take it away. Raises UnknownCheckpointError or NoSpaceError."""
        return self._record(id, Labelled(id, label))

    def _record(self, id: CheckpointId, event: Sealed | Labelled) -> Checkpoint:
        with self._guard:
            self.get(id)
            self._prepare()
            self._file.append(_encode(event))
            self._apply(event)
            return self._all[id]

    def remove(self, ids: Collection[CheckpointId]) -> None:
        """Forget checkpoints, durably; their children hang on the nearest ancestors left. The caller keeps the head,
        what it refers to, and all that is being sealed. Raises UnknownCheckpointError or NoSpaceError.
        """
        if not ids:
            return
        with self._guard:
            for id in ids:
                self.get(id)
            self._prepare()
            event = Removed(tuple(ids))
            self._file.append(_encode(event))
            self._apply(event)
            self._children = self._by_node = None
        self.sync()

    def withdraw(self, id: CheckpointId) -> None:
        """Take back a checkpoint that was begun just now and has no children. Works on a full disk too, since ``begin``
        set space aside for it.
        """
        with self._guard:
            event = Removed((id,))
            self._file.append(_encode(event))
            self._apply(event)
            self._children = self._by_node = None

    def _prepare(self) -> None:
        if missed := self._file.prepare():
            self._take(missed)

    def sync(self) -> None:
        """Return when all that was recorded is on the device. Raises OSError or NoSpaceError; then what was recorded
        last has to be recorded again: the file is written anew with that.
        """
        try:
            self._file.sync()
        except (OSError, NoSpaceError):
            with self._guard:
                self._file.doubt()
            raise

    def close(self) -> None:
        """Give the file up; the history can still be read, and written again."""
        with self._guard:
            self._file.close()

    # The head

    def write_head(self, head: Head, sync: bool = False) -> None:
        """Put ``head`` in the place of the one that is there, by rename: the moment at which a move has happened.

        With ``sync`` it, and every checkpoint it may name, is on the device on return. Raises NoSpaceError.
        """
        assert head.head in self._all, "the head is a checkpoint"
        assert head.base in self._all, "the base is a checkpoint"
        if sync:
            self.sync()
        self.head_file.write(head, sync)

    def read_head(self) -> Head | None:
        """The head, None if the workspace has no checkpoint yet.

        After a power failure the file may be lost, or name a checkpoint whose record is lost: then the head is where
        the newest journal begins, else the newest known checkpoint, and ``problems`` says so. Raises FormatError for
        another version.
        """
        head = self.head_file.read()
        newest = self.newest()
        if newest is None:
            if head is not None:
                self._problem("the head names a checkpoint, but the history has none")
            return None
        if head is None:
            everything = self.all()
            journal = self.head_file.newest_journal(self._all)
            at = newest.id if journal is None or journal.head is None else journal.head
            found = "the newest checkpoint" if journal is None else "where the newest journal begins"
            self._problem(f"the head was lost; it is taken to be {found}, {at}")
            head = Head(
                head=at,
                base=self._newest_base(),
                epoch=max(one.epoch for one in everything) + 1 if journal is None else journal.epoch,
                generation=newest.generation if journal is None else journal.generation,
                next_ino=max(newest.next_ino, 0 if journal is None else journal.next_ino),
                mounted=True,
            )
        changes: dict[str, object] = {}
        if head.next_ino < newest.next_ino:  # killed after the checkpoint was recorded and before the head moved
            changes["next_ino"] = newest.next_ino
        if head.head not in self._all:
            self._problem(f"the record of checkpoint {head.head} was lost; the head is the newest left, {newest.id}")
            changes["head"] = newest.id
        if head.base not in self._all:
            changes["base"] = self._newest_base()
            self._problem(f"the record of checkpoint {head.base} was lost; the base is taken to be {changes['base']}")
        if any(id not in self._all for id in head.redo):
            known = next(index for index, id in enumerate(head.redo) if id not in self._all)
            self._problem(f"{len(head.redo) - known} steps of redo were lost with their checkpoints")
            changes["redo"] = head.redo[:known]
        return msgspec.structs.replace(head, **changes) if changes else head

    def _newest_base(self) -> CheckpointId:
        everything = self.all()
        for checkpoint in reversed(everything):
            if checkpoint.kind in ("base", "outside"):
                return checkpoint.id
        return everything[0].id

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def events_that_make_sense(payloads: list[bytes]) -> list[bytes]:
    """Of the events that can be read in a damaged history, those that can stand without the lost ones.

    A checkpoint whose parent was lost hangs on the checkpoint before it.
    """
    one_event = msgspec.msgpack.Decoder(Event)
    known: set[CheckpointId] = set()
    before: CheckpointId | None = None
    kept = []
    for payload in payloads:
        try:
            event: Event = one_event.decode(payload)
        except msgspec.DecodeError:
            continue
        match event:
            case Checkpoint():
                if event.parent is not None and event.parent not in known:
                    event = msgspec.structs.replace(event, parent=before)
                known.add(event.id)
                before = event.id
            case Scoped():
                pass
            case Sealed() | Labelled():
                if event.id not in known:
                    continue
            case Removed():
                ids = tuple(id for id in event.ids if id in known)
                known -= set(ids)
                event = Removed(ids)
                if before not in known:
                    before = None
        kept.append(_encode(event))
    return kept
