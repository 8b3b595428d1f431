"""One line of a ``.gitignore`` file as something that matches, exactly as git does it (``dir.c``, ``wildmatch.c``).

Owns the syntax of a line. Does not own which files of lines there are, nor their order (``ignorerules``). Paths are
bytes, as they are for git. tests/scan/test_patterns.py compares it with ``git check-ignore`` over random patterns;
docs/adr/0008 tells why this is not a library.

Concurrency: values.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SPECIAL = frozenset(b"*?[\\")
_ALL = frozenset(range(256))
_SLASH = ord("/")


def _ascii(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(byte for first, last in ranges for byte in range(first, last + 1))


_UPPER, _LOWER, _DIGIT = _ascii((65, 90)), _ascii((97, 122)), _ascii((48, 57))
_GRAPH = _ascii((33, 126))
CLASSES = {
    b"alnum": _UPPER | _LOWER | _DIGIT,
    b"alpha": _UPPER | _LOWER,
    b"blank": frozenset(b" \t"),
    b"cntrl": _ascii((0, 31), (127, 127)),
    b"digit": _DIGIT,
    b"graph": _GRAPH,
    b"lower": _LOWER,
    b"print": _GRAPH | {32},
    b"punct": _GRAPH - _UPPER - _LOWER - _DIGIT,
    b"space": frozenset(b" \t\n\v\f\r"),
    b"upper": _UPPER,
    b"xdigit": _DIGIT | _ascii((65, 70), (97, 102)),
}


class Pattern(NamedTuple):
    """``regex`` is for the last name if ``basename``, else for the path relative to the file's directory."""

    regex: bytes
    negated: bool
    directory: bool
    basename: bool


def parse(line: bytes) -> Pattern | None:
    """The pattern of a line without its line end; None for blanks, comments and what can never match."""
    if not line or line.startswith(b"#"):
        return None
    line = _without_trailing_spaces(line)
    negated = line.startswith(b"!")
    if negated:
        line = line[1:]
    directory = line.endswith(b"/")
    if directory:
        line = line[:-1]
    if not line:
        return None
    basename = b"/" not in line
    if line.startswith(b"/"):
        line = line[1:]
    literal = 0
    while literal < len(line) and line[literal] not in _SPECIAL:
        literal += 1
    # git compares what stands before the first special byte by itself, so what follows is a pattern from its start.
    rest = _translate(line[literal:], path=not basename)
    if rest is None:
        return None
    return Pattern(re.escape(line[:literal]) + rest, negated, directory, basename)


def _without_trailing_spaces(line: bytes) -> bytes:
    end: int | None = None
    at = 0
    while at < len(line):
        if line[at] == 32:
            end = at if end is None else end
        else:
            if line[at] == 92:
                at += 1
                if at == len(line):
                    return line
            end = None
        at += 1
    return line if end is None else line[:end]


def _translate(glob: bytes, path: bool) -> bytes | None:
    """The regular expression of a wildmatch pattern; ``path`` as WM_PATHNAME. None if it can match nothing."""
    out: list[bytes] = []
    at, size = 0, len(glob)
    any_one = b"[^/]" if path else b"."
    while at < size:
        byte = glob[at]
        if byte == ord("\\"):
            if at + 1 == size:
                return None
            out.append(re.escape(glob[at + 1 : at + 2]))
            at += 2
        elif byte == ord("?"):
            out.append(any_one)
            at += 1
        elif byte == ord("*"):
            start = at
            while at < size and glob[at] == ord("*"):
                at += 1
            after = glob[at : at + 2]
            begins = start == 0 or glob[start - 1] == _SLASH
            if path and at - start >= 2 and begins and (not after or after[:1] == b"/" or after == b"\\/"):
                if after[:1] == b"/":
                    out.append(b"(?:.*/)?")
                    at += 1
                else:
                    out.append(b".*")
            else:
                out.append(any_one + b"*")
        elif byte == ord("["):
            found = _bracket(glob, at, path)
            if found is None:
                return None
            members, at = found
            out.append(_set(members))
        else:
            out.append(re.escape(glob[at : at + 1]))
            at += 1
    return b"".join(out)


def _bracket(glob: bytes, at: int, path: bool) -> tuple[frozenset[int], int] | None:
    """The bytes that a bracket at ``at`` stands for, and where it ends; None if it is never closed."""
    size = len(glob)
    at += 1
    negated = glob[at : at + 1] in (b"!", b"^")
    if negated:
        at += 1
    members: set[int] = set()
    before = 0
    first = True
    while True:
        if at >= size:
            return None
        byte = glob[at]
        if byte == ord("]") and not first:
            break
        first = False
        if byte == ord("\\"):
            at += 1
            if at >= size:
                return None
            byte = glob[at]
            members.add(byte)
            before = byte
        elif byte == ord("-") and before and at + 1 < size and glob[at + 1] != ord("]"):
            at += 1
            byte = glob[at]
            if byte == ord("\\"):
                at += 1
                if at >= size:
                    return None
                byte = glob[at]
            members.update(range(before, byte + 1))
            before = 0
        elif byte == ord("[") and glob[at + 1 : at + 2] == b":":
            end = glob.find(b"]", at + 2)
            if end < 0:
                return None
            if end - at - 3 < 0 or glob[end - 1] != ord(":"):
                members.add(byte)
                before = byte
            else:
                known = CLASSES.get(glob[at + 2 : end - 1])
                if known is None:
                    return None
                members |= known
                before = 0
                at = end
        else:
            members.add(byte)
            before = byte
        at += 1
    found = _ALL - members if negated else frozenset(members)
    return found - {_SLASH} if path else found, at + 1


def _set(members: frozenset[int]) -> bytes:
    if not members:
        return b"(?!)"
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(members)) + b"]"
