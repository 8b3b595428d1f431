"""``plyfs run``."""

from __future__ import annotations

from harness.failure import PlyfsError
from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from harness.invocation import Invocation


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Its options."""
    parser.add_argument("--on-exit", choices=("apply", "keep", "discard"), help="how to unmount (default: apply)")
    parser.add_argument("--mode", choices=("auto", "fuse", "scan"))
    parser.add_argument("--channel", choices=("auto", "direct", "pyfuse3"))
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="what to run, with its arguments")


def run(invocation: Invocation) -> int:
    """Mount, run, unmount; returns the command's status."""
    from harness.runner import Runner

    if not invocation.options.command:
        raise PlyfsError("usage", "run needs a command", "for example `plyfs run -- make test`")
    return Runner(invocation).run(invocation.options.command)
