"""``plyfs config``."""

from __future__ import annotations

import os

from harness.config import load
from harness.messages import to_object
from harness.places import config_path
from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.invocation import Invocation
    from harness.options import Syntax


def configure(syntax: Syntax, name: str) -> None:
    """It has no options of its own."""


def run(invocation: Invocation) -> int:
    """Show the settings for the workspace."""
    entry = invocation.served()
    workspace = entry.workspace if entry is not None else os.path.realpath(invocation.where())
    path = config_path()
    settings = to_object(load(workspace, path))
    terminal = invocation.terminal

    def show() -> None:
        terminal.tell(f"# {path}" if os.path.exists(path) else f"# {path} (not there: all defaults)")
        for table, values in settings.items():
            terminal.say(f"[{table}]")
            for key, value in values.items():
                if value is None:
                    terminal.tell(f"# {key} is not set")
                    continue
                written = str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
                terminal.say(f"{key} = {written}")
            terminal.say()

    return invocation.finish({"path": path, "workspace": workspace, "settings": settings}, show)
