"""What people see."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness import render
from harness.terminal import Terminal, Waiting, shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain", "plain"),
        ("with space", "with space"),
        ("日本", "日本"),
        ("a\nb", '"a\\nb"'),
        ("\x1b[31m", '"\\033[31m"'),
        ("\udcff", '"\\377"'),
        ('"quoted"', '"\\"quoted\\""'),
        ("\u202e", '"\\342\\200\\256"'),
    ],
)
def test_escaping(text: str, seen: str) -> None:
    assert shown(text) == seen


def test_units() -> None:
    assert [render.age(seconds) for seconds in (1, 30, 61, 7200, 86400 * 3)] == [
        "just now",
        "30 seconds ago",
        "1 minute ago",
        "2 hours ago",
        "3 days ago",
    ]
    assert [render.size_text(count) for count in (0, 1023, 1024, 3 << 20, 5 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "3.0 MiB",
        "5.0 TiB",
    ]
    assert render.plural(1, "path") == "1 path"
    assert render.plural(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize(
    ("mode", "text"),
    [(0o755, "rwxr-xr-x"), (0o4755, "rwsr-xr-x"), (0o2644, "rw-r-Sr--"), (0o1777, "rwxrwxrwt"), (0, "---------")],
)
def test_permissions(mode: int, text: str) -> None:
    assert render.permissions(mode) == text


def test_changes(capfd: pytest.CaptureFixture[str]) -> None:
    changes = [
        {"path": "a", "kind": "create"},
        {"path": "b", "kind": "rename", "from": "c"},
        {"path": "d", "kind": "mode"},
        {"path": "e", "kind": "type"},
    ]
    render.render_changes(Terminal(), changes, "none")
    assert capfd.readouterr().out.splitlines() == [
        "+ a",
        "> c -> b",
        "m d (mode, owner, times or attributes)",
        "! e (another type)",
    ]
    render.render_changes(Terminal(), [], "none")
    assert capfd.readouterr() == ("", "none\n")


def test_a_restore(capfd: pytest.CaptureFixture[str]) -> None:
    result: dict[str, Any] = {
        "head": "h",
        "from": "o",
        "saved": "s",
        "changes": [{"path": f"p{number}", "kind": "delete"} for number in range(60)],
        "kept": [{"path": "k", "reason": "changed by another session"}],
        "seconds": 0.0015,
        "fingerprint": "f",
    }
    render.render_restore(Terminal(), result, dry_run=False)
    seen = capfd.readouterr()
    assert "and 10 more" in seen.out
    assert "at h: 60 paths changed, 1.5 ms" in seen.out
    assert "checkpoint s" in seen.out
    assert seen.err == "kept k: changed by another session\n"
    render.render_restore(Terminal(), result, dry_run=True)
    assert "--fingerprint f insists on it" in capfd.readouterr().err


def test_stat(capfd: pytest.CaptureFixture[str]) -> None:
    changes = [{"path": name, "kind": "overwrite"} for name in ("a", "binary", "same")]
    render.render_stat(Terminal(), {"changes": changes, "lines": {"a": (300, 1), "binary": (-1, -1)}})
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith(" a      |   301 ++++")
    assert lines[0].endswith("+-")
    assert len(lines[0]) < 70
    assert lines[1] == " binary | binary (overwrite)"
    assert lines[3] == " 3 paths changed, 300 added(+), 1 removed(-)"


def test_a_patch_keeps_its_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    render.render_patch(Terminal(), "+\udcff\r\n-x")
    assert capfdbinary.readouterr().out == b"+\xff\r\n-x"


def test_ls(capfd: pytest.CaptureFixture[str]) -> None:
    entries = [
        {"name": "d", "type": "directory", "mode": 0o755, "size": 0, "mtime": 0.0, "target": None},
        {"name": "l", "type": "symlink", "mode": 0o777, "size": 0, "mtime": 0.0, "target": "to\n"},
    ]
    render.render_ls(Terminal(), entries, long=False)
    assert capfd.readouterr().out == 'd/\nl -> "to\\n"\n'
    render.render_ls(Terminal(), entries, long=True)
    assert capfd.readouterr().out.startswith("drwxr-xr-x            0 19")


def test_status_of_a_sick_workspace(capfd: pytest.CaptureFixture[str]) -> None:
    result = {
        "workspace": "/w",
        "mode": "fuse",
        "channel": "direct",
        "mounted": True,
        "mountpoint": "/m",
        "head": "h",
        "dirty": True,
        "changed": 1,
        "store_bytes": 10,
        "health": ["the store is full"],
        "writers": ["vim (pid 7): a"],
        "undo": "",
        "redo": "nothing was undone",
    }
    render.render_status(Terminal(), result)
    out = capfd.readouterr().out
    for part in (
        "yes at /m (fuse, channel direct)",
        "unsaved    1 path",
        "the store is full",
        "vim (pid 7)",
        "possible",
    ):
        assert part in out


class Tty(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.BytesIO]:
    """Both streams are a terminal."""
    data = io.BytesIO()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    streams = [Tty(data, encoding="utf-8"), Tty(data, encoding="utf-8")]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        yield data


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as seen:
        render.render_patch(Terminal(), "diff --git a/x b/x\n@@ -1 +1 @@\n-a\n+b\n c\n")
        assert b"\x1b[32m+b\x1b[0m\n c\n" in seen.getvalue()
        assert not Terminal(as_json=True).is_coloured
        monkeypatch.setenv("NO_COLOR", "1")
        assert not Terminal().is_coloured


def test_progress_only_on_a_terminal_and_only_if_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as seen:
        shown_to = Terminal()
        waiting = shown_to.waiting("applying")
        assert isinstance(waiting, Waiting)
        waiting(0.1)
        assert seen.getvalue() == b""
        waiting.progress({"operation": "apply", "done": 5, "total": 10})
        waiting(2.0)
        assert b"applying [##########..........] 5/10 (2 s)" in seen.getvalue()
        shown_to.clear()
        assert seen.getvalue().endswith(b"\r\x1b[K")


def test_no_progress_in_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    assert Terminal().waiting("x") is None


def test_an_encoding_that_lacks_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding="ascii"))
    terminal = Terminal()
    assert not terminal.can_show("│")
    terminal.say("日\udcff")
    assert data.getvalue() in (b"\\u65e5\xff\n", b"\\u65e5\\udcff\n")
