"""``plyfs diff`` and ``plyfs drift``."""

from __future__ import annotations

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from harness.invocation import Invocation


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Their options."""
    if name == "drift":
        return
    parser.add_argument("a", nargs="?", metavar="A", help="a checkpoint (default: the head)")
    parser.add_argument("b", nargs="?", metavar="B", help="a checkpoint (default: the present)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--stat", action="store_true", help="lines added and removed in each file")
    form.add_argument("--name-only", action="store_true", help="just the paths")
    form.add_argument("--patch", "-p", action="store_true", help="a unified diff")


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
