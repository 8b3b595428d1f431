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
    """What somebody asked for; None leaves it to the configuration. Kept in the registry, to be asked again.

    ``all``: a scan captures what git ignores, too.
    """

    workspace: str
    mountpoint: str | None = None
    mode: Mode | None = None
    channel: ChannelName | None = None
    all: bool | None = None


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

    def store_directory(self) -> str:
        """Where what is recorded of this workspace lies. After ``start``."""
        ...

    def knows(self, checkpoint: str) -> bool:
        """True if there is a checkpoint of that id."""
        ...

    def wait(self) -> None:
        """Return when it is no longer served, whoever ended that."""
        ...

    def close(self) -> None:
        """Let go of everything. After ``unmount``; without it, as a crash would."""
        ...


Opener: TypeAlias = Callable[[ServeOptions, Listener], ServedWorkspace]


def open_workspace(options: ServeOptions, listener: Listener) -> ServedWorkspace:
    """A mounted or a scanned workspace, as ``options`` say. Raises PlyfsError where that cannot be had."""
    why: str | None = None
    if options.mode != "scan":
        try:
            refusals.check_fuse(really=options.mode == "auto" and options.mountpoint is None)
        except PlyfsError as error:
            if options.mode == "fuse" or options.mountpoint is not None:
                raise
            why = f"the workspace is scanned, not mounted: {error.message}"
    # Not before: the daemon of one backend need not load the other.
    if options.mode != "scan" and why is None:
        from vfs.mounted import open_workspace as open_mounted

        return open_mounted(options, listener)
    if options.mountpoint is not None:
        raise PlyfsError("usage", "a scanned workspace has no mount point", "leave out --at, or use --mode fuse")
    from vfs.scan.scanned import open_workspace as open_scanned

    return open_scanned(options, listener, why)
