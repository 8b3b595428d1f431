"""``plyfs checkpoint``."""

from __future__ import annotations

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    syntax.option("-m", "--label", help="a name for people")
    syntax.option("--session", metavar="S", help="the session that it belongs to")
    syntax.option("--node", metavar="N", help="the node of that session")
    syntax.flag("--sync", help="wait until it would survive a power loss")


def run(invocation: Invocation) -> int:
    """Make one."""
    options, terminal = invocation.options, invocation.terminal
    params = {"label": options.label, "session": options.session, "node": options.node, "sync": options.sync}
    result = invocation.call("checkpoint", params, "making a checkpoint")

    def show() -> None:
        if result["created"]:
            from harness.render import plural

            paths = plural(result["changed"], "path")
            terminal.say(f"{result['id']}  {paths}, {result['seconds'] * 1000:.1f} ms")
        else:
            terminal.tell(f"{result['id']}  nothing has changed since")
            if options.label and options.label != result["label"]:
                from harness.terminal import shown

                terminal.note(f"no checkpoint was made that could be called {shown(options.label)}")

    return invocation.finish(result, show)
