"""Forks, compaction, switches, retries, two agents at once: whose files are whose."""

from __future__ import annotations

import json

import pytest

from tests.agents.conftest import MakeStage
from tests.agents.rpc import Json
from tests.agents.stage import Stage, until

pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(150)]


def keep_files(request: Json) -> Json:
    """A person who takes the safe choice."""
    options = request.get("options", [])
    return {"value": options[0]} if options else {"cancelled": True}


def restore_files(request: Json) -> Json:
    """A person who wants the files."""
    options = request.get("options", [])
    return {"value": options[-1]} if options else {"confirmed": True}


def text(stage: Stage, name: str) -> str | None:
    path = stage.workspace / name
    return path.read_text().strip() if path.exists() else None


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=pytest.mark.long)])
def test_a_fork_finds_what_it_inherited(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    for number in (1, 2, 3):
        agent.prompt(stage.model.bash(f"turn{number}", f"echo {number} > a.txt"))
    prompts = [e for e in stage.entries() if (e.get("message") or {}).get("role") == "user"]
    old = stage.session_file()
    agent.request("fork" if kind == "pi" else "branch", entryId=prompts[2]["id"])
    agent.drain(0.3)
    assert text(stage, "a.txt") == "3"
    told = stage.do(agent, "/restore --yes")
    assert text(stage, "a.txt") == "2", told
    agent.prompt(stage.model.bash("other", "echo other > a.txt"))
    assert stage.session_file() != old
    for wanted in ("2", "1", None):
        stage.do(agent, "/undo")
        assert text(stage, "a.txt") == wanted
    for wanted in ("1", "2", "other"):
        stage.do(agent, "/redo")
        assert text(stage, "a.txt") == wanted
    # The old session still stands where it stood.
    agent.request("switch_session", sessionPath=str(old))
    agent.drain(0.3)
    stage.do(agent, "/restore --yes")
    assert text(stage, "a.txt") == "3"


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=pytest.mark.long)])
def test_compaction_and_a_new_session(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind)
    agent = stage.start(on_dialog=restore_files)
    stage.served_by(agent)
    for number in (1, 2):
        agent.prompt(stage.model.bash(f"turn{number}", f"echo {number} > a.txt"))
    old = stage.session_file()
    (stage.workspace / "hand.txt").write_text("by hand\n")
    try:
        agent.request("compact")
    except Exception as error:  # too little to compact is an answer too
        assert "compact" in str(error).lower()
    agent.drain(0.2)
    stage.do(agent, "/undo")
    assert text(stage, "a.txt") == "1"
    stage.do(agent, "/redo")
    assert (text(stage, "a.txt"), text(stage, "hand.txt")) == ("2", "by hand")
    agent.request("new_session")
    agent.drain(0.3)
    told = stage.do(agent, "/undo")
    assert any("nothing to undo" in line for line in told)
    assert text(stage, "a.txt") == "2"
    agent.prompt(stage.model.bash("elsewhere", "echo elsewhere > a.txt"))
    stage.do(agent, "/undo")
    assert text(stage, "a.txt") == "2"
    agent.request("switch_session", sessionPath=str(old))
    agent.drain(0.3)
    stage.do(agent, "/undo")
    assert text(stage, "a.txt") == "1"
    agent.close()
    until(lambda: not stage.served.is_mounted() and text(stage, "a.txt") == "1", 30)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pi", "omp"])
def test_a_providers_retry_makes_no_second_state(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind)
    agent = stage.start()
    stage.served_by(agent)
    steps = [
        {"calls": [{"tool": "bash", "args": {"command": "echo 1 >> a.txt"}}]},
        {"text": "done", "fail_until": 2},
    ]
    agent.timeout = 60
    agent.prompt(stage.model.scenario("flaky", steps))
    until(lambda: agent.heard(0.1) and len(stage.model.log.read_text().splitlines()) >= 3, 30)
    agent.drain(0.3)
    made = [row for row in stage.states()["checkpoints"] if row["kind"] == "user"]
    assert len(made) == 1
    stage.do(agent, "/undo")
    assert text(stage, "a.txt") is None
    stage.do(agent, "/redo")
    assert text(stage, "a.txt") == "1"


