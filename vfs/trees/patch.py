"""Differences as text: a unified diff in git's form, and how many lines each file gained and lost.

Owns the text. Does not own finding differences (``diff``) nor bytes: they come through a reader, so that files which
are still being written can be read too.

Concurrency: pure functions.
"""

from __future__ import annotations

import os
import stat
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from store.format import Directory, Regular, Special, Symlink
from vfs.trees.diff import same_content
from vfs.trees.view import Present, View, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vfs.trees.diff import Changed

Reader: TypeAlias = "Callable[[Regular, int, int], bytes]"
"""``read(entry, offset, length)``: bytes of a file as one of the two trees has it."""

TEXT_MAX = 8 << 20
"""A longer file is treated as binary."""

COMPARED_LINES = 4000
"""A changed region with more lines on both sides is shown as replaced whole: matching is quadratic."""

CONTEXT = 3

Opcode: TypeAlias = tuple[str, int, int, int, int]


class Pair(NamedTuple):
    """One file before and after, with its paths; a side that is not there is None."""

    path_before: bytes
    path_after: bytes
    before: Present | None
    after: Present | None


def patch(changes: Iterable[Changed], before: View, after: View, read_before: Reader, read_after: Reader) -> str:
    """All ``changes`` from ``before`` to ``after`` as one unified diff, text with surrogate escapes."""
    parts = []
    for pair in pairs(changes, before, after):
        parts.append(_file_patch(pair, read_before, read_after))
    return b"".join(parts).decode("utf-8", "surrogateescape")


def line_counts(
    changes: Iterable[Changed], before: View, after: View, read_before: Reader, read_after: Reader
) -> dict[str, tuple[int, int]]:
    """Lines added and removed for each path of ``changes``; (-1, -1) for a binary file."""
    found = {}
    for pair in pairs(changes, before, after):
        old, new = _sides(pair, read_before, read_after)
        name = os.fsdecode(pair.path_after)
        if _is_binary(old) or _is_binary(new):
            found[name] = (-1, -1) if old != new else (0, 0)
            continue
        added = removed = 0
        for tag, a0, a1, b0, b1 in opcodes(_lines(old), _lines(new)):
            if tag != "equal":
                removed += a1 - a0
                added += b1 - b0
        found[name] = (added, removed)
    return found


def pairs(changes: Iterable[Changed], before: View, after: View) -> Iterator[Pair]:
    """The files that ``changes`` are about, each once; a renamed directory gives each file in it."""
    renamed: list[Changed] = []
    changed: dict[bytes, Changed] = {}
    for change in changes:
        if change.kind == "rename":
            renamed.append(change)
        else:
            changed[change.path] = change
    found: dict[bytes, Pair] = {}
    for change in renamed:
        assert change.source is not None
        for path, source, old, new in _moved(change, before, after):
            changed.pop(path, None)
            found[path] = Pair(source, path, old, new)
    for path, change in changed.items():
        pair = Pair(path, path, _file(change.before), _file(change.after))
        if pair.before is not None or pair.after is not None:
            found[path] = pair
    for path in sorted(found):
        yield found[path]


def _moved(change: Changed, before: View, after: View) -> Iterator[tuple[bytes, bytes, Present, Present]]:
    """(path, path before, entry before, entry after) of each file that a rename moved."""
    waiting = [(change.path, change.source or b"", change.before, change.after)]
    while waiting:
        path, source, old, new = waiting.pop()
        if isinstance(old, Directory) and isinstance(new, Directory):
            inner = before.list(old)
            for name, entry in after.list(new).items():
                waiting.append((join(path, name), join(source, name), inner.get(name), entry))
        elif old is not None and new is not None and not isinstance(old, Directory) and not isinstance(new, Directory):
            yield path, source, old, new


def _file(entry: Present | None) -> Present | None:
    return None if isinstance(entry, Directory) else entry


def _file_patch(pair: Pair, read_before: Reader, read_after: Reader) -> bytes:
    if pair.before and pair.after and stat.S_IFMT(_mode(pair.before)) != stat.S_IFMT(_mode(pair.after)):
        gone, come = pair._replace(after=None), pair._replace(before=None)  # git tells a change of type in two
        return _file_patch(gone, read_before, read_after) + _file_patch(come, read_before, read_after)
    old, new = _sides(pair, read_before, read_after)
    a, b = _quoted(b"a/" + pair.path_before), _quoted(b"b/" + pair.path_after)
    head = [b"diff --git %s %s\n" % (a, b)]
    if pair.before is None:
        head.append(b"new file mode %06o\n" % _mode(pair.after))
    elif pair.after is None:
        head.append(b"deleted file mode %06o\n" % _mode(pair.before))
    else:
        if _mode(pair.before) != _mode(pair.after):
            head.append(b"old mode %06o\nnew mode %06o\n" % (_mode(pair.before), _mode(pair.after)))
        if pair.path_before != pair.path_after:
            source, path = _quoted(pair.path_before), _quoted(pair.path_after)
            head.append(b"rename from %s\nrename to %s\n" % (source, path))
    a, b = (b"/dev/null" if pair.before is None else a), (b"/dev/null" if pair.after is None else b)
    if old == new:
        body = b""
    elif _is_binary(old) or _is_binary(new):
        body = b"Binary files %s and %s differ\n" % (a, b)
    else:
        body = b"".join(_hunks(_lines(old), _lines(new)))
        if body:
            body = b"--- %s\n+++ %s\n" % (_tabbed(a), _tabbed(b)) + body
    if not body and len(head) == 1:
        return b""  # times, owner or extended attributes alone: git's form has no words for them
    return b"".join(head) + body


