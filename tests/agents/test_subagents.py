"""Sub-agents: what they change is undone with the prompt that started them, and nobody waits for them at the end."""

from __future__ import annotations

import shlex

import pytest

from tests.agents.conftest import MakeStage
from tests.agents.observer import Observer, mixed, restore_files
from tests.agents.stage import until

LONG = pytest.mark.long
pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("background", "mode"),
    [
        (False, "fuse"),
        pytest.param(True, "fuse", marks=LONG),
        pytest.param(False, "scan", marks=LONG),
    ],
)
def test_the_tasks_of_oh_my_pi(make_stage: MakeStage, background: bool, mode: str) -> None:
    stage = make_stage("omp", True, mode)
    stage.configure(**{"async": {"enabled": background}})
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    start = see.tree()
    one = see.turn(agent, "one")
    commands = {"first": "echo first > first.txt; rm tracked2.txt", "second": "mkdir second; chmod +x script.sh"}
    for name, command in commands.items():
        bash = {"tool": "bash", "args": {"command": command}}
        stage.model.scenario(name, [{"calls": [bash]}, {"calls": [{"tool": "yield", "args": {"data": name}}]}])
    tasks = [{"name": name.title(), "task": f"[[{name}]] and no more"} for name in commands]
    parent = stage.model.scenario(
        "parent",
        [{"calls": [{"tool": "task", "args": {"context": "a test", "tasks": tasks}}]}, {"text": "done parent"}],
    )
    agent.prompt(parent)

    def is_over() -> bool:
        agent.drain(0.3)
        log = stage.model.log.read_text()
        return log.count("first.txt") > 0 and (stage.workspace / "second").is_dir() and "done parent" in log

    until(is_over, 30)
    until(lambda: agent.heard(0.2) and not agent.request("get_state")["isStreaming"], 30)
    agent.drain(0.5)
    two = see.tree()
    assert (stage.workspace / "first.txt").exists() and not (stage.workspace / "tracked2.txt").exists()
    three = see.turn(agent, "three")
    names = {row["session"] for row in stage.states()["checkpoints"] if row["session"]}
    assert len(names) == 1, "sub-agents work in the name of their leader"

    for wanted, when in ((two, "the sub-agents' work"), (one, "before the sub-agents"), (start, "the beginning")):
        told = stage.do(agent, "/undo")
        see.expect(wanted, f"after undo to {when}")
        assert not any("another session" in line for line in told), told
    for wanted, when in ((one, "before the sub-agents"), (two, "the sub-agents' work"), (three, "the end")):
        stage.do(agent, "/redo")
        see.expect(wanted, f"after redo to {when}")
    agent.close()
    until(lambda: not stage.plyfs.daemons(), 30)
    see.expect(three, "when all is applied")


def test_an_agent_that_an_agent_starts(make_stage: MakeStage) -> None:
    """As sub-agents for Pi are made: a Pi of their own, in print mode, without a session."""
    stage = make_stage("pi", with_git=True)
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    start = see.tree()
    inner = stage.model.bash("inner", mixed("inner"))
    command = shlex.join(stage.command("-p", inner, "--no-session"))
    after = see.turn(agent, "outer", f"{command} > said.txt; echo outer > outer.txt")
    assert (stage.workspace / "said.txt").read_text() == "done inner\n"
    assert (stage.workspace / "dir-inner" / "f").exists()
    assert stage.served.is_mounted(), "the one that started it still needs it"
    told = stage.do(agent, "/undo")
    see.expect(start, "after undo of what both have done")
    assert not any("another session" in line for line in told), told
    stage.do(agent, "/redo")
    see.expect(after, "after redo")
    agent.close()
    until(lambda: not stage.plyfs.daemons(), 30)
    see.expect(after, "when all is applied")
