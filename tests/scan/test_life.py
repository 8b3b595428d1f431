"""Behaviours that sank others in the life of a scanned workspace: its store, its daemon, its neighbours."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.lock import LockedError
from tests.conftest import need_programs
from tests.scan.conftest import Scanned
from tests.served import Plyfs, Served, Watchdog
from tests.treestate import capture
from vfs.workspace import GoneError, WorkspaceError


def scan(served: Served) -> None:
    served.plyfs.run("mount", str(served.path), "--mode", "scan")


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


@pytest.mark.parametrize("replaced", [False, True])
def test_the_directory_moves_away_while_it_is_served(scanned: Scanned, replaced: bool) -> None:
    """It is the same workspace wherever it is, and what took its place is another: neither captured nor changed."""
    scanned.write("f", "first")
    ws = scanned.start()
    scanned.write("f", "second")
    made = ws.checkpoint().id
    elsewhere = scanned.path.with_name("elsewhere")
    os.rename(scanned.path, elsewhere)
    if replaced:
        scanned.path.mkdir()
        scanned.write("f", "other")
    (elsewhere / "f").write_text("third")
    for command in (ws.status, ws.checkpoint, ws.undo, ws.log, ws.drift, lambda: ws.restore("base")):
        with pytest.raises(GoneError, match="moved"):
            command()
    assert (elsewhere / "f").read_text() == "third"
    assert not replaced or (scanned.path / "f").read_text() == "other"
    ws.unmount()
    ws.close()
    moved = Scanned(elsewhere, scanned.home)
    try:
        ws = moved.start()
        assert [row.id for row in ws.log().checkpoints][1] == made
        ws.undo()
        assert (elsewhere / "f").read_text() == "second"
    finally:
        moved.stop()


# --- through the command ---------------------------------------------------------------------------------------------


def test_sqlite_in_wal_mode(workspace: Served) -> None:
    """With a connection open all the time: -wal and -shm come back too, and who opens it anew sees that turn."""
    path = workspace.path / "base.db"
    keeper = sqlite3.connect(path, isolation_level=None)
    keeper.execute("pragma journal_mode=wal")
    keeper.execute("pragma wal_autocheckpoint=0")
    keeper.execute("create table t (n integer, data blob)")
    scan(workspace)
    made = []
    for turn in range(4):
        for number in range(50):
            keeper.execute("insert into t values (?, ?)", (turn * 50 + number, os.urandom(700)))
        made.append(workspace.checkpoint())
    assert (workspace.path / "base.db-wal").stat().st_size > 0
    keeper.close()  # folds the log into the database, and removes it
    assert not (workspace.path / "base.db-wal").exists()
    for turn in (1, 3, 0):
        workspace.run("restore", made[turn])
        assert (workspace.path / "base.db-wal").exists()
        anew = sqlite3.connect(path)
        assert anew.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert anew.execute("select count(*), max(n) from t").fetchone() == (turn * 50 + 50, turn * 50 + 49)
        anew.close()


@pytest.mark.parametrize("kind", ["unborn", "worktree", "submodule", "broken"])
def test_kinds_of_git(workspace: Served, tmp_path: Path, kind: str) -> None:
    """Without a commit; a file; a file that leads nowhere: never an obstacle, never touched."""
    need_programs("git")
    top = workspace.path

    def git(where: Path, *words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
        subprocess.run(["git", *identity, *words], cwd=where, check=True, capture_output=True)

    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    (other / ".gitignore").write_text("*.log\n")
    git(other, "add", ".")
    git(other, "commit", "-qm", "one")
    inner = top
    match kind:
        case "unborn":
            git(top, "init", "-q")
            (top / ".gitignore").write_text("*.log\n")
        case "worktree":
            os.rmdir(top)
            git(other, "worktree", "add", "-q", "-b", "branch", str(top))
        case "submodule":
            git(top, "init", "-q")
            git(top, "submodule", "add", "-q", str(other), "sub")
            inner = top / "sub"
        case "broken":
            (top / ".git").write_text("gitdir: /no/where\n")
    served = Served(workspace.plyfs, top)
    (inner / "a.log").write_text("mine")
    (inner / "a.txt").write_text("first")
    scan(served)
    (inner / "a.txt").write_text("second")
    (inner / "b.txt").write_text("second")
    if kind != "broken":
        (inner / "a.log").write_text("changed")
        git(inner, "add", "a.txt")
    served.checkpoint()
    in_git = capture(top).paths.keys()
    served.run("undo")
    assert (inner / "a.txt").read_text() == "first"
    assert not (inner / "b.txt").exists()
    assert (inner / "a.log").read_text() == ("mine" if kind == "broken" else "changed")
    assert {path for path in capture(top).paths if ".git" in path} == {path for path in in_git if ".git" in path}
    if kind != "broken":
        git(inner, "fsck")
    served.run("redo")
    assert (inner / "a.txt").read_text() == "second"


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Served]:
    """A workspace whose store is on a file system of 24 MiB."""
    small, path = tmp_path / "small", tmp_path / "workspace"
    small.mkdir()
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", small], check=True)
    command = Plyfs(top=small)
    watchdog = Watchdog(command, 100)
    try:
        yield Served(command, path)
    finally:
        watchdog.cancel()
        command.close()
        subprocess.run(["umount", "-l", small], check=True)


@pytest.mark.root
def test_a_full_store(cramped: Served) -> None:
    """The checkpoint fails, with its reason; all others are intact, and after space is freed all goes on."""
    path = cramped.path
    (path / "a").write_text("first")
    scan(cramped)
    (path / "a").write_text("second")
    one = cramped.checkpoint("one")
    (path / "a").write_text("third")
    (path / "big").write_bytes(os.urandom(40 << 20))
    for _ in range(2):
        failed = cramped.run("checkpoint", "--json", check=False)
        assert failed.returncode == 1 and '"no_space"' in failed.stdout
    failed = cramped.run("undo", "--json", check=False)
    assert failed.returncode == 1 and '"no_space"' in failed.stdout, "it would have to save the present first"
    assert (path / "a").read_text() == "third"
    assert sorted(os.listdir(path)) == ["a", "big"]
    (path / "big").unlink()
    three = cramped.checkpoint("three")
    assert [row["id"] for row in cramped.json("log")["checkpoints"]][-2:] == [one, three]
    cramped.run("undo")
    assert (path / "a").read_text() == "second"
    cramped.run("undo")
    assert (path / "a").read_text() == "first"
    cramped.unmount()
    assert "sound" in cramped.run("fsck").stdout


@pytest.mark.root
def test_a_store_that_is_full_from_the_start(cramped: Served) -> None:
    (cramped.path / "big").write_bytes(os.urandom(40 << 20))
    failed = cramped.plyfs.run("mount", str(cramped.path), "--mode", "scan", "--json", check=False)
    assert failed.returncode == 1 and '"no_space"' in failed.stdout
    (cramped.path / "big").write_bytes(b"small")
    cramped.plyfs.run("gc", check=False)
    scan(cramped)
    assert [row["name"] for row in cramped.json("ls", "base")["entries"]] == ["big"]


def test_gc_beside_checkpoints(workspace: Served) -> None:
    """Some of them killed; what is reachable stays, what is orphaned goes."""
    top = workspace.path
    for number in range(40):
        (top / f"{number}").write_text(f"first {number}" * 50)
    scan(workspace)
    made = {workspace.json("status")["head"]: "first"}
    environment = {**workspace.plyfs.environment, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    dice = random.Random(1)
    for turn in range(12):
        sweep = subprocess.Popen(
            workspace.plyfs.command("gc"), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for number in range(0, 40, 3):
            (top / f"{number}").write_text(f"turn {turn} {number}" * 50)
        made[workspace.checkpoint()] = f"turn {turn}"
        if turn % 2:
            sweep.kill()
        sweep.wait()
        if turn % 3 == 0:
            id = dice.choice(list(made))
            workspace.run("restore", id)
            assert (top / "3").read_text().startswith(made[id])
    for id, text in made.items():
        workspace.run("restore", id)
        assert (top / "3").read_text() == f"{text} 3" * 50
    workspace.unmount()
    workspace.plyfs.run("gc")
    assert workspace.plyfs.json("gc")["objects"] == 0
    assert "sound" in workspace.run("fsck").stdout
    scan(workspace)
    for id in made:
        workspace.run("restore", id)


def test_moved_away_and_replaced(workspace: Served) -> None:
    (workspace.path / "f").write_text("first")
    scan(workspace)
    (workspace.path / "f").write_text("second")
    made = workspace.checkpoint()
    workspace.unmount()
    away = workspace.path.with_name("away")
    workspace.path.rename(away)
    for words in (["log"], ["status"], ["checkpoint"], ["undo"], ["restore", made]):
        done = workspace.run(*words, check=False)
        assert done.returncode == 5, (words, done.stderr)
        assert str(workspace.path) in done.stderr and "hint:" in done.stderr
    workspace.path.mkdir()
    (workspace.path / "f").write_text("other")
    done = workspace.run("undo", check=False)
    assert done.returncode == 5 and (workspace.path / "f").read_text() == "other"
    scan(workspace)
    assert [row["label"] for row in workspace.json("log")["checkpoints"]] == ["base"]
    assert workspace.run("restore", made, check=False).returncode != 0
    assert (workspace.path / "f").read_text() == "other"
    workspace.unmount()
    there = Served(workspace.plyfs, away)
    scan(there)
    assert there.json("log")["head"] == made
    there.run("undo")
    assert (away / "f").read_text() == "first"


def test_replaced_while_it_is_served(workspace: Served) -> None:
    (workspace.path / "f").write_text("first")
    scan(workspace)
    (workspace.path / "f").write_text("second")
    made = workspace.checkpoint()
    away = workspace.path.with_name("away")
    workspace.path.rename(away)
    workspace.path.mkdir()
    (workspace.path / "f").write_text("other")
    for words in ("status", "undo", "checkpoint", "log"):
        done = workspace.run(words, check=False)
        assert done.returncode == 5 and "is not the directory" in done.stderr and "hint:" in done.stderr, words
    assert (workspace.path / "f").read_text() == "other"
    assert (away / "f").read_text() == "second"
    workspace.run("unmount")
    there = Served(workspace.plyfs, away)
    scan(there)
    assert there.json("log")["head"] == made


def test_what_is_refused(plyfs: Plyfs, tmp_path: Path) -> None:
    home = tmp_path / "users/me"
    (home / "project").mkdir(parents=True)
    environment = {**plyfs.environment, "HOME": str(home)}
    plyfs.environment = environment
    for path, words in [
        ("/", "cannot be"),
        (str(home), "home directory"),
        (str(home.parent), "home directory"),
        (str(plyfs.home), "store"),
        (str(plyfs.home.parent), "store"),
    ]:
        done = plyfs.run("mount", path, "--mode", "scan", check=False)
        assert done.returncode == 5 and words in done.stderr, (path, done.stderr)
    plyfs.run("mount", str(home / "project"), "--mode", "scan")
    done = plyfs.run("mount", str(home / "project"), "--mode", "scan", "--json", check=False)
    assert done.returncode == 7 and '"locked"' in done.stdout
    inside = home / "project/inside"
    inside.mkdir()
    plyfs.environment = {**environment, "PLYFS_HOME": str(home / "other/deep")}
    done = plyfs.run("mount", str(home / "other"), "--mode", "scan", check=False)
    assert done.returncode == 5


def test_who_writes_is_named(workspace: Served) -> None:
    """And a file that somebody has open for writing is whole in every checkpoint, and after every restore."""
    (workspace.path / "log").write_text("first\n")
    scan(workspace)
    script = """
