"""``plyfs log``."""

from __future__ import annotations

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax

EXPLAINED = 200
"""For so many of the newest checkpoints the graph shows what they changed."""


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    syntax.flag("--graph", help="draw the tree, with what each step changed")
    syntax.option("--session", metavar="S", help="only checkpoints of this session")
    syntax.option("-n", name="limit", metavar="N", number=True, help="only the newest N")
    syntax.flag("--ascii", help="draw with ASCII characters only")


def run(invocation: Invocation) -> int:
    """Show the checkpoints."""
    options, terminal = invocation.options, invocation.terminal
    params: dict[str, object] = {"session": options.session}
    if options.graph and not terminal.as_json:
        params["changes"] = EXPLAINED
    result = invocation.look("log", params, "reading the history")
    if options.limit is not None and terminal.as_json:
        result["checkpoints"] = result["checkpoints"][-options.limit :] if options.limit > 0 else []

    def show() -> None:
        if options.graph:
            from harness.graph import render_graph

            render_graph(terminal, result, options.limit, options.ascii)
        else:
            from harness.render import render_log

            render_log(terminal, result, options.limit)

    return invocation.finish(result, show)
