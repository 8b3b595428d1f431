"""The messages of the socket, typed: parameters of each method, requests, answers, events.

Owns the wire form, which docs/protocol.md describes: change both together, and ``PROTOCOL_VERSION`` when an old client
would misunderstand. Results are the values of ``vfs.workspace``. Does not own framing on the socket (``server``,
``client``). All values are immutable.

JSON is written and read by the standard library, not by msgspec: a name that is not UTF-8 crosses as lone surrogates
(``"\\udcff"``), which JSON allows and msgspec refuses. msgspec checks the types.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from harness.failure import PlyfsError
from store.errors import StoreError
from vfs.errors import FsError
from vfs.workspace import Change

PROTOCOL_VERSION = 1

LINE_MAX = 1 << 20
"""Longest request in bytes, its newline included."""

CHUNK_MAX = 4 << 20
"""Most bytes that one ``cat`` answers with."""

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Path: TypeAlias = Annotated[str, msgspec.Meta(max_length=1 << 17)]
Steps: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of one method; absent ones take the command's default."""


class Hello(Params, frozen=True):
    """Who are you? Answered at once, whatever else the daemon does. ``language``: what is told to people on this
    connection (errors, health, why there is no undo) shall be in that. ``token``: what a port asks for.
    """

    language: Literal["en", "zh-CN"] | None = None
    token: Text | None = None


class Checkpoint(Params, frozen=True):
    """Seal what has changed since the head."""

    label: Text | None = None
    session: Text | None = None
    node: Text | None = None
    sync: bool = False


class Undo(Params, frozen=True):
    """Go back."""

    count: Steps = 1


class Redo(Params, frozen=True):
    """Go forward again."""

    count: Steps = 1


class Restore(Params, frozen=True):
    """Go to a checkpoint, or bring back paths of it."""

    checkpoint: Name
    paths: list[Path] | None = None
    dry_run: bool = False
    force: bool = False
    with_git: bool | None = None
    fingerprint: Text | None = None
    session: Text | None = None


class Log(Params, frozen=True):
    """The tree of checkpoints. ``changes`` also lists what each of the newest ``changes`` ones changed."""

    session: Text | None = None
    changes: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0


class Diff(Params, frozen=True):
    """What changes from ``a`` to ``b``."""

    a: Name | None = None
    b: Name | None = None
    patch: bool = False
    stat: bool = False


class Drift(Params, frozen=True):
    """What restoring the head would change now."""


class Status(Params, frozen=True):
    """Where the workspace stands."""


class Cat(Params, frozen=True):
    """Bytes of a file as a checkpoint has it, at most ``CHUNK_MAX`` of them."""

    checkpoint: Name
    path: Path
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    length: Annotated[int, msgspec.Meta(ge=0, le=CHUNK_MAX)] = CHUNK_MAX


class Ls(Params, frozen=True):
    """A directory as a checkpoint has it."""

    checkpoint: Name
    path: Path = ""


class Unmount(Params, frozen=True):
    """Stop serving."""

    how: Literal["apply", "keep", "discard"] = "apply"
    lazy: bool = False


class Session(Params, frozen=True):
    """An agent's session comes, or comes again. ``owns``: the workspace is served for the sake of such sessions.
    ``within``: the session that it works for, as a sub-agent does. ``working``: its agent is changing files from now
    on, or no longer; null says nothing of that.
    """

    session: Name
    parent: Text | None = None
    file: Path | None = None
    pid: Annotated[int, msgspec.Meta(ge=1)] | None = None
    owns: bool = False
    within: Name | None = None
    working: bool | None = None


class Leave(Params, frozen=True):
    """It goes."""

    session: Name
    pid: Annotated[int, msgspec.Meta(ge=1)]


class Capture(Params, frozen=True):
    """A checkpoint, and what it says of a node; ``changes`` also tells what was unsaved."""

    session: Name
    node: Name | None = None
    label: Text | None = None
    changes: bool = False


class Bind(Params, frozen=True):
    """The files at a node are those of a checkpoint (default: the head)."""

    session: Name
    node: Name
    checkpoint: Name = "@"


class Find(Params, frozen=True):
    """The state of a node: ``nodes`` are the node and its ancestors, nearest first."""

    session: Name
    nodes: Annotated[list[Name], msgspec.Meta(max_length=100_000)]


class Settings(Params, frozen=True):
    """The settings for agents, read anew."""


class Subscribe(Params, frozen=True):
    """Send events on this connection from now on."""


METHODS: dict[str, type[Params]] = {
    "hello": Hello,
    "checkpoint": Checkpoint,
    "undo": Undo,
    "redo": Redo,
    "restore": Restore,
    "log": Log,
    "diff": Diff,
    "drift": Drift,
    "status": Status,
    "cat": Cat,
    "ls": Ls,
    "unmount": Unmount,
    "subscribe": Subscribe,
    "session": Session,
    "leave": Leave,
    "capture": Capture,
    "bind": Bind,
    "find": Find,
    "settings": Settings,
}

