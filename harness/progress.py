"""Showing how far a long call is: its answer and the daemon's ``progress`` events, awaited together.

Owns the second connection that the events come on. Does not own the display (``terminal``).
"""

from __future__ import annotations

import threading

from harness.client import Client
from harness.failure import PlyfsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from harness.terminal import Waiting


def follow(client: Client, method: str, params: dict[str, Any] | None, waiting: Waiting) -> dict[str, Any]:
    """``client.call``, with ``waiting`` told of the time and of progress."""
    listener: Client | None = None

    def tick(seconds: float) -> None:
        nonlocal listener
        if listener is None and seconds > 0.5:
            listener = Client(client.endpoint)
            threading.Thread(target=_listen, args=(listener, waiting), daemon=True).start()
        waiting(seconds)

    try:
        return client.call(method, params, tick)
    finally:
        if listener is not None:
            listener.close()


def _listen(listener: Client, waiting: Waiting) -> None:
    try:
        for event in listener.events():
            if event.get("event") == "progress":
                waiting.progress(event.get("data") or {})
    except (PlyfsError, OSError):
        pass  # the call itself tells what is wrong
