"""The answering side of the socket: connections, framing, peers, and which thread a call runs in.

Owns the listener and every connection. Does not own what calls mean (``dispatch``), nor the daemon's life (``daemon``).

Concurrency: all of it runs in the trio thread. One task for each connection, which takes the next request only when
the answer to the last is written, so a client that does not read holds up itself alone and costs one answer of memory.
Calls run in the worker thread if they are short, else in a thread of trio's; ``hello`` and ``subscribe`` right here.
"""

from __future__ import annotations

import hmac
import logging
import socket
import struct
from typing import TYPE_CHECKING

import msgspec
import trio

from harness import endpoint, language, messages
from harness.dispatch import is_short
from harness.failure import PlyfsError
from harness.systems import system
from harness.worker import Worker
from vfs.workspace import StatusResult

if TYPE_CHECKING:
    from harness.dispatch import Dispatcher
    from harness.endpoint import Endpoint
    from harness.events import Events, Subscription
    from harness.language import Catalogue
    from vfs.workspace import UnmountResult

log = logging.getLogger("plyfs.server")

CALL_EVENTS = frozenset({"checkpoint", "restored", "unmounted"})
"""Events that this module publishes."""
CONNECTIONS_MAX = 200
DRAIN_SECONDS = 10.0
"""How long a stopping daemon lets clients take the answers to what they had asked."""


def listen(path: str) -> tuple[trio.SocketListener, Endpoint]:
    """A listener at ``path``, or where that cannot be; see ``endpoint.listen``."""
    made, where = endpoint.listen(path)
    return trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=made.detach()))), where


def peer_uid(stream: trio.SocketStream) -> int | None:
    """The user at the other end; None where the system does not tell, and the 0700 directory or a token protects."""
    if not hasattr(socket, "SO_PEERCRED") or stream.socket.family != socket.AF_UNIX:
        return None
    credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    assert isinstance(credentials, bytes)
    uid: int = struct.unpack("iII", credentials)[1]
    return uid


class LineTooLongError(Exception):
    """A client sent more than ``messages.LINE_MAX`` bytes without a newline."""


