"""Forks, compaction, switches, retries, commands of the person's, two agents at once: whose files are whose."""

from __future__ import annotations

import pytest

from tests.agents.conftest import MakeStage
from tests.agents.observer import Observer, leaf, restore_files
from tests.agents.stage import Stage, until
from tests.treestate import TreeState

LONG = pytest.mark.long
pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(150)]

EACH = pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("pi", "fuse"),
        pytest.param("omp", "fuse", marks=LONG),
        pytest.param("pi", "scan", marks=LONG),
        pytest.param("omp", "scan", marks=LONG),
    ],
)
"""Each agent in each mode."""


def differing(one: TreeState, other: TreeState) -> set[str]:
    """What differs, of what is at the top."""
    found = one.paths.keys() | other.paths.keys()
    return {path.split("/")[0] for path in found - {"."} if one.paths.get(path) != other.paths.get(path)}


def text(stage: Stage, name: str) -> str | None:
    path = stage.workspace / name
    return path.read_text().strip() if path.exists() else None


@EACH
def test_a_fork_finds_what_it_inherited(make_stage: MakeStage, kind: str, mode: str) -> None:
    stage = make_stage(kind, True, mode)
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    states = [see.tree(), *(see.turn(agent, name) for name in ("one", "two", "three"))]
    prompts = [e for e in stage.entries() if (e.get("message") or {}).get("role") == "user"]
    old = stage.session_file()
    agent.request("fork" if kind == "pi" else "branch", entryId=prompts[2]["id"])
    agent.drain(0.3)
    see.expect(states[3], "after a fork, which moves no files")
    told = stage.do(agent, "/restore --yes")
    see.expect(states[2], f"after restoring the point at which the fork began: {told}")
    other = see.turn(agent, "other")
    assert stage.session_file() != old
    for step in (2, 1, 0):
        stage.do(agent, "/undo")
        see.expect(states[step], f"after undo to {step} in the fork")
    for wanted, step in ((states[1], "one"), (states[2], "two"), (other, "other")):
        stage.do(agent, "/redo")
        see.expect(wanted, f"after redo to {step} in the fork")
    # The old session still stands where it stood.
    agent.request("switch_session", sessionPath=str(old))
    agent.drain(0.3)
    see.expect(other, "after a switch, which moves no files")
    stage.do(agent, "/restore --yes")
    see.expect(states[3], "after restoring where the old session stands")
    stage.do(agent, "/undo")
    see.expect(states[2], "after undo in the old session")


@EACH
def test_compaction_and_a_new_session(make_stage: MakeStage, kind: str, mode: str) -> None:
    stage = make_stage(kind, True, mode)
    stage.configure(compaction={"keepRecentTokens": 1})
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    states = [see.tree(), *(see.turn(agent, name) for name in ("one", "two"))]
    places = [leaf(stage, agent)]
    old = stage.session_file()
    (stage.workspace / "hand.txt").write_text("by hand\n")
    edited = see.tree()
    assert agent.request("compact")["summary"]
    assert any(entry["type"] == "compaction" for entry in stage.entries())
    see.expect(edited, "after a compaction")
    states.append(see.turn(agent, "three"))
    for wanted, when in ((edited, "two"), (states[1], "one"), (states[0], "the beginning")):
        stage.do(agent, "/undo")
        see.expect(wanted, f"after undo to {when}, over a compaction")
    for wanted, when in ((states[1], "one"), (edited, "two"), (states[3], "three")):
        stage.do(agent, "/redo")
        see.expect(wanted, f"after redo to {when}, over a compaction")
    stage.do(agent, f"/goto {places[0]}")
    see.expect(states[2], "at what the turn before the person's edit left")
    stage.do(agent, "/redo 9")

    agent.request("new_session")
    agent.drain(0.3)
    now = see.tree()
    told = stage.do(agent, "/undo")
    assert any("nothing to undo" in line for line in told)
    see.expect(now, "a new session has no past")
    see.turn(agent, "elsewhere")
    stage.do(agent, "/undo")
    see.expect(now, "after undo in a new session")
    agent.request("switch_session", sessionPath=str(old))
    agent.drain(0.3)
    stage.do(agent, f"/goto {places[0]}")
    see.expect(states[2], "back in the old session")
    stage.do(agent, "/undo")
    see.expect(states[1], "after undo, back in the old session")
    agent.close()
    until(lambda: not stage.plyfs.daemons(), 30)
    see.expect(states[1], "when all is applied")


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_a_providers_retry_makes_no_second_state(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind, True)
    see = Observer(stage)
    before = see.tree()
    agent = stage.start()
    stage.served_by(agent)
    steps = [
        {"calls": [{"tool": "bash", "args": {"command": "echo 1 >> a.txt; rm tracked2.txt; mkdir made"}}]},
        {"text": "done", "fail_until": 2},
    ]
    agent.prompt(stage.model.scenario("flaky", steps))
    until(lambda: agent.heard(0.1) and len(stage.model.log.read_text().splitlines()) >= 3, 30)
    until(lambda: agent.heard(0.1) and "done" in str(stage.entries()[-1]), 30)
    agent.drain(0.2)
    after = see.tree()
    assert text(stage, "a.txt") == "1"
    assert len([row for row in stage.states()["checkpoints"] if row["kind"] == "user"]) == 1
    stage.do(agent, "/undo")
    see.expect(before, "after undo of a turn that was tried twice")
    stage.do(agent, "/redo")
    see.expect(after, "after redo of a turn that was tried twice")


