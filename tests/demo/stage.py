"""How the demo tells its story: commands with what they print, and checks that must hold.

Owns the terminal output and the count of failed checks; knows nothing of the story.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

from tests.served import Plyfs
from tests.treestate import TreeState

WIDTH = 100


class Stage:
    """Prints to standard output, in colour on a terminal."""

    def __init__(self, plyfs: Plyfs, workspace: Path) -> None:
        self._plyfs = plyfs
        self._workspace = workspace
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._chapter = 0
        self.failed = 0

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def chapter(self, title: str, text: str) -> None:
        """A heading and what is about to happen."""
        self._chapter += 1
        print(f"\n{self._paint('1', f'{self._chapter}. {title}')}")
        print(textwrap.fill(" ".join(text.split()), WIDTH))

    def act(self, text: str) -> None:
        """What the scripted agent does, in the words of a shell."""
        print(self._paint("33", f"  agent$ {text}"))

    def command(self, *arguments: str, lines: int = 18) -> str:
        """Run plyfs in the workspace and show what it prints, at most ``lines`` lines of it."""
        print(self._paint("36", f"  $ plyfs {' '.join(_quoted(word) for word in arguments)}"))
        started = time.perf_counter()
        # With -C it is run from elsewhere: a dead mount cannot be entered, and one that is in use not be unmounted.
        here = Path("/") if "-C" in arguments else self._workspace
        done = self._plyfs.run(*arguments, cwd=here, check=False, timeout=120)
        seconds = time.perf_counter() - started
        output = (done.stdout + done.stderr).rstrip().splitlines()
        for line in output[:lines]:
            print(f"    {line}")
        if len(output) > lines:
            print(f"    ... {len(output) - lines} more lines")
        self.check(done.returncode == 0, f"exit {done.returncode} after {seconds * 1000:.0f} ms")
        return done.stdout

    def check(self, holds: bool, claim: str, detail: str = "") -> None:
        """Say ``claim`` and whether it holds; one that does not makes the demo fail."""
        if holds:
            print(self._paint("32", f"    ok: {claim}"))
            return
        self.failed += 1
        print(self._paint("1;31", f"    NOT OK: {claim}"))
        if detail:
            print(textwrap.indent(detail, "      "))

    def same(self, found: TreeState, wanted: TreeState, claim: str) -> None:
        """Check that two trees are the same, naming the paths that are not."""
        lines = found.differences(wanted)
        self.check(not lines, f"{claim} ({len(wanted.paths)} paths compared)", "\n".join(lines[:20]))


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word or not word else word
