"""``plyfs gc``."""

from __future__ import annotations

import os

from harness import sessions
from harness.config import load
from harness.places import home_directory
from harness.registry import TYPE_CHECKING
from harness.render import plural, size_text
from store.home import Home
from store.sweep import Retention, sweep

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax
    from store.sweep import Swept


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    syntax.flag("--dry-run", help="tell what would go, and delete nothing")


def run(invocation: Invocation) -> int:
    """Collect what the retention rules let go, of all workspaces."""
    terminal = invocation.terminal
    rules = load("").retention
    retention = Retention(rules.keep_last, rules.keep_days, rules.max_bytes, sessions=False)
    waiting = terminal.waiting("collecting")

    def progress(done: int, total: int) -> None:
        if waiting is not None:
            waiting.progress({"done": done, "total": total})
            waiting(1.0)

    home = Home.open(home_directory())
    try:
        stays = sessions.pinned(home) if rules.sessions and not retention.keeps_all else ()
        swept = sweep(home, retention, dry_run=invocation.options.dry_run, pinned=stays, progress=progress)
    finally:
        terminal.clear()
    paths = {record.id: os.fsdecode(record.path) for record in home.workspaces()}
    value = {
        "dry_run": swept.dry_run,
        "checkpoints": [{"workspace": paths.get(id, id), "id": one} for id, one in swept.checkpoints],
        "objects": swept.objects,
        "bytes": swept.bytes,
        "temporaries": swept.temporaries,
        "attic": swept.attic,
        "kept_objects": swept.kept_objects,
        "kept_bytes": swept.kept_bytes,
        "skipped": swept.skipped,
    }

    def show() -> None:
        _show(invocation, swept)

    return invocation.finish(value, show)


def _show(invocation: Invocation, swept: Swept) -> None:
    terminal = invocation.terminal
    what = "would go" if swept.dry_run else "gone"
    checkpoints, objects = plural(len(swept.checkpoints), "checkpoint"), plural(swept.objects, "object")
    kept = f"{plural(swept.kept_objects, 'object')} ({size_text(swept.kept_bytes)})"
    terminal.tell(f"{checkpoints} and {objects} ({size_text(swept.bytes)}) {what}; {kept} kept")
    if swept.temporaries:
        terminal.tell(f"{plural(swept.temporaries, 'file')} that dead processes left {what}")
    if swept.attic:
        terminal.tell(f"{plural(swept.attic, 'folder')} of the attic {what}")
    for reason in swept.skipped:
        terminal.note(f"plyfs: {reason}")
