"""``plyfs undo``, ``redo`` and ``restore``."""

from __future__ import annotations

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from harness.invocation import Invocation


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Their options."""
    if name != "restore":
        parser.add_argument("count", nargs="?", type=int, default=1, metavar="N", help="how many steps (default: 1)")
        return
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="bring back only these")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("--force", action="store_true", help="also overwrite what was changed by others meanwhile")
    parser.add_argument("--with-git", action="store_true", help="restore .git too, which else stays as it is")
    parser.add_argument("--fingerprint", metavar="F", help="refuse if anything changed since the preview that gave F")


def run(invocation: Invocation) -> int:
    """Go there."""
    from harness.render import render_restore

    options = invocation.options
    if invocation.name == "restore":
        params = {
            "checkpoint": options.checkpoint,
            "paths": [invocation.path_in_workspace(path) for path in options.paths] or None,
            "dry_run": options.dry_run,
            "force": options.force,
            "fingerprint": options.fingerprint,
        }
        if options.with_git:
            params["with_git"] = True
        dry_run = options.dry_run
    else:
        params, dry_run = {"count": options.count}, False
    what = {"undo": "going back", "redo": "going forward", "restore": "restoring"}[invocation.name]
    result = invocation.call(invocation.name, params, what)
    return invocation.finish(result, lambda: render_restore(invocation.terminal, result, dry_run))
