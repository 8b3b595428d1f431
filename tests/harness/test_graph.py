"""The tree, as it is drawn."""

from __future__ import annotations

import time
from typing import Any

import pytest

from harness.graph import layout, render_graph
from harness.terminal import Terminal


def row(id: str, parent: str | None, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "parent": parent,
        "time": time.time() - 1,
        "label": None,
        "session": None,
        "node": None,
        "changed": 1,
        "state": "sealed",
        "kind": "user",
        **more,
    }


def drawn(capfd: pytest.CaptureFixture[str], result: dict[str, Any], ascii_only: bool = False) -> list[str]:
    render_graph(Terminal(), result, None, ascii_only)
    return [line.replace("  just now", "") for line in capfd.readouterr().out.splitlines()]


def test_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    result = {
        "head": "b",
        "dirty": True,
        "redo": ["c"],
        "checkpoints": [
            row("a", None, kind="base", changed=0),
            row("b", "a", label="turn 1"),
            row("c", "b", changed=2),
        ],
        "changes": {
            "b": [{"path": "x", "kind": "create"}],
            "c": [{"path": f"p{number}", "kind": "delete"} for number in range(5)],
        },
    }
    assert drawn(capfd, result) == [
        "○  c  <- redo goes here",
        "│    - p0  - p1  - p2  … 2 more",
        "◌  unsaved changes (`plyfs diff`)",
        "@  b  turn 1  <- you are here",
        "│    + x",
        "◆  a  base",
    ]


def test_branches_keep_to_the_right_of_the_way_to_the_head(capfd: pytest.CaptureFixture[str]) -> None:
    rows = [
        row("base", None, kind="base", changed=0),
        row("l1", "base"),
        row("l2", "l1", session="s"),
        row("r1", "base", state="sealing"),
        row("m1", "l1"),
        row("h", "r1"),
    ]
    assert drawn(capfd, {"head": "h", "checkpoints": rows}) == [
        "@  h  <- you are here",
        "│    1 path changed",
        "●  r1  sealing",
        "│    1 path changed",
        "│  ○  m1",
        "│  │    1 path changed",
        "│  │  ○  l2  [s]",
        "│  │  │    1 path changed",
        "│  ├─╯",
        "│  ○  l1",
        "│  │    1 path changed",
        "├─╯",
        "◆  base  base",
    ]


def test_ascii(capfd: pytest.CaptureFixture[str]) -> None:
    rows = [row("a", None, changed=0, kind="base"), row("b", "a", changed=0), row("c", "a", changed=0)]
    assert drawn(capfd, {"head": "c", "checkpoints": rows, "dirty": True}, ascii_only=True) == [
        "+  unsaved changes (`plyfs diff`)",
        "@  c  <- you are here",
        "|  o  b",
        "|/",
        "o  a  base",
    ]


def test_names_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    result = {
        "head": "a",
        "checkpoints": [row("a", None, label="x\x1b[31m\n"), row("b", "a")],
        "changes": {"b": [{"path": "p\x07\udcff", "kind": "create"}]},
    }
    text = "\n".join(drawn(capfd, result))
    assert "\x1b" not in text
    assert '"x\\033[31m\\n"' in text
    assert '"p\\a\\377"' in text


def test_only_the_newest(capfd: pytest.CaptureFixture[str]) -> None:
    rows = [row("a", None), row("b", "a"), row("c", "b")]
    render_graph(Terminal(), {"head": "c", "checkpoints": rows}, 1, False)
    out = capfd.readouterr().out
    assert "c" in out
    assert "b  " not in out


def test_ten_thousand_in_a_row_and_as_many_branches() -> None:
    deep = [row("0", None), *(row(str(number), str(number - 1)) for number in range(1, 10_000))]
    assert [line.row["id"] for line in layout(deep, "9999", [])] == [str(number) for number in reversed(range(10_000))]
    wide = [row("0", None), *(row(str(number), "0") for number in range(1, 10_000))]
    lines = layout(wide, "0", [])
    assert len(lines) == 10_000
    assert max(line.depth for line in lines) == 1


def test_every_checkpoint_is_drawn_once_and_above_its_parent() -> None:
    rows = [row("0", None), *(row(str(number), str((number * 7919) % number)) for number in range(1, 300))]
    for head in ("0", "17", "299"):
        lines = layout(rows, head, [])
        places = {line.row["id"]: place for place, line in enumerate(lines)}
        assert len(places) == len(lines) == 300
        assert all(places[one["id"]] < places[one["parent"]] for one in rows if one["parent"] is not None)


@pytest.mark.parametrize("head", ["gone", "a"])
def test_a_history_with_holes(head: str) -> None:
    assert len(layout([row("a", "lost"), row("b", None), row("c", "a")], head, ["also gone"])) == 3
