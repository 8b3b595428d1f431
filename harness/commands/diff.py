"""``plyfs diff`` and ``plyfs drift``."""

from __future__ import annotations

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax


def configure(syntax: Syntax, name: str) -> None:
    """Their options."""
    if name == "drift":
        return
    syntax.argument("a", "A", "a checkpoint (default: the head)", optional=True)
    syntax.argument("b", "B", "a checkpoint (default: the present)", optional=True)
    syntax.flag("--stat", help="lines added and removed in each file")
    syntax.flag("--name-only", help="just the paths")
    syntax.flag("-p", "--patch", help="a unified diff")
    syntax.exclusive("--stat", "--name-only", "--patch")


def run(invocation: Invocation) -> int:
    """Show the difference."""
    from harness import render

    options, terminal = invocation.options, invocation.terminal
    if invocation.name == "drift":
        result = invocation.call("drift", {}, "comparing")
        return invocation.finish(result, lambda: render.render_changes(terminal, result["changes"], "no drift"))
    params = {"a": options.a, "b": options.b, "patch": options.patch, "stat": options.stat}
    result = invocation.look("diff", params, "comparing")

    def show() -> None:
        if options.patch:
            render.render_patch(terminal, result["patch"] or "")
        elif options.stat:
            render.render_stat(terminal, result)
        elif options.name_only:
            render.render_names(terminal, result["changes"])
        else:
            render.render_changes(terminal, result["changes"], "no difference")

    return invocation.finish(result, show)
