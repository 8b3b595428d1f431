"""A failure as it crosses the socket and reaches a person: a code for programs, a message, a hint; and exit statuses.

Owns the mapping from error codes to exit statuses (docs/protocol.md lists both). Knows only the standard library,
because every command starts with it. Immutable values only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

OK = 0
FAILED = 1
USAGE = 2

EXIT_STATUS = {
    "usage": USAGE,
    "config": USAGE,
    "bad_request": USAGE,
    "nothing": 3,
    "conflict": 4,
    "not_mounted": 5,
    "not_a_workspace": 5,
    "damaged": 6,
    "format": 6,
    "missing": 6,
    "locked": 7,
}
"""Exit status of each error code; every other code is ``FAILED``."""


def exit_status(code: str) -> int:
    """The exit status for an error code."""
    return EXIT_STATUS.get(code, FAILED)


class PlyfsError(Exception):
    """An expected failure. ``message`` says what failed and on what, ``hint`` what to do next."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    @classmethod
    def from_body(cls, body: object) -> PlyfsError:
        """The failure in an ``error`` object of the protocol."""
        if not isinstance(body, dict):
            return cls("protocol", f"the daemon sent an error that is not an object: {body!r}")
        return cls(str(body.get("code", "failed")), str(body.get("message", "failed")), str(body.get("hint", "")))

    def body(self) -> dict[str, str]:
        """The ``error`` object of the protocol."""
        return {"code": self.code, "message": self.message, "hint": self.hint}

    def translated(self, translate: Callable[[str], str]) -> PlyfsError:
        """The same failure in other words."""
        return PlyfsError(self.code, translate(self.message), translate(self.hint))
