"""State(session, node): recorded once, inherited, durable, and what collection must leave for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.sessions import Came, Recorded, Sessions, State, pinned
from store.home import Home, WorkspaceIdentity
from store.refs import CheckpointId


class Everything:
    """Checkpoints that are there: all but those in ``gone``."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    def __call__(self, checkpoint: str) -> bool:
        return checkpoint not in self.gone


@pytest.fixture
def known() -> Everything:
    return Everything()


@pytest.fixture
def sessions(tmp_path: Path, known: Everything) -> Iterator[Sessions]:
    made = Sessions(str(tmp_path), known, iter(range(1, 1000)).__next__)
    yield made
    made.close()


def again(tmp_path: Path, known: Everything) -> Sessions:
    return Sessions(str(tmp_path), known, lambda: 5000)


def test_a_node_has_one_state_for_ever(sessions: Sessions) -> None:
    assert sessions.record("s", "n", "c1") == Recorded("c1", True)
    assert sessions.record("s", "n", "c1") == Recorded("c1", False)
    assert sessions.record("s", "n", "c2") == Recorded("c1", False)
    assert sessions.of("s", "n") == "c1"


def test_the_nearest_recorded_ancestor_counts(sessions: Sessions) -> None:
    sessions.record("s", "a", "c1")
    sessions.record("s", "b", "c2")
    assert sessions.find("s", ["c", "b", "a"]) == State("c2", "s", "b")
    assert sessions.find("s", ["a"]) == State("c1", "s", "a")
    assert sessions.find("s", ["x"]) is None
    assert sessions.find("other", ["a"]) is None


def test_a_fork_finds_what_it_inherited_and_has_its_own(sessions: Sessions) -> None:
    sessions.open("old")
    sessions.record("old", "a", "c1")
    sessions.open("new", parent="old")
    sessions.open("newest", parent="new")
    assert sessions.find("newest", ["b", "a"]) == State("c1", "old", "a")
    assert sessions.record("newest", "a", "c9") == Recorded("c1", False)
    sessions.record("newest", "b", "c9")
    assert sessions.find("newest", ["b", "a"]) == State("c9", "newest", "b")
    assert sessions.find("new", ["b", "a"]) == State("c1", "old", "a")


def test_a_session_may_take_back_its_past_but_not_what_its_parent_did_later(sessions: Sessions) -> None:
    sessions.open("old")
    sessions.open("new", parent="old")
    assert sessions.mine("new") == {"new": None, "old": 2}
    assert sessions.mine("old") == {"old": None}
    assert sessions.mine("unheard of") == {"unheard of": None}


def test_what_changes_while_another_agent_works_is_that_ones_doing(sessions: Sessions) -> None:
    me = os.getpid()
    for name in ("one", "two", "idle"):
        sessions.open(name, pid=me)
    sessions.open("sub", pid=me, within="two")
    assert [sessions.author(name) for name in ("one", "two", "sub")] == ["one", "two", "two"]
    sessions.work("two", True)
    assert [sessions.author(name) for name in ("one", "two", "sub", "idle")] == ["two", "two", "two", "two"]
    sessions.work("one", True)
    assert [sessions.author(name) for name in ("one", "two", "sub", "idle")] == ["one", "two", "two", "one"]
    sessions.work("one", False)
    sessions.leave("two", me)
    assert [sessions.author(name) for name in ("one", "idle")] == ["one", "idle"], "who is gone does nothing"


def test_all_of_it_survives(sessions: Sessions, tmp_path: Path, known: Everything) -> None:
    sessions.open("s", parent="p", file="/f", pid=1)
    sessions.record("s", "n", "c1")
    other = again(tmp_path, known)  # as after kill -9: nothing was closed
    assert other.of("s", "n") == "c1"
    assert other.open("s") == Came(True, None)
    assert other.mine("s") == {"s": None, "p": 1}
    other.close()


def test_a_state_whose_checkpoint_is_lost_never_was(sessions: Sessions, tmp_path: Path, known: Everything) -> None:
    sessions.record("s", "a", "c1")
    sessions.record("s", "b", "c2")
    known.gone.add("c2")
    assert sessions.find("s", ["b", "a"]) == State("c1", "s", "a")
    assert sessions.record("s", "b", "c3") == Recorded("c3", True)
    other = again(tmp_path, known)
    assert other.of("s", "b") == "c3"
    other.close()


def test_a_circle_of_parents_ends(sessions: Sessions) -> None:
    sessions.open("a", parent="b")
    sessions.open("b", parent="a")
    assert sessions.find("a", ["n"]) is None
    sessions.open("self", parent="self")
    assert sessions.mine("self") == {"self": None}


def test_the_last_of_those_for_whom_it_is_served(sessions: Sessions) -> None:
    me = os.getpid()
    sessions.open("a", pid=me, owns=True)
    sessions.open("b", pid=me)
    sessions.open("dead", pid=2**22 + 1)
    assert sessions.leave("a", me) == (1, False)
    assert sessions.leave("b", me) == (0, True)


def test_a_sub_agent_works_in_the_name_of_its_leader(sessions: Sessions) -> None:
    me = os.getpid()
    assert sessions.open("sub", pid=me, within="main") == Came(False, None), "nobody of that name is here"
    assert sessions.author("sub") == "sub"
    sessions.leave("sub", me)
    sessions.open("main", pid=me, owns=True)
    assert sessions.open("sub", parent="main", pid=me, within="main") == Came(True, "main")
    assert sessions.open("sub-sub", pid=me, within="sub") == Came(False, "main")
    assert [sessions.author(name) for name in ("main", "sub", "sub-sub")] == ["main"] * 3
    assert sessions.mine("sub") == sessions.mine("main") == {"main": None}
    assert sessions.open("main", pid=me, within="main") == Came(True, None)
    # Nobody waits for a sub-agent with unmounting.
    assert sessions.leave("main", me) == (0, True)
    assert sessions.leave("sub", me) == (0, True)
    assert sessions.author("sub") == "sub"


def test_threads_that_record_the_same_agree(sessions: Sessions) -> None:
    answers: list[Recorded] = []
    threads = [
        threading.Thread(target=lambda i=i: answers.append(sessions.record("s", "n", f"c{i}"))) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.checkpoint for one in answers}) == 1
    assert sum(one.created for one in answers) == 1


def test_what_a_living_session_stands_on_is_kept(tmp_path: Path) -> None:
    home = Home.open(str(tmp_path / "home"))
    base = tmp_path / "workspace"
    base.mkdir()
    descriptor = os.open(base, os.O_RDONLY)
    store = home.workspace(WorkspaceIdentity.of(descriptor), os.fsencode(base))
    os.close(descriptor)
    made = [store.history.begin(None, kind="base")]
    for _ in range(4):
        made.append(store.history.begin(made[-1].id))
    named = store.history.begin(made[-1].id, session="a script", node="n")
    sessions = Sessions(store.path, lambda id: CheckpointId(id) in store.history, lambda: 1)
    alive = tmp_path / "alive.jsonl"
    alive.write_text("")
    sessions.open("parent", file=str(tmp_path / "gone.jsonl"))
    sessions.open("child", parent="parent", file=str(alive))
    sessions.open("dead", file=str(tmp_path / "gone.jsonl"))
    sessions.record("parent", "a", made[1].id)
    sessions.record("child", "b", made[2].id)
    sessions.record("dead", "c", made[3].id)
    sessions.close()
    store.close()
    assert pinned(home) == {made[1].id, made[2].id, named.id}
    alive.unlink()
    assert pinned(home) == {named.id}