def test_a_turn_without_changes_makes_no_checkpoint(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    states = [see.tree(), see.turn(agent, "one")]
    before = stage.states()["checkpoints"]
    agent.prompt(stage.model.bash("look", "cat a.txt"))
    agent.prompt(stage.model.scenario("talk", [{"text": "hello"}]))
    assert stage.states()["checkpoints"] == before
    for wanted in (states[1], states[1], states[0]):
        stage.do(agent, "/undo")
        see.expect(wanted, "after undo")


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_tools_that_run_at_once(make_stage: MakeStage, kind: str) -> None:
    """One answer of the model calls three tools; what they did is one state."""
    stage = make_stage(kind, True)
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    start = see.tree()
    commands = ("sleep 0.2; echo a > a.txt; rm tracked2.txt", "mkdir b; sleep 0.1; echo b > b/b", "echo c > c.txt")
    calls = [{"tool": "bash", "args": {"command": command}} for command in commands]
    agent.prompt(stage.model.scenario("three", [{"calls": calls}, {"text": "done three"}]))
    after = see.tree()
    assert [text(stage, name) for name in ("a.txt", "b/b", "c.txt")] == ["a", "b", "c"]
    assert len([row for row in stage.states()["checkpoints"] if row["kind"] == "user"]) == 1
    stage.do(agent, "/undo")
    see.expect(start, "after undo of three tools")
    stage.do(agent, "/redo")
    see.expect(after, "after redo of three tools")


@EACH
def test_a_command_of_the_persons(make_stage: MakeStage, kind: str, mode: str) -> None:
    """What ``!command`` does belongs to its own entry, and is undone and brought back with what came before it."""
    stage = make_stage(kind, True, mode)
    see = Observer(stage)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    start = see.tree()
    one = see.turn(agent, "one")
    there = leaf(stage, agent)
    agent.request("bash", command="echo mine > mine.txt; rm tracked2.txt; mkdir mine")
    mine = see.tree()
    two = see.turn(agent, "two")
    agent.request("bash", command="echo more >> mine.txt")
    more = see.tree()
    for wanted, when in ((mine, "a command"), (start, "the beginning")):
        stage.do(agent, "/undo")
        see.expect(wanted, f"after undo to {when}")
    for wanted, when in ((mine, "a command"), (more, "the last command")):
        stage.do(agent, "/redo")
        see.expect(wanted, f"after redo to {when}")
    stage.do(agent, f"/goto {there}")
    see.expect(one, "at the turn before the command")
    ran = [e["id"] for e in stage.entries() if (e.get("message") or {}).get("role") == "bashExecution"]
    stage.do(agent, f"/goto {ran[0]}")
    see.expect(mine, "at the command")
    ended = [e for e in stage.entries() if "done two" in str((e.get("message") or {}).get("content"))]
    stage.do(agent, f"/goto {ended[-1]['id']}")
    see.expect(two, "at the turn before the last command")


@EACH
def test_two_agents_at_once(make_stage: MakeStage, kind: str, mode: str) -> None:
    """They share the mount; what one takes back is its own."""
    stage = make_stage(kind, True, mode)
    see = Observer(stage)
    one = stage.start()
    stage.served_by(one)
    two = stage.start()
    stage.served_by(two)
    see.turn(one, "one", "echo one > one.txt; rm tracked.txt")
    see.turn(two, "two", "echo two > two.txt; mkdir two; chmod +x script.sh")
    before = see.tree()
    see.turn(one, "one-more", "echo more >> one.txt; ln -s x one-link")
    see.turn(two, "two-more", "echo more >> two.txt")
    now = see.tree()
    told = stage.do(one, "/undo")
    assert any("another session" in line and "two.txt" in line for line in told)
    after = see.tree()
    # Only what the first agent did last is gone: the second's files are as the second left them.
    assert differing(after, now) == {"one-link", "one.txt"}
    assert (text(stage, "one.txt"), text(stage, "two.txt")) == ("one", "two\nmore")
    stage.do(one, "/redo")
    see.expect(now, "after redo beside another agent")
    stage.do(two, "/undo")
    assert (text(stage, "one.txt"), text(stage, "two.txt")) == ("one\nmore", "two")
    stage.do(two, "/redo")
    see.expect(now, "after redo of the other")
    assert before.differences(now)
    one.close()
    assert stage.served.is_mounted() or mode == "scan", "the other agent still needs it"
    last = see.turn(two, "still", "echo still > still.txt")
    two.close()
    until(lambda: not stage.plyfs.daemons(), 20)
    see.expect(last, "when the last has gone")


@EACH
def test_undo_beside_an_agent_in_the_middle_of_its_turn(make_stage: MakeStage, kind: str, mode: str) -> None:
    """What that one has changed so far is its own, not an edit of the person's: it stays, and is named."""
    stage = make_stage(kind, True, mode)
    see = Observer(stage)
    one = stage.start(on_dialog=restore_files)
    stage.served_by(one)
    two = stage.start(on_dialog=restore_files)
    stage.served_by(two)
    see.turn(one, "one", "echo one > one.txt")
    go_on = stage.workspace.parent / "go-on"
    command = f"echo two > two.txt; until [ -e {go_on} ]; do sleep 0.05; done; echo more >> two.txt"
    two._write({"id": "two", "type": "prompt", "message": stage.model.bash("two", command)})
    until((stage.workspace / "two.txt").exists)
    told = stage.do(one, "/undo")
    assert any("another session" in line and "two.txt" in line for line in told), told
    assert (text(stage, "one.txt"), text(stage, "two.txt")) == (None, "two")
    go_on.touch()
    until(lambda: two.heard(0.1) and not two.request("get_state")["isStreaming"])
    two.drain(0.3)
    assert text(stage, "two.txt") == "two\nmore"
    stage.do(one, "/redo")
    assert (text(stage, "one.txt"), text(stage, "two.txt")) == ("one", "two\nmore")
    stage.do(two, "/undo")
    assert (text(stage, "one.txt"), text(stage, "two.txt")) == ("one", None)
    stage.do(two, "/redo")
    assert (text(stage, "one.txt"), text(stage, "two.txt")) == ("one", "two\nmore")


@pytest.mark.parametrize("extent", ["files", "chat"])
def test_either_alone(make_stage: MakeStage, extent: str) -> None:
    stage = make_stage("pi")
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    states = [see.tree(), see.turn(agent, "one")]
    count = len(agent.request("get_messages")["messages"])
    stage.do(agent, f"/undo {extent}")
    see.expect(states[0 if extent == "files" else 1], f"after /undo {extent}")
    assert (len(agent.request("get_messages")["messages"]) == count) is (extent == "files")
    stage.do(agent, "/redo")
    see.expect(states[1], "after redo")
    assert len(agent.request("get_messages")["messages"]) == count


def test_the_prompts_text_comes_back(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    agent = stage.start()
    stage.served_by(agent)
    prompt = stage.model.bash("turn1", "echo 1 > a.txt")
    agent.prompt(prompt)
    first = len(agent.events)
    stage.do(agent, "/undo")
    set_text = [e for e in agent.events[first:] if e.get("method") == "set_editor_text"]
    assert [e["text"] for e in set_text] == [prompt]


def test_files_that_differ_when_a_session_is_opened_again(make_stage: MakeStage) -> None:
    stage = make_stage("pi", settings='on_exit = "leave"')
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    left = see.turn(agent, "one")
    agent.close()
    (stage.workspace / "tracked.txt").write_text("changed\n")
    changed = see.tree()
    agent = stage.start("--continue")
    stage.served_by(agent)
    until(lambda: agent.heard(0.1) and any("/restore" in line for line in agent.notices), 10)
    see.expect(changed, "before anybody has said what to do")
    assert "overwrite tracked.txt" in stage.do(agent, "/drift")[-1]
    stage.do(agent, "/restore --yes")
    see.expect(left, "after /restore")
    stage.do(agent, "/redo")
    see.expect(changed, "after redo to what was there")


def test_only_some_paths(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    see = Observer(stage)
    agent = stage.start()
    stage.served_by(agent)
    start = see.tree()
    see.turn(agent, "one")
    first = leaf(stage, agent)
    later = see.turn(agent, "two")
    stage.do(agent, f"/restore {first} tracked.txt dir-two --yes")
    assert (text(stage, "tracked.txt"), (stage.workspace / "dir-two").exists()) == ("one", False)
    assert differing(see.tree(), later) == {"tracked.txt", "dir-two"}
    stage.do(agent, "/undo 2")
    see.expect(start, "after undo of everything")
