"""The one place where the harness meets the thing that serves: from options to a served Workspace.

Owns the options of a served workspace and the small protocol that the daemon needs beside ``Workspace``. Does not own
processes (``daemon``) or what serving is (``vfs.mounted``). Plugging in another backend is one line here; tests pass
their own ``Opener`` to ``daemon.main``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import msgspec

from harness import refusals
from harness.config import Config
from harness.failure import PlyfsError
from vfs.workspace import Workspace

Mode: TypeAlias = Literal["auto", "fuse", "scan"]
ChannelName: TypeAlias = Literal["auto", "direct", "pyfuse3"]


class ServeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody asked for; None leaves it to the configuration. Kept in the registry, to be asked again."""

    workspace: str
    mountpoint: str | None = None
    mode: Mode | None = None
    channel: ChannelName | None = None


class ServeOptions(msgspec.Struct, frozen=True):
    """What is to be served, and how. ``mountpoint`` None is in place."""

    workspace: str
    mountpoint: str | None
    mode: Mode
    channel: ChannelName
    home: str
    config: Config


Listener: TypeAlias = Callable[[str, object], None]
"""Called from any thread with an event's name and data: ``sealed``, ``progress``, ``health``."""


class ServedWorkspace(Workspace, Protocol):
    """A Workspace with a life. All methods may be called from any thread."""

    def start(self) -> None:
        """Recover what a crash left, and serve; returns once it is served. Raises StoreError."""
        ...

    def notes(self) -> list[str]:
        """What a person should know of the start: what was recovered, what changed outside."""
        ...

    def wait(self) -> None:
        """Return when it is no longer served, whoever ended that."""
        ...

    def close(self) -> None:
        """Let go of everything. After ``unmount``; without it, as a crash would."""
        ...


Opener: TypeAlias = Callable[[ServeOptions, Listener], ServedWorkspace]


def open_workspace(options: ServeOptions, listener: Listener) -> ServedWorkspace:
    """A workspace mounted by FUSE. Raises PlyfsError where that cannot be had."""
    if options.mode == "scan":
        raise PlyfsError("refused", "this version of plyfs cannot scan yet", "use --mode fuse")
    refusals.check_fuse()
    # Not before: the daemon of another backend need not load it.
    from vfs.mounted import open_workspace as open_mounted

    return open_mounted(options, listener)
