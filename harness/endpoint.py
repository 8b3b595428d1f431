"""Where a daemon listens: at a socket in the file system, or where there is none, at a port that asks for a token.

Owns both kinds of address, listening and connecting. A socket in a private directory is its user's alone; a port of
the loopback interface is everybody's on the machine, so whoever connects there says first the token that stands in
the registry's entry, which only its user may read. Does not own what is said then (``client``, ``server``).

Knows only the standard library, because every command goes through here (``_socket`` is the C module below ``socket``:
the latter costs 8 ms for its enums and selectors). Immutable values only.
"""

from __future__ import annotations

import _socket
import os

from harness.systems import system

LOOPBACK = "127.0.0.1"
BACKLOG = 64
TOKEN_BYTES = 32


class Endpoint:
    """``address`` is a path, or ``127.0.0.1:PORT``; then ``token`` is what clients must know."""

    __slots__ = ("address", "token")

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address
        self.token = token

    @property
    def path(self) -> str | None:
        """The socket in the file system, None for a port."""
        return None if self.address.startswith(f"{LOOPBACK}:") else self.address

    def connect(self, timeout: float) -> _socket.socket:
        """A connection, with ``timeout`` in seconds for what is done on it. Raises OSError."""
        path = self.path
        made = _socket.socket(_socket.AF_INET if path is None else _socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            made.settimeout(timeout)
            if path is None:
                made.connect((LOOPBACK, int(self.address.rpartition(":")[2])))
            else:
                made.connect(path)
        except BaseException:
            made.close()
            raise
        return made


def listen(path: str) -> tuple[_socket.socket, Endpoint]:
    """A listening socket at ``path``, for this user alone, and its address. A socket left there is replaced; the
    directory must be private. Where there are no such sockets (Windows, some file systems), a port. Raises OSError.
    """
    if system.LOCAL_SOCKETS:
        try:
            return _listen_at(path), Endpoint(path)
        except OSError:
            if os.path.lexists(path):
                raise
            # The file system has no sockets, as FAT.
    return _listen_on_loopback()


def _listen_at(path: str) -> _socket.socket:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        made.bind(path)
        os.chmod(path, 0o600)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _listen_on_loopback() -> tuple[_socket.socket, Endpoint]:
    made = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        made.bind((LOOPBACK, 0))
        made.listen(BACKLOG)
        port = made.getsockname()[1]
    except BaseException:
        made.close()
        raise
    return made, Endpoint(f"{LOOPBACK}:{port}", os.urandom(TOKEN_BYTES).hex())
