"""``plyfs unmount``."""

from __future__ import annotations

import os
import time

from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from harness.invocation import Invocation
    from harness.options import Syntax
    from harness.registry import Entry
    from harness.terminal import Terminal

GONE_SECONDS = 20.0


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    for word, what in (
        ("apply", "write the changes into the real directory (the default)"),
        ("keep", "leave the changes in the store for the next mount"),
        ("discard", "drop the changes into a last checkpoint"),
    ):
        syntax.flag(f"--{word}", name="how", value=word, default="apply", help=what)
    syntax.exclusive("--apply", "--keep", "--discard")
    syntax.flag("--lazy", help="also while files are open there")


def run(invocation: Invocation) -> int:
    """Stop serving."""
    result = unmount(invocation, invocation.options.how, invocation.options.lazy)
    scanned = invocation.entry().mode == "scan"
    return invocation.finish(result, lambda: _show(invocation.terminal, result, scanned))


def unmount(invocation: Invocation, how: str, lazy: bool) -> dict[str, Any]:
    """Unmount, and wait until the daemon has gone."""
    invocation.client()
    # The mount must not be held busy by the one who asks for its end.
    os.chdir("/")
    what = {"apply": "applying", "keep": "unmounting", "discard": "discarding"}[how]
    result = invocation.call("unmount", {"how": how, "lazy": lazy}, what)
    await_end(invocation.entry())
    return result


def await_end(entry: Entry) -> None:
    """Wait until the daemon has ended, so that the next command finds nothing of it."""
    deadline = time.monotonic() + GONE_SECONDS
    while entry.is_alive() and time.monotonic() < deadline:
        time.sleep(0.005)


def _show(terminal: Terminal, result: dict[str, Any], scanned: bool) -> None:
    from harness.terminal import shown

    what = {
        "apply": f"applied {result['applied']} changes to the directory",
        "keep": "the changes stay in the store",
        "discard": "the changes are dropped",
    }[result["how"]]
    if scanned and result["how"] != "discard":
        what = "the directory stays as it is"
    terminal.tell(f"unmounted; {what}")
    terminal.tell(f"  head  {result['head']}")
    if result["saved"]:
        terminal.tell(f"  what was unsaved is checkpoint {result['saved']}")
    if result["conflicts"]:
        terminal.note(f"changed below the mount meanwhile; the directory's own versions are in {result['kept']}:")
        for path in result["conflicts"]:
            terminal.note(f"  {shown(path)}")
    if result.get("lost"):
        terminal.note("not written, because what they were made of was changed below the mount:")
        for path in result["lost"]:
            terminal.note(f"  {shown(path)}")
