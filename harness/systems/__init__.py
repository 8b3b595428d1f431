"""What differs between systems for commands and daemons, in one place, chosen once: processes, locks, users, signals.

``posix`` and ``windows`` have the same functions; importing this package picks one. What differs in reading and
changing a workspace is ``vfs.scan.platform``. Knows only the standard library, because every command starts here.
"""

from __future__ import annotations

import sys

IS_WINDOWS = sys.platform == "win32"

if sys.platform == "win32":
    from harness.systems.windows import (
        LOCAL_SOCKETS,
        detach,
        expect_many_files,
        let_go,
        lock,
        outcome_pipe,
        run_child,
        show_stacks_on_signal,
        start_daemon,
        user_id,
        wait_for,
    )
else:
    from harness.systems.posix import (
        LOCAL_SOCKETS,
        detach,
        expect_many_files,
        let_go,
        lock,
        outcome_pipe,
        run_child,
        show_stacks_on_signal,
        start_daemon,
        user_id,
        wait_for,
    )

__all__ = [
    "IS_WINDOWS",
    "LOCAL_SOCKETS",
    "detach",
    "expect_many_files",
    "let_go",
    "lock",
    "outcome_pipe",
    "run_child",
    "show_stacks_on_signal",
    "start_daemon",
    "user_id",
    "wait_for",
]
