"""What is compared after each step of a conversation: the whole tree, and what git keeps; and changes of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.agents.rpc import Agent, Json
from tests.agents.stage import Stage
from tests.treestate import TreeState, assert_same, capture

IGNORED = frozenset({"node_modules", "ignored.log", "new.log"})
"""What git ignores in a stage's workspace; a scan leaves it out, and says so."""


def restore_files(request: Json) -> Json:
    """A person who always wants the files too."""
    options = request.get("options", [])
    return {"value": options[-1]} if options else {"confirmed": True}


def keep_files(request: Json) -> Json:
    """A person who takes the safe choice."""
    options = request.get("options", [])
    return {"value": options[0]} if options else {"cancelled": True}


def answering(answers: list[Json | Callable[[Json], Json]]) -> Callable[[Json], Json]:
    """A person whose answers are known beforehand; it is an error to ask more."""

    def answer(request: Json) -> Json:
        assert answers, f"nobody expected to be asked: {request}"
        given = answers.pop(0)
        return given(request) if callable(given) else given

    return answer


def mixed(name: str) -> str:
    """A command that changes things of every kind, differently for each ``name``."""
    return (
        f"echo {name} > tracked.txt; echo {name} >> grows.txt; mkdir -p dir-{name}/empty; echo {name} > dir-{name}/f; "
        f"ln -sfn dir-{name}/f link2; echo {name} > node_modules/pkg/index.js; echo {name} > ignored.log; "
        f"chmod $(( $(stat -c %a secret) == 600 ? 640 : 600 )) secret; "
        f"if [ -p pipe ]; then rm pipe; else mkfifo pipe; fi; "
        f"if [ -d olddir ]; then mv olddir moved-{name}; else mv moved-* olddir; fi"
    )


class Observer:
    """What the tree is, and what git's own files hold."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        with_git = (stage.workspace / ".git").exists()
        self.left_out = IGNORED if stage.mode == "scan" and with_git else frozenset()
        self.index = self._git_files()

    def tree(self) -> TreeState:
        """The tree now."""
        return capture(self.stage.workspace, skip=frozenset({".git"}) | self.left_out, times=False)

    def _git_files(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in ("index", "HEAD", "refs/heads/main"):
            path = self.stage.workspace / ".git" / name
            if path.exists():
                found[name] = path.read_bytes()
        return found

    def expect(self, wanted: TreeState, when: str) -> None:
        """Fail unless the tree is exactly ``wanted`` and git's files are as they were at the beginning."""
        assert_same(self.tree(), wanted, when)
        assert self._git_files() == self.index, f"git's own files changed {when}"

    def turn(self, agent: Agent, name: str, command: str | None = None) -> TreeState:
        """One prompt whose answer changes things; what it left."""
        before = self.tree()
        agent.prompt(self.stage.model.bash(name, mixed(name) if command is None else command))
        after = self.tree()
        assert after.differences(before), f"{name} changed nothing"
        return after


def leaf(stage: Stage, agent: Agent) -> str:
    """The entry at which the conversation is."""
    return stage.do(agent, "/leaf")[-1].removeprefix("leaf ")