import sys
with open("log", "a") as log:
    for line in sys.stdin:
        log.write(line)
        log.flush()
        print(flush=True)
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=workspace.path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert writer.stdin is not None and writer.stdout is not None

    def write(line: str) -> None:
        writer.stdin.write(line)  # type: ignore[union-attr]
        writer.stdin.flush()  # type: ignore[union-attr]
        writer.stdout.readline()  # type: ignore[union-attr]

    try:
        write("second\n")
        made = workspace.checkpoint()
        (who,) = workspace.json("status")["writers"]
        assert f"pid {writer.pid}" in who and "log" in who
        workspace.run("undo")
        assert (workspace.path / "log").read_text() == "first\n"
        write("to a file without a name\n")
        assert (workspace.path / "log").read_text() == "first\n"
        assert not workspace.json("status")["dirty"]
        workspace.run("redo")
        assert (workspace.path / "log").read_text() == "first\nsecond\n"
        assert workspace.json("log")["head"] == made
    finally:
        writer.stdin.close()
        writer.wait(timeout=10)
        writer.stdout.close()


USER = 65534


@pytest.mark.root
def test_an_ordinary_user(tmp_path: Path) -> None:
    """Through the command: what its own mode closes to its owner, and what is root's."""
    need_programs("setpriv")
    command = Plyfs(measured=False, user=USER)
    watchdog = Watchdog(command, 100)
    try:
        served = Served(command, command.top / "workspace")
        top = served.path
        for name, mode in {"none": 0o000, "write": 0o200, "d/closed": 0o400, "suid": 0o4711}.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text("first")
            os.chown(top / name, USER, USER)
            (top / name).chmod(mode)
        os.setxattr(top / "none", "user.note", b"kept")
        for name in (".", "d"):
            os.chown(top / name, USER, USER)
        (top / "d").chmod(0o000)
        (top / "foreign").write_text("root's")
        (top / "foreign").chmod(0o600)
        before = capture(top, times=False)
        served.plyfs.run("mount", str(top), "--mode", "scan")
        assert not capture(top, times=False).differences(before)
        for name in ("none", "write", "d/closed", "suid"):
            (top / name).unlink()
        (top / "d").chmod(0o755)
        (top / "none").mkdir()
        os.chown(top / "none", USER, USER)
        served.checkpoint()
        served.run("undo")
        assert not capture(top, times=False).differences(before)
        assert not served.json("status")["dirty"]
    finally:
        watchdog.cancel()
        command.close()
