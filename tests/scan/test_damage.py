"""What a scanned workspace keeps beside its history is lost or damaged: told, and never believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store.errors import DamagedError
from tests.scan.conftest import Scanned
from tests.scan.stopping import nothing_sealed
from tests.scan.test_interrupted import Dying, undo
from tests.treestate import capture
from vfs.scan.scanned import ScannedWorkspace


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


def test_a_name_of_several_comes_back_to_them_though_the_records_are_lost(scanned: Scanned) -> None:
    """Taking a name away changes the inode's own time; it is the same file all the same."""
    scanned.write("one", "shared " * 100)
    os.link(scanned.path / "one", scanned.path / "two")
    (scanned.path / "d").mkdir()
    os.link(scanned.path / "one", scanned.path / "d" / "three")
    ws = scanned.start()
    os.unlink(scanned.path / "d" / "three")
    ws.unmount("keep")
    ws.close()
    os.unlink(ws.timeline.index_path)
    ws = scanned.start()
    ws.restore("base", ["d/three"])
    assert os.stat(scanned.path / "d" / "three").st_ino == os.stat(scanned.path / "one").st_ino
    assert os.stat(scanned.path / "one").st_nlink == 3
