"""``plyfs mount``."""

from __future__ import annotations

import os

from harness import doctor, refusals
from harness.failure import PlyfsError
from harness.launch import launch
from harness.places import home_directory
from harness.registry import TYPE_CHECKING, Claim, Registry

if TYPE_CHECKING:
    from typing import Any

    from harness.invocation import Invocation
    from harness.options import Syntax
    from harness.terminal import Terminal

MODES = ("auto", "fuse", "scan")
CHANNELS = ("auto", "direct", "pyfuse3")


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    syntax.argument("workspace", "WORKSPACE", "the directory (default: as -C says)", optional=True)
    syntax.option("--at", name="point", metavar="DIR", help="mount at this empty directory, not in place")
    syntax.option("--mode", choices=MODES, help="how to serve it")
    syntax.option("--channel", choices=CHANNELS, help="what speaks FUSE")
    syntax.flag("--all", help="when scanning, capture what git ignores too")
    syntax.flag("--foreground", help="serve in this process, until a signal or unmount")


def run(invocation: Invocation) -> int:
    """Serve it."""
    options, terminal = invocation.options, invocation.terminal
    request = {
        "workspace": workspace_path(options.workspace, invocation),
        "mountpoint": None if options.point is None else refusals.resolve(options.point),
        "mode": options.mode,
        "channel": options.channel,
        "all": options.all or None,
    }
    if options.foreground:
        return _foreground(invocation, request)
    result = serve(invocation.registry, request, terminal)
    return invocation.finish(result, lambda: _show(terminal, result))


def workspace_path(given: str | None, invocation: Invocation) -> str:
    """The directory to serve: the one given; else of ``-C`` and what is above it, a workspace that the store knows;
    else ``-C`` itself.
    """
    if given == "":
        raise PlyfsError("usage", "the name of the workspace is empty", "give the path of an existing directory")
    entry = invocation.registry.find(given or invocation.where())
    if entry is not None and doctor.clear_way(invocation.registry, entry, invocation.terminal) and given is None:
        return entry.workspace
    path = refusals.resolve(given or invocation.where())
    if given is None:
        return doctor.known_workspace(path) or path
    return path


def serve(registry: Registry, request: dict[str, Any], terminal: Terminal) -> dict[str, Any]:
    """Start a daemon, after burying one that died there. Raises PlyfsError."""
    workspace = str(request["workspace"])
    registry.create()
    with Claim(registry, workspace, "starter"):
        entry = registry.read(workspace)
        if entry is not None and entry.is_alive():
            raise served_already(entry.workspace, entry.pid, entry.mountpoint)
        if entry is not None:
            doctor.bury(registry, entry)
        refusals.check(workspace, request["mountpoint"], home_directory(), registry)
        try:
            result = launch(request, terminal.waiting(f"mounting {workspace}"))
        finally:
            terminal.clear()
    for note in result.get("notes", []):
        terminal.note(f"plyfs: {note}")
    return result


def served_already(workspace: str, pid: int, mountpoint: str | None) -> PlyfsError:
    """A second daemon for one workspace."""
    return PlyfsError(
        "locked",
        f"{workspace} is served already, by process {pid} at {mountpoint or workspace}",
        "use it as it is, or `plyfs unmount` it first",
    )


def _foreground(invocation: Invocation, request: dict[str, Any]) -> int:
    from harness import daemon, messages, serving

    terminal = invocation.terminal
    os.chdir("/")

    def show(result: messages.MountResult) -> None:
        value = messages.to_object(result)
        invocation.finish(value, lambda: _show(terminal, value))
        if not terminal.as_json:
            terminal.note("Control-C or `plyfs unmount --keep` ends it and keeps the changes in the store")

    daemon.foreground(messages.typed(request, serving.ServeRequest), show)
    return 0


def _show(terminal: Terminal, result: dict[str, Any]) -> None:
    from harness.render import mode_text
    from harness.terminal import shown

    terminal.tell(f"{shown(result['mountpoint'] or result['workspace'])} is served")
    if result["mountpoint"] != result["workspace"] and result["mountpoint"]:
        terminal.tell(f"  workspace  {shown(result['workspace'])}")
    terminal.tell(f"  head       {result['head']}")
    terminal.tell(f"  mode       {mode_text(result)}")
    terminal.tell(f"  daemon     process {result['pid']}")
    here = os.environ.get("PWD", "")
    covered = result["mode"] != "scan" and result["mountpoint"]
    if covered and here and (here + "/").startswith(result["mountpoint"] + "/"):
        terminal.note("this shell still stands in the directory below the mount: `cd .` to enter it")
