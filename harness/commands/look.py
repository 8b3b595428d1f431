"""``plyfs cat`` and ``plyfs ls``: the past, without restoring it."""

from __future__ import annotations

import os
import posixpath

from harness.failure import PlyfsError
from harness.registry import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.invocation import Invocation
    from harness.options import Syntax

CHUNK = 1 << 20


def configure(syntax: Syntax, name: str) -> None:
    """Their options."""
    if name == "cat":
        syntax.argument("what", "CHECKPOINT:PATH", "PATH from the top of the workspace")
    else:
        syntax.argument("what", "CHECKPOINT[:PATH]", "PATH from the top of the workspace")
        syntax.flag("-l", "--long", help="with mode, size and time")


def run(invocation: Invocation) -> int:
    """Show it."""
    checkpoint, path = named(invocation.options.what)
    if invocation.name == "cat":
        if path is None:
            raise PlyfsError("usage", "cat needs CHECKPOINT:PATH", "for example `plyfs cat @:README.md`")
        return _cat(invocation, checkpoint, path)
    from harness.render import render_ls

    result = invocation.look("ls", {"checkpoint": checkpoint, "path": path or ""}, "reading")
    long = invocation.options.long
    return invocation.finish(result, lambda: render_ls(invocation.terminal, result["entries"], long))


def named(what: str) -> tuple[str, str | None]:
    """The checkpoint and the path in ``CHECKPOINT:PATH``; a label may not hold a colon here."""
    checkpoint, colon, path = what.partition(":")
    if not checkpoint:
        raise PlyfsError("usage", f"{what!r} names no checkpoint", "put an id, a label, @ or base before the colon")
    if not colon:
        return checkpoint, None
    path = path.replace(os.sep, "/").strip("/")
    path = posixpath.normpath(path) if path else ""
    if path == ".." or path.startswith("../"):
        raise PlyfsError("usage", f"{what!r} leads out of the workspace", "give a path from its top")
    return checkpoint, "" if path == "." else path


def _cat(invocation: Invocation, checkpoint: str, path: str) -> int:
    if invocation.terminal.as_json:
        import base64

        data = b"".join(_chunks(invocation, checkpoint, path))
        value = {"path": path, "size": len(data), "data": base64.b64encode(data).decode()}
        invocation.terminal.result(value)
        return 0
    for data in _chunks(invocation, checkpoint, path):
        invocation.terminal.write_bytes(data)
    return 0


def _chunks(invocation: Invocation, checkpoint: str, path: str) -> Iterator[bytes]:
    import base64

    offset = 0
    while True:
        params = {"checkpoint": checkpoint, "path": path, "offset": offset, "length": CHUNK}
        data = base64.b64decode(invocation.look("cat", params, "reading")["data"])
        if data:
            yield data
        if len(data) < CHUNK:
            return
        offset += len(data)
