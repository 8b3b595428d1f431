"""``plyfs install``: the extension into an agent, and out again."""

from __future__ import annotations

import os
import shutil
import sys

from harness.failure import PlyfsError
from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from harness.invocation import Invocation
    from harness.options import Syntax

AGENTS = {"pi": ("Pi", ".pi", "PI_CODING_AGENT_DIR"), "omp": ("Oh My Pi", ".omp", "PI_CODING_AGENT_DIR")}
"""Each agent's name, the directory in the user's home that it keeps its things in, and what moves that."""

NAME = "plyfs"
COMMAND_FILE = "command.json"
"""Tells the extension how plyfs is started; marks the directory as ours."""


def configure(syntax: Syntax, name: str) -> None:
    """Its options."""
    syntax.argument("agent", "AGENT", "pi or omp")
    syntax.flag("--uninstall", help="take the extension out again")


def run(invocation: Invocation) -> int:
    """Install it, or take it out."""
    name = invocation.options.agent
    if name not in AGENTS:
        raise PlyfsError("usage", f"there is no extension for {name!r}", f"AGENT is one of {', '.join(AGENTS)}")
    target = os.path.join(agent_directory(name), "extensions", NAME)
    value = uninstall(name, target) if invocation.options.uninstall else install(name, target)
    return invocation.finish(value, lambda: _show(invocation, value))


def agent_directory(name: str) -> str:
    """Where the agent looks for extensions."""
    _, directory, variable = AGENTS[name]
    return os.environ.get(variable) or os.path.join(os.path.expanduser("~"), directory, "agent")


def install(name: str, target: str) -> dict[str, Any]:
    """Put the extension where the agent finds it, in the place of an older one."""
    program = shutil.which(name)
    title = AGENTS[name][0]
    if program is None and not os.path.isdir(os.path.dirname(os.path.dirname(target))):
        raise PlyfsError(
            "failed", f"{title} is not there: no program {name!r}", f"install {title}, run it once, then again"
        )
    _check(target)
    source = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pi")
    new = f"{target}.{os.getpid()}.new"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    shutil.copy(os.path.join(source, "package.json"), new)
    shutil.copytree(os.path.join(source, "src"), os.path.join(new, "src"))
    with open(os.path.join(new, COMMAND_FILE), "w", encoding="utf-8") as file:
        file.write(quoted(command_words()))
    replaced = os.path.isdir(target)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(new, target)
    return {"agent": name, "program": program, "path": target, "done": "replaced" if replaced else "installed"}


def uninstall(name: str, target: str) -> dict[str, Any]:
    """Take it out. States, checkpoints and settings stay."""
    if not os.path.isdir(target):
        raise PlyfsError("failed", f"the extension is not in {target}", "an agent's own package manager may have it")
    _check(target)
    shutil.rmtree(target)
    return {"agent": name, "program": shutil.which(name), "path": target, "done": "removed"}


def _check(target: str) -> None:
    """Raise PlyfsError if something is there that is not ours."""
    if os.path.lexists(target) and not os.path.exists(os.path.join(target, COMMAND_FILE)):
        raise PlyfsError("refused", f"{target} is there and not from `plyfs install`", "move it away first")


def command_words() -> list[str]:
    """The words that start this very plyfs, whatever is in PATH then."""
    beside = os.path.join(os.path.dirname(sys.executable), "plyfs")
    return [beside] if os.path.exists(beside) else [sys.executable, "-P", "-m", "harness"]


def quoted(words: list[str]) -> str:
    """``words`` as JSON."""
    import json

    return json.dumps(words) + "\n"


def _show(invocation: Invocation, result: dict[str, Any]) -> None:
    from harness.terminal import shown

    terminal = invocation.terminal
    title = AGENTS[result["agent"]][0]
    if result["done"] == "removed":
        terminal.tell(f"the extension for {title} is gone from {shown(result['path'])}")
        terminal.tell("  checkpoints and settings stay")
        return
    terminal.tell(f"the extension for {title} is {result['done']}: {shown(result['path'])}")
    terminal.tell(f"  start {result['agent']} as always: /undo, /redo and /tree now move the files too")
    terminal.tell("  settings: the table [agents] of the configuration (`plyfs config`)")
    terminal.tell(f"  out again: plyfs install {result['agent']} --uninstall")