def test_a_turn_without_changes_makes_no_checkpoint(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    before = stage.states()["checkpoints"]
    agent.prompt(stage.model.bash("look", "cat a.txt"))
    agent.prompt(stage.model.scenario("talk", [{"text": "hello"}]))
    assert stage.states()["checkpoints"] == before
    for wanted in ("1", "1", None):
        stage.do(agent, "/undo")
        assert text(stage, "a.txt") == wanted


def test_two_agents_at_once(make_stage: MakeStage) -> None:
    """They share the mount; what one takes back is its own."""
    stage = make_stage("pi")
    one = stage.start()
    stage.served_by(one)
    two = stage.start()
    stage.served_by(two)
    one.prompt(stage.model.bash("one", "echo one > one.txt"))
    two.prompt(stage.model.bash("two", "echo two > two.txt"))
    one.prompt(stage.model.bash("one-more", "echo more >> one.txt"))
    two.prompt(stage.model.bash("two-more", "echo more >> two.txt"))
    stage.do(one, "/undo")
    assert (text(stage, "one.txt"), text(stage, "two.txt")) == ("one", "two\nmore")
    assert any("another session" in line for line in one.notices)
    stage.do(one, "/redo")
    assert (text(stage, "one.txt"), text(stage, "two.txt")) == ("one\nmore", "two\nmore")
    one.close()
    assert stage.served.is_mounted(), "the other agent still needs it"
    two.prompt(stage.model.bash("still", "echo still > still.txt"))
    two.close()
    until(lambda: not stage.served.is_mounted() and text(stage, "still.txt") == "still", 20)


@pytest.mark.parametrize("extent", ["files", "chat"])
def test_either_alone(make_stage: MakeStage, extent: str) -> None:
    stage = make_stage("pi")
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    count = len(agent.request("get_messages")["messages"])
    stage.do(agent, f"/undo {extent}")
    assert text(stage, "a.txt") == (None if extent == "files" else "1")
    assert (len(agent.request("get_messages")["messages"]) == count) is (extent == "files")
    stage.do(agent, "/redo")
    assert text(stage, "a.txt") == "1"
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


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=pytest.mark.long)])
def test_the_tree_asks_and_the_safe_choice_is_first(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind)
    answers: list[Json] = []
    agent = stage.start(on_dialog=lambda request: answers.pop(0))
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt; echo 1 > gone.txt"))
    there = stage.do(agent, "/leaf")[-1].removeprefix("leaf ")
    agent.prompt(stage.model.bash("turn2", "echo 2 > a.txt; rm gone.txt; echo n > n.txt"))
    here = stage.do(agent, "/leaf")[-1].removeprefix("leaf ")

    answers.append({"cancelled": True})
    stage.do(agent, f"/goto {there}")
    asked = agent.dialogs[-1]
    assert "Keep the files" in asked["options"][0]
    for line in ("- delete n.txt", "~ overwrite a.txt", "+ create gone.txt"):
        assert line in asked["title"]
    assert stage.do(agent, "/leaf")[-1] == f"leaf {here}"
    assert text(stage, "a.txt") == "2"

    answers.append({"value": asked["options"][0]})
    stage.do(agent, f"/goto {there}")
    assert text(stage, "a.txt") == "2"

    answers.append({"value": asked["options"][1]})
    stage.do(agent, f"/goto {here}")
    stage.do(agent, f"/goto {there}") if text(stage, "a.txt") == "2" and not answers else None
    assert json.dumps(agent.dialogs[-1]["options"])


def test_a_workspace_that_changed_while_one_looked_stops_it(make_stage: MakeStage) -> None:
    stage = make_stage("pi")

    def slow_person(request: Json) -> Json:
        (stage.workspace / "meanwhile.txt").write_text("precious\n")
        return restore_files(request)

    agent = stage.start(on_dialog=slow_person)
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    there = stage.do(agent, "/leaf")[-1].removeprefix("leaf ")
    agent.prompt(stage.model.bash("turn2", "echo 2 > a.txt"))
    told = stage.do(agent, f"/goto {there}")
    assert any("changed while you looked" in line for line in told)
    assert (text(stage, "a.txt"), text(stage, "meanwhile.txt")) == ("2", "precious")


def test_files_that_differ_when_a_session_is_opened_again(make_stage: MakeStage) -> None:
    stage = make_stage("pi", settings='on_exit = "leave"')
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    agent.close()
    (stage.workspace / "a.txt").write_text("changed\n")
    agent = stage.start("--continue")
    stage.served_by(agent)
    until(lambda: agent.heard(0.1) and any("/restore" in line for line in agent.notices), 10)
    assert text(stage, "a.txt") == "changed"
    assert "overwrite a.txt" in stage.do(agent, "/drift")[-1]
    stage.do(agent, "/restore --yes")
    assert text(stage, "a.txt") == "1"
    stage.do(agent, "/redo")
    assert text(stage, "a.txt") == "changed"
