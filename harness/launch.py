"""Starting a daemon, and waiting until it serves or says why not.

Owns the command line of the daemon, and hearing what it tells while it starts. Knows only the standard library. Does
not own what the daemon does (``daemon``) or which is to be started (``doctor``, ``commands.mount``).

Concurrency: one caller at a time for each workspace, by the registry's ``starter`` claim, which callers hold.
"""

from __future__ import annotations

import os
import sys
import time

from harness import quick_json
from harness.failure import PlyfsError
from harness.registry import TYPE_CHECKING
from harness.systems import system

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
"""What is run as the daemon; tests put their own here."""


def launch(request: dict[str, Any], waiting: Callable[[float], None] | None = None) -> dict[str, Any]:
    """Start a daemon for ``request`` (a ``ServeRequest``) and return its MountResult once it serves.

    Raises PlyfsError with what the daemon says, or says that it died. ``waiting`` is called now and then.
    """
    try:
        reader = system.start_daemon([sys.executable, "-P", ENTRY, "daemon", quick_json.dumps(request)])
    except OSError as error:
        raise PlyfsError("failed", f"cannot start {sys.executable}: {error.strerror}") from None
    try:
        return _outcome(reader, str(request["workspace"]), waiting)
    finally:
        os.close(reader)


def _outcome(reader: int, workspace: str, waiting: Callable[[float], None] | None) -> dict[str, Any]:
    started = time.monotonic()
    data = b""
    while True:
        line, end, rest = data.partition(b"\n")
        if end:
            value = quick_json.loads(line)
            if "progress" not in value:
                break
            if waiting is not None and hasattr(waiting, "progress"):
                waiting.progress(value["progress"])
            data = rest
            continue
        if waiting is not None and not system.wait_for(reader, 0.1):
            waiting(time.monotonic() - started)
            continue
        more = os.read(reader, 65536)
        if not more:
            raise PlyfsError(
                "daemon_died",
                f"the daemon for {workspace} died before it served anything",
                f"its log has more: {log_path(workspace)}",
            )
        data += more
    if "error" in value:
        raise PlyfsError.from_body(value["error"])
    result: dict[str, Any] = value["ready"]
    return result


def log_path(workspace: str) -> str:
    """The log of the daemons of ``workspace``."""
    from harness.registry import Registry

    return Registry().path(workspace, "log")
