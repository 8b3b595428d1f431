"""A socket server in a thread of the test, over any Workspace: real sockets, without a process for each test."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from typing import Any

import trio

from harness import messages, quick_json
from harness.client import Client
from harness.dispatch import Dispatcher
from harness.events import Events
from harness.server import Server, listen


class ServerThread:
    """Serves ``workspace`` until ``close``."""

    def __init__(self, workspace: Any) -> None:
        self._directory = tempfile.mkdtemp(prefix="ply-")
        self.path = os.path.join(self._directory, "s")
        self.events = Events()
        self._workspace = workspace
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        assert self._ready.wait(10)

    async def _main(self) -> None:
        self.events.attach()
        self._token = trio.lowlevel.current_trio_token()
        listener, self.endpoint = listen(self.path)
        hello = messages.HelloResult(messages.PROTOCOL_VERSION, "test", os.getpid(), "/ws", "/ws", [*messages.METHODS])
        self.server = Server(Dispatcher(self._workspace), self.events, hello, self.endpoint.token)
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self.server.serve, listener)
            self._ready.set()

    def drain(self) -> None:
        """What a stopping daemon does."""
        trio.from_thread.run(self.server.drain, trio_token=self._token)

    def close(self) -> None:
        try:
            self._token.run_sync_soon(self._scope.cancel)
        except trio.RunFinishedError:
            pass
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self.endpoint.path is not None:
            os.unlink(self.endpoint.path)
        os.rmdir(self._directory)

    def client(self) -> Client:
        return Client(self.endpoint)

    def raw(self) -> Raw:
        return Raw(self.path)


class Raw:
    """A client that sends what it likes."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> Any:
        """The next line, decoded; None at the end."""
        while b"\n" not in self._buffer:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return quick_json.loads(line)

    def close(self) -> None:
        self.socket.close()
