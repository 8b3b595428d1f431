"""What results look like to a person: changes, tables, patches, status.

Owns layout and wording. Does not own the streams and colours (``terminal``) or the drawing of the tree (``graph``).
Knows only the standard library. Everything that comes from files or people is escaped (``terminal.shown``).
"""

from __future__ import annotations

import time

from harness.language import padded, told
from harness.terminal import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from harness.terminal import Terminal

SIGNS = {
    "create": ("+", "green"),
    "overwrite": ("~", "yellow"),
    "delete": ("-", "red"),
    "rename": (">", "cyan"),
    "type": ("!", "magenta"),
    "mode": ("m", "blue"),
}
"""The sign and colour of each kind of change."""

LISTED_MAX = 50
STAT_COLUMNS = 40


def plural(count: int, one: str, many: str = "") -> str:
    """``1 path``, ``2 paths``."""
    return told(f"{count} {one if count == 1 else many or one + 's'}")


def change_text(change: dict[str, Any]) -> str:
    """A change without its sign."""
    if change["kind"] == "rename":
        return f"{shown(change['from'])} -> {shown(change['path'])}"
    return shown(change["path"])


def change_line(terminal: Terminal, change: dict[str, Any]) -> str:
    """A change with its sign."""
    sign, colour = SIGNS.get(change["kind"], ("?", "bold"))
    note = {"type": " (another type)", "mode": " (mode, owner, times or attributes)"}.get(change["kind"], "")
    return terminal.colour(f"{sign} {change_text(change)}", colour) + terminal.colour(told(note), "dim")


def render_changes(terminal: Terminal, changes: list[dict[str, Any]], none: str) -> None:
    """Every change on a line."""
    for change in changes:
        terminal.say(change_line(terminal, change))
    if not changes:
        terminal.note(none)


def render_names(terminal: Terminal, changes: list[dict[str, Any]]) -> None:
    """The paths alone."""
    for change in changes:
        terminal.say(shown(change["path"]))


def render_restore(terminal: Terminal, result: dict[str, Any], dry_run: bool) -> None:
    """Where we are now, what changed on the way, what was kept."""
    changes = result["changes"]
    for change in changes[:LISTED_MAX]:
        terminal.say(change_line(terminal, change))
    if len(changes) > LISTED_MAX:
        terminal.say(terminal.colour(told(f"  and {len(changes) - LISTED_MAX} more"), "dim"))
    for kept in result["kept"]:
        terminal.note(f"kept {shown(kept['path'])}: {kept['reason']}")
    if dry_run:
        terminal.note(
            f"would change {plural(len(changes), 'path')}; --fingerprint {result['fingerprint']} insists on it"
        )
        return
    terminal.tell(
        f"at {terminal.colour(result['head'], 'here')}: {plural(len(changes), 'path')} changed,"
        f" {result['seconds'] * 1000:.1f} ms"
    )
    if result["saved"]:
        terminal.tell(f"what was unsaved is checkpoint {result['saved']} (`plyfs redo`, `plyfs restore`)")


def render_patch(terminal: Terminal, patch: str) -> None:
    """A unified diff, coloured as git does it."""
    if not terminal.is_coloured:
        terminal.write(patch)
        return
    for line in patch.splitlines(keepends=True):
        body = line.rstrip("\n")
        if line.startswith(("diff ", "index ", "--- ", "+++ ", "rename ", "new file", "deleted file", "old mode")):
            colour = "bold"
        else:
            colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        terminal.write((terminal.colour(body, colour) if colour else body) + line[len(body) :])


def render_stat(terminal: Terminal, result: dict[str, Any]) -> None:
    """Lines added and removed, as numbers and as a bar."""
    counts = result["lines"] or {}
    rows = [(change_text(change), *counts.get(change["path"], (0, 0)), change["kind"]) for change in result["changes"]]
    width = max((len(row[0]) for row in rows), default=0)
    most = max((row[1] + row[2] for row in rows), default=0)
    for name, added, removed, kind in rows:
        if added < 0:
            terminal.say(f" {name:<{width}} | binary ({kind})")
            continue
        scale = min(1.0, STAT_COLUMNS / most) if most else 0
        plus, minus = (max(1, round(count * scale)) if count else 0 for count in (added, removed))
        bar = terminal.colour("+" * plus, "green") + terminal.colour("-" * minus, "red")
        terminal.say(f" {name:<{width}} | {added + removed:>5} {bar or kind}")
    added = sum(row[1] for row in rows if row[1] > 0)
    removed = sum(row[2] for row in rows if row[2] > 0)
    terminal.tell(f" {plural(len(rows), 'path')} changed, {added} added(+), {removed} removed(-)")


