"""What a person is asked before files move: the safe choice first, Escape cancels, what changed meanwhile stops it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.agents.conftest import MakeStage
from tests.agents.observer import Observer, answering, keep_files, leaf, restore_files
from tests.agents.rpc import Json
from tests.agents.stage import HERE

LONG = pytest.mark.long
pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(120)]

CANCEL = {"cancelled": True}
Answers = list[Json | Callable[[Json], Json]]


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_the_tree_asks_and_the_safe_choice_is_first(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind, with_git=True)
    see = Observer(stage)
    answers: Answers = []
    agent = stage.start(on_dialog=answering(answers))
    stage.served_by(agent)
    one = see.turn(agent, "one", "echo 1 > a.txt; echo 1 > gone.txt; mkdir kept")
    there = leaf(stage, agent)
    two = see.turn(agent, "two", "echo 2 > a.txt; rm gone.txt; echo n > n.txt; chmod +x script.sh; mv kept moved")
    here = leaf(stage, agent)

    answers.append(CANCEL)
    stage.do(agent, f"/goto {there}")
    asked = agent.dialogs[-1]
    assert asked["options"] == ["Keep the files, move the conversation alone", "Restore the files too"]
    lines = [line.strip() for line in asked["title"].splitlines()[1:]]
    assert lines == [
        "- delete n.txt",
        "~ overwrite a.txt",
        "> rename moved -> kept",
        "+ create gone.txt",
        "% change mode script.sh",
    ]
    see.expect(two, "after Escape")
    assert leaf(stage, agent) == here

    answers.append(keep_files)
    stage.do(agent, f"/goto {there}")
    see.expect(two, "after the safe choice")
    assert leaf(stage, agent) != here, "the conversation has moved alone"
    # That is what this point now stands for; nothing to ask on the way back.
    assert "as this point left them" in stage.do(agent, "/drift")[-1]
    stage.do(agent, f"/goto {here}")
    see.expect(two, "back where the files are from")

    answers.append(restore_files)
    stage.do(agent, f"/goto {there}")
    see.expect(one, "after going there with the files")
    answers.append(restore_files)
    stage.do(agent, f"/goto {here}")
    see.expect(two, "after coming back with the files")
    assert answers == []
    assert len(agent.dialogs) == 4


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_undo_asks_if_it_shall(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind, with_git=True, settings='confirm = "always"')
    see = Observer(stage)
    answers: Answers = []
    agent = stage.start(on_dialog=answering(answers))
    stage.served_by(agent)
    start = see.tree()
    one = see.turn(agent, "one")
    here = leaf(stage, agent)
    count = len(agent.request("get_messages")["messages"])

    def messages() -> int:
        return len(agent.request("get_messages")["messages"])

    answers.append(CANCEL)
    assert stage.do(agent, "/undo") == ["plyfs: nothing was done"]
    see.expect(one, "after Escape")
    assert (leaf(stage, agent), messages()) == (here, count)

    answers.append(keep_files)
    stage.do(agent, "/undo")
    see.expect(one, "after the safe choice")
    assert messages() < count
    stage.do(agent, "/redo")
    see.expect(one, "forward again, where there is nothing to ask")
    assert messages() == count

    answers.append(restore_files)
    stage.do(agent, "/undo")
    see.expect(start, "after undo")
    answers.append(restore_files)
    stage.do(agent, "/redo")
    see.expect(one, "after redo")

    def meanwhile(request: Json) -> Json:
        (stage.workspace / "meanwhile.txt").write_text("precious\n")
        return restore_files(request)

    answers.append(meanwhile)
    told = stage.do(agent, "/undo")
    assert any("changed since the preview" in line for line in told), told
    assert (stage.workspace / "meanwhile.txt").read_text() == "precious\n"
    assert messages() == count
    (stage.workspace / "meanwhile.txt").unlink()
    see.expect(one, "but for what came meanwhile")
    assert answers == []


def test_nothing_is_asked_if_it_shall_not(make_stage: MakeStage) -> None:
    stage = make_stage("pi", settings='confirm = "never"')
    see = Observer(stage)
    agent = stage.start(on_dialog=answering([]))
    stage.served_by(agent)
    one = see.turn(agent, "one")
    there = leaf(stage, agent)
    two = see.turn(agent, "two")
    here = leaf(stage, agent)
    stage.do(agent, f"/goto {there}")
    see.expect(one, "there")
    stage.do(agent, f"/goto {here}")
    see.expect(two, "back")


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=LONG)])
def test_a_workspace_that_changed_while_one_looked_stops_it(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind)

    def slow_person(request: Json) -> Json:
        (stage.workspace / "meanwhile.txt").write_text("precious\n")
        return restore_files(request)

    see = Observer(stage)
    agent = stage.start(on_dialog=slow_person)
    stage.served_by(agent)
    see.turn(agent, "one")
    there = leaf(stage, agent)
    two = see.turn(agent, "two")
    here = leaf(stage, agent)
    told = stage.do(agent, f"/goto {there}")
    assert any("changed while you looked" in line for line in told)
    assert leaf(stage, agent) == here
    assert (stage.workspace / "meanwhile.txt").read_text() == "precious\n"
    (stage.workspace / "meanwhile.txt").unlink()
    see.expect(two, "but for what came meanwhile")


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("pi", True),
        pytest.param("pi", False, marks=LONG),
        pytest.param("omp", True, marks=LONG),
        ("omp", False),
    ],
)
def test_another_extension_with_the_same_commands(make_stage: MakeStage, kind: str, first: bool) -> None:
    """Pi renames both, Oh My Pi hides one: ours can be called all the same, and a person is told how."""
    stage = make_stage(kind)
    see = Observer(stage)
    start = see.tree()
    stage.extensions.insert(0 if first else 1, HERE / "clash.ts")
    agent = stage.start()
    stage.served_by(agent)
    one = see.turn(agent, "one")
    told = [line for line in agent.notices if "another extension" in line]
    undo, redo = "/plyfs undo", "/plyfs redo"
    if kind == "omp" and first:
        assert told == [], "ours came last, and answers"
        undo, redo = "/undo", "/redo"
    elif kind == "pi":
        undo, redo = ("/undo:2", "/redo:2") if first else ("/undo:1", "/redo:1")
    if told:
        assert told == [f"plyfs: /undo, /redo: another extension has that too; plyfs answers to {undo}, {redo}"]
    for back, forward in ((undo, redo), ("/plyfs undo", "/plyfs redo")):
        stage.do(agent, back)
        see.expect(start, f"after {back}")
        stage.do(agent, forward)
        see.expect(one, f"after {forward}")
    if kind == "omp" and not first:
        assert stage.do(agent, "/undo") == ["somebody else's undo"]
