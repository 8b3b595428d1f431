"""The socket: framing, several clients, slow ones, bad ones, events, stopping."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import endpoint, messages, server
from harness.client import Client, DaemonDiedError
from harness.endpoint import Endpoint
from harness.failure import PlyfsError
from harness.systems import system
from tests.fakes.workspace import FakeWorkspace
from tests.harness.serving_thread import ServerThread


def test_one_request_one_response(served: ServerThread, directory: Path) -> None:
    client = served.client()
    hello = client.call("hello")
    assert hello["protocol"] == messages.PROTOCOL_VERSION
    assert hello["methods"] == list(messages.METHODS)
    (directory / "a").write_text("x")
    made = client.call("checkpoint", {"label": "one"})
    assert made["created"]
    assert made["label"] == "one"
    assert client.call("log")["head"] == made["id"]
    assert client.call("undo")["from"] == made["id"]
    assert client.call("redo")["head"] == made["id"]
    assert client.call("restore", {"checkpoint": "base", "dry_run": True})["changes"]
    assert client.call("diff", {"a": "base"})["changes"] == [{"path": "a", "kind": "overwrite"}]
    assert client.call("drift")["changes"] == []
    assert client.call("status")["head"] == made["id"]
    assert client.call("cat", {"checkpoint": "@", "path": "a"})["data"] == "eA=="
    assert [row["name"] for row in client.call("ls", {"checkpoint": "@"})["entries"]] == ["a", "d"]
    client.close()


def test_log_with_changes(served: ServerThread, directory: Path) -> None:
    client = served.client()
    for number in range(3):
        (directory / f"n{number}").write_text("x")
        client.call("checkpoint")
    log = client.call("log", {"changes": 2})
    assert [log["changes"][row["id"]] for row in log["checkpoints"][-2:]] == [
        [{"path": "n1", "kind": "create"}],
        [{"path": "n2", "kind": "create"}],
    ]
    assert client.call("log", {"changes": 2})["changes"] == log["changes"]
    client.close()


def test_errors_keep_the_connection(served: ServerThread, directory: Path) -> None:
    raw = served.raw()
    for line, code in [
        (b"nope\n", "bad_request"),
        (b'{"id":1,"method":"fly"}\n', "unknown_method"),
        (b'{"id":2,"method":"undo","params":{"count":0}}\n', "bad_request"),
        (b'{"id":3,"method":"undo"}\n', "nothing"),
        (b'{"id":"x","method":"cat","params":{"checkpoint":"@","path":"nope"}}\n', "unknown_checkpoint"),
    ]:
        raw.send(line)
        answer = raw.line()
        assert answer["error"]["code"] == code
        assert answer["error"]["message"]
    assert answer["id"] == "x"
    (directory / ".broken").write_text("")
    raw.send(b'{"id":4,"method":"drift"}\n')
    assert raw.line()["error"]["code"] == "internal"
    raw.send(b'\n  \n{"id":5,"method":"hello"}\n')
    assert raw.line()["id"] == 5
    raw.close()


def test_lines_in_pieces_and_in_heaps(served: ServerThread) -> None:
    raw = served.raw()
    for byte in b'{"id":1,"method":"hello"}\n':
        raw.send(bytes([byte]))
    assert raw.line()["id"] == 1
    raw.send(b"".join(b'{"id":%d,"method":"hello"}\n' % number for number in range(50)))
    assert [raw.line()["id"] for _ in range(50)] == list(range(50))
    raw.close()


def test_a_line_that_is_too_long_ends_the_connection(served: ServerThread) -> None:
    raw = served.raw()
    try:
        raw.send(b"x" * (messages.LINE_MAX + 10))
    except ConnectionError:
        pass
    assert raw.line()["error"]["code"] == "too_long"
    try:
        assert raw.line() is None
    except ConnectionError:
        pass
    raw.close()
    assert served.client().call("hello")


def test_a_long_call_holds_up_nobody(served: ServerThread, directory: Path) -> None:
    (directory / ".slow").write_text("1.5")
    slow = threading.Thread(target=lambda: served.client().call("diff"))
    slow.start()
    started = time.monotonic()
    client = served.client()
    for _ in range(20):
        client.call("hello")
        client.call("checkpoint")
    assert time.monotonic() - started < 1.0
    assert slow.is_alive()
    slow.join()


def test_a_client_that_does_not_read_holds_up_nobody(served: ServerThread, directory: Path) -> None:
    (directory / "big").write_bytes(os.urandom(3 << 20))
    served.client().call("checkpoint")
    lazy = served.raw()
    for number in range(20):
        lazy.send(b'{"id":%d,"method":"cat","params":{"checkpoint":"@","path":"big"}}\n' % number)
    started = time.monotonic()
    client = served.client()
    for _ in range(20):
        client.call("status")
    assert time.monotonic() - started < 2.0
    lazy.close()
    assert client.call("hello")


def test_a_client_that_goes_away_in_the_middle(served: ServerThread, directory: Path) -> None:
    (directory / ".slow").write_text("0.2")
    for _ in range(5):
        raw = served.raw()
        raw.send(b'{"id":1,"method":"diff"}\n{"id":2,"method":"di')
        raw.close()
    assert served.client().call("hello")


def test_many_clients_at_once(served: ServerThread, directory: Path) -> None:
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            client = served.client()
            for _ in range(10):
                client.call("checkpoint", {"session": str(number)})
                client.call("log")
            client.close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_too_many_clients(served: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
    held = [served.client() for _ in range(3)]
    for client in held:
        client.call("hello")
    raw = served.raw()
    assert raw.line()["error"]["code"] == "too_many"
    held[0].close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            assert served.client().call("hello")
            break
        except PlyfsError:
            pass
    for client in held[1:]:
        client.close()


def test_events(served: ServerThread, directory: Path) -> None:
    listener = served.client()
    got: list[dict[str, Any]] = []
    enough = threading.Event()

    def listen() -> None:
        for event in listener.events():
            got.append(event)
            if len(got) == 3:
                enough.set()

    raw = served.raw()
    raw.send(b'{"id":1,"method":"subscribe"}\n{"id":2,"method":"hello"}\n')
    assert raw.line() == {"id": 1, "result": {}}
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert raw.line()["id"] == 2, "a subscriber may go on asking"
    time.sleep(0.05)
    (directory / "a").write_text("x")
    client = served.client()
    made = client.call("checkpoint")
    client.call("undo")
    client.call("restore", {"checkpoint": "@", "dry_run": True})
    served.events.publish_from_thread("progress", {"operation": "apply", "done": 1, "total": 2})
    assert enough.wait(5)
    assert [event["event"] for event in got] == ["checkpoint", "restored", "progress"]
    assert got[0]["data"]["id"] == made["id"]
    assert [raw.line()["event"] for _ in range(3)] == ["checkpoint", "restored", "progress"]
    listener.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_subscriber_that_does_not_read_loses_events_and_is_told(served: ServerThread) -> None:
    raw = served.raw()
    raw.send(b'{"id":1,"method":"subscribe"}\n')
    raw.line()
    for number in range(5000):
        served.events.publish_from_thread("progress", {"number": number, "padding": "x" * 1000})
    served.client().call("hello")
    events: list[dict[str, Any]] = []
    while not events or events[-1]["event"] != "last":
        if len(events) % 500 == 0:
            served.events.publish_from_thread("last", {})
        events.append(raw.line())
    lost = sum(event["data"]["count"] for event in events if event["event"] == "lost")
    seen = sum(event["event"] == "progress" for event in events)
    assert lost > 0
    assert 5000 <= lost + seen <= 5000 + 20


def test_stopping(served: ServerThread, directory: Path) -> None:
    (directory / ".slow").write_text("0.5")
    client = served.client()
    client.call("hello")
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(served.client().call("diff")))
    thread.start()
    time.sleep(0.2)
    served.drain()
    thread.join()
    assert results, "what was asked before is answered"
    with pytest.raises(PlyfsError) as caught:
        client.call("status")
    assert caught.value.code == "stopping"
    assert client.call("hello"), "but it still says who it is"


def test_unmount_is_answered(served: ServerThread, directory: Path) -> None:
    client = served.client()
    (directory / ".busy").write_text("")
    with pytest.raises(PlyfsError) as caught:
        client.call("unmount")
    assert caught.value.code == "conflict"
    assert not served.server.unmounted.is_set()
    assert client.call("status")["mounted"]
    result = client.call("unmount", {"how": "keep", "lazy": True})
    assert result["how"] == "keep"
    deadline = time.monotonic() + 5
    while not served.server.unmounted.is_set():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_socket_is_private(served: ServerThread) -> None:
    assert os.stat(served.path).st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as somebody else")
def test_others_are_refused(served: ServerThread) -> None:
    directory = os.path.dirname(served.path)
    os.chmod(directory, 0o755)
    os.chmod(served.path, 0o666)
    code = (
        "import os, socket, sys; os.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "print(s.makefile().readline())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, served.path], capture_output=True, text=True, timeout=20, check=True
    )
    assert '"denied"' in done.stdout


def test_a_socket_left_behind_is_replaced(fake: FakeWorkspace, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(path)
    thread = ServerThread(fake)
    os.replace(thread.path, path)
    assert Client(Endpoint(path)).call("hello")
    os.replace(path, thread.path)
    thread.close()


def test_the_client_hears_when_the_server_dies(fake: FakeWorkspace, directory: Path) -> None:
    thread = ServerThread(fake)
    client = thread.client()
    client.call("hello")
    thread.close()
    with pytest.raises(DaemonDiedError):
        client.call("status")


def test_a_connection_in_another_language(served: ServerThread) -> None:
    """Errors and the words of ``status`` come in the language that a client asks for, on that connection alone."""
    chinese, other = served.client(), served.client()
    assert chinese.call("hello", {"language": "zh-CN"}) == other.call("hello")
    with pytest.raises(PlyfsError, match="没有方法 'dance'"):
        chinese.call("dance")
    with pytest.raises(PlyfsError, match="there is no method 'dance'"):
        other.call("dance")
    with pytest.raises(PlyfsError):
        chinese.call("hello", {"language": "fr"})
    assert chinese.call("hello", {"language": "en"})
    with pytest.raises(PlyfsError, match="there is no method"):
        chinese.call("dance")
    chinese.close()
    other.close()


@pytest.fixture
def port(fake: FakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """Served where there are no sockets in the file system."""
    monkeypatch.setattr(system, "LOCAL_SOCKETS", False)
    thread = ServerThread(fake)
    yield thread
    thread.close()


def test_a_port_answers_who_knows_its_token(port: ServerThread, directory: Path) -> None:
    assert port.endpoint.path is None
    client = port.client()
    (directory / "a").write_text("1")
    made = client.call("checkpoint")
    assert made["changed"] == 1
    assert client.call("status")["head"] == made["id"]


@pytest.mark.parametrize("said", ["", '{"id":1,"method":"hello"}', '{"id":1,"method":"hello","params":{"token":"0"}}'])
def test_a_port_answers_nobody_else(port: ServerThread, said: str) -> None:
    number = int(port.endpoint.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", number), timeout=20) as raw:
        raw.sendall(said.encode() + b'\n{"id":2,"method":"log"}\n{"id":3,"method":"subscribe"}\n')
        lines = raw.makefile()
        answers = [json.loads(lines.readline()) for _ in range(3 if said else 2)]
        assert {answer["error"]["code"] for answer in answers} == {"denied"}


def test_a_port_that_another_has_got_meanwhile_is_no_daemon() -> None:
    for token in ("0" * 64, None):
        with socket.create_server(("127.0.0.1", 0)) as other:
            where = f"127.0.0.1:{other.getsockname()[1]}"

            def answer(listener: socket.socket = other) -> None:
                connection, _ = listener.accept()
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(PlyfsError) as caught:
                Client(Endpoint(where, token)).call("status")
            thread.join()
            assert caught.value.code == ("protocol" if token is None else "daemon_gone")


def test_a_file_system_without_sockets_gets_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        """bind(2) as FAT answers it."""

        def __init__(self, family: int, kind: int) -> None:
            self._real = real(family, kind)
            self._family = family

        def bind(self, where: object) -> None:
            if self._family == socket.AF_UNIX:
                raise PermissionError(errno.EPERM, "Operation not permitted")
            self._real.bind(where)

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    real = endpoint._socket.socket
    monkeypatch.setattr(endpoint._socket, "socket", Without)
    made, where = endpoint.listen(str(tmp_path / "s"))
    assert where.path is None
    assert len(where.token or "") == 64
    made.close()