RequestId: TypeAlias = int | str | None


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line from a client."""

    id: RequestId
    method: str
    params: dict[str, Any] = {}


class HelloResult(msgspec.Struct, frozen=True):
    """Answer of ``hello``."""

    protocol: int
    version: str
    pid: int
    workspace: str
    mountpoint: str | None
    methods: list[str]


class CatResult(msgspec.Struct, frozen=True):
    """Answer of ``cat``: ``data`` is base64. Fewer bytes than asked for mean the end of the file."""

    path: str
    offset: int
    data: str


class LsResult(msgspec.Struct, frozen=True):
    """Answer of ``ls``."""

    entries: list[Any]


class SessionResult(msgspec.Struct, frozen=True):
    """Answer of ``session``: whether it was known before, and in whose name it works (null: its own)."""

    known: bool
    within: str | None = None


class LeaveResult(msgspec.Struct, frozen=True):
    """Answer of ``leave``: how many sessions are left, and whether nobody needs the workspace served any more."""

    others: int
    last: bool


class CaptureResult(msgspec.Struct, frozen=True):
    """Answer of ``capture``. ``id`` is the checkpoint that the files are at now, ``state`` the one that the node stands
    for (null without a node); they differ if the node had its state already and the files have changed since.
    """

    id: str
    parent: str | None
    created: bool
    changed: int
    state: str | None
    recorded: bool
    seconds: float
    changes: list[Change] = []


class BindResult(msgspec.Struct, frozen=True):
    """Answer of ``bind``: the state of the node, and whether that is new."""

    state: str
    recorded: bool


class FindResult(msgspec.Struct, frozen=True):
    """Answer of ``find``: the state, and where it was recorded; all null if nowhere."""

    state: str | None = None
    session: str | None = None
    node: str | None = None


class SettingsResult(msgspec.Struct, frozen=True):
    """Answer of ``settings``."""

    agents: dict[str, Any]


class MountResult(msgspec.Struct, frozen=True):
    """What ``plyfs mount`` prints. ``notes`` are for a person: what was mended, what changed outside."""

    workspace: str
    mountpoint: str | None
    mode: str
    channel: str | None
    head: str
    pid: int
    socket: str
    notes: list[str] = []


T = TypeVar("T")


def typed(value: object, kind: type[T]) -> T:
    """``value``, as JSON gave it, as ``kind``. Raises PlyfsError that says what is wrong where."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise PlyfsError("bad_request", str(error), "docs/protocol.md lists the methods and their parameters") from None


def parse_request(line: bytes) -> Request:
    """The request in one line. Raises PlyfsError."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PlyfsError("bad_request", f"the line is not JSON: {error}", "send one JSON object a line") from None
    return typed(value, Request)


def parse_params(request: Request) -> Params:
    """The typed parameters of ``request``. Raises PlyfsError."""
    kind = METHODS.get(request.method)
    if kind is None:
        raise PlyfsError(
            "unknown_method", f"there is no method {request.method!r}", "`hello` lists the methods that this daemon has"
        )
    return typed(request.params, kind)


def line(value: dict[str, Any]) -> bytes:
    """``value`` as one line of ASCII JSON; structs in it become objects."""
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii") + b"\n"


def to_object(value: msgspec.Struct | dict[str, Any]) -> dict[str, Any]:
    """``value`` as JSON would have it."""
    made: dict[str, Any] = msgspec.to_builtins(value)
    return made


def answer_line(request_id: RequestId, result: object) -> bytes:
    """The answer to a request that succeeded."""
    return line({"id": request_id, "result": result})


def error_line(request_id: RequestId, failure: PlyfsError) -> bytes:
    """The answer to a request that failed."""
    return line({"id": request_id, "error": failure.body()})


def event_line(name: str, data: object) -> bytes:
    """An event for subscribers."""
    return line({"event": name, "data": data})


def failure_of(error: Exception) -> PlyfsError:
    """``error`` as it crosses the socket: an expected one by its code, anything else as ``internal``."""
    if isinstance(error, PlyfsError):
        return error
    if isinstance(error, StoreError):
        return PlyfsError(error.code, error.message, error.hint)
    if isinstance(error, FsError):
        return PlyfsError("failed", f"reading failed: {error}", "the daemon's log has more")
    if isinstance(error, OSError):
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        where = f": {name!r}" if name else ""
        return PlyfsError("failed", f"{error.strerror or error}{where}", "the daemon's log has more")
    return PlyfsError(
        "internal", f"{type(error).__name__}: {error}", "this is a bug in plyfs; the daemon's log has more"
    )
