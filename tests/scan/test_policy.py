"""What a scan leaves out, and that leaving out never becomes a deletion."""

from __future__ import annotations

import os
import subprocess

import pytest

from store.format import decode
from tests.conftest import need_programs
from tests.scan.conftest import Scanned, kinds
from vfs.scan.policy import Policy


@pytest.fixture
def repo(scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> Scanned:
    """A repository, with a home directory of its own for git."""
    need_programs("git")
    monkeypatch.setenv("HOME", str(scanned.path.parent))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    git(scanned, "init", "-q")
    git(scanned, "config", "user.name", "a")
    git(scanned, "config", "user.email", "a@b")
    return scanned


def git(scanned: Scanned, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=scanned.path, check=True, capture_output=True).stdout


def captured(scanned: Scanned) -> set[str]:
    """The files that a checkpoint made now has."""
    ws = scanned.ws
    id = ws.checkpoint().id
    found, waiting = set(), [""]
    while waiting:
        at = waiting.pop()
        for row in ws.ls(id, at):
            path = os.path.join(at, row.name)
            (waiting.append if row.type == "directory" else found.add)(path)
    return found


def by_git(scanned: Scanned) -> set[str]:
    """The files that git would commit, or has."""
    out = git(scanned, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return {os.fsdecode(path) for path in out.split(b"\0") if path and (scanned.path / os.fsdecode(path)).exists()}


def test_without_a_repository_everything_is_captured(scanned: Scanned) -> None:
    scanned.write(".gitignore", "*.o\n")
    scanned.write("a.o")
    scanned.start()
    assert captured(scanned) == {".gitignore", "a.o"}


def test_all_sources_of_rules(repo: Scanned) -> None:
    repo.write(".gitignore", "*.log\n/build/\n!/important.log\n")
    repo.write("sub/.gitignore", "*\n!keep*\n!.gitignore\n")
    repo.write(".git/info/exclude", "secret\n")
    (repo.path.parent / ".config/git").mkdir(parents=True)
    (repo.path.parent / ".config/git/ignore").write_text("*.swp\n")
    for name in (
        "a.log",
        "important.log",
        "build/x",
        "src/build/x",
        "sub/no",
        "sub/keep1",
        "secret",
        "x.swp",
        "d/y.swp",
    ):
        repo.write(name)
    repo.start()
    assert captured(repo) == by_git(repo)
    assert "src/build/x" in captured(repo)
    assert (repo.path / "build/x").exists()


def test_tracked_files_are_captured_though_ignored(repo: Scanned) -> None:
    repo.write(".gitignore", "*.log\nout/\n")
    for name in ("tracked.log", "other.log", "out/deep/tracked", "out/deep/other", "out/other"):
        repo.write(name)
    git(repo, "add", "-f", ".gitignore", "tracked.log", "out/deep/tracked")
    repo.start()
    assert captured(repo) == by_git(repo) == {".gitignore", "tracked.log", "out/deep/tracked"}
    git(repo, "add", "-f", "other.log")
    assert "other.log" in captured(repo)
    git(repo, "rm", "-q", "--cached", "other.log")
    assert captured(repo) == by_git(repo)


def test_nested_repositories_have_their_own_rules(repo: Scanned) -> None:
    repo.write(".gitignore", "*.o\n")
    repo.write("nested/x.o")
    repo.write("nested/y.p")
    subprocess.run(["git", "init", "-q", repo.path / "nested"], check=True)
    repo.write("nested/.gitignore", "*.p\n")
    repo.start()
    assert captured(repo) == {".gitignore", "nested/.gitignore", "nested/x.o"}


def test_part_of_a_repository(repo: Scanned) -> None:
    repo.write(".gitignore", "*.o\n/part/here\n")
    repo.write("part/.gitignore", "*.p\n")
    for name in ("part/a.o", "part/b.p", "part/here", "part/there", "part/deep/here"):
        repo.write(name)
    part = Scanned(repo.path / "part", repo.home)
    try:
        part.start()
        assert captured(part) == {".gitignore", "there", "deep/here"}
    finally:
        part.stop()


def test_git_itself_is_never_captured_nor_touched(repo: Scanned) -> None:
    repo.write("a")
    subprocess.run(["git", "init", "-q", repo.path / "deep/er"], check=True)
    repo.start()
    before = sorted((repo.path / ".git").rglob("*"))
    captured(repo)
    repo.write("a", "changed")
    repo.ws.undo()
    assert sorted((repo.path / ".git").rglob("*")) == before
    assert (repo.path / "deep/er/.git/HEAD").exists()


def test_restoring_gitignore_deletes_nothing(repo: Scanned) -> None:
    repo.write(".gitignore", "*.log\nnode_modules/\n")
    repo.write("a.log", "precious")
    repo.write("node_modules/m/i", "precious")
    ws = repo.start()
    repo.write(".gitignore", "")
    saved = ws.checkpoint().id
    assert "a.log" in {row.name for row in ws.ls(saved)}
    undone = ws.undo()
    assert kinds(undone.changes) == {".gitignore": "overwrite"}
    assert {row.path for row in undone.kept} == {"a.log", "node_modules", "node_modules/m", "node_modules/m/i"}
    assert (repo.path / "a.log").read_text() == "precious"
    assert (repo.path / "node_modules/m/i").read_text() == "precious"
    assert not ws.status().dirty
    ws.redo()
    assert (repo.path / "a.log").read_text() == "precious"


def test_what_was_made_after_and_would_have_been_ignored_stays(repo: Scanned) -> None:
    repo.write(".gitignore", "*.log\n")
    ws = repo.start()
    repo.write(".gitignore", "")
    repo.write("new.log", "precious")
    repo.write("new.txt", "not")
    ws.checkpoint()
    ws.undo()
    assert (repo.path / "new.log").read_text() == "precious"
    assert not (repo.path / "new.txt").exists()


def test_what_is_ignored_now_is_not_overwritten(repo: Scanned) -> None:
    repo.write("a.log", "captured")
    ws = repo.start()
    repo.write(".gitignore", "*.log\n")
    repo.write("a.log", "not captured any more")
    ws.checkpoint()
    undone = ws.undo()
    assert (repo.path / "a.log").read_text() == "not captured any more"
    assert [row.path for row in undone.kept] == ["a.log"]
    assert not (repo.path / ".gitignore").exists()


def test_the_global_file_may_change(repo: Scanned) -> None:
    """Not even when the rules were not in the tree."""
    ignore = repo.path.parent / ".config/git/ignore"
    ignore.parent.mkdir(parents=True)
    ignore.write_text("*.swp\n")
    repo.write("x.swp", "precious")
    ws = repo.start()
    ignore.write_text("")
    repo.write("a")
    assert "x.swp" in captured(repo)
    ws.restore("base")
    assert (repo.path / "x.swp").exists()
    assert not (repo.path / "a").exists()


def test_a_removed_directory_keeps_what_was_not_captured(repo: Scanned) -> None:
    repo.write(".gitignore", "*.o\n")
    ws = repo.start()
    repo.write("d/a.c")
    ws.checkpoint()
    repo.write("d/a.o", "precious")
    undone = ws.undo()
    assert (repo.path / "d/a.o").read_text() == "precious"
    assert not (repo.path / "d/a.c").exists()
    assert [row.path for row in undone.kept] == ["d"]


def test_undoing_a_rename_carries_what_was_not_captured(repo: Scanned) -> None:
    repo.write(".gitignore", "*.o\n")
    repo.write("d/a.c")
    repo.write("d/a.o", "precious")
    ws = repo.start()
    os.rename(repo.path / "d", repo.path / "e")
    ws.checkpoint()
    assert kinds(ws.undo().changes) == {"d": "rename"}
    assert (repo.path / "d/a.o").read_text() == "precious"
    assert not (repo.path / "e").exists()


def test_all_captures_what_is_ignored(repo: Scanned) -> None:
    repo.write(".gitignore", "*.o\n")
    repo.write("a.o")
    repo.start(Policy("all"))
    assert captured(repo) == {".gitignore", "a.o"}


def test_files_that_are_too_big(scanned: Scanned) -> None:
    scanned.write("big", b"x" * 2000)
    scanned.write("small")
    ws = scanned.start(Policy(max_bytes=1000))
    assert "big" not in captured(scanned)
    assert any("big" in note for note in ws.notes())
    scanned.write("small", "changed")
    ws.checkpoint()
    ws.undo()
    assert (scanned.path / "big").stat().st_size == 2000
    scanned.write("big", "now it fits")
    assert "big" in captured(scanned)


def test_the_policy_is_stored_with_the_checkpoint(repo: Scanned) -> None:
    repo.write(".git/info/exclude", "secret\n")
    repo.write("secret")
    ws = repo.start(Policy(max_bytes=77))
    ref = ws.timeline.store.history.scope(ws.checkpoint().id)
    assert ref is not None
    scope = decode(ws.timeline.home.objects.get_node(ref))
    assert (scope.rules, scope.max_bytes) == ("git", 77)
    assert [(one.path, one.reason) for one in scope.left_out] == [(b"secret", "ignored")]
    assert scope.repositories[0].texts[0].text == b"secret\n"
    assert ws.ls(ws.status().head) == []


def test_the_policy_survives_a_restart(repo: Scanned) -> None:
    repo.write(".gitignore", "*.log\n")
    repo.write("a.log", "precious")
    repo.write("x")
    ws = repo.start()
    base = ws.status().head
    ws = repo.again()
    os.unlink(repo.path / ".gitignore")
    ws.checkpoint()
    ws = repo.again()
    ws.restore(base)
    assert (repo.path / "a.log").read_text() == "precious"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["fifo", "directory", "endless", "loop"])
@pytest.mark.parametrize("name", [".gitignore", "d/.gitignore", "d/.git", ".git/info/exclude"])
def test_rules_that_are_no_files(repo: Scanned, kind: str, name: str) -> None:
    """Nothing waits for them, and nothing is ignored by them."""
    repo.write("d/file")
    path = repo.path / name
    path.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "endless":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)
    ws = repo.start()
    repo.write("d/file", "second")
    repo.write("new")
    ws.checkpoint()
    ws.undo()
    assert (repo.path / "d/file").read_text() == "x"
    assert not (repo.path / "new").exists()
    assert os.path.lexists(path)


def test_a_path_that_was_never_captured_is_told(repo: Scanned) -> None:
    """Who asks for it by name must not believe that it was brought back."""
    repo.write(".gitignore", "*.o\nbuild/\n")
    for name in ("a.o", "build/x", "src", "d/b.o"):
        repo.write(name)
    repo.start()
    first = repo.ws.checkpoint().id
    repo.write("a.o", "changed")
    asked = ["a.o", "build", "build/x", "d", ".git/config", "src", "nowhere"]
    told = {one.path: one.reason for one in repo.ws.restore(first, asked).kept}
    ignored = "git ignored it then, so that checkpoint says nothing of it"
    assert told == {
        "a.o": ignored,
        "build": ignored,
        "build/x": ignored,
        ".git/config": "scanning does not capture it",
    }
    assert repo.ws.restore(first, []).kept == []
    assert (repo.path / "a.o").read_text() == "changed"
