"""Windows, for commands and daemons. See ``harness.systems``."""

from __future__ import annotations

import os
import sys
import time

if sys.platform != "win32":
    raise ImportError("for Windows alone")

IS_WINDOWS = True

LOCAL_SOCKETS = False
"""Python has no sockets of the file system's here: daemons listen at a port, and ask for a token."""

_POLL_SECONDS = 0.02


def user_id() -> int:
    """What ``os.stat`` says of every owner here."""
    return 0


def end_command(pid: int) -> str:
    """What a person types to have a process end. Nothing gentler reaches one without a window."""
    return f"taskkill /F /PID {pid}"


def ending(pid: int) -> str:
    """The same, as advice."""
    return f"`{end_command(pid)}`"


def lock(descriptor: int, wait: bool) -> bool:
    """Lock the open file until it is closed; False if another holds it and not ``wait``."""
    from store.lock import flock

    return flock(descriptor, exclusive=True, wait=wait)


def let_go(path: str, descriptor: int) -> None:
    """Give back the locked file ``descriptor``, and leave nothing at ``path``, unless another has opened it meanwhile:
    what is open cannot be removed here.
    """
    os.close(descriptor)
    try:
        os.unlink(path)
    except (FileNotFoundError, PermissionError):
        pass


def start_daemon(words: list[str]) -> int:
    """Run ``words`` without a console; returns the pipe on which it tells how starting went. Raises OSError.

    That pipe is its standard output: further descriptors are not passed on here.
    """
    import subprocess

    reader, writer = os.pipe()
    flags = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL, creationflags=flags
        )
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    process.returncode = 0  # it is nobody's child: nothing is to be said of it when this object goes
    return reader


def detach() -> None:
    """In the daemon: it was started on its own already."""


def outcome_pipe() -> int:
    """In the daemon: the other end of what ``start_daemon`` returned. From now on standard output goes nowhere."""
    pipe = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return pipe


def wait_for(reader: int, seconds: float) -> bool:
    """True when there is something to read from the pipe, or its end; False after so many seconds."""
    import _winapi
    import msvcrt

    until = time.monotonic() + seconds
    while True:
        try:
            waiting = _winapi.PeekNamedPipe(msvcrt.get_osfhandle(reader))[0]
        except BrokenPipeError:
            return True
        if waiting:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)


def expect_many_files() -> None:
    """There is no limit to raise."""


def show_stacks_on_signal() -> None:
    """There is no such signal."""


def run_child(command: list[str], place: str) -> int:
    """Run a command in ``place`` and wait: its exit status. Raises OSError if it cannot be run.

    Control-C goes to all that share the console: the child decides what it means.
    """
    import signal
    import subprocess

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.call(command, cwd=place)
    finally:
        signal.signal(signal.SIGINT, before)
