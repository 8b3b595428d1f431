"""Behaviours that sank others in the life of a scanned workspace: its store, its daemon, its neighbours."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest

from store.errors import DamagedError
from store.lock import LockedError
from tests.scan.conftest import Scanned
from tests.scan.stopping import nothing_sealed
from tests.scan.test_interrupted import Dying, undo
from tests.served import Served
from tests.treestate import capture
from vfs.scan.scanned import ScannedWorkspace
from vfs.workspace import WorkspaceError


def scan(served: Served) -> None:
    served.plyfs.run("mount", str(served.path), "--mode", "scan")


def two_turns(scanned: Scanned) -> tuple[ScannedWorkspace, str]:
    """A workspace with a turn after its base; (it, the turn's checkpoint)."""
    for number in range(6):
        scanned.write(f"d{number % 2}/{number}", f"first {number}")
    ws = scanned.start()
    for number in range(3):
        scanned.write(f"d{number % 2}/{number}", f"second {number}")
    return ws, ws.checkpoint().id


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "lost":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "zeros":
            path.write_bytes(bytes(len(data)))
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "flipped":
            at = len(data) // 2
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])


every_damage = pytest.mark.parametrize("how", ["lost", "empty", "zeros", "cut", "flipped"])


@every_damage
@pytest.mark.parametrize("name", ["scan/state", "scanned"])
def test_what_a_scan_remembers_is_damaged(scanned: Scanned, name: str, how: str) -> None:
    """Everything is read again; no checkpoint is lost, and what was not saved is still that."""
    ws, made = two_turns(scanned)
    base = ws.log().checkpoints[0].id
    ws.unmount()
    ws.close()
    scanned.write("d1/1", "unsaved")
    damage(Path(os.fsdecode(ws.timeline.store.path)) / name, how)
    ws = scanned.start()
    assert [one.id for one in ws.log().checkpoints] == [base, made]
    assert ws.log().head == made
    assert "d1/1" in {change.path for change in ws.diff().changes if change.kind == "overwrite"}
    assert any("read again" in note for note in ws.notes()) == (name == "scan/state")
    ws.undo()
    assert (scanned.path / "d1/1").read_text() == "second 1"
    ws.restore(base)
    assert (scanned.path / "d1/1").read_text() == "first 1"
    assert not any("read again" in note for note in scanned.again().notes())


@every_damage
def test_the_record_of_a_restore_is_damaged(scanned: Scanned, tmp_path: Path, how: str) -> None:
    """Nothing is moved by what it says, and it is named."""
    (tmp_path / "w").mkdir()
    one = Dying(tmp_path / "w", scanned.home)
    try:
        with nothing_sealed():
            for name in "abc":
                one.write(name, "first")
            one.serve()
            for name in "abc":
                one.write(name, "second")
            one.ws.checkpoint()
            after = 1
            while one.dies(undo, after):
                if len({(one.path / name).read_text() for name in "abc"}) == 2:
                    break
                after += 1
                one.serve()
                if (one.path / "a").read_text() != "second":
                    one.ws.redo()
            record = Path(os.fsdecode(one.ws.timeline.store.path)) / "scan/restore"
            damage(record, how)
            found = capture(one.path)
            if how in ("cut", "flipped"):
                with pytest.raises(DamagedError, match="scan/restore"):
                    one.start()
                one.ws = None  # type: ignore[assignment]
                assert not capture(one.path).differences(found)
                record.unlink()
            one.start()
            one.ws.restore(one.ws.log().checkpoints[0].id)
            assert {(one.path / name).read_text() for name in "abc"} == {"first"}
    finally:
        one.stop()


def test_two_at_once(scanned: Scanned) -> None:
    """The second is refused; a dead one's lock is not in the way."""
    scanned.write("a")
    scanned.start()
    second = Scanned(scanned.path, scanned.home)
    with pytest.raises(LockedError):
        second.start()
    second.ws = None  # type: ignore[assignment]
    scanned.die()
    second.start()
    second.stop()


def test_retries_of_a_turn(workspace: Served) -> None:
    """Make one checkpoint, whatever has changed meanwhile."""
    (workspace.path / "a").write_text("one")
    scan(workspace)
    (workspace.path / "a").write_text("two")
    first = workspace.json("checkpoint", "--session", "s", "--node", "1")
    again = workspace.json("checkpoint", "--session", "s", "--node", "1")
    assert (again["id"], again["created"]) == (first["id"], False)
    assert len(workspace.json("log")["checkpoints"]) == 2


def test_a_thousand_checkpoints(scanned: Scanned) -> None:
    for number in range(20):
        scanned.write(f"d{number % 4}/{number}", "0")
    ws = scanned.start()
    made = []
    for number in range(1000):
        scanned.write(f"d{number % 4}/{number % 20}", f"{number}")
        made.append(ws.checkpoint().id)
    assert len(set(made)) == 1000
    ws = scanned.again()
    assert len(ws.log().checkpoints) == 1001
    for number in (0, 999, 500, 501, 2):
        ws.restore(made[number])
        assert (scanned.path / f"d{number % 4}/{number % 20}").read_text() == f"{number}"
    ws.undo(3)
    assert ws.log().head == ws.log().checkpoints[0].id


def test_a_listing_while_names_come_and_go(scanned: Scanned) -> None:
    """What stays is in every checkpoint."""
    stable = {f"stable{number}" for number in range(2000)}
    for name in stable:
        scanned.write(f"d/{name}")
    ws = scanned.start()
    stop = threading.Event()

    def meddle() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            scanned.write(f"d/t{number}")
            os.rename(scanned.path / f"d/t{number}", scanned.path / f"d/u{number}")
            os.unlink(scanned.path / f"d/u{number}")

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        for _ in range(10):
            try:
                id = ws.checkpoint().id
            except WorkspaceError:
                continue
            assert {row.name for row in ws.ls(id, "d")} >= stable
    finally:
        stop.set()
        thread.join()
