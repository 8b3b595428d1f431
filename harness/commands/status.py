"""``plyfs status``."""

from __future__ import annotations

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax


def configure(syntax: Syntax, name: str) -> None:
    """It has no options of its own."""


def run(invocation: Invocation) -> int:
    """Show where the workspace stands, mounted or not."""
    from harness.render import render_status

    result = invocation.look("status", {}, "asking")
    return invocation.finish(result, lambda: render_status(invocation.terminal, result))
