"""What a command writes, and how: results to stdout, words for people to stderr, colour and motion on terminals only.

Owns the two streams, escaping of what a terminal would take for commands, and colours. Does not own what a result looks
like (``render``). Knows only the standard library.
"""

from __future__ import annotations

import os
import sys

from harness import quick_json
from harness.language import told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "here": "1;32",
}
MOTION = "|/-\\"
PATIENCE_SECONDS = 0.4
"""What is done sooner shows no progress."""


class Terminal:
    """Where one command writes."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.is_coloured = not as_json and is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")
        self._moves = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._drawn = False

    def result(self, value: dict[str, Any]) -> None:
        """The one JSON object of ``--json``."""
        self.say(quick_json.dumps(value))

    def say(self, text: str = "") -> None:
        """A line of the result."""
        self.write(text + "\n")

    def tell(self, text: str) -> None:
        """A line of the result that is words: in the language of who reads it."""
        self.say(told(text))

    def write(self, text: str) -> None:
        """Part of the result. Surrogate escapes become the bytes that they stand for."""
        if sys.stdout is not None:
            self.write_bytes(_encode(text, sys.stdout))

    def write_bytes(self, data: bytes) -> None:
        """Raw bytes of the result."""
        if sys.stdout is None:
            return  # closed by whoever started us
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def note(self, text: str) -> None:
        """A line for a person, on stderr, in their language."""
        if sys.stderr is None:
            return
        self.clear()
        sys.stderr.flush()
        sys.stderr.buffer.write(_encode(told(text) + "\n", sys.stderr))
        sys.stderr.buffer.flush()

    def colour(self, text: str, name: str) -> str:
        """``text`` in a colour, if stdout is a terminal."""
        return f"\x1b[{COLOURS[name]}m{text}\x1b[0m" if self.is_coloured and text else text

    def can_show(self, characters: str) -> bool:
        """True if stdout's encoding has these characters."""
        try:
            characters.encode(sys.stdout.encoding or "ascii")
        except UnicodeEncodeError:
            return False
        return True

    def waiting(self, what: str) -> Waiting | None:
        """A display of progress for ``what``, None if stderr is no terminal. ``clear`` removes it."""
        return Waiting(self, what) if self._moves else None

    def draw(self, text: str) -> None:
        """Show ``text`` on the line of progress."""
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Remove the line of progress."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


class Waiting:
    """Something that takes long. Called with the seconds passed; ``progress`` adds how far it is."""

    def __init__(self, terminal: Terminal, what: str) -> None:
        self._terminal = terminal
        self._what = told(what)
        self._progress = ""
        self._turn = 0

    def progress(self, data: dict[str, Any]) -> None:
        """A ``progress`` event: ``done`` of ``total``."""
        done, total = data.get("done"), data.get("total")
        if isinstance(done, int) and isinstance(total, int) and total > 0:
            filled = min(20, done * 20 // total)
            self._progress = f" [{'#' * filled}{'.' * (20 - filled)}] {done}/{total}"

    def __call__(self, seconds: float) -> None:
        """Draw it again."""
        if seconds >= PATIENCE_SECONDS:
            self._turn += 1
            self._terminal.draw(f"{MOTION[self._turn % 4]} {self._what}{self._progress} ({seconds:.0f} s)")


def is_terminal(stream: TextIO | None) -> bool:
    """True if ``stream`` is an open terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _encode(text: str, stream: TextIO) -> bytes:
    encoding = stream.encoding or "utf-8"
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace")


def shown(text: str) -> str:
    """``text`` for a person: quoted and escaped as git does it, if it holds control characters or is not UTF-8."""
    if text.isprintable() and not text.startswith('"'):
        return text
    parts = []
    for character in text:
        if character in '"\\':
            parts.append("\\" + character)
        elif character in _SHORT:
            parts.append(_SHORT[character])
        elif character.isprintable():
            parts.append(character)
        else:
            parts.extend(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
    return f'"{"".join(parts)}"'


_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b", "\v": "\\v", "\f": "\\f"}
