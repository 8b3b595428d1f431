"""Where the ways to two checkpoints part, and that finding it costs no more than what lies between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vfs.steps import since_parting


class Tree:
    """Checkpoints by their parents; ``asked`` are those that were looked at."""

    def __init__(self, parents: dict[str, str | None]) -> None:
        self.parents = parents
        self.asked: set[str] = set()

    def get(self, id: str) -> Any:
        self.asked.add(id)
        return SimpleNamespace(id=id, parent=self.parents[id])

    def ancestors(self, id: str) -> Any:
        at = self.parents[id]
        while at is not None:
            yield self.get(at)
            at = self.parents[at]


BRANCHES = {"a": None, "b": "a", "c": "b", "d": "c", "x": "b", "y": "x", "z": "y", "other": None}


@pytest.mark.parametrize(
    ("head", "target", "expected"),
    [
        ("d", "d", ""),
        ("d", "a", "dcb"),
        ("a", "d", ""),
        ("d", "z", "dc"),
        ("z", "d", "zyx"),
        ("z", "c", "zyx"),
        ("c", "z", "c"),
        ("d", "other", "dcba"),
    ],
)
def test_what_came_since_the_ways_parted(head: str, target: str, expected: str) -> None:
    tree: Any = Tree(BRANCHES)
    history = tree
    assert "".join(one.id for one in since_parting(history, head, target)) == expected  # type: ignore[arg-type]


def test_a_long_history_before_that_is_not_looked_at() -> None:
    parents: dict[str, str | None] = {str(number): str(number - 1) if number else None for number in range(10_000)}
    tree: Any = Tree(parents | {"branch": "9990"})
    assert [one.id for one in since_parting(tree, "9999", "branch")] == [str(n) for n in range(9999, 9990, -1)]
    assert len(tree.asked) < 40
