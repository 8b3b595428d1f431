"""Files follow the conversation, with the real agents: after every step the tree is exactly as that node left it."""

from __future__ import annotations

import os
import stat

import pytest

from tests.agents.conftest import MakeStage, git
from tests.agents.observer import Observer, leaf, restore_files
from tests.agents.stage import Stage

LONG = pytest.mark.long
pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(170)]

TURNS = {
    "one": "echo v1 > tracked.txt; echo one > a.txt; mkdir empty; ln -s tracked.txt link1; mkfifo pipe",
    "two": (
        "echo v2 > tracked.txt; rm tracked2.txt; echo new > new.txt; echo v2 > node_modules/pkg/index.js; "
        "echo n > node_modules/new.js; ln -sfn a.txt link2; mkdir emptydir; rmdir olddir; chmod +x script.sh; "
        "chmod 640 secret; echo v2 > ignored.log; echo n > new.log; "
        "mkdir -p sub/deep; echo d > sub/deep/f; mv a.txt b.txt; "
        "head -c 62914560 /dev/zero | tr '\\0' 'x' > big.bin"
    ),
    "three": (
        "echo v3 > tracked.txt; rm -f new.txt; echo third > third.txt; mkdir third-empty; rm pipe; "
        "echo v3 > node_modules/pkg/index.js; echo v3 > ignored.log; rm -rf sub; rm -f big.bin; "
        "rm -r empty; echo f > empty"
    ),
}


@pytest.mark.parametrize(
    ("kind", "with_git", "mode"),
    [
        pytest.param("pi", False, "fuse", marks=LONG),
        ("pi", True, "fuse"),
        ("omp", True, "fuse"),
        ("pi", True, "scan"),
        ("omp", False, "scan"),
    ],
)
def test_files_follow_the_conversation(make_stage: MakeStage, kind: str, with_git: bool, mode: str) -> None:
    stage = make_stage(kind, with_git, mode)
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)

    states = [see.tree()]
    leaves = [leaf(stage, agent)]
    for name, command in TURNS.items():
        # The agents' own tool writes a file, then bash does the rest.
        write = {"tool": "write", "args": {"path": f"written-{name}.txt", "content": f"{name}\n"}}
        bash = {"tool": "bash", "args": {"command": command}}
        steps = [{"calls": [write]}, {"calls": [bash]}, {"text": f"done {name}"}]
        agent.prompt(stage.model.scenario(name, steps))
        assert (stage.workspace / f"written-{name}.txt").read_text() == f"{name}\n"
        states.append(see.tree())
        leaves.append(leaf(stage, agent))
    assert stat.S_ISLNK(os.lstat(stage.workspace / "link1").st_mode)

    for step in (2, 1, 0):
        stage.do(agent, "/undo")
        see.expect(states[step], f"after undo to {step}")
    stage.do(agent, "/undo")
    see.expect(states[0], "after an undo too many")
    for step in (1, 2, 3):
        stage.do(agent, "/redo")
        see.expect(states[step], f"after redo to {step}")
    stage.do(agent, "/undo 3")
    see.expect(states[0], "after three at once")
    stage.do(agent, "/redo 3")
    see.expect(states[3], "after three forward at once")

    for step in (1, 3, 2, 3):
        stage.do(agent, f"/goto {leaves[step]}")
        see.expect(states[step], f"after going to turn {step} in the tree")

    # Undone, restarted: still undone; and the way forward is still there.
    stage.do(agent, "/undo 2")
    agent.close()
    agent = stage.start("--continue", on_dialog=restore_files)
    stage.served_by(agent)
    see.expect(states[1], "after a restart")
    stage.do(agent, "/drift")
    assert "as this point left them" in agent.notices[-1]
    stage.do(agent, "/redo")
    see.expect(states[2], "after a restart and redo")

    # A person's edit between turns is kept, named, and come back to.
    (stage.workspace / "mine.txt").write_text("a person's\n")
    (stage.workspace / "tracked.txt").write_text("edited by hand\n")
    edited = see.tree()
    stage.do(agent, "/undo")
    see.expect(states[1], "after undo over a person's edit")
    told = " ".join(agent.notices)
    assert "mine.txt" in told and "tracked.txt" in told
    stage.do(agent, "/redo")
    see.expect(edited, "after redo to a person's edit")
    agent.prompt(stage.model.bash("four", "echo four > four.txt; rm mine.txt"))
    stage.do(agent, "/undo")
    see.expect(edited, "after undo of a turn that a person's edit came before")

    assert_only_ids(stage)
    if with_git:
        assert git(stage.workspace, "diff", "--cached", "--name-only").split() == ["staged.txt"]


def assert_only_ids(stage: Stage) -> None:
    """Of plyfs the session's file holds nothing but ids."""
    ours = [entry for entry in stage.entries() if entry.get("customType") == "plyfs"]
    assert ours
    for entry in ours:
        assert set(entry["data"]) <= {"redo"}
        assert all(isinstance(value, str) and len(value) <= 40 for value in entry["data"].get("redo", []))


@pytest.mark.parametrize(
    ("kind", "with_git", "mode"),
    [
        ("pi", True, "fuse"),
        pytest.param("omp", True, "fuse", marks=LONG),
        pytest.param("pi", True, "scan", marks=LONG),
        pytest.param("omp", False, "scan", marks=LONG),
    ],
)
def test_every_row_of_what_others_miss(make_stage: MakeStage, kind: str, with_git: bool, mode: str) -> None:
    """One change a turn, then its undo: the table of what today's plugins do."""
    stage = make_stage(kind, with_git, mode)
    agent = stage.start()
    stage.served_by(agent)
    see = Observer(stage)
    rows = {
        "edit": "echo edited > tracked.txt",
        "delete": "rm tracked2.txt",
        "create": "echo new > new.txt",
        "modules": "echo x > node_modules/pkg/index.js; rm -r node_modules/pkg; echo y > node_modules/z.js",
        "ignored": "echo x > ignored.log; echo y > other.log",
        "new-link": "ln -s tracked.txt link-new",
        "link": "ln -sfn elsewhere link2",
        "empty": "mkdir -p deep/er/empty",
        "exec": "chmod +x script.sh",
        "mode": "chmod 640 secret",
        "large": "head -c 62914560 /dev/zero > large.bin",
        "fifo": "mkfifo fifo",
        "rename": "mv tracked.txt renamed.txt; mv deep deeper",
        "type": "rm script.sh; mkdir script.sh; echo x > script.sh/x",
    }
    if see.left_out:
        # What git ignores a scan leaves as it is, and says so.
        rows = {name: command for name, command in rows.items() if name not in ("modules", "ignored")}
    for name, command in rows.items():
        before = see.tree()
        agent.prompt(stage.model.bash(name, command))
        after = see.tree()
        assert after.differences(before), name
        stage.do(agent, "/undo")
        see.expect(before, f"after undo of {name}")
        stage.do(agent, "/redo")
        see.expect(after, f"after redo of {name}")
