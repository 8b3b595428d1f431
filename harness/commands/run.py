"""``plyfs run``."""

from __future__ import annotations

from harness.commands.mount import CHANNELS, MODES
from harness.failure import PlyfsError
from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    syntax.option("--on-exit", choices=("apply", "keep", "discard"), help="how to unmount (default: apply)")
    syntax.option("--mode", choices=MODES, help="how to serve it")
    syntax.option("--channel", choices=CHANNELS, help="what speaks FUSE")
    syntax.argument("command", "-- COMMAND", "what to run, with its arguments", many=True)


def run(invocation: Invocation) -> int:
    """Mount, run, unmount; returns the command's status."""
    from harness.runner import Runner

    if not invocation.options.command:
        raise PlyfsError("usage", "run needs a command", "for example `plyfs run -- make test`")
    return Runner(invocation).run(invocation.options.command)
