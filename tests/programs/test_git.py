"""git in a mount: what it makes is the same to the byte as in a plain directory, and it finds nothing to correct."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.programs.conftest import Shell
from tests.served import Served
from tests.treestate import assert_same, capture


def _work(shell: Shell, repository: Path) -> Shell:
    """A day with git; returns a shell in the clone."""
    shell.run("git", "clone", "-q", "--no-hardlinks", repository, "clone")
    clone = shell.below("clone")
    clone.run("git", "checkout", "-q", "-b", "topic", "origin/topic")
    clone.run("git", "rebase", "-q", "main")
    (clone.cwd / "http" / "new.py").write_text("new = 1\n")
    (clone.cwd / "xml" / "added.py").unlink()
    clone.run("git", "add", "-A")
    clone.run("git", "commit", "-q", "-m", "add one, remove one")
    clone.run("git", "checkout", "-q", "main")
    clone.run("git", "merge", "-q", "--no-ff", "-m", "merge", "topic")
    clone.run("git", "stash", "list")
    clone.run("git", "worktree", "add", "-q", "../tree", "topic")
    clone.run("git", "gc", "-q", "--prune=now")
    clone.run("git", "repack", "-q", "-a", "-d", "-F")
    clone.run("git", "reset", "-q", "--hard", "HEAD~1")
    clone.run("git", "checkout", "-q", "-f", "origin/topic")
    clone.run("git", "checkout", "-q", "-f", "main")
    return clone


def test_a_day_with_git_ends_the_same_as_in_a_plain_directory(plain: Shell, inside: Shell, repository: Path) -> None:
    """Clone, rebase, commit, merge, worktree, gc, repack, reset, checkout."""
    clones = [_work(shell, repository) for shell in (plain, inside)]
    for clone in clones:
        assert clone.run("git", "fsck", "--full", "--strict", "--no-progress", "--no-dangling") == ""
        assert clone.run("git", "status", "--porcelain") == ""
    heads = [clone.run("git", "for-each-ref") + clone.run("git", "ls-files", "--stage") for clone in clones]
    assert heads[0] == heads[1]
    trees = [capture(clone.cwd, skip=frozenset({".git"}), times=False) for clone in clones]
    assert_same(trees[1], trees[0], "after git's work")


def test_status_is_clean_right_after_mount(workspace: Served, repository: Path, environment: dict[str, str]) -> None:
    """The index, with the inode numbers and times in it, is still right: git needs to read no file again."""
    shutil.copytree(repository, workspace.path, dirs_exist_ok=True, symlinks=True)
    git = Shell(workspace.path, environment)
    git.run("git", "status")
    assert git.run("git", "diff-files", "--name-only") == ""
    workspace.mount()
    assert git.run("git", "diff-files", "--name-only") == "", "a stat field differs from that below the mount"
    assert git.run("git", "status", "--porcelain") == ""
    workspace.remount()
    assert git.run("git", "diff-files", "--name-only") == ""
    assert git.run("git", "status", "--porcelain") == ""


def test_undo_brings_back_files_and_leaves_commits(inside: Shell, mounted: Served, repository: Path) -> None:
    """The repository's own history is not rewound with the files, so an undone commit shows as changes to be made."""
    inside.run("git", "clone", "-q", repository, ".")
    mounted.checkpoint("clone")
    before = capture(mounted.path, skip=frozenset({".git"}), times=False)
    for path in sorted(mounted.path.glob("email/*.py")):
        path.write_text("")
    inside.run("git", "commit", "-q", "-a", "-m", "empty them")
    head = inside.run("git", "rev-parse", "HEAD")
    mounted.checkpoint("emptied")
    mounted.run("undo")
    assert_same(capture(mounted.path, skip=frozenset({".git"}), times=False), before, "after undo")
    assert inside.run("git", "rev-parse", "HEAD") == head
    assert inside.run("git", "fsck", "--full", "--no-progress", "--no-dangling") == ""
    assert inside.run("git", "status", "--porcelain").count(" M email/") == len(list(mounted.path.glob("email/*.py")))
