"""Commands as people give them: hastily, while the agent works, with mistakes in them."""

from __future__ import annotations

import pytest

from tests.agents.conftest import MakeStage
from tests.agents.observer import Observer, leaf, restore_files
from tests.agents.rpc import Agent
from tests.agents.stage import until

LONG = pytest.mark.long
pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(120)]

BOTH = pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])


def send(agent: Agent, message: str, **fields: str) -> None:
    """A prompt or command whose end is not waited for."""
    agent._write({"id": message, "type": "prompt", "message": message, **fields})


def told(agent: Agent, first: int, text: str, times: int = 1) -> None:
    """Wait until something was told, so many times since the notice numbered ``first``."""
    until(
        lambda: agent.heard(0.05) and sum(text in line for line in agent.notices[first:]) >= times,
        20,
        lambda: f"{agent.notices[first:]}",
    )


@BOTH
def test_commands_in_quick_succession(make_stage: MakeStage, kind: str) -> None:
    """Each begins when the one before has ended."""
    stage = make_stage(kind)
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    states = [see.tree(), *(see.turn(agent, name) for name in ("one", "two", "three"))]
    first = len(agent.notices)
    send(agent, "/undo")
    send(agent, "/undo")
    told(agent, first, "went back", 2)
    see.expect(states[1], "after two undos at once")
    send(agent, "/redo")
    send(agent, "/undo 2")
    send(agent, "/redo 2")
    told(agent, first, "went forward", 2)
    see.expect(states[2], "after three more")
    assert len(agent.notices) == first + 5, agent.notices[first:]


@BOTH
def test_undo_while_the_agent_works(make_stage: MakeStage, kind: str) -> None:
    """It waits for the end and says so; a command that moves nothing waits for neither."""
    stage = make_stage(kind)
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    start = see.tree()
    go_on = stage.workspace.parent / "go-on"
    command = f"echo 1 > early.txt; until [ -e {go_on} ]; do sleep 0.05; done; echo 2 > late.txt"
    send(agent, stage.model.bash("slow", command))
    until((stage.workspace / "early.txt").exists)
    first = len(agent.notices)
    send(agent, "/undo")
    told(agent, first, "waits until the agent has finished")
    send(agent, "/plyfs")
    told(agent, first, "plyfs serves")
    assert (stage.workspace / "early.txt").exists()
    go_on.touch()
    told(agent, first, "went back 1 prompt; 2 files")
    see.expect(start, "after undo of a turn that was under way")


@BOTH
def test_an_aborted_turn_is_undone(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind)
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    start = see.tree()
    send(agent, stage.model.bash("endless", "echo 1 > early.txt; sleep 60"))
    until((stage.workspace / "early.txt").exists)
    agent.request("abort")
    agent.drain(0.3)
    aborted = see.tree()
    stage.do(agent, "/undo")
    see.expect(start, "after undo of an aborted turn")
    stage.do(agent, "/redo")
    see.expect(aborted, "after redo of an aborted turn")


@pytest.mark.parametrize("kind", ["pi", "omp"])
def test_prompts_that_are_sent_while_the_agent_works(make_stage: MakeStage, kind: str) -> None:
    """One that steers it, one that follows: each is a step back of its own."""
    stage = make_stage(kind)
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    start = see.tree()
    go_on = stage.workspace.parent / "go-on"
    send(agent, stage.model.bash("one", f"echo 1 > 1.txt; until [ -e {go_on} ]; do sleep 0.05; done"))
    until((stage.workspace / "1.txt").exists)
    send(agent, stage.model.bash("three", "echo 3 > 3.txt"), streamingBehavior="followUp")
    send(agent, stage.model.bash("two", "echo 2 > 2.txt"), streamingBehavior="steer")
    agent.drain(0.2)
    go_on.touch()
    until(lambda: agent.heard(0.1) and "done three" in stage.session_file().read_text())
    until(lambda: agent.heard(0.2) and not agent.request("get_state")["isStreaming"])
    agent.drain(0.3)
    every = see.tree()

    def made() -> list[str]:
        return [name for name in ("1.txt", "2.txt", "3.txt") if (stage.workspace / name).exists()]

    for wanted in (["1.txt", "2.txt"], ["1.txt"], []):
        stage.do(agent, "/undo")
        assert made() == wanted
    see.expect(start, "after three undos")
    for wanted in (["1.txt"], ["1.txt", "2.txt"], ["1.txt", "2.txt", "3.txt"]):
        stage.do(agent, "/redo")
        assert made() == wanted
    see.expect(every, "after three redos")


def test_what_is_not_clear_moves_nothing(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    one = see.turn(agent, "one")
    here = leaf(stage, agent)
    for command, word in (("/undo flies", "flies"), ("/undo 0", "0"), ("/undo -1", "-1"), ("/redo all", "all")):
        line = stage.do(agent, command)[-1]
        assert line.startswith(f"plyfs: nothing was done: what is {word}?\n") and "[n]" in line
    assert "what is heatlh?" in stage.do(agent, "/plyfs heatlh")[-1]
    assert "no checkpoint 'nonsense'" in stage.do(agent, "/restore nonsense")[-1]
    see.expect(one, "after commands with mistakes in them")
    assert leaf(stage, agent) == here
    assert agent.status["plyfs"] == "plyfs fuse ✓", "a person's slip is no trouble of plyfs"


def test_redo_says_why_not(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    states = [see.tree(), see.turn(agent, "one"), see.turn(agent, "two")]
    assert "nothing was undone here" in stage.do(agent, "/redo")[-1]
    stage.do(agent, "/undo 2")
    stage.do(agent, "/redo 1")
    see.expect(states[1], "after two back and one forward")
    other = see.turn(agent, "other")
    assert "has gone on since the undo" in stage.do(agent, "/redo")[-1]
    see.expect(other, "after a redo that leads nowhere")
    stage.do(agent, "/undo 2")
    see.expect(states[0], "after undo of both")


def test_a_path_alone_is_restored(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("one", "echo 1 > a.txt; mkdir sub; echo 1 > sub/b.txt; echo 1 > c.txt"))
    for name in ("a.txt", "sub/b.txt", "c.txt"):
        (stage.workspace / name).write_text("by hand\n")
    (stage.workspace / "c.txt").unlink()
    assert "2 files restored" in stage.do(agent, f"/restore ./sub/../a.txt {stage.workspace}/sub --yes")[-1]
    assert (stage.workspace / "a.txt").read_text() == (stage.workspace / "sub/b.txt").read_text() == "1\n"
    assert not (stage.workspace / "c.txt").exists()
    assert "as this point left them" in stage.do(agent, "/restore a.txt --yes")[-1]
    assert "no checkpoint 'nowhere.txt'" in stage.do(agent, "/restore nowhere.txt --yes")[-1]
