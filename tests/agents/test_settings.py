"""The settings for agents: each does what it says, and they are read anew when the agent is."""

from __future__ import annotations

import pytest

from tests.agents.conftest import MakeStage
from tests.agents.observer import Observer, answering
from tests.agents.stage import until
from tests.agents.test_asking import CANCEL, Answers

LONG = pytest.mark.long
pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(120)]


@pytest.mark.parametrize("how", [pytest.param("apply", marks=LONG), "keep", pytest.param("leave", marks=LONG)])
def test_how_a_workspace_is_left(make_stage: MakeStage, how: str) -> None:
    stage = make_stage("pi", with_git=True, settings=f'on_exit = "{how}"')
    see = Observer(stage)
    before = see.tree()
    agent = stage.start()
    stage.served_by(agent)
    after = see.turn(agent, "one")
    agent.close()
    if how == "leave":
        assert stage.served.is_mounted()
        see.expect(after, "in the mount that stays")
        return
    until(lambda: not stage.plyfs.daemons(), 30)
    see.expect(after if how == "apply" else before, f"in the real directory, after {how}")
    agent = stage.start("--continue")
    stage.served_by(agent)
    see.expect(after, "when it is served again")
    stage.do(agent, "/undo")
    see.expect(before, "after undo in the next session")


@pytest.mark.parametrize("how", ["restore", pytest.param("keep", marks=LONG)])
def test_a_session_that_is_opened_again(make_stage: MakeStage, how: str) -> None:
    stage = make_stage("pi", settings=f'on_exit = "leave"\nreopen = "{how}"')
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    left = see.turn(agent, "one")
    agent.close()
    (stage.workspace / "tracked.txt").write_text("changed\n")
    changed = see.tree()
    agent = stage.start("--continue")
    stage.served_by(agent)
    if how == "restore":
        until(lambda: agent.heard(0.1) and any("restored" in line for line in agent.notices), 10)
        see.expect(left, "as the session left it")
        return
    agent.drain(0.5)
    assert agent.notices == []
    see.expect(changed, "as it was found")


@pytest.mark.parametrize("what", ["files", pytest.param("chat", marks=LONG)])
def test_what_undo_moves(make_stage: MakeStage, what: str) -> None:
    stage = make_stage("pi", settings=f'undo = "{what}"')
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    start = see.tree()
    one = see.turn(agent, "one")
    count = len(agent.request("get_messages")["messages"])
    stage.do(agent, "/undo")
    see.expect(start if what == "files" else one, f"after an undo of {what} alone")
    assert (len(agent.request("get_messages")["messages"]) == count) is (what == "files")
    stage.do(agent, "/redo both")
    see.expect(one, "after a redo of both")


def test_settings_are_read_anew_by_the_agents_reload(make_stage: MakeStage) -> None:
    """First for all workspaces, then for this one; then wrong, which turns plyfs off and leaves the agent working."""
    stage = make_stage("pi")
    see = Observer(stage)
    answers: Answers = []
    agent = stage.start(on_dialog=answering(answers))
    stage.served_by(agent)
    start = see.tree()
    one = see.turn(agent, "one")
    stage.settings('confirm = "always"')
    stage.reload(agent)
    answers.append(CANCEL)
    stage.do(agent, "/undo")
    see.expect(one, "after Escape")
    stage.settings('confirm = "always"', own='confirm = "tree"\nbadge = false')
    stage.reload(agent)
    until(lambda: agent.heard(0.1) and agent.status.get("plyfs") is None)
    stage.do(agent, "/undo")
    see.expect(start, "after undo, unasked")
    stage.do(agent, "/redo")

    first = len(agent.notices)
    stage.settings('confirm = "perhaps"')
    stage.reload(agent)
    until(lambda: agent.heard(0.1) and agent.status.get("plyfs") == "plyfs off")
    told = agent.notices[first:]
    assert len(told) == 1 and "config.toml:5: agents.confirm" in told[0], told
    agent.prompt(stage.model.bash("still", "echo still > still.txt"))
    assert (stage.workspace / "still.txt").read_text() == "still\n"
    assert "config.toml:5: agents.confirm" in stage.do(agent, "/undo")[-1]
    assert (stage.workspace / "still.txt").exists()

    stage.settings("")
    stage.reload(agent)
    stage.served_by(agent)
    stage.do(agent, "/undo")
    see.expect(one, "after undo of what was done while plyfs was off")


@pytest.mark.parametrize("mode", ["fuse", "scan"])
def test_the_badge_counts_what_is_unsaved(make_stage: MakeStage, mode: str) -> None:
    stage = make_stage("pi", mode=mode)
    agent = stage.start()
    stage.served_by(agent)
    (stage.workspace / "one.txt").write_text("1")
    (stage.workspace / "two.txt").write_text("2")
    until(lambda: agent.heard(0.1) and agent.status.get("plyfs") == f"plyfs {mode} +2 ✓", 20)
    agent.prompt(stage.model.bash("turn1", "true"))
    until(lambda: agent.heard(0.1) and agent.status.get("plyfs") == f"plyfs {mode} ✓", 20)
