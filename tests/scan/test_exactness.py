"""A scan sees what is there, exactly, or says loudly that it could not."""

from __future__ import annotations

import os
import stat
import threading
import time
from typing import Any

import pytest

from store.errors import DamagedError
from tests.scan.conftest import Scanned, kinds
from tests.treestate import capture
from vfs.scan import reading
from vfs.scan.execute import Executor
from vfs.scan.reading import Reader
from vfs.workspace import ConflictError, WorkspaceError


def test_same_size_edits_within_one_tick(scanned: Scanned) -> None:
    path = scanned.write("f", "0000")
    ws = scanned.start()
    made = []
    for number in range(1, 60):
        path.write_text(f"{number:04}")
        made.append(ws.checkpoint())
    assert all(one.created for one in made)
    for number, one in enumerate(made, 1):
        assert ws.cat(one.id, "f") == b"%04d" % number


def test_mtime_set_back(scanned: Scanned) -> None:
    path = scanned.write("f", "0000")
    ws = scanned.start()
    status = path.stat()
    time.sleep(0.05)
    path.write_text("1111")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert ws.cat(ws.checkpoint().id, "f") == b"1111"


def test_replaced_by_another_inode_with_the_same_times(scanned: Scanned) -> None:
    path = scanned.write("f", "0000")
    ws = scanned.start()
    status = path.stat()
    other = scanned.write("g", "1111")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.rename(other, path)
    assert ws.cat(ws.checkpoint().id, "f") == b"1111"