class Lines:
    """Splits what a stream brings into lines."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def next(self) -> bytes | None:
        """The next line, None at the end of the stream. Raises LineTooLongError."""
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if end >= messages.LINE_MAX or (end < 0 and len(self._buffer) >= messages.LINE_MAX):
                raise LineTooLongError
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            searched = len(self._buffer)
            data = await self._stream.receive_some(65536)
            if not data:
                return None
            self._buffer += data


class Server:
    """Serves one workspace's socket."""

    def __init__(
        self, dispatcher: Dispatcher, events: Events, hello: messages.HelloResult, token: str | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._token = token
        self._events = events
        self._hello = hello
        self._worker = Worker("plyfs-calls")
        self._connections = 0
        self._busy = 0
        self._unmounting = 0
        self._unmount_over = trio.Event()
        self._stopping = False
        self._idle = trio.Event()
        self.unmounts_begun = 0
        self.unmounted = trio.Event()
        """Set when a client's ``unmount`` has been carried out and answered."""
        self.unmount_result: UnmountResult | None = None

    async def serve(self, listener: trio.SocketListener) -> None:
        """Accept connections until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        stream = await listener.accept()
                    except OSError as error:
                        # Out of descriptors, or the peer has gone: others must still be served.
                        log.warning("accept: %s", error)
                        await trio.sleep(0.1)
                        continue
                    nursery.start_soon(self._connection, stream)
        finally:
            self._worker.stop()

    async def settled(self) -> None:
        """Return when no client's ``unmount`` is under way."""
        while self._unmounting:
            await self._unmount_over.wait()

    async def drain(self) -> None:
        """Refuse new requests, and let those that are under way be answered: an unmount, and others for a while."""
        self._stopping = True
        await self.settled()
        if self._busy:
            with trio.move_on_after(DRAIN_SECONDS):
                await self._idle.wait()

    async def _connection(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                uid = peer_uid(stream)
                if uid not in (None, 0, system.user_id()):
                    failure = PlyfsError("denied", "this socket belongs to another user")
                elif self._connections > CONNECTIONS_MAX:
                    failure = PlyfsError("too_many", f"{CONNECTIONS_MAX} clients are connected", "close some of them")
                else:
                    await Connection(self, stream, self._events).run()
                    return
                await stream.send_all(messages.error_line(None, failure))
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client went away, which is its right
        except* Exception:
            log.exception("a connection failed")
        finally:
            self._connections -= 1

    async def answer(self, line: bytes, connection: Connection) -> bytes:
        """The line that answers ``line``."""
        request_id: messages.RequestId = None
        try:
            request = messages.parse_request(line)
            request_id = request.id
            params = messages.parse_params(request)
            self._admit(params, connection)
            match params:
                case messages.Hello():
                    if params.language is not None:
                        connection.catalogue = language.load(params.language)
                    return messages.answer_line(request_id, self._hello)
                case messages.Subscribe():
                    connection.subscribe()
                    return messages.answer_line(request_id, {})
            if self._stopping:
                raise PlyfsError("stopping", "the daemon is stopping", "run the command again in a moment")
            if is_short(params):
                # Encoding is cheap beside a second hand-over.
                result = await self._worker.run(lambda: self._dispatcher.answer(params))
                encoded = messages.answer_line(request_id, result)
            elif isinstance(params, messages.Unmount):
                result, encoded = await self._unmount(request_id, params)
            else:
                result, encoded = await trio.to_thread.run_sync(
                    self._answer_long, request_id, params, connection.catalogue
                )
            self._tell(params, result)
            return encoded
        except Exception as error:
            failure = messages.failure_of(error)
            if failure.code in ("internal", "failed"):
                log.exception("request failed: %.200r", line)
            if connection.catalogue is not None:
                failure = failure.translated(connection.catalogue.told)
            return messages.error_line(request_id, failure)

    def _admit(self, params: messages.Params, connection: Connection) -> None:
        """Raise PlyfsError if the client has not said what it must know."""
        if self._token is None or connection.is_admitted:
            return
        said = params.token if isinstance(params, messages.Hello) else None
        if said is None or not hmac.compare_digest(said.encode(), self._token.encode()):
            raise PlyfsError("denied", "this port answers those alone that say its token in `hello`")
        connection.is_admitted = True

    async def _unmount(self, request_id: messages.RequestId, params: messages.Params) -> tuple[object, bytes]:
        self._unmounting += 1
        self.unmounts_begun += 1
        try:
            return await trio.to_thread.run_sync(self._answer_long, request_id, params)
        finally:
            self._unmounting -= 1
            self._unmount_over.set()
            self._unmount_over = trio.Event()

    def _answer_long(
        self, request_id: messages.RequestId, params: messages.Params, catalogue: Catalogue | None = None
    ) -> tuple[object, bytes]:
        result = self._dispatcher.answer(params)
        if isinstance(result, StatusResult) and catalogue is not None:
            result = msgspec.structs.replace(
                result,
                health=[catalogue.told(problem) for problem in result.health],
                undo=catalogue.told(result.undo),
                redo=catalogue.told(result.redo),
            )
        return result, messages.answer_line(request_id, result)

    def _tell(self, params: messages.Params, result: object) -> None:
        """Publish what subscribers want to know of a call that succeeded."""
        match params:
            case messages.Checkpoint():
                self._events.publish("checkpoint", result)
            case messages.Capture(session, node) | messages.Bind(session, node):
                assert isinstance(result, messages.CaptureResult | messages.BindResult)
                if isinstance(result, messages.CaptureResult) and result.created:
                    self._events.publish("checkpoint", result)
                if result.recorded:
                    self._events.publish("state", {"session": session, "node": node, "state": result.state})
            case messages.Undo() | messages.Redo() | messages.Restore(dry_run=False):
                self._events.publish("restored", result)
            case messages.Unmount():
                self._stopping = True
                self.unmount_result = result  # type: ignore[assignment]
                self._events.publish("unmounted", result)

    def begin(self) -> None:
        """A request is under way."""
        self._busy += 1

    def end(self) -> None:
        """It has been answered, or its client is gone."""
        self._busy -= 1
        if self._stopping and self._busy == 0:
            self._idle.set()
        if self.unmount_result is not None:
            self.unmounted.set()


class Connection:
    """One client."""

    def __init__(self, server: Server, stream: trio.SocketStream, events: Events) -> None:
        self._server = server
        self._stream = stream
        self._events = events
        self._sending = trio.Lock()
        self._subscription: Subscription | None = None
        self.catalogue: Catalogue | None = None
        """For the language that the client has asked for."""
        self.is_admitted = False

    async def run(self) -> None:
        """Answer request after request until the client goes."""
        lines = Lines(self._stream)
        sending = False
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    line = await lines.next()
                except LineTooLongError:
                    failure = PlyfsError("too_long", f"a request is longer than {messages.LINE_MAX} bytes")
                    await self._send(messages.error_line(None, failure))
                    break
                if line is None:
                    break
                if not line.strip():
                    continue
                self._server.begin()
                try:
                    await self._send(await self._server.answer(line, self))
                finally:
                    self._server.end()
                if self._subscription is not None and not sending:
                    sending = True
                    nursery.start_soon(self._send_events, self._subscription)
            nursery.cancel_scope.cancel()

    def subscribe(self) -> None:
        """Collect events from now on, to be sent after the answer."""
        if self._subscription is None:
            self._subscription = self._events.subscribe()

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            await self._stream.send_all(data)

    async def _send_events(self, subscription: Subscription) -> None:
        try:
            async for line in subscription.lines():
                await self._send(line)
            await self._stream.send_eof()
        finally:
            self._events.unsubscribe(subscription)