def _mode(entry: Present | None) -> int:
    """The file mode as git would write it, with all permission bits."""
    assert entry is not None
    if isinstance(entry, Symlink):
        return 0o120000
    if isinstance(entry, Special):
        return entry.file_type | entry.attributes.mode
    return stat.S_IFREG | entry.attributes.mode


def _sides(pair: Pair, read_before: Reader, read_after: Reader) -> tuple[bytes, bytes]:
    """What a patch compares; equal contents are not read."""
    if pair.before is not None and pair.after is not None and same_content(pair.before, pair.after):
        return b"", b""
    return _bytes(pair.before, read_before), _bytes(pair.after, read_after)


def _bytes(entry: Present | None, read: Reader) -> bytes:
    """What a patch compares; at most one byte more than ``TEXT_MAX``."""
    if isinstance(entry, Symlink):
        return entry.target
    if isinstance(entry, Special):
        return b"\0%d" % entry.rdev
    return read(entry, 0, TEXT_MAX + 1) if isinstance(entry, Regular) else b""


def _is_binary(data: bytes) -> bool:
    return len(data) > TEXT_MAX or b"\0" in data[:8000]


def _lines(data: bytes) -> list[bytes]:
    """Lines with their newlines. ``bytes.splitlines`` would also break at a carriage return."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def opcodes(a: list[bytes], b: list[bytes]) -> list[Opcode]:
    """How to make ``b`` out of ``a``, as ``difflib`` tells it. Equal ends are set aside first."""
    start = 0
    most = min(len(a), len(b))
    while start < most and a[start] == b[start]:
        start += 1
    end = 0
    while end < most - start and a[-1 - end] == b[-1 - end]:
        end += 1
    middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
    found: list[Opcode] = [("equal", 0, start, 0, start)] if start else []
    if min(len(middle_a), len(middle_b)) > COMPARED_LINES:
        inner: list[Opcode] = [("replace", 0, len(middle_a), 0, len(middle_b))]
    else:
        inner = list(SequenceMatcher(None, middle_a, middle_b).get_opcodes())
    found += [(tag, a0 + start, a1 + start, b0 + start, b1 + start) for tag, a0, a1, b0, b1 in inner]
    if end:
        found.append(("equal", len(a) - end, len(a), len(b) - end, len(b)))
    return found


def _groups(codes: list[Opcode]) -> Iterator[list[Opcode]]:
    """``codes`` cut into hunks with ``CONTEXT`` equal lines around changes."""
    group: list[Opcode] = []
    for index, (tag, a0, a1, b0, b1) in enumerate(codes):
        if tag != "equal":
            group.append((tag, a0, a1, b0, b1))
            continue
        first, last = index == 0, index == len(codes) - 1
        if not first and not last and a1 - a0 <= 2 * CONTEXT:
            group.append((tag, a0, a1, b0, b1))
            continue
        if not first:
            group.append((tag, a0, min(a1, a0 + CONTEXT), b0, min(b1, b0 + CONTEXT)))
            yield group
        group = [] if last else [(tag, max(a0, a1 - CONTEXT), a1, max(b0, b1 - CONTEXT), b1)]
    if group:
        yield group


def _hunks(a: list[bytes], b: list[bytes]) -> Iterator[bytes]:
    codes = opcodes(a, b)
    if all(tag == "equal" for tag, *_ in codes):
        return
    for group in _groups(codes):
        old = _range(group[0][1], group[-1][2])
        new = _range(group[0][3], group[-1][4])
        yield b"@@ -%s +%s @@\n" % (old, new)
        for tag, a0, a1, b0, b1 in group:
            if tag == "equal":
                yield from (_line(b" ", line) for line in a[a0:a1])
                continue
            yield from (_line(b"-", line) for line in a[a0:a1])
            yield from (_line(b"+", line) for line in b[b0:b1])


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)


def _line(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def _quoted(path: bytes) -> bytes:
    """``path`` as git writes it: in double quotes with C escapes if it has bytes that need them."""
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in path):
        return path
    parts = [_ESCAPES.get(byte) or (bytes([byte]) if 32 <= byte < 127 else b"\\%03o" % byte) for byte in path]
    return b'"' + b"".join(parts) + b'"'


def _tabbed(path: bytes) -> bytes:
    """A name in a ``---`` line: with a space in it, it ends in a tab, or patch(1) would cut it."""
    return path + b"\t" if b" " in path and not path.startswith(b'"') else path
