"""The tree of checkpoints, drawn: where we are, which way we came, what each step changed, what lies on other branches.

Owns the order of the rows and the lanes. A checkpoint's line stands above its parent's; the way to the head keeps to
the left, and each branch is drawn whole, just above the checkpoint that it leaves from. Pure but for the terminal.
"""

from __future__ import annotations

import time

from harness.language import told
from harness.render import SIGNS, age, change_text, plural, row_title
from harness.terminal import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from harness.terminal import Terminal

NAMED_MAX = 3
"""So many changed paths are named in a row; the rest are counted."""


class Glyphs:
    """The characters to draw with."""

    def __init__(self, ascii_only: bool) -> None:
        self.head, self.past, self.other, self.base = ("@", "o", "o", "o") if ascii_only else ("@", "●", "○", "◆")
        self.line = "|" if ascii_only else "│"
        self.join = "|/" if ascii_only else "├─╯"
        self.unsaved = "+" if ascii_only else "◌"
        self.ellipsis = "..." if ascii_only else "…"


class Line:
    """One row: ``depth`` lanes lie left of its mark."""

    __slots__ = ("depth", "joins", "row")

    def __init__(self, row: dict[str, Any], depth: int, joins: bool) -> None:
        self.row = row
        self.depth = depth
        self.joins = joins
        """True if a branch ends below this row, at the parent's lane."""


def layout(rows: list[dict[str, Any]], head: str, redo: list[str]) -> list[Line]:
    """The rows from top to bottom with their lanes. ``rows`` come oldest first; a parent that is not among them
    makes a row a root.
    """
    known = {row["id"]: row for row in rows}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        children.setdefault(row["parent"] if row["parent"] in known else None, []).append(row)
    main = _main_way(known, head, redo)
    lines: list[Line] = []
    for root in reversed(children.get(None, [])):
        lines.extend(_subtree(root, children, main))
    return lines


def _main_way(known: dict[str, dict[str, Any]], head: str, redo: list[str]) -> set[str]:
    """The head, its ancestors, and the way forward from it."""
    main = set(redo)
    current: str | None = head
    while current is not None and current in known and current not in main - set(redo):
        main.add(current)
        current = known[current]["parent"]
    return main


def _subtree(root: dict[str, Any], children: dict[str | None, list[dict[str, Any]]], main: set[str]) -> Iterator[Line]:
    """Post-order without recursion: the first child's branch on this lane, each other one lane further right."""
    waiting: list[tuple[dict[str, Any], int, bool, bool]] = [(root, 0, False, False)]
    while waiting:
        row, depth, joins, is_open = waiting.pop()
        below = children.get(row["id"], [])
        if is_open or not below:
            yield Line(row, depth, joins)
            continue
        waiting.append((row, depth, joins, True))
        first = next((child for child in below if child["id"] in main), below[-1])
        others = [child for child in below if child is not first]
        waiting.extend((child, depth + 1, True, False) for child in others)
        waiting.append((first, depth, False, False))


def render_graph(terminal: Terminal, result: dict[str, Any], limit: int | None, ascii_only: bool) -> None:
    """Draw the tree of a ``log`` result."""
    glyphs = Glyphs(ascii_only or not terminal.can_show("●○◆│├─╯◌…"))
    head, redo = result["head"], result.get("redo", [])
    rows = result["checkpoints"]
    if limit is not None:
        rows = rows[-limit:] if limit > 0 else []
    lines = layout(rows, head, redo)
    changes = result.get("changes", {})
    way = _main_way({row["id"]: row for row in rows}, head, []) - {head}
    for place, line in enumerate(lines):
        if line.row["id"] == head and result.get("dirty"):
            bars = _bars(terminal, glyphs, line.depth)
            terminal.tell(f"{bars}{terminal.colour(glyphs.unsaved, 'yellow')}  unsaved changes (`plyfs diff`)")
        terminal.say(_row_text(terminal, glyphs, line, head, redo, line.row["id"] in way))
        has_below = place + 1 < len(lines) and line.row["parent"] is not None
        summary = _summary(terminal, glyphs, changes.get(line.row["id"]), line.row["changed"])
        bars = _bars(terminal, glyphs, line.depth + (1 if has_below else 0))
        if summary:
            terminal.say(f"{bars}{'' if has_below else '   '}  {summary}".rstrip())
        if line.joins:
            terminal.say(_bars(terminal, glyphs, line.depth - 1) + terminal.colour(glyphs.join, "dim"))


def _bars(terminal: Terminal, glyphs: Glyphs, count: int) -> str:
    return terminal.colour(f"{glyphs.line}  " * count, "dim") if count else ""


def _row_text(terminal: Terminal, glyphs: Glyphs, line: Line, head: str, redo: list[str], is_past: bool) -> str:
    row = line.row
    if row["id"] == head:
        mark, colour = glyphs.head, "here"
    elif row.get("kind") == "base":
        mark, colour = glyphs.base, "bold"
    else:
        mark, colour = (glyphs.past, "yellow") if is_past else (glyphs.other, "dim")
    words = [terminal.colour(row["id"], colour if colour != "bold" else "yellow")]
    title = row_title(row)
    if title:
        words.append(terminal.colour(title, "bold") if row["label"] else title)
    words.append(terminal.colour(age(time.time() - row["time"]), "dim"))
    if row["session"]:
        words.append(terminal.colour(f"[{shown(row['session'])}]", "dim"))
    if row["state"] != "sealed":
        words.append(terminal.colour(told(row["state"]), "yellow"))
    if row["id"] == head:
        words.append(terminal.colour(told("<- you are here"), "here"))
    elif redo and row["id"] == redo[0]:
        words.append(terminal.colour(told("<- redo goes here"), "cyan"))
    return f"{_bars(terminal, glyphs, line.depth)}{terminal.colour(mark, colour)}  {'  '.join(words)}"


def _summary(terminal: Terminal, glyphs: Glyphs, changes: list[dict[str, Any]] | None, changed: int) -> str:
    """What a step changed: a few names, or how many if they are not known."""
    if changes is None:
        return terminal.colour(told(f"{plural(changed, 'path')} changed"), "dim") if changed else ""
    words = []
    for change in changes[:NAMED_MAX]:
        sign, colour = SIGNS.get(change["kind"], ("?", "bold"))
        words.append(terminal.colour(f"{sign} {change_text(change)}", colour))
    if len(changes) > NAMED_MAX:
        words.append(terminal.colour(f"{glyphs.ellipsis} {told(f'{len(changes) - NAMED_MAX} more')}", "dim"))
    return "  ".join(words)
