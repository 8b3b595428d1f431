"""``run``: one command in a workspace that is served for just so long.

Owns the order, and what is told when some of it fails. Mounting and unmounting are the commands' own, the child's
signals and terminal the system's (``systems``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.commands.mount import serve, workspace_path
from harness.commands.unmount import unmount
from harness.config import load
from harness.failure import PlyfsError, exit_status
from harness.registry import current_directory, is_below
from harness.systems import system

if TYPE_CHECKING:
    from harness.invocation import Invocation

NOT_FOUND, NOT_EXECUTABLE = 127, 126


class Runner:
    """One run."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._terminal = invocation.terminal

    def run(self, command: list[str]) -> int:
        """The command's exit status, or 128 and the signal that ended it."""
        invocation = self._invocation
        options = invocation.options
        here = current_directory()
        workspace = workspace_path(None, invocation)
        how = options.on_exit or load(workspace).run.on_exit
        place = here if is_below(here, workspace) else os.path.realpath(os.path.join(here, invocation.where()))
        request = {"workspace": workspace, "mountpoint": None, "mode": options.mode, "channel": options.channel}
        serve(invocation.registry, request, self._terminal)
        status = NOT_FOUND
        try:
            status = self._command(command, place)
        finally:
            invocation.at = workspace
            status = self._unmount(how, status)
        return status

    def _unmount(self, how: str, status: int) -> int:
        try:
            unmount(self._invocation, how, lazy=False)
        except PlyfsError as error:
            self._terminal.note(f"plyfs: the command has ended ({status}), but: {error.message}")
            hint = error.hint
            if error.code == "conflict":
                hint = "the workspace stays mounted: `plyfs unmount` when they have ended"
            if hint:
                self._terminal.note(f"hint: {hint}")
            return status or exit_status(error.code)
        return status

    def _command(self, command: list[str], place: str) -> int:
        try:
            return system.run_child(command, place)
        except OSError as error:
            name = error.filename or command[0]
            self._terminal.note(f"plyfs: {os.fsdecode(name)}: {error.strerror}")
            return NOT_EXECUTABLE if isinstance(error, PermissionError) else NOT_FOUND
