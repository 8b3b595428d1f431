"""The agents as a person sees them, in a terminal."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest

from tests.agents import picture, toolchain
from tests.agents.conftest import MakeStage
from tests.agents.stage import Stage, until
from tests.agents.tui import Tui
from tests.conftest import need_programs

pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(120)]

SHOWN = ("HOME", "LANG", "PATH", "PI_OFFLINE", "PLYFS_COMMAND", "PLYFS_HOME", "PYTHONPATH", "XDG_CONFIG_HOME")


def terminal(stage: Stage, *options: str, **size: int) -> Tui:
    """The agent in a terminal, served."""
    environment = stage.environment()
    tui = Tui(
        shlex.join(stage.command(*options)),
        cwd=stage.workspace,
        env={name: environment[name] for name in SHOWN},
        **size,
    )
    tui.wait_for("✓", timeout=40)
    return tui


def text(stage: Stage, name: str) -> str | None:
    path = Path(stage.workspace / name)
    return path.read_text().strip() if path.exists() else None


def pick_in_tree(stage: Stage, tui: Tui, *ups: str) -> None:
    """Choose an entry in /tree; Pi then asks whether to summarize."""
    tui.enter("/tree")
    tui.wait_for("Session Tree")
    tui.keys(*ups, "Enter", pause=0.1)
    if stage.kind == "pi":
        tui.wait_for("No summary")
        tui.keys("Enter", pause=0.1)


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=pytest.mark.long)])
def test_a_person_goes_through_the_tree(make_stage: MakeStage, kind: str) -> None:
    need_programs("tmux")
    stage = make_stage(kind, filled=False)
    with terminal(stage) as tui:
        for number in (1, 2):
            tui.enter(stage.model.bash(f"turn{number}", f"echo {number} > a.txt; echo {number} > new{number}.txt"))
            tui.wait_for(f"done turn{number}")

        # Escape: nothing happens at all.
        pick_in_tree(stage, tui, "Up", "Up", "Up")
        shown = tui.wait_for("Going there changes 2 files")
        assert "- delete new2.txt" in shown
        assert "~ overwrite a.txt" in shown
        assert "→ Keep the files" in shown, "the safe choice is the first"
        tui.keys("Escape")
        until(lambda: "Going there" not in tui.screen(), 10, tui.screen)
        assert (text(stage, "a.txt"), text(stage, "new2.txt")) == ("2", "2")
        if kind == "pi":
            tui.keys("Escape")

        # Both.
        pick_in_tree(stage, tui, "Up", "Up", "Up")
        tui.wait_for("Going there changes 2 files")
        tui.keys("Down", "Enter")
        until(lambda: (text(stage, "a.txt"), text(stage, "new2.txt")) == ("1", None), 10, tui.screen)
        tui.wait_for("2 files restored")

        # /undo gives the prompt's text back, to be edited.
        tui.enter("/undo")
        until(lambda: text(stage, "a.txt") is None, 10, tui.screen)
        tui.wait_for("[[turn1]] go")
        tui.keys("C-u")
        tui.enter("/redo")
        until(lambda: text(stage, "a.txt") == "1", 10, tui.screen)


@pytest.mark.parametrize("kind", ["pi", pytest.param("omp", marks=pytest.mark.long)])
def test_undo_is_typed_behind_the_text_that_came_back(make_stage: MakeStage, kind: str) -> None:
    """Who types it twice means it twice, and not a prompt that ends in it. What is told stays to be read."""
    need_programs("tmux")
    stage = make_stage(kind, filled=False)
    with terminal(stage) as tui:
        for number in (1, 2, 3):
            tui.enter(stage.model.bash(f"turn{number}", f"echo {number} > a.txt"))
            tui.wait_for(f"done turn{number}")
        (stage.workspace / "mine.txt").write_text("mine\n")
        asked = stage.model.log.read_text()
        tui.enter("/undo")
        until(lambda: text(stage, "a.txt") == "2", 10, tui.screen)
        shown = tui.wait_for("mine.txt")
        assert "went back 1 prompt" in shown and "[[turn3]] go" in shown
        tui.enter("/undo")
        until(lambda: text(stage, "a.txt") == "1", 10, tui.screen)
        tui.wait_for("[[turn2]] go")
        tui.enter("/redo 2")
        until(lambda: (text(stage, "a.txt"), text(stage, "mine.txt")) == ("3", "mine"), 10, tui.screen)
        assert stage.model.log.read_text() == asked, "nothing was sent to the model"


def test_a_long_list_scrolls(make_stage: MakeStage) -> None:
    need_programs("tmux")
    stage = make_stage("pi", filled=False)
    with terminal(stage) as tui:
        tui.enter(stage.model.bash("turn1", "for i in $(seq 100 139); do echo x > f$i; done"))
        tui.wait_for("done turn1")
        pick_in_tree(stage, tui, "Up", "Up", "Up")
        shown = tui.wait_for("Going there changes 40 files")
        assert "f100" in shown
        assert "f139" not in shown
        assert "28 more" in shown
        tui.keys("Right", "Right", "Right", pause=0.2)
        assert "f139" in tui.screen()
        tui.keys("Escape")


def test_files_that_differ_are_asked_about(make_stage: MakeStage) -> None:
    need_programs("tmux")
    stage = make_stage("pi", filled=False)
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    agent.close()
    until(lambda: not stage.plyfs.daemons())
    (stage.workspace / "a.txt").write_text("by hand\n")
    with terminal(stage, "--continue") as tui:
        shown = tui.wait_for("differs from what this point")
        assert "→ Keep the files as they are" in shown
        tui.keys("Down", "Enter")
        until(lambda: text(stage, "a.txt") == "1", 10, tui.screen)
        (stage.workspace / "more.txt").write_text("more\n")
        tui.wait_for("fuse +1", timeout=10)


@pytest.mark.long
def test_the_picture_in_the_readme_is_of_the_real_thing(agents: None) -> None:
    """``python -m tests.agents.picture`` makes it anew; what it shows is what is shown now."""
    need_programs("tmux")

    def shown(svg: str) -> list[str]:
        lines = [html.unescape(line).replace("\xa0", " ").strip() for line in re.findall(r">([^<]*)</text>", svg)]
        # How long a command took, and how many tokens a conversation has, is the agent's affair.
        return [line for line in lines if not line.startswith(("Took ", "↑60", "──"))]

    kept = shown(picture.TARGET.read_text())
    assert kept == shown(picture.shoot()), "run python -m tests.agents.picture"
    assert "plyfs  Going there changes 5 files:" in kept
    for page in ("README.md", "docs/agents.md"):
        assert "tree-preview.svg" in (toolchain.ROOT / page).read_text()