def test_a_clock_in_the_future_and_back(scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says, a file whose change time is not safely past is read again."""
    path = scanned.write("f", "0000")
    monkeypatch.setattr("vfs.scan.reading.now_ns", lambda: time.time_ns() - 3600 * 10**9)
    ws = scanned.start()
    record = ws.timeline.scanner.index.file(b"f")
    assert record is not None
    assert record.racy
    path.write_text("1111")
    assert ws.cat(ws.checkpoint().id, "f") == b"1111"


def test_a_file_that_changes_while_it_is_read_is_read_again(scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    path = scanned.write("f", "x" * 1000)
    scanned.write("g")
    original = reading._exactly
    changes = [3]

    def meddling(fd: int, length: int, offset: int) -> bytes:
        data = original(fd, length, offset)
        if changes[0] and length == 1000:
            changes[0] -= 1
            path.write_bytes(b"%d" % changes[0] * 1000)
        return data

    monkeypatch.setattr(reading, "_exactly", meddling)
    ws = scanned.start()
    assert ws.cat("base", "f") == b"0" * 1000


def test_a_file_that_never_holds_still_fails_loudly(scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    ws = scanned.start()
    head = ws.status().head
    path = scanned.write("log", "x" * 1000)
    original = reading._exactly

    def meddling(fd: int, length: int, offset: int) -> bytes:
        data = original(fd, length, offset)
        with open(path, "a") as file:
            file.write("more")
        return data

    monkeypatch.setattr(reading, "_exactly", meddling)
    with pytest.raises(WorkspaceError, match=r"log is being written to"):
        ws.checkpoint()
    assert ws.ls("base") == [], "what is recorded can be looked at all the same"
    assert ws.diff("base", "@").changes == []
    monkeypatch.undo()
    assert ws.log().head == head
    assert ws.checkpoint().created


def test_files_that_vanish_while_they_are_read(scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        scanned.write(f"d/{number}")
    original = Reader.read

    def meddling(self: Reader, at: Any, name: str, ino: Any) -> Any:
        if name.isdigit() and int(name) % 3 == 0 and (scanned.path / "d" / name).exists():
            os.unlink(scanned.path / "d" / name)
        return original(self, at, name, ino)

    monkeypatch.setattr(Reader, "read", meddling)
    ws = scanned.start()
    assert {row.name for row in ws.ls("base", "d")} == {str(number) for number in range(20) if number % 3}


def test_beside_a_busy_writer_every_checkpoint_is_one_state(scanned: Scanned) -> None:
    """Files replaced by rename are never half there."""
    scanned.write("f", "0" * 50_000)
    ws = scanned.start()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            scanned.write("t", str(number % 10) * 50_000)
            os.rename(scanned.path / "t", scanned.path / "f")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        made = 0
        for _ in range(30):
            try:
                id = ws.checkpoint().id
            except WorkspaceError:
                continue
            made += 1
            data = ws.cat(id, "f")
            assert len(data) == 50_000
            assert len(set(data)) == 1
    finally:
        stop.set()
        thread.join()
    assert ws.checkpoint().id


def test_everything_that_a_file_is(scanned: Scanned) -> None:
    top = scanned.path
    scanned.write("mode", "m").chmod(0o6751)
    scanned.write("secret", "s").chmod(0o000)
    scanned.write(os.fsdecode(b"\xff\n\x01"), "not text")
    scanned.write("n" * 255, "long")
    scanned.write("e\u0301", "NFD")
    scanned.write("\u00e9", "NFC")
    (top / "empty/inner").mkdir(parents=True)
    (top / "closed").mkdir()
    scanned.write("closed/in")
    (top / "closed").chmod(0o000)
    (top / "dangling").symlink_to("nowhere")
    (top / "absolute").symlink_to("/etc/passwd")
    os.mkfifo(top / "fifo", 0o640)
    os.mknod(top / "sock", stat.S_IFSOCK | 0o600)
    for name in ("one", "two", "three"):
        if name == "one":
            scanned.write("one", "shared")
        else:
            os.link(top / "one", top / name)
    os.utime(top / "mode", ns=(1, 1_234_567_890_123_456_789))
    with open(top / "sparse", "wb") as file:
        file.truncate(50_000_000)
        file.seek(30_000_000)
        file.write(b"island")
    try:
        os.setxattr(top / "mode", "user.note", b"value")
    except OSError:
        pass
    before = capture(top, times=False)
    ws = scanned.start()
    assert [row.mtime for row in ws.ls("base") if row.name == "mode"] == [1234567890.123456789]
    (top / "closed").chmod(0o755)
    for entry in list(top.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            for inner in entry.iterdir():
                inner.rmdir() if inner.is_dir() else inner.unlink()
            entry.rmdir()
        else:
            entry.unlink()
    ws.undo()
    assert not capture(top, times=False).differences(before)
    assert (top / "sparse").stat().st_blocks < 1000
    assert ws.timeline.home.objects.inventory.bytes_used() < 200_000


def test_unchanged_files_keep_inode_and_mtime(scanned: Scanned) -> None:
    for name in ("same", "over", "gone"):
        path = scanned.write(name)
        os.utime(path, ns=(10**18, 10**18))
    ws = scanned.start()
    before = (scanned.path / "same").stat()
    scanned.write("over", "changed")
    os.unlink(scanned.path / "gone")
    ws.checkpoint()
    ws.undo()
    after = (scanned.path / "same").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert (scanned.path / "over").stat().st_mtime_ns > 10**18
    assert not ws.status().dirty
    assert not scanned.again().status().dirty


def test_never_through_a_link(scanned: Scanned, tmp_path: Any) -> None:
    """A directory that became a link to elsewhere is put back; what it points to is not touched."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("outside")
    scanned.write("d/f", "inside")
    ws = scanned.start()
    scanned.write("d/f", "changed")
    ws.checkpoint()
    os.unlink(scanned.path / "d/f")
    os.rmdir(scanned.path / "d")
    (scanned.path / "d").symlink_to(outside)
    ws.undo(2)
    assert (outside / "f").read_text() == "outside"
    assert (scanned.path / "d/f").read_text() == "inside"
    assert not (scanned.path / "d").is_symlink()


def test_a_hard_link_elsewhere_keeps_its_bytes(scanned: Scanned, tmp_path: Any) -> None:
    path = scanned.write("f", "first")
    ws = scanned.start()
    path.write_text("second")
    ws.checkpoint()
    os.link(path, tmp_path / "outside")
    ws.undo()
    assert path.read_text() == "first"
    assert (tmp_path / "outside").read_text() == "second"


def test_some_names_of_a_file_brought_back(scanned: Scanned) -> None:
    """The others keep what they have, on the disk and in the checkpoint that is made of it."""
    top = scanned.path
    scanned.write("a", "first")
    for name in ("b", "c"):
        os.link(top / "a", top / name)
    ws = scanned.start()
    (top / "a").write_text("second")
    ws.restore("base", ["a", "b"])
    assert [(top / name).read_text() for name in "abc"] == ["first", "first", "second"]
    assert [ws.cat("@", name) for name in "abc"] == [b"first", b"first", b"second"]
    assert (top / "a").stat().st_ino == (top / "b").stat().st_ino != (top / "c").stat().st_ino
    assert not ws.status().dirty


def test_attributes_of_all_names_of_a_file(scanned: Scanned) -> None:
    top = scanned.path
    scanned.write("a", "text").chmod(0o640)
    os.link(top / "a", top / "b")
    ws = scanned.start()
    before = capture(top)
    (top / "a").chmod(0o600)
    os.utime(top / "a", ns=(1, 10**18))
    undone = ws.undo()
    assert undone.kept == []
    assert not capture(top).differences(before)


def test_a_name_more_of_a_file_whose_attributes_change(scanned: Scanned) -> None:
    top = scanned.path
    scanned.write("a", "text").chmod(0o640)
    os.link(top / "a", top / "b")
    ws = scanned.start()
    before = capture(top)
    os.unlink(top / "b")
    (top / "a").chmod(0o600)
    ws.undo()
    assert not capture(top).differences(before)
    assert not ws.status().dirty


def test_attributes_of_the_workspace_itself(scanned: Scanned) -> None:
    scanned.path.chmod(0o750)
    ws = scanned.start()
    scanned.path.chmod(0o700)
    assert kinds(ws.undo().changes) == {"": "mode"}
    assert stat.S_IMODE(scanned.path.stat().st_mode) == 0o750


def test_what_a_new_name_is_made_of_may_change_meanwhile(scanned: Scanned) -> None:
    """A name is never given to what took the place of the file that it belongs to."""

    class Meddling(Executor):
        done = False

        def stage(self) -> None:
            if not Meddling.done:
                Meddling.done = True
                os.unlink(scanned.path / "a")
                scanned.write("a", "meanwhile")
            super().stage()

    scanned.write("a", "first")
    os.link(scanned.path / "a", scanned.path / "b")
    ws = scanned.start(executor=Meddling)
    os.unlink(scanned.path / "b")
    ws.checkpoint()
    done = ws.restore("base")
    assert done.saved is not None
    assert [(scanned.path / name).read_text() for name in "ab"] == ["first", "first"]
    assert ws.cat(done.saved, "a") == b"meanwhile"


def test_paths_that_are_as_they_were_make_no_checkpoint(scanned: Scanned) -> None:
    scanned.write("a", "first")
    ws = scanned.start()
    head = ws.status().head
    done = ws.restore("base", ["a"])
    assert (done.head, done.saved, done.changes) == (head, None, [])
    assert len(ws.log().checkpoints) == 1


def test_what_changes_right_before_the_move_stops_it(scanned: Scanned) -> None:
    class Meddling(Executor):
        done = False

        def stage(self) -> None:
            super().stage()
            if not Meddling.done:
                Meddling.done = True
                scanned.write("f", "meanwhile")

    scanned.write("f", "first")
    ws = scanned.start(executor=Meddling)
    scanned.write("f", "second")
    ws.checkpoint()
    undone = ws.undo()  # tried again, with what came meanwhile saved first
    assert undone.saved is not None
    assert (scanned.path / "f").read_text() == "second"
    assert ws.cat(undone.saved, "f") == b"meanwhile"
    assert scanned.names() == ["f"]


def test_what_changes_during_the_moves_is_kept(scanned: Scanned) -> None:
    class Meddling(Executor):
        def move(self) -> None:
            scanned.write("b", "meanwhile")
            super().move()

    for name in "abc":
        scanned.write(name, "first")
    ws = scanned.start(executor=Meddling)
    for name in "abc":
        scanned.write(name, "second")
    ws.checkpoint()
    undone = ws.undo()
    assert [row.path for row in undone.kept] == ["b"]
    assert kinds(undone.changes) == {"a": "overwrite", "c": "overwrite"}
    assert (scanned.path / "b").read_text() == "meanwhile"
    assert (scanned.path / "a").read_text() == "first"
    assert scanned.names() == ["a", "b", "c"]


def test_a_damaged_object_is_found_before_anything_moves(scanned: Scanned) -> None:
    path = scanned.write("d/f", "x" * 1000)
    scanned.write("g", "first")
    ws = scanned.start()
    found = ws.timeline.scanner.index.file(b"d/f")
    assert found is not None
    path.write_text("y" * 1000)
    scanned.write("g", "second")
    ws.checkpoint()
    blob = ws.timeline.home.objects.path(found.entry.content.ref)  # type: ignore[union-attr]
    os.chmod(blob, 0o600)
    with open(blob, "r+b") as file:
        file.write(b"z")
    ws = scanned.again()
    with pytest.raises(DamagedError, match="d/f"):
        ws.undo()
    assert (scanned.path / "g").read_text() == "second"
    assert scanned.names() == ["d", "d/f", "g"]


def test_a_fingerprint_holds_only_while_nothing_moves(scanned: Scanned) -> None:
    scanned.write("f", "first")
    ws = scanned.start()
    scanned.write("f", "second")
    ws.checkpoint()
    seen = ws.restore("base", dry_run=True).fingerprint
    (scanned.path / "f").chmod(0o600)
    with pytest.raises(ConflictError):
        ws.restore("base", fingerprint=seen)


def test_killed_right_after_the_answer(scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was answered for is there, though it had not reached the device."""
    scanned.write("f", "first")
    ws = scanned.start()
    monkeypatch.setattr("vfs.scan.sealing.ScanSealing.submit", lambda self, id, layer: None)
    scanned.write("f", "second")
    made = ws.checkpoint().id
    assert ws.log().checkpoints[-1].state == "sealing"
    scanned.die()
    monkeypatch.undo()
    ws = scanned.start()
    assert ws.log().checkpoints[-1].id == made
    assert ws.log().checkpoints[-1].state == "sealed"
    assert ws.cat(made, "f") == b"second"


def test_lost_records_only_cost_time(scanned: Scanned) -> None:
    for number in range(30):
        scanned.write(f"d{number % 3}/{number}", str(number))
    ws = scanned.start()
    ws.checkpoint()
    scanned.write("d0/0", "changed")
    ws.checkpoint()
    ws.undo()
    ws.unmount()
    ws.close()
    os.unlink(ws.timeline.index_path)
    ws = scanned.start()
    assert {change.kind for change in ws.diff().changes} <= {"mode"}
    os.rename(scanned.path / "d0", scanned.path / "moved")
    assert kinds(ws.diff().changes)["moved"] == "rename"


def test_a_directory_and_a_file_change_places_and_the_file_has_a_name_in_it(scanned: Scanned) -> None:
    top = scanned.path
    scanned.write("a", "first")
    scanned.write("d/a", "inside")
    os.link(top / "a", top / "d/b")
    ws = scanned.start()
    before = capture(top, times=False)
    os.truncate(top / "a", 0)
    os.rename(top / "a", top / "between")
    os.rename(top / "d", top / "a")
    os.rename(top / "between", top / "d")
    made = ws.checkpoint().id
    changes = [(change.path, change.kind) for change in ws.diff("base", made).changes]
    assert len(changes) == len(set(changes))
    assert ws.undo().kept == []
    assert not capture(top, times=False).differences(before)
    assert not ws.status().dirty


def test_another_directory_at_the_same_path_is_another_workspace(scanned: Scanned) -> None:
    scanned.write("f", "first")
    base = scanned.start().status().head
    scanned.ws.unmount()
    scanned.ws.close()
    elsewhere = scanned.path.with_name("elsewhere")
    os.rename(scanned.path, elsewhere)
    scanned.path.mkdir()
    scanned.write("other", "text")
    ws = scanned.start()
    assert not ws.knows(base)
    assert [row.name for row in ws.ls("base")] == ["other"]
    scanned.stop()
    moved = Scanned(elsewhere, scanned.home)
    try:
        assert moved.start().status().head == base
    finally:
        moved.stop()
