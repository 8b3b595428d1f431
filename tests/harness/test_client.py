"""The client never hangs, whatever is at the other end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import client as client_module
from harness.client import Client, DaemonDiedError, NoDaemonError
from harness.endpoint import Endpoint
from harness.failure import PlyfsError
from tests.harness.serving_thread import ServerThread


@contextmanager
def server(path: Path, behave: Callable[[socket.socket, int], None]) -> Iterator[Endpoint]:
    """A server that does ``behave(connection, number)`` with each connection."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def run() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=behave, args=(connection, number), daemon=True).start()
            number += 1

    threading.Thread(target=run, daemon=True).start()
    try:
        yield Endpoint(str(path))
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(client_module, "PROBE_SECONDS", 0.3)


def test_nobody_there(tmp_path: Path) -> None:
    for path in ("nothing", "nothing/below"):
        with pytest.raises(NoDaemonError) as caught:
            Client(Endpoint(str(tmp_path / path)))
        assert "doctor" in caught.value.hint
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    with pytest.raises(NoDaemonError):
        Client(Endpoint(str(tmp_path / "dead")))


@pytest.mark.parametrize("said", [b"", b'{"id":1,"resu'])
def test_it_dies_in_the_middle(tmp_path: Path, said: bytes) -> None:
    def behave(connection: socket.socket, number: int) -> None:
        connection.recv(100)
        connection.sendall(said)
        connection.close()

    with server(tmp_path / "s", behave) as endpoint, pytest.raises(DaemonDiedError) as caught:
        Client(endpoint).call("status")
    assert caught.value.code == "daemon_died"


@pytest.mark.parametrize(
    "said", [b"nonsense\n", b"[]\n", b'{"id":1}\n', b'{"id":7,"result":{}}\n', b'{"id":1,"result":3}\n']
)
def test_it_talks_nonsense(tmp_path: Path, said: bytes) -> None:
    def behave(connection: socket.socket, number: int) -> None:
        connection.sendall(said)

    with server(tmp_path / "s", behave) as endpoint, pytest.raises(PlyfsError) as caught:
        Client(endpoint).call("status")
    assert caught.value.code == "protocol"


@pytest.mark.usefixtures("impatient")
def test_it_falls_silent(tmp_path: Path) -> None:
    kept = []
    with server(tmp_path / "s", lambda connection, number: kept.append(connection)) as endpoint:
        started = time.monotonic()
        with pytest.raises(PlyfsError) as caught:
            Client(endpoint).call("status")
    assert caught.value.code == "daemon_silent"
    assert time.monotonic() - started < 3


@pytest.mark.usefixtures("impatient")
def test_it_is_busy_but_alive(served: ServerThread, directory: Path) -> None:
    (directory / ".slow").write_text("1")
    assert served.client().call("diff") is not None


@pytest.mark.usefixtures("impatient")
def test_it_does_not_even_accept(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(0)
    held = []
    with pytest.raises(PlyfsError) as caught:
        for _ in range(4):
            one = Client(Endpoint(str(tmp_path / "s")), timeout=0.2)
            held.append(one)
            one.call("hello")
    assert caught.value.code in ("daemon_silent", "failed")
    listener.close()


def test_waiting_is_told(served: ServerThread, directory: Path) -> None:
    (directory / ".slow").write_text("0.5")
    told: list[float] = []
    served.client().call("diff", waiting=told.append)
    assert len(told) >= 3
    assert told == sorted(told)


def test_a_big_answer(served: ServerThread, directory: Path) -> None:
    (directory / "big").write_bytes(os.urandom(3 << 20))
    client = served.client()
    client.call("checkpoint")
    assert len(client.call("cat", {"checkpoint": "@", "path": "big"})["data"]) == 4 << 20
