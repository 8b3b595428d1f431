"""The asking side of the socket: one request, one answer, and never a hang.

Owns the framing for clients and the watch over a daemon that dies or falls silent in the middle of a request. Knows
only the standard library, because every command goes through here. Does not look for daemons (``registry``), start them
(``launch``) or know what kinds of sockets there are (``endpoint``).

Concurrency: a ``Client`` belongs to one thread.
"""

from __future__ import annotations

import _socket
import errno
import time

from harness import quick_json
from harness.failure import PlyfsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from harness.endpoint import Endpoint

    Waiting = Callable[[float], None]

SILENCE_SECONDS = 5.0
"""After this long without an answer the daemon is asked, on a second connection, whether it is still there."""
PROBE_SECONDS = 10.0
"""How long that may take: a daemon answers ``hello`` at once whatever else it does."""
RECEIVE_BYTES = 1 << 18


class NoDaemonError(PlyfsError):
    """Nothing listens at the socket: the daemon is dead, or not up yet."""


class DaemonDiedError(PlyfsError):
    """The daemon went away in the middle of a request; whether it was carried out is not known."""


class Client:
    """A connection to one daemon."""

    def __init__(self, endpoint: Endpoint, timeout: float = PROBE_SECONDS) -> None:
        self.endpoint = endpoint
        self._last_id = 0
        self._buffer = bytearray()
        try:
            self._socket = endpoint.connect(timeout)
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR):
                raise _gone(endpoint) from None
            if isinstance(error, TimeoutError):
                raise _silent(endpoint) from None
            raise PlyfsError("failed", f"cannot connect to {endpoint.address}: {error.strerror or error}") from None
        if endpoint.token is not None:
            self._introduce(endpoint.token, timeout)

    def _introduce(self, token: str, timeout: float) -> None:
        """Say the token, as a port demands. Another program may have got the port of a dead daemon."""
        self._send(b'{"id":0,"method":"hello","params":{"token":"%s"}}\n' % token.encode())
        self._socket.settimeout(timeout)
        answer = b""
        try:
            while not answer.endswith(b"\n") and len(answer) < RECEIVE_BYTES:
                data = self._socket.recv(RECEIVE_BYTES)
                answer += data
                if not data:
                    break
        except TimeoutError:
            raise _silent(self.endpoint) from None
        except OSError:
            pass
        if not answer.startswith(b'{"id":0,"result":'):
            self.close()
            raise _gone(self.endpoint)

    def close(self) -> None:
        """End the connection; another thread that waits for it wakes up."""
        try:
            self._socket.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def call(self, method: str, params: dict[str, Any] | None = None, waiting: Waiting | None = None) -> dict[str, Any]:
        """The result of ``method``. Raises PlyfsError with the daemon's own code, or DaemonDiedError.

        ``waiting`` is called about ten times a second with the seconds passed, for a progress display.
        """
        self._last_id += 1
        request = {"id": self._last_id, "method": method, "params": params or {}}
        self._send(quick_json.dumps(request).encode() + b"\n")
        answer = self._answer(waiting)
        if "error" in answer:
            raise PlyfsError.from_body(answer["error"])
        if answer.get("id") != self._last_id or not isinstance(answer.get("result"), dict):
            raise PlyfsError("protocol", f"the daemon at {self.endpoint.address} gave an answer to another request")
        result: dict[str, Any] = answer["result"]
        return result

    def greet(self, seconds: float) -> None:
        """Raise PlyfsError unless the daemon says something to ``hello`` within ``seconds``, or ends the connection."""
        self._send(b'{"id":0,"method":"hello","params":{}}\n')
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(1)
        except TimeoutError:
            raise _silent(self.endpoint) from None
        except OSError:
            pass

    def events(self) -> Iterator[dict[str, Any]]:
        """Subscribe, then every event as it comes, until the daemon goes away."""
        self.call("subscribe")
        self._socket.settimeout(None)
        while True:
            line = self._line(None)
            if line is None:
                return
            yield _decode(line)

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(PROBE_SECONDS)
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise _silent(self.endpoint) from None
        except OSError:
            raise self._died() from None

    def _answer(self, waiting: Waiting | None) -> dict[str, Any]:
        line = self._line(waiting)
        if line is None:
            raise self._died()
        return _decode(line)

    def _line(self, waiting: Waiting | None) -> bytes | None:
        """The next line, None at the end of the connection."""
        started = probed = time.monotonic()
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            searched = len(self._buffer)
            if self._socket.gettimeout() is not None:
                self._socket.settimeout(SILENCE_SECONDS if waiting is None else 0.1)
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                now = time.monotonic()
                if waiting is not None:
                    waiting(now - started)
                if now - probed >= SILENCE_SECONDS:
                    self._probe()
                    probed = time.monotonic()
                continue
            except OSError:
                return None
            if not data:
                return None
            self._buffer += data

    def _probe(self) -> None:
        """Raise PlyfsError unless the daemon answers another connection. One that is shutting down need not."""
        try:
            probe = Client(self.endpoint)
        except NoDaemonError:
            return
        try:
            probe.greet(PROBE_SECONDS)
        finally:
            probe.close()

    def _died(self) -> DaemonDiedError:
        return DaemonDiedError(
            "daemon_died",
            f"the daemon at {self.endpoint.address} went away in the middle of the request",
            "nothing that was answered is lost: run the command again, which mends the mount, or `plyfs doctor`",
        )


def _gone(endpoint: Endpoint) -> NoDaemonError:
    return NoDaemonError("daemon_gone", f"no daemon listens at {endpoint.address}", "run `plyfs doctor`")


def _silent(endpoint: Endpoint) -> PlyfsError:
    return PlyfsError(
        "daemon_silent",
        f"the daemon at {endpoint.address} does not answer",
        "`plyfs doctor` names its process and how to end it; then any command mends the mount",
    )


def _decode(line: bytes) -> dict[str, Any]:
    try:
        value = quick_json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise PlyfsError("protocol", f"the daemon sent a line that is not a JSON object: {line[:80]!r}")
    return value
