"""The wire form: typed on the way in, plain JSON on the way out."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from harness import messages
from harness.failure import EXIT_STATUS, PlyfsError, exit_status
from store import errors as store_errors
from vfs import workspace as workspace_module
from vfs.workspace import Change, CheckpointResult, RestoreResult


def params(method: str, **values: Any) -> messages.Params:
    return messages.parse_params(messages.Request(1, method, values))


def test_absent_parameters_take_the_defaults() -> None:
    for method, kind in messages.METHODS.items():
        needed = {
            "restore": {"checkpoint": "@"},
            "cat": {"checkpoint": "@", "path": "a"},
            "ls": {"checkpoint": "@"},
            "session": {"session": "s"},
            "leave": {"session": "s", "pid": 1},
            "capture": {"session": "s"},
            "bind": {"session": "s", "node": "n"},
            "find": {"session": "s", "nodes": ["n"]},
        }
        assert isinstance(params(method, **needed.get(method, {})), kind)


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("checkpoint", {"labl": "x"}),
        ("checkpoint", {"label": 1}),
        ("checkpoint", {"label": "x" * 1001}),
        ("checkpoint", {"sync": "yes"}),
        ("undo", {"count": 0}),
        ("undo", {"count": True}),
        ("redo", {"count": 1.5}),
        ("restore", {}),
        ("restore", {"checkpoint": ""}),
        ("restore", {"checkpoint": "@", "paths": "a"}),
        ("unmount", {"how": "burn"}),
        ("log", {"changes": 1001}),
        ("cat", {"checkpoint": "@", "path": "a", "offset": -1}),
        ("cat", {"checkpoint": "@", "path": "a", "length": messages.CHUNK_MAX + 1}),
    ],
)
def test_what_is_refused(method: str, values: dict[str, Any]) -> None:
    with pytest.raises(PlyfsError) as caught:
        params(method, **values)
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"[]", b"1", b'{"id":1}', b'{"id":[],"method":"x"}', b'{"id":1,"method":"x","extra":1}', b"[" * 200000],
)
def test_what_is_no_request(line: bytes) -> None:
    with pytest.raises(PlyfsError) as caught:
        messages.parse_request(line)
    assert caught.value.code == "bad_request"


def test_fields_are_called_as_documented() -> None:
    result = RestoreResult("h", "o", None, [Change("p", "rename", "s"), Change("q", "create")], [], 0.5, "f")
    value = json.loads(messages.answer_line(7, result))
    assert value == {
        "id": 7,
        "result": {
            "head": "h",
            "from": "o",
            "saved": None,
            "changes": [{"path": "p", "kind": "rename", "from": "s"}, {"path": "q", "kind": "create"}],
            "kept": [],
            "seconds": 0.5,
            "fingerprint": "f",
        },
    }


def test_names_that_are_no_text_cross() -> None:
    line = messages.answer_line("x", CheckpointResult("a", None, True, 1, "\udcff\n", None, None, 0.0))
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert json.loads(line)["result"]["label"] == "\udcff\n"
    request = messages.parse_request(b'{"id":1,"method":"restore","params":{"checkpoint":"@","paths":["\\udcff"]}}')
    assert messages.parse_params(request) == messages.Restore("@", ["\udcff"])


def test_every_expected_error_keeps_its_code() -> None:
    kinds = [
        kind
        for module in (store_errors, workspace_module)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, store_errors.StoreError)
    ]
    for kind in kinds:
        failure = messages.failure_of(kind("what failed", "what to do"))
        assert (failure.code, failure.message, failure.hint) == (kind.code, "what failed", "what to do")


def test_other_errors() -> None:
    failed = messages.failure_of(OSError(errno.EIO, "Input/output error", "/x"))
    assert failed.code == "failed"
    assert "/x" in failed.message
    assert messages.failure_of(ZeroDivisionError("x")).code == "internal"


def test_exit_statuses() -> None:
    wanted = {
        "nothing": 3,
        "conflict": 4,
        "not_mounted": 5,
        "not_a_workspace": 5,
        "damaged": 6,
        "format": 6,
        "locked": 7,
    }
    assert wanted.items() <= EXIT_STATUS.items()
    assert exit_status("whatever") == 1
    assert exit_status("usage") == 2
