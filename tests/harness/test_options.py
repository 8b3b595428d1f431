"""The parser of options."""

from __future__ import annotations

import pytest

from harness.failure import PlyfsError
from harness.options import Syntax


def syntax() -> Syntax:
    made = Syntax("plyfs try", "Try it.", "The end.")
    made.option("-m", "--label", help="a label")
    made.option("--mode", choices=("auto", "fuse"), help="a mode")
    made.option("-n", name="limit", metavar="N", number=True, help="a number")
    made.flag("--sync", help="a flag")
    made.flag("--apply", name="how", value="apply", default="apply", help="apply")
    made.flag("--keep", name="how", value="keep", default="apply", help="keep")
    made.exclusive("--apply", "--keep")
    made.argument("first", "FIRST", "the first")
    made.argument("rest", "REST", "the others", many=True)
    return made


def test_defaults() -> None:
    options = syntax().parse(["x"])
    assert (options.label, options.mode, options.limit, options.sync, options.how) == (None, None, None, False, "apply")
    assert (options.first, options.rest) == ("x", [])


@pytest.mark.parametrize(
    "words", [["-m", "two words"], ["-mtwo words"], ["--label", "two words"], ["--label=two words"]]
)
def test_ways_to_give_a_value(words: list[str]) -> None:
    assert syntax().parse([*words, "x"]).label == "two words"


def test_mixed() -> None:
    options = syntax().parse(["x", "--sync", "y", "--keep", "-n", "3", "--", "--apply", "-z"])
    assert (options.first, options.rest) == ("x", ["y", "--apply", "-z"])
    assert (options.sync, options.how, options.limit) == (True, "keep", 3)


def test_a_value_may_look_like_an_option() -> None:
    assert syntax().parse(["x", "-m", "--sync"]).label == "--sync"


def test_parsing_twice_gives_fresh_lists() -> None:
    made = syntax()
    made.parse(["x", "y"]).rest.append("z")
    assert made.parse(["x"]).rest == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "FIRST is missing"),
        (["x", "--nope"], "no option --nope"),
        (["x", "-5"], "no option -5"),
        (["x", "-m"], "--label needs a value"),
        (["x", "--sync=1"], "--sync takes no value"),
        (["x", "--mode", "tape"], "--mode is one of auto, fuse, not 'tape'"),
        (["x", "-n", "many"], "-n must be a number"),
        (["x", "-n", "²"], "-n must be a number"),
        (["x", "--apply", "--keep"], "--apply and --keep exclude each other"),
    ],
)
def test_complaints(words: list[str], complaint: str) -> None:
    with pytest.raises(PlyfsError) as caught:
        syntax().parse(words)
    assert caught.value.code == "usage"
    assert complaint in caught.value.message
    assert "plyfs try --help" in caught.value.hint


def test_too_many_arguments() -> None:
    made = Syntax("plyfs try", "Try it.")
    made.argument("only", "ONLY", optional=True)
    assert made.parse([]).only is None
    with pytest.raises(PlyfsError, match="too many arguments: 'y'"):
        made.parse(["x", "y"])


def test_help_tells_everything() -> None:
    text = syntax().text()
    for part in (
        "usage: plyfs try [options] FIRST [REST...]",
        "-m, --label LABEL",
        "{auto,fuse}",
        "a flag",
        "The end.",
    ):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 120
