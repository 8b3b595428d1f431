"""Where undo and redo lead: the rules that a mounted and a scanned workspace share.

Owns the steps through the tree of checkpoints. Does not own how the present is compared with the head (``unsaved`` says
whether it differs), nor making a move. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import NamedTuple

from store.head import Head
from store.history import Checkpoint, History
from store.refs import CheckpointId
from vfs.trees.diff import Changed
from vfs.workspace import NothingToDoError


class Step(NamedTuple):
    """Where to, and what is the way forward from there."""

    target: CheckpointId
    redo: tuple[CheckpointId, ...]


def back(history: History, head: Head, count: int, unsaved: bool) -> Step:
    """``count`` states back; with unsaved changes the first of them is the head. Raises NothingToDoError.

    Hidden checkpoints are not among the states that count: they differ from their parent in ``.git`` only.
    """
    target = history.get(head.head)
    redo = () if unsaved else head.redo
    steps = count - 1 if unsaved else count
    left = steps
    while left > 0:
        parent = None if target.parent is None else history.get(target.parent)
        if parent is None:
            break
        if target.kind != "hidden":
            redo = (target.id, *redo)
            left -= not is_note(target)
        target = parent
    if left == count:
        raise NothingToDoError(
            "there is nothing to undo: this is the first state", hint="`plyfs log` shows where you are"
        )
    return Step(target.id, redo)


def is_note(checkpoint: Checkpoint) -> bool:
    """True for a checkpoint that only tells of something: its tree is that of its parent."""
    return checkpoint.kind == "outside" and not checkpoint.changed


def forward(head: Head, count: int) -> Step:
    """``count`` states forward again, or as many as there are. Raises NothingToDoError."""
    way = head.redo
    if not way:
        raise NothingToDoError(
            "there is nothing to redo",
            hint="`plyfs log --graph` shows every state; `plyfs restore ID` goes to any of them",
        )
    steps = min(count, len(way))
    return Step(way[steps - 1], way[steps:])


def why_not(history: History, head: Head, unsaved: bool) -> tuple[str, str]:
    """Why one cannot undo now, and why one cannot redo; empty if one can."""
    try:
        back(history, head, 1, unsaved)
    except NothingToDoError:
        undo = "this is the first state"
    else:
        undo = ""
    return undo, "" if head.redo else "nothing was undone"


def foreign(
    history: History,
    head: CheckpointId,
    target: CheckpointId,
    mine: Mapping[str, int | None] | None,
    changes: Callable[[CheckpointId, CheckpointId], Iterable[Changed]],
) -> dict[bytes, str]:
    """Paths that sessions other than ``mine`` (by default the target's) changed since the head and the target parted,
    and who did.

    ``mine`` gives for each session the time (ns) until which its changes are the caller's own; ``changes`` tells what
    differs between two checkpoints.
    """
    if mine is None:
        session = history.get(target).session
        if session is None:
            return {}
        mine = {session: None}
    kept: dict[bytes, str] = {}
    for one in since_parting(history, head, target):
        if one.session is None or one.parent is None:
            continue
        until = mine.get(one.session, 0)
        if until is None or one.time_ns < until:
            continue
        for change in changes(one.parent, one.id):
            reason = f"session {one.session} changed it in {one.id}"
            kept.setdefault(change.path, reason)
            if change.source is not None:
                kept.setdefault(change.source, reason)
    return kept


def since_parting(history: History, head: CheckpointId, target: CheckpointId) -> list[Checkpoint]:
    """From ``head`` backwards, the checkpoints that ``target`` has not among those before it or is itself. Looks no
    further back than where the two ways meet, however long the history before that is.
    """
    ours: list[Checkpoint] = []
    places: dict[CheckpointId, int] = {}
    theirs: set[CheckpointId] = set()
    for one, other in zip_longest(_way_back(history, head), _way_back(history, target)):
        if other is not None:
            if other.id in places:
                return ours[: places[other.id]]
            theirs.add(other.id)
        if one is not None:
            if one.id in theirs:
                return ours
            places[one.id] = len(ours)
            ours.append(one)
    return ours


def _way_back(history: History, id: CheckpointId) -> Iterator[Checkpoint]:
    yield history.get(id)
    yield from history.ancestors(id)
