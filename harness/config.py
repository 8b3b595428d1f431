"""The configuration: strict TOML, refused with the line when a key, a type or a value is wrong.

Owns ``config.toml`` in the user's configuration directory: which keys there are, their defaults and ranges, and where
the file lies. A workspace's own settings stand in the same file, in tables ``[workspace."/its/path".…]``: not in the
workspace, where a restore would rewind them and a cloned repository could bring its own (docs/protocol.md has the
keys). Values are immutable.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from typing import Annotated, Any, Literal

import msgspec

from harness.failure import PlyfsError
from harness.places import config_path
from harness.toml_lines import lines_of_keys

FILE_MAX = 1 << 20


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table."""


class MountConfig(Section, frozen=True):
    """How a workspace is served."""

    mode: Literal["auto", "fuse", "scan"] = "auto"
    channel: Literal["auto", "direct", "pyfuse3"] = "auto"


class RunConfig(Section, frozen=True):
    """``plyfs run``."""

    on_exit: Literal["apply", "keep", "discard"] = "apply"


class RestoreConfig(Section, frozen=True):
    """``undo``, ``redo`` and ``restore``."""

    with_git: bool = False


class RetentionConfig(Section, frozen=True):
    """What ``gc`` keeps, of all workspaces; without a limit, everything (``store.sweep.Retention``)."""

    keep_last: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    keep_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] | None = None
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 60)] | None = None
    sessions: bool = True


class ScanConfig(Section, frozen=True):
    """Scanner mode. ``all``: what git ignores is captured too. Larger files than ``max_file_bytes`` are left out; 0
    sets no limit.
    """

    all: bool = False
    max_file_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 60)] = 1 << 30


class LogConfig(Section, frozen=True):
    """The daemon's own log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    max_bytes: Annotated[int, msgspec.Meta(ge=10_000, le=1 << 40)] = 1_000_000
    files: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3


class MessagesConfig(Section, frozen=True):
    """What people are told. ``auto`` is the language of the locale."""

    language: Literal["auto", "en", "zh-CN"] = "auto"


class AgentsConfig(Section, frozen=True):
    """What the extensions of coding agents do. ``mount``: serve the workspace when a session begins; ``on_exit``: how
    to leave one that was served for that; ``reopen``: a session whose files differ; ``confirm``: what to ask before.
    """

    mount: Literal["auto", "ask", "off"] = "auto"
    on_exit: Literal["apply", "keep", "leave"] = "apply"
    reopen: Literal["ask", "keep", "restore"] = "ask"
    confirm: Literal["tree", "always", "never"] = "tree"
    undo: Literal["both", "files", "chat"] = "both"
    badge: bool = True
    language: Literal["auto", "en", "zh-CN"] = "auto"


class WorkspaceConfig(Section, frozen=True):
    """What a workspace may have of its own."""

    mount: MountConfig = MountConfig()
    scan: ScanConfig = ScanConfig()
    run: RunConfig = RunConfig()
    restore: RestoreConfig = RestoreConfig()
    log: LogConfig = LogConfig()
    agents: AgentsConfig = AgentsConfig()


class Config(WorkspaceConfig, frozen=True):
    """All settings of one workspace. ``retention`` is the store's, which workspaces share; ``messages`` the user's."""

    retention: RetentionConfig = RetentionConfig()
    messages: MessagesConfig = MessagesConfig()


class _File(Config, frozen=True):
    workspace: dict[str, WorkspaceConfig] = {}


def load(workspace: str, path: str | None = None) -> Config:
    """The settings of ``workspace``: its own over the global over the defaults. Raises PlyfsError with the line."""
    path = config_path() if path is None else path
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_MAX + 1)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise PlyfsError(
            "config", f"{path} cannot be read: {error.strerror}", "make it readable or remove it"
        ) from None
    if len(data) > FILE_MAX:
        raise PlyfsError("config", f"{path} is longer than {FILE_MAX} bytes")
    return parse(data, workspace, path)


def parse(data: bytes, workspace: str, path: str) -> Config:
    """As ``load``, of bytes; ``path`` is for messages."""
    try:
        text = data.decode("utf-8")
        tables = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PlyfsError("config", f"{path}:{line}: not UTF-8", "save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _syntax(str(error), path, text) from None
    checked = _check(tables, text, path)
    for name in checked.workspace:
        if not name.startswith("/") or (name != "/" and os.path.normpath(name) != name):
            line = _line_of(lines_of_keys(text), ("workspace", name))
            raise PlyfsError(
                "config",
                f"{path}:{line}: workspace {name!r} is not an absolute, normal path",
                'write it as `[workspace."/home/me/project".mount]`',
            )
    own = tables.get("workspace", {}).get(workspace, {})
    merged = {name: {**tables.get(name, {}), **own.get(name, {})} for name in Config.__struct_fields__}
    if merged["agents"].get("language", "auto") == "auto":
        merged["agents"]["language"] = checked.messages.language
    return msgspec.convert(merged, Config)


def _syntax(message: str, path: str, text: str) -> PlyfsError:
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    line = text.count("\n") + 1
    if place is not None:
        message = message[: place.start()]
        line = int(place[1]) if place[1] else line
    return PlyfsError("config", f"{path}:{line}: {message}", "the file must be TOML (https://toml.io)")


def _check(tables: dict[str, Any], text: str, path: str) -> _File:
    try:
        return msgspec.convert(tables, _File)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        keys = _keys_of(where.removesuffix("`"), tables)
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL)
        hint = "`plyfs --help` names the page that lists the keys"
        if unknown is not None:
            known = _known_keys(keys)
            keys = (*keys, unknown[1])
            message = f"unknown key {'.'.join(keys)!r}"
            close = difflib.get_close_matches(unknown[1], known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
        else:
            message = f"{'.'.join(keys)}: {message[:1].lower()}{message[1:].replace('`', '')}"
        line = _line_of(lines_of_keys(text), keys)
        raise PlyfsError("config", f"{path}:{line}: {message}", hint) from None


def _keys_of(where: str, tables: dict[str, Any]) -> tuple[str, ...]:
    """The keys in msgspec's path, which says ``[...]`` where a key of a dict stands: the one that does not convert."""
    if where.startswith(".workspace[...]"):
        for name, table in tables["workspace"].items():
            try:
                msgspec.convert(table, WorkspaceConfig)
            except msgspec.ValidationError:
                return ("workspace", name, *_parts(where.removeprefix(".workspace[...]")))
    return _parts(where)


def _parts(where: str) -> tuple[str, ...]:
    return tuple(part for part in where.split(".") if part)


def _known_keys(keys: tuple[str, ...]) -> list[str]:
    kind: type[msgspec.Struct] = WorkspaceConfig if keys[:1] == ("workspace",) else _File
    for key in keys[2:] if keys[:1] == ("workspace",) else keys:
        kind = type(getattr(kind(), key))
    return list(kind.__struct_fields__)


def _line_of(lines: dict[tuple[str, ...], int], keys: tuple[str, ...]) -> int:
    """The line of ``keys``, or of the nearest table or value around them."""
    while keys:
        if keys in lines:
            return lines[keys]
        keys = keys[:-1]
    return 1
