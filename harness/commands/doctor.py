"""``plyfs doctor``."""

from __future__ import annotations

from harness import doctor
from harness.failure import FAILED, OK, exit_status
from harness.language import told
from harness.messages import to_object
from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    for word, choice, what in (
        ("--finish", "finish", "finish restores of scanned workspaces that a crash interrupted"),
        ("--go-back", "back", "take restores of scanned workspaces back that a crash interrupted"),
    ):
        syntax.flag(word, name="restores", value=choice, default=None, help=what)
    syntax.exclusive("--finish", "--go-back")


def run(invocation: Invocation) -> int:
    """Look at every workspace of the store."""
    from harness.terminal import shown

    terminal = invocation.terminal
    findings = doctor.examine(invocation.registry, terminal, invocation.options.restores)
    healthy = all(finding.state == "mended" for finding in findings)
    value = {"healthy": healthy, "findings": [to_object(finding) for finding in findings]}

    def show() -> None:
        for finding in findings:
            colour = {"mended": "green", "found": "yellow", "failed": "red"}[finding.state]
            state, detail = terminal.colour(told(finding.state), colour), told(finding.detail)
            terminal.say(f"{state}  {shown(finding.subject)}: {detail}")
        if not findings:
            terminal.tell("all is well")

    invocation.finish(value, show)
    if any(finding.kind == doctor.STORE for finding in findings):
        return exit_status("damaged")
    return OK if healthy else FAILED
