"""``plyfs undo``, ``redo`` and ``restore``."""

from __future__ import annotations

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax


def configure(syntax: Syntax, name: str) -> None:
    """Their options."""
    if name != "restore":
        syntax.argument("count", "N", "how many steps (default: 1)", optional=True, number=True)
        return
    syntax.argument("checkpoint", "CHECKPOINT")
    syntax.argument("paths", "PATH", "bring back only these", many=True)
    syntax.flag("--dry-run", help="show what would change, and change nothing")
    syntax.flag("--force", help="also overwrite what was changed by others meanwhile")
    syntax.flag("--with-git", help="restore .git too, which else stays as it is")
    syntax.option("--fingerprint", metavar="F", help="refuse if anything changed since the preview that gave F")


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
        params, dry_run = {"count": 1 if options.count is None else options.count}, False
    what = {"undo": "going back", "redo": "going forward", "restore": "restoring"}[invocation.name]
    result = invocation.call(invocation.name, params, what)
    return invocation.finish(result, lambda: render_restore(invocation.terminal, result, dry_run))
