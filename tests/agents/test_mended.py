"""After something went wrong: who was killed in the middle of a turn has lost nothing; what is over is seen to be."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.agents.conftest import MakeStage
from tests.agents.observer import Observer, restore_files
from tests.agents.stage import until
from tests.agents.test_commands import send, told

LONG = pytest.mark.long
pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(120)]


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_an_agent_that_is_killed_in_the_middle_of_a_turn(make_stage: MakeStage, kind: str) -> None:
    """Going back before that turn goes to where a person had been when the prompt was sent."""
    stage = make_stage(kind)
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    start = see.tree()
    see.turn(agent, "one")
    (stage.workspace / "mine.txt").write_text("a person's\n")
    edited = see.tree()
    send(agent, stage.model.bash("two", "echo 2 > a.txt; sleep 3"))
    until((stage.workspace / "a.txt").exists)
    agent._process.kill()
    agent = stage.start("--continue", on_dialog=restore_files)
    stage.served_by(agent)
    told(agent, 0, "1 file differs")
    now = see.tree()
    stage.do(agent, "/undo")
    see.expect(edited, "after undo of what was cut off")
    stage.do(agent, "/redo")
    see.expect(now, "after redo of what was cut off")
    stage.do(agent, "/undo 2")
    see.expect(start, "after undo of everything")
    # What the killed one had started may still stand in the workspace; that only delays the end.
    agent.close()
    until(lambda: not stage.plyfs.daemons(), 30)
    see.expect(start, "when all is applied")


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_a_daemon_that_is_killed_in_the_middle_of_a_turn(make_stage: MakeStage, kind: str) -> None:
    """It is told at once; and when somebody mends it in a shell, the badge sees that by itself."""
    stage = make_stage(kind)
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("one", "echo 1 > a.txt"))
    go_on = stage.workspace.parent / "go-on"
    send(agent, stage.model.bash("two", f"echo 2 > a.txt; until [ -e {go_on} ]; do sleep 0.05; done"))
    until(lambda: (stage.workspace / "a.txt").read_text() == "2\n")
    os.kill(stage.daemon(), signal.SIGKILL)
    told(agent, 0, f"the daemon of {stage.workspace} has gone away\nhint: /plyfs doctor")
    assert agent.status["plyfs"] == "plyfs ✗ daemon died: /plyfs doctor"
    go_on.touch()
    until(lambda: agent.heard(0.1) and not agent.request("get_state")["isStreaming"])
    assert len(agent.notices) == 1
    stage.served.json("status")
    stage.served_by(agent)
    agent.prompt(stage.model.bash("three", "echo 3 > a.txt"))
    for wanted in ("2\n", "1\n", None):
        stage.do(agent, "/undo")
        path = stage.workspace / "a.txt"
        assert (path.read_text() if path.exists() else None) == wanted
    assert len(agent.notices) == 4, agent.notices


@pytest.mark.crash
def test_what_a_crash_left_is_mended_when_a_session_begins(make_stage: MakeStage) -> None:
    """As after a machine lost its power: nobody need ask for it."""
    stage = make_stage("pi", settings='on_exit = "leave"')
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    start, one = see.tree(), see.turn(agent, "one")
    agent.close()
    os.kill(stage.daemon(), signal.SIGKILL)
    until(lambda: not stage.plyfs.daemons())
    stage.plyfs.run("doctor", check=False)
    agent = stage.start("--continue")
    stage.served_by(agent)
    assert agent.notices == []
    see.expect(one, "when it is served again")
    stage.do(agent, "/undo")
    see.expect(start, "after undo")


def test_a_scanned_workspace_that_was_away_for_a_while(make_stage: MakeStage) -> None:
    """The badge tells of the trouble while it lasts, and no longer."""
    stage = make_stage("pi", mode="scan")
    agent = stage.start()
    stage.served_by(agent)
    assert agent.notices[0].startswith("plyfs: the directory is scanned, as is set")
    agent.prompt(stage.model.bash("one", "echo 1 > a.txt"))
    away = stage.workspace.parent / "away"
    stage.workspace.rename(away)
    first = len(agent.notices)
    for name in ("two", "three"):
        agent.prompt(stage.model.scenario(name, [{"text": "hello"}]))
    told(agent, first, "was moved or removed")
    assert len(agent.notices) == first + 1, "told once"
    assert agent.status["plyfs"] == "plyfs scan ✗ trouble: /plyfs health"
    assert "was moved or removed" in stage.do(agent, "/plyfs health")[-1]
    away.rename(stage.workspace)
    agent.prompt(stage.model.bash("four", "echo 4 > a.txt"))
    stage.served_by(agent)
    assert "all is well" in stage.do(agent, "/plyfs health")[-1]
    stage.do(agent, "/undo")
    assert (stage.workspace / "a.txt").read_text() == "1\n"


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_a_workspace_that_somebody_unmounts_and_mounts_again(make_stage: MakeStage, kind: str) -> None:
    """That is no failure: plyfs is off, the agent works in the directory itself, and then plyfs is there again."""
    stage = make_stage(kind)
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("one", "echo 1 > a.txt"))
    refused = stage.served.run("unmount", check=False)
    assert (refused.returncode, "in use by" in refused.stderr) == (4, True)
    stage.served.run("unmount", "--lazy")
    until(lambda: agent.heard(0.05) and agent.status["plyfs"] == "plyfs off")
    agent.prompt(stage.model.bash("two", "echo 2 > a.txt"))
    stage.served.run("mount")
    stage.served_by(agent)
    agent.prompt(stage.model.bash("three", "echo 3 > a.txt"))
    stage.do(agent, "/undo")
    assert (stage.workspace / "a.txt").read_text() == "2\n"
    assert not any("gone away" in line for line in agent.notices)


def test_a_daemon_that_does_not_answer_a_command(make_stage: MakeStage) -> None:
    stage = make_stage("pi", settings='on_exit = "leave"')
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("one", "echo 1 > a.txt"))
    pid = stage.daemon()
    os.kill(pid, signal.SIGSTOP)
    try:
        send(agent, "/undo")
        told(agent, 0, "still waiting for the daemon")
        told(agent, 0, "does not answer")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (stage.workspace / "a.txt").exists(), "nothing is done later that was refused"
    stage.served_by(agent)
    stage.do(agent, "/undo")
    assert not (stage.workspace / "a.txt").exists()


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_doctor_begins_what_could_not_begin(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind, settings='mount = "sometimes"')
    agent = stage.start()
    told(agent, 0, "agents.mount")
    assert "agents.mount" in stage.do(agent, "/plyfs doctor")[-1]
    assert agent.status["plyfs"] == "plyfs off"
    stage.settings('language = "zh-CN"')
    store = Path(stage.plyfs.environment["PLYFS_HOME"])
    version = store / "version"
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    version.write_text("plyfs store 99\n")
    said = stage.do(agent, "/plyfs doctor")[-1]
    assert said.startswith("plyfs：") and "的格式版本为 99" in said, json.dumps(said)
    version.unlink()
    assert stage.do(agent, "/plyfs doctor")[-1] == "plyfs：已修复"
    stage.served_by(agent)
    agent.prompt(stage.model.bash("one", "echo 1 > a.txt"))
    stage.do(agent, "/undo")
    assert not (stage.workspace / "a.txt").exists()
