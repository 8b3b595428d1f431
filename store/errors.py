"""What can go wrong with a store, as typed errors that say what failed, on what, and what to do.

``harness`` maps each class to an exit status (docs/protocol.md lists them); nothing here knows about that.
"""

from __future__ import annotations


class StoreError(Exception):
    """An expected failure of the store.

    ``code`` is a stable word for programs, ``hint`` tells a person what to do next.
    """

    code = "store"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class DamagedError(StoreError):
    """Stored bytes are missing or are not what their name says."""

    code = "damaged"


class FormatError(DamagedError):
    """Stored bytes can be read but do not follow the format, or follow one of another version."""

    code = "format"


class MissingError(DamagedError):
    """An object that something refers to is not in the store."""

    code = "missing"


class LockedError(StoreError):
    """Another living process owns what was asked for."""

    code = "locked"


class UnknownCheckpointError(StoreError):
    """No checkpoint, or more than one, answers to the given name."""

    code = "unknown_checkpoint"


class NoSpaceError(StoreError):
    """The file system of the store, or of the base, is full."""

    code = "no_space"
