"""``plyfs checkpoint``."""

from __future__ import annotations

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from harness.invocation import Invocation


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Its options."""
    parser.add_argument("-m", "--label", help="a name for people")
    parser.add_argument("--session", help="the session that it belongs to")
    parser.add_argument("--node", help="the node of that session")
    parser.add_argument("--sync", action="store_true", help="wait until it would survive a power loss")


def run(invocation: Invocation) -> int:
    """Make one."""
    options, terminal = invocation.options, invocation.terminal
    params = {"label": options.label, "session": options.session, "node": options.node, "sync": options.sync}
    result = invocation.call("checkpoint", params, "making a checkpoint")

    def show() -> None:
        if result["created"]:
            paths = "1 path" if result["changed"] == 1 else f"{result['changed']} paths"
            terminal.say(f"{result['id']}  {paths}, {result['seconds'] * 1000:.1f} ms")
        else:
            terminal.say(f"{result['id']}  nothing has changed since")

    return invocation.finish(result, show)
