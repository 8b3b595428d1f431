"""Ignore patterns, against git itself: named cases, and thousands at random."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.conftest import need_programs
from vfs.scan.ignorerules import RuleFile, Rules
from vfs.scan.patterns import parse

NAMES = [
    *(
        "a",
        "b",
        "ab",
        "a.b",
        "foo",
        "x y",
        "a*b",
        "[a]",
        "é",
        "-",
        "B",
        "a\\b",
        " a",
        "a ",
        "!a",
        "#a",
        "a]",
        "^",
        "foo.x",
    )
]
PARTS = [
    *("a", "b", "*", "?", "**", "/", "[ab]", "[!a]", "[^a]", "[a-c]", "\\*", "\\a", "[]a]", "[[:alpha:]]", "foo", "."),
    *(
        " ",
        "\\ ",
        "!",
        "#",
        "é",
        "[a-",
        "[\\]a]",
        "\\[",
        "***",
        "B",
        "[b-a]",
        "-",
        "[]-a]",
        "[!]a]",
        "\\",
        "**/",
        "/**",
    ),
    *("[[:foo:]]", "[[:a]", "[[:digit:][:upper:]]"),
]


def ignored(text: bytes, path: str, ignore_case: bool = False) -> bool:
    rules = Rules((RuleFile(b"", text, ignore_case),))
    parts = path.encode().split(b"/")
    return any(rules.ignores(b"/".join(parts[: at + 1]), parts[at], at + 1 < len(parts)) for at in range(len(parts)))


@pytest.mark.parametrize("line", [b"", b"#x", b"/", b"!", b"  ", b"[a", b"a\\", b"!/"])
def test_lines_that_match_nothing(line: bytes) -> None:
    assert parse(line) is None or not ignored(line, "a")


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        (b"*.log\n!keep.log", "x/keep.log", False),
        (b"*.log\n!keep.log", "x/other.log", True),
        (b"build/", "build", False),
        (b"build/", "a/build/x", True),
        (b"/build", "a/build", False),
        (b"a/b", "x/a/b", False),
        (b"**/a/b", "x/a/b", True),
        (b"a/**", "a", False),
        (b"a/**/b", "a/b", True),
        (b"trailing   ", "trailing", True),
        (b"trailing\\ ", "trailing ", True),
        (b"\\#x", "#x", True),
        (b"\xef\xbb\xbffirst\r\nsecond\r\n", "first", True),
    ],
)
def test_named(text: bytes, path: str, expected: bool) -> None:
    assert ignored(text, path) is expected


def test_case(tmp_path: Path) -> None:
    assert not ignored(b"Foo", "foo")
    assert ignored(b"Foo", "foo", ignore_case=True)
    assert ignored(b"[a-c]x", "BX", ignore_case=True)


def test_as_git_does(tmp_path: Path) -> None:
    need_programs("git")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    chance = random.Random(7)
    for _ in range(250):
        lines = []
        for _ in range(chance.randint(1, 3)):
            line = "".join(chance.choice(PARTS) for _ in range(chance.randint(1, 5)))
            lines.append(("!" if chance.random() < 0.2 else "") + line + ("/" if chance.random() < 0.2 else ""))
        text = "\n".join(lines) + "\n"
        (tmp_path / ".gitignore").write_text(text)
        paths = {"/".join(chance.choice(NAMES) for _ in range(chance.randint(1, 3))) for _ in range(25)}
        asked = subprocess.run(
            ["git", "-C", tmp_path, "check-ignore", "--no-index", "-z", "--stdin"],
            input="\0".join(sorted(paths)).encode() + b"\0",
            capture_output=True,
            check=False,
        )
        told = set(asked.stdout.decode().split("\0"))
        for path in paths:
            assert ignored(text.encode(), path) == (path in told), (text, path)
