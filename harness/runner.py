"""``run``: one command in a workspace that is served for just so long.

Owns the child process: its directory, signals and terminal. Mounting and unmounting are the commands' own.

The child stays in our process group, so a shell's job control (Control-C, Control-Z, fg, bg) reaches both at once and
the terminal is the child's to read. While it runs we take no signal ourselves: what the kernel sent from the terminal
the child has got already; what somebody sent to us alone is passed on.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from harness.commands.mount import serve, workspace_path
from harness.commands.unmount import unmount
from harness.config import load
from harness.failure import PlyfsError, exit_status
from harness.registry import current_directory, is_below
from harness.terminal import is_terminal

if TYPE_CHECKING:
    from harness.invocation import Invocation

PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}
)
FROM_KERNEL = 0x80
"""si_code SI_KERNEL of sigaction(2): the terminal sent it, to the whole process group."""
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
        watched = {*PASSED_ON, signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        try:
            try:
                # The same path again: we still stand in the directory that the mount has covered.
                os.chdir(place)
                pid = os.posix_spawnp(
                    command[0],
                    command,
                    {**os.environ, "PWD": place},
                    setsigmask=before,
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
                )
            except OSError as error:
                name = error.filename or command[0]
                self._terminal.note(f"plyfs: {os.fsdecode(name)}: {error.strerror}")
                return NOT_EXECUTABLE if isinstance(error, PermissionError) else NOT_FOUND
            finally:
                os.chdir("/")
            status = _wait(pid, watched)
            _take_terminal_back()
            while signal.sigtimedwait(watched, 0) is not None:
                pass  # they were meant for the child
            return status
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, watched: set[signal.Signals]) -> int:
    while True:
        told = signal.sigwaitinfo(watched)
        if told.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
        elif told.si_code != FROM_KERNEL:
            os.kill(pid, told.si_signo)


def _take_terminal_back() -> None:
    """A child that made itself the terminal's foreground group (a shell) may have ended without giving it back."""
    if not is_terminal(sys.stdin):
        return
    group = os.getpgrp()
    try:
        if os.tcgetpgrp(0) == group or os.getsid(0) != os.getsid(os.tcgetpgrp(0)):
            return
    except ProcessLookupError:
        pass  # the group in the foreground is dead: the terminal is free
    except OSError:
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(0, group)
    except OSError:
        pass
    finally:
        signal.signal(signal.SIGTTOU, before)
