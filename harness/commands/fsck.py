"""``plyfs fsck``."""

from __future__ import annotations

import os

from harness.failure import OK, exit_status
from harness.language import told
from harness.places import home_directory
from harness.registry import TYPE_CHECKING
from harness.render import plural, size_text
from harness.terminal import shown
from store.check import check
from store.home import Home

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax
    from store.check import Report

LOST_SHOWN = 100


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    syntax.flag("--repair", help="put right what can be, giving up nothing that can be read")


def run(invocation: Invocation) -> int:
    """Verify the whole store; the status is that of a damaged store if something is lost."""
    terminal = invocation.terminal
    moves = terminal.waiting("") is not None

    def progress(objects: int) -> None:
        if moves and objects % 100 == 0:
            terminal.draw(told(f"reading the store: {objects} objects"))

    home = Home.open(home_directory())
    try:
        report = check(home, invocation.options.repair, progress=progress)
    finally:
        terminal.clear()
    paths = {record.id: os.fsdecode(record.path) for record in home.workspaces()}
    value = {
        "sound": report.is_sound,
        "problems": [
            {"severity": one.severity, "where": one.where, "message": one.message, "repaired": one.repaired}
            for one in report.problems
        ],
        "lost": [
            {
                "workspace": paths.get(one.workspace, one.workspace),
                "checkpoint": one.checkpoint,
                "path": os.fsdecode(one.path),
                "reason": one.reason,
            }
            for one in report.lost
        ],
        "workspaces": report.workspaces,
        "checkpoints": report.checkpoints,
        "objects": report.objects,
        "bytes": report.bytes,
        "unreferenced": report.unreferenced,
    }

    def show() -> None:
        _show(invocation, report)

    invocation.finish(value, show)
    return OK if report.is_sound else exit_status("damaged")


def _show(invocation: Invocation, report: Report) -> None:
    terminal = invocation.terminal
    for problem in report.problems:
        colour = "green" if problem.repaired else "red" if problem.severity == "damage" else "yellow"
        word = "repaired" if problem.repaired else problem.severity
        terminal.say(f"{terminal.colour(told(word), colour)}  {shown(problem.where)}: {told(problem.message)}")
    for lost in report.lost[:LOST_SHOWN]:
        path = shown(os.fsdecode(lost.path))
        terminal.say(f"{terminal.colour(told('lost'), 'red')}  {lost.checkpoint}:{path}: {told(lost.reason)}")
    if len(report.lost) > LOST_SHOWN:
        terminal.tell(f"and {len(report.lost) - LOST_SHOWN} more paths are lost; --json lists them")
    verdict = terminal.colour(told("sound"), "green") if report.is_sound else terminal.colour(told("damaged"), "red")
    terminal.tell(
        f"{verdict}: {plural(report.workspaces, 'workspace')}, {plural(report.checkpoints, 'checkpoint')},"
        f" {plural(report.objects, 'object')} ({size_text(report.bytes)}), {report.unreferenced} not needed"
    )
    if not report.is_sound and not invocation.options.repair:
        terminal.note("hint: `plyfs fsck --repair` puts right what can be")
