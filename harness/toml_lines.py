"""On which line each key of a TOML document stands, which ``tomllib`` does not tell.

Owns a scanner for documents that ``tomllib`` has accepted already, so it need not find errors. Keys inside inline
tables and arrays are not listed: they are on the line of the key that holds them, or near it. Pure.
"""

from __future__ import annotations

import re
import tomllib

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?:\\.|[^"\\\n])*"|'
    r"'[^'\n]*'",
    re.DOTALL,
)
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")


def lines_of_keys(text: str) -> dict[tuple[str, ...], int]:
    """The line, counted from 1, of each key and table header, by its full path of names; the first if several."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    place = 0
    while True:
        place = _skip(_SPACE, text, place)
        if place >= len(text):
            return lines
        line = text.count("\n", 0, place) + 1
        if text[place] == "[":
            place = _skip(re.compile(r"\[+[ \t]*"), text, place)
            table, place = _key(text, place)
            _note(lines, (), table, line)
            place = _skip(re.compile(r"[ \t\]]*"), text, place)
            continue
        key, place = _key(text, place)
        if not key:
            return lines
        _note(lines, table, key, line)
        place = _value_end(text, place)


def _note(lines: dict[tuple[str, ...], int], table: tuple[str, ...], key: tuple[str, ...], line: int) -> None:
    for length in range(1, len(key) + 1):
        lines.setdefault((*table, *key[:length]), line)


def _skip(pattern: re.Pattern[str], text: str, place: int) -> int:
    match = pattern.match(text, place)
    return place if match is None else match.end()


def _key(text: str, place: int) -> tuple[tuple[str, ...], int]:
    """The dotted key at ``place`` and where it ends."""
    names: list[str] = []
    while True:
        place = _skip(re.compile(r"[ \t.]*"), text, place)
        bare = _BARE.match(text, place)
        quoted = None if bare else _STRING.match(text, place)
        if bare is not None:
            names.append(bare[0])
            place = bare.end()
        elif quoted is not None:
            names.extend(tomllib.loads(f"{quoted[0]} = 0"))
            place = quoted.end()
        else:
            return tuple(names), place


def _value_end(text: str, place: int) -> int:
    """Where the value after ``=`` at ``place`` ends: at the end of a line that is in no bracket and no string."""
    depth = 0
    while place < len(text):
        character = text[place]
        string = _STRING.match(text, place) if character in "\"'" else None
        if string is not None:
            place = string.end()
        elif character == "#":
            place = text.find("\n", place)
            if place < 0:
                return len(text)
        elif character == "\n" and depth == 0:
            return place
        else:
            depth += (character in "[{") - (character in "]}")
            place += 1
    return place
