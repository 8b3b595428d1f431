"""Events for whoever has subscribed: what happened to the workspace, told as it happens.

Owns the queues of subscribers. A subscriber that does not read loses events, and is told how many; it holds up nobody.

Concurrency: everything here runs in the trio thread, except ``publish_from_thread``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from harness import messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUEUED_MAX = 1000
"""Events that wait for one slow subscriber; progress counts too."""


class Subscription:
    """The events for one connection."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[bytes](math.inf)
        self._lost = 0

    def put(self, line: bytes) -> None:
        """Add an event, or count it as lost."""
        if self._send.statistics().current_buffer_used >= QUEUED_MAX:
            self._lost += 1
            return
        if self._lost:
            self._send.send_nowait(messages.event_line("lost", {"count": self._lost}))
            self._lost = 0
        self._send.send_nowait(line)

    def end(self) -> None:
        """No more events will come."""
        self._send.close()

    async def lines(self) -> AsyncIterator[bytes]:
        """Each event as it comes, until ``end``."""
        async for line in self._receive:
            yield line


class Events:
    """All subscriptions of a daemon."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._token: trio.lowlevel.TrioToken | None = None
        self._ended = False

    def attach(self) -> None:
        """Called once in the trio thread, before any thread publishes."""
        self._token = trio.lowlevel.current_trio_token()

    def subscribe(self) -> Subscription:
        """A new subscription."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        if self._ended:
            subscription.end()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Forget it."""
        self._subscriptions.discard(subscription)

    def publish(self, name: str, data: object) -> None:
        """Tell everybody."""
        if self._subscriptions and not self._ended:
            line = messages.event_line(name, data)
            for subscription in self._subscriptions:
                subscription.put(line)

    def publish_from_thread(self, name: str, data: object) -> None:
        """As ``publish``, from any thread; dropped while the daemon is not running."""
        if self._token is not None:
            try:
                self._token.run_sync_soon(self.publish, name, data)
            except trio.RunFinishedError:
                pass

    async def flushed(self) -> None:
        """Return when every subscriber has taken all its events, after ``end``."""
        while self._subscriptions:
            await trio.sleep(0.01)

    def end(self) -> None:
        """The daemon stops: every subscriber gets what is queued, and then the end of its connection."""
        self._ended = True
        for subscription in self._subscriptions:
            subscription.end()
