"""The tree of a base in which somebody made changes while an apply was writing it.

Owns putting what was found into the tree of the old base, so that a checkpoint can keep it. Does not own finding it
(``run``). Concurrency: one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from store.format import FORMAT_VERSION, Attributes, Directory, Entry, Layer, Origin, encode
from store.refs import LayerRef
from vfs.errors import FsError
from vfs.trees.host import lost_ino

if TYPE_CHECKING:
    from collections.abc import Mapping

    from store.nodes import Pages
    from store.refs import NodeRef
    from vfs.trees.host import Host
    from vfs.trees.view import View

Told: TypeAlias = "dict[bytes, Told | Entry]"
"""What was found, as a tree of names."""


class NodeStore(Protocol):
    """What this needs of ``store.objects``."""

    def put_node(self, data: bytes) -> NodeRef:
        """Store a node."""
        ...

    def flush(self) -> None:
        """Return when all that was put is on the device."""
        ...


def found_layer(inverse: View, found: Mapping[bytes, Origin], host: Host, pages: Pages, objects: NodeStore) -> LayerRef:
    """The layer, stored durably, of the old base (``inverse``) with what is now at the places in ``found``."""
    told: Told = {}
    for path, origin in sorted(found.items()):
        try:
            entry = host.entry(origin)
        except FsError:
            continue  # it went again
        at: Told | Entry = told
        *above, name = path.split(b"/")
        for step in above:
            assert isinstance(at, dict)
            at = at.setdefault(step, {})
            if not isinstance(at, dict):
                break  # in a directory that was found itself
        else:
            assert isinstance(at, dict)
            at[name] = entry
    root = _Finder(inverse, pages).directory(b"", inverse.root, told)
    links = None if inverse.links is None else inverse.links.ref
    ref = LayerRef(objects.put_node(encode(Layer(FORMAT_VERSION, None, inverse.generation, root, links))))
    objects.flush()
    return ref


class _Finder:
    def __init__(self, inverse: View, pages: Pages) -> None:
        self._inverse = inverse
        self._pages = pages

    def directory(self, path: bytes, was: Directory, told: Told) -> Directory:
        """``was``, with what is ``told`` in it."""
        changes: dict[bytes, Entry | None] = {}
        more = 0
        for name, below in told.items():
            inner = path + b"/" + name if path else name
            old = self._inverse.lookup(inner)
            old_directory = old if isinstance(old, Directory) else None
            if isinstance(below, dict):
                changes[name] = self.directory(inner, old_directory or _new(inner, was.attributes), below)
            else:
                changes[name] = below
            more += isinstance(changes[name], Directory) - (old_directory is not None)
        page = self._pages.update(self._inverse.page(was), changes)
        node = None if page is None else self._pages.save(page)
        return Directory(was.attributes, was.origin, was.subdirectories + more, node)


def _new(path: bytes, above: Attributes) -> Directory:
    """A directory that the old base did not have; what is found in it was put there meanwhile."""
    attributes = Attributes(lost_ino(path), 0o755, above.uid, above.gid, above.mtime_ns, above.mtime_ns)
    return Directory(attributes, None, 0, None)
