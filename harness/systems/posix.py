"""Linux and macOS, for commands and daemons. See ``harness.systems``."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

IS_WINDOWS = False

LOCAL_SOCKETS = True
"""Sockets of the file system's, which their directory protects."""

_OUTCOME = 3
"""The descriptor on which a daemon tells how starting went."""

_FROM_KERNEL = 0x80
"""si_code SI_KERNEL of sigaction(2): the terminal sent it, to the whole process group."""

user_id = os.geteuid


def end_command(pid: int) -> str:
    """What a person types to have a process end."""
    return f"kill {pid}"


def ending(pid: int) -> str:
    """The same for one that may not listen, as advice."""
    return f"`kill {pid}`, or `kill -9` if that does not help"


def lock(descriptor: int, wait: bool) -> bool:
    """Lock the open file until it is closed; False if another holds it and not ``wait``."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def let_go(path: str, descriptor: int) -> None:
    """Give back the locked file ``descriptor``, and leave nothing at ``path``: first the name goes, so that nobody
    else has taken the lock when it does.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.close(descriptor)


def start_daemon(words: list[str]) -> int:
    """Run ``words``; returns the pipe on which it tells how starting went. Raises OSError."""
    reader, writer = os.pipe()
    try:
        null = "/dev/null"
        pid = os.posix_spawn(
            words[0],
            words,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, writer, _OUTCOME),
                (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, null, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, null, os.O_WRONLY, 0),
            ],
        )
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    # The process that was started forks the daemon and ends at once.
    os.waitpid(pid, 0)
    return reader


def detach() -> None:
    """In the daemon, before anything else: leave the parent, which waits for this process alone, and all that it had
    open but the pipe.

    A pipe of its that stayed open here would keep its reader waiting for as long as the daemon lives; its terminal
    would end the daemon with itself.
    """
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(_OUTCOME + 1, 1 << 20)


def outcome_pipe() -> int:
    """In the daemon: the other end of what ``start_daemon`` returned."""
    os.set_inheritable(_OUTCOME, False)
    return _OUTCOME


def wait_for(reader: int, seconds: float) -> bool:
    """True when there is something to read from the pipe, or its end; False after so many seconds."""
    import select

    return bool(select.select([reader], [], [], seconds)[0])


def expect_many_files() -> None:
    """As many open files as this process may have."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def show_stacks_on_signal() -> None:
    """SIGUSR1 writes the stack of every thread to stderr."""
    import faulthandler
    import signal

    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def run_child(command: list[str], place: str) -> int:
    """Run a command in ``place``, where this process goes too, and wait: its exit status, or 128 and the signal that
    ended it. Raises OSError if it cannot be run.

    The child stays in our process group, so a shell's job control (Control-C, Control-Z, fg, bg) reaches both at once
    and the terminal is the child's to read. While it runs we take no signal ourselves: what the kernel sent from the
    terminal the child has got already; what somebody sent to us alone is passed on.
    """
    import signal

    passed_on = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH")
    watched = {signal.SIGCHLD, *(signal.Signals[name] for name in passed_on)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        try:
            # The same path again: we may still stand in the directory that a mount has covered.
            os.chdir(place)
            pid = os.posix_spawnp(
                command[0],
                command,
                {**os.environ, "PWD": place},
                setsigmask=before,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        finally:
            os.chdir("/")
        status = _wait(pid, watched)
        _take_terminal_back()
        while signal.sigpending() & watched:
            signal.sigwait(watched)  # they were meant for the child
        return status
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, watched: set[signal.Signals]) -> int:
    import signal

    while True:
        number, is_terminals = _next_signal(watched)
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
        elif not is_terminals:
            os.kill(pid, number)


def _next_signal(watched: set[signal.Signals]) -> tuple[int, bool]:
    """A signal, and whether the terminal sent it to the whole process group."""
    import signal

    if hasattr(signal, "sigwaitinfo"):
        told = signal.sigwaitinfo(watched)
        return told.si_signo, told.si_code == _FROM_KERNEL
    # macOS does not say who sent it.
    number = signal.sigwait(watched)
    return number, number in (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)


def _take_terminal_back() -> None:
    """A child that made itself the terminal's foreground group (a shell) may have ended without giving it back."""
    import signal

    try:
        if not os.isatty(0):
            return
        group = os.getpgrp()
        if os.tcgetpgrp(0) == group or os.getsid(0) != os.getsid(os.tcgetpgrp(0)):
            return
    except ProcessLookupError:
        pass  # the group in the foreground is dead: the terminal is free
    except OSError:
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(0, os.getpgrp())
    except OSError:
        pass
    finally:
        signal.signal(signal.SIGTTOU, before)