def age(seconds: float) -> str:
    """How long ago, in one unit."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return told(f"{plural(int(seconds // size), unit)} ago")
    return told("just now" if seconds < 5 else f"{int(seconds)} seconds ago")


def size_text(count: int) -> str:
    """Bytes for a person."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return told(f"{value:.0f} bytes") if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def render_log(terminal: Terminal, result: dict[str, Any], limit: int | None) -> None:
    """A table, newest first, the head marked."""
    rows = result["checkpoints"][::-1]
    now = time.time()
    for row in rows[: len(rows) if limit is None else max(limit, 0)]:
        is_head = row["id"] == result["head"]
        mark = terminal.colour("*", "here") if is_head else " "
        id_text = terminal.colour(row["id"], "here" if is_head else "yellow")
        words = [row_title(row)]
        if row["state"] != "sealed":
            words.append(f"({told(row['state'])})")
        if row["session"]:
            words.append(terminal.colour(f"[{shown(row['session'])}]", "dim"))
        changed = plural(row["changed"], "path")
        terminal.say(
            f"{mark} {id_text}  {padded(age(now - row['time']), 15)}  {padded(changed, 11)}  {' '.join(words)}".rstrip()
        )
    if result.get("dirty"):
        terminal.note("there are unsaved changes")


def row_title(row: dict[str, Any]) -> str:
    """The label, or what kind of checkpoint it is."""
    if row["label"]:
        return shown(row["label"])
    kinds = {"base": "base", "automatic": "(saved automatically)", "outside": "(changed outside of plyfs)"}
    return told(kinds.get(row.get("kind", ""), ""))


def render_status(terminal: Terminal, result: dict[str, Any]) -> None:
    """The whole of ``status``."""
    terminal.tell(f"workspace  {shown(result['workspace'])}")
    if result["mounted"]:
        if result["mountpoint"] == result["workspace"]:
            terminal.tell(f"mounted    yes ({mode_text(result)})")
        else:
            terminal.tell(f"mounted    yes at {shown(result['mountpoint'] or '')} ({mode_text(result)})")
    else:
        terminal.tell(f"mounted    no ({result['mode']})")
    terminal.tell(f"head       {terminal.colour(result['head'], 'here')}")
    if result["dirty"]:
        terminal.tell(f"unsaved    {terminal.colour(plural(result['changed'], 'path'), 'yellow')}")
    else:
        terminal.tell("unsaved    nothing")
    terminal.tell(f"undo       {told(result['undo'] or 'possible')}")
    terminal.tell(f"redo       {told(result['redo'] or 'possible')}")
    terminal.tell(f"store      {size_text(result['store_bytes'])}")
    health = result["health"]
    terminal.tell(f"health     {terminal.colour(told('good'), 'green')}" if not health else "health")
    for problem in health:
        terminal.say(f"  {terminal.colour(shown(told(problem)), 'red')}")
    if result["writers"]:
        writers = "\n           ".join(shown(writer) for writer in result["writers"])
        terminal.tell(f"writing    {writers}")


def mode_text(result: dict[str, Any]) -> str:
    """How a workspace is served."""
    mode: str = result["mode"]
    return told(f"{mode}, channel {result['channel']}") if result["channel"] else mode


TYPE_LETTERS = {"directory": "d", "symlink": "l", "fifo": "p", "socket": "s", "device": "c"}


def render_ls(terminal: Terminal, entries: list[dict[str, Any]], long: bool) -> None:
    """Names, or a table as ``ls -l`` has it."""
    for entry in entries:
        name = shown(entry["name"]) + ("/" if entry["type"] == "directory" else "")
        name = terminal.colour(name, "blue") if entry["type"] == "directory" else name
        target = f" -> {shown(entry['target'])}" if entry["target"] is not None else ""
        if not long:
            terminal.say(name + target)
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["mtime"]))
        mode = TYPE_LETTERS.get(entry["type"], "-") + permissions(entry["mode"])
        terminal.say(f"{mode} {entry['size']:>12} {when} {name}{target}")


def permissions(mode: int) -> str:
    """``rwxr-xr-x`` of the 12 permission bits."""
    text = "".join(letter if mode >> (8 - place) & 1 else "-" for place, letter in enumerate("rwxrwxrwx"))
    for bit, place, letter in ((0o4000, 2, "s"), (0o2000, 5, "s"), (0o1000, 8, "t")):
        if mode & bit:
            letter = letter if text[place] == "x" else letter.upper()
            text = text[:place] + letter + text[place + 1 :]
    return text
