"""One invocation of a command: its parsed arguments, where it writes, and the workspace that it is about.

Owns the options that every command has, the way from ``-C`` to a daemon (mending one that has died), and paths as a
person types them. Does not own what the commands do.
"""

from __future__ import annotations

import importlib
import os
import sys

from harness.client import Client, DaemonDiedError, NoDaemonError
from harness.commands import COMMANDS, EXITS
from harness.failure import PlyfsError
from harness.language import told
from harness.options import Options, Syntax
from harness.registry import Registry, current_directory, is_below
from harness.terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from harness.registry import Entry
    from harness.terminal import Waiting

    Call = Callable[[str, dict[str, Any]], dict[str, Any]]

HARMLESS = frozenset({"hello", "log", "diff", "drift", "status", "cat", "ls"})
"""What may be asked again if the daemon dies in the middle."""


class Invocation:
    """What the person asked for."""

    def __init__(self, name: str, module: Any, options: Options) -> None:
        self.name = name
        self.module = module
        self.options = options
        self.at: str | None = options.at
        self.terminal = Terminal(options.json)
        self.registry = Registry()
        self._client: Client | None = None
        self._entry: Entry | None = None

    def where(self) -> str:
        """The path that names the workspace."""
        return current_directory() if self.at is None else self.at

    def entry(self) -> Entry:
        """The registry's entry for the workspace. Raises PlyfsError unless it is served."""
        if self._entry is None:
            self._entry = self.registry.find(self.where())
            if self._entry is None:
                raise self._not_served()
        return self._entry

    def served(self) -> Entry | None:
        """As ``entry``, None if the workspace is not served."""
        return self._entry or self.registry.find(self.where())

    def _not_served(self) -> PlyfsError:
        from harness.doctor import not_served

        return not_served(self.where())

    def client(self) -> Client:
        """A connection to the workspace's daemon; one that is dead is started again first."""
        if self._client is None:
            entry = self.entry()
            try:
                self._client = Client(entry.endpoint)
            except NoDaemonError:
                from harness.doctor import revive

                self._entry = revive(self.registry, entry, self.terminal)
                self._client = Client(self._entry.endpoint)
        return self._client

    def call(self, method: str, params: dict[str, Any] | None = None, what: str = "") -> dict[str, Any]:
        """The daemon's answer. ``what`` is shown on a terminal if it takes long."""
        waiting = self.terminal.waiting(what) if what else None
        try:
            return self._call(method, params, waiting)
        except DaemonDiedError:
            if method not in HARMLESS:
                raise
            self._client = None
            return self._call(method, params, waiting)
        finally:
            self.terminal.clear()

    def _call(self, method: str, params: dict[str, Any] | None, waiting: Waiting | None) -> dict[str, Any]:
        client = self.client()
        if waiting is not None:
            from harness.progress import follow

            return follow(client, method, params, waiting)
        return client.call(method, params)

    def look(self, method: str, params: dict[str, Any], what: str) -> dict[str, Any]:
        """As ``call``, for what can be answered from the store while nothing serves the workspace."""
        if self.served() is None:
            from harness.offline import answer

            return answer(self.where(), method, params)
        return self.call(method, params, what)

    def path_in_workspace(self, path: str) -> str:
        """A path as typed (relative to ``-C``, else to the current directory) as one relative to the workspace."""
        entry = self.entry()
        top = entry.mountpoint or entry.workspace
        here = os.path.join(current_directory(), self.at or "")
        full = os.path.normpath(os.path.join(here, path))
        if is_below(full, top):
            return _relative(full, top)
        # A symbolic link leads here. The last name stays as it is: it may itself be a link that is meant.
        parent, name = os.path.split(full)
        real = os.path.join(os.path.realpath(parent), name)
        if is_below(real, top):
            return _relative(real, top)
        raise PlyfsError("usage", f"{path} is not in the workspace {top}", "give paths in it")

    def finish(self, value: dict[str, Any], show: Callable[[], None]) -> int:
        """Print the result, as JSON or as ``show`` does it; returns 0."""
        if self.terminal.as_json:
            self.terminal.result(value)
        else:
            show()
        return 0


def _relative(path: str, top: str) -> str:
    """``path`` below ``top`` as checkpoints have it, with slashes."""
    return os.path.relpath(path, top).replace(os.sep, "/") if path != top else ""


def _sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]}{'.' if what.isascii() else '。'}"


def parse(name: str, words: list[str]) -> Invocation | None:
    """The invocation of command ``name`` with the options ``words``; None if they ask for help, which is printed.

    Raises PlyfsError for wrong usage.
    """
    module_name, what = COMMANDS[name]
    module = importlib.import_module(f"harness.commands.{module_name}")
    syntax = Syntax(f"plyfs {name}", _sentence(told(what)), EXITS)
    module.configure(syntax, name)
    syntax.option("-C", name="at", metavar="PATH", help="the workspace, or a path in it (default: here)")
    syntax.flag("--json", help="print one JSON object, errors too")
    own = words[: words.index("--")] if "--" in words else words
    if "-h" in own or "--help" in own:
        sys.stdout.write(syntax.text())
        return None
    return Invocation(name, module, syntax.parse(words))
