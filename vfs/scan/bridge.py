"""Going from a mount to scanning and back: the base changes hands, and with it what trees may cite.

Owns the two ends of generations (docs/adr/0004) that make each kind of checkpoint readable in the other mode, and
telling from them whose the base is. When scanning begins on the head of a mount, everything that mounts' trees cite of
the base is in the store from then on, as the first scan found it; what is not captured they go on citing, as it is.
When a mount begins on the head of a scan, the base is scanned once more, and scanned trees fall through to it wherever
they equal it. Does not own translating.

Concurrency: the workspace's store lock is held.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from store.format import FORMAT_VERSION, Directory, Entry, Layer, Origin, encode
from store.generations import Generation
from store.home import Home, WorkspaceStore
from store.nodes import Pages
from store.refs import LayerRef
from vfs.errors import FsError
from vfs.live.tree import Root
from vfs.roots import load_layer
from vfs.scan.statindex import DirectoryRecord
from vfs.trees.host import Host
from vfs.trees.view import join

Names: TypeAlias = "dict[bytes, Names | None]"

NOWHERE = b".plyfs-nowhere-"
"""A path that no base has begins with this."""


def is_scanned(home: Home, store: WorkspaceStore) -> bool:
    """True if the directory is the scanner's, not a mount's, by what is recorded durably: how the present generation
    began. Raises MissingError, DamagedError or FormatError.
    """
    ended = store.generations.all()
    if ended:
        origin = load_layer(home.objects, ended[-1].applied).root.origin
        return origin is not None and origin.path.startswith(NOWHERE)
    known = store.history.all()
    return bool(known) and store.history.scope(known[0].id) is not None


def put_layer(home: Home, directory: Directory, links: bytes | None, generation: int) -> LayerRef:
    """A layer in the store."""
    layer = Layer(FORMAT_VERSION, None, generation, directory, links)  # type: ignore[arg-type]
    return LayerRef(home.objects.put_node(encode(layer)))


def base_layer(home: Home, host: Host, generation: int) -> LayerRef:
    """The layer of the base as it is, without any override."""
    root = host.entry(Origin(0, b""))
    assert isinstance(root, Directory)
    return put_layer(home, root, None, generation)


def begin_scanning(home: Home, store: WorkspaceStore, host: Host, present: Root, citing: Iterable[bytes]) -> None:
    """End the generation of a mount: ``present``, the first scan, is what its base was; paths ``citing`` go on citing
    the base. ``present`` speaks of the generation that begins.
    """
    generations = store.generations
    number = generations.current
    assert present.generation == number + 1
    directory = Grounded(home.pages, host).with_origins(present.directory, citing)
    links = None if present.links is None else home.pages.save(present.links)
    inverse = put_layer(home, directory, links, number + 1)
    # A tree that equals no other anywhere: from now on anybody changes the base, so nothing may fall through to it.
    nowhere = Origin(0, NOWHERE + os.urandom(8).hex().encode())
    applied = put_layer(home, Directory(present.directory.attributes, nowhere, 0, None), None, number)
    home.objects.flush()
    generations.append(Generation(number, applied, inverse, home.clock.time_ns(), "outside"))


def begin_mounting(home: Home, store: WorkspaceStore, host: Host, layer: LayerRef) -> None:
    """End a generation of scans: ``layer``, the scan made just now, is what the base is."""
    generations = store.generations
    number = generations.current
    inverse = base_layer(home, host, number + 1)
    home.objects.flush()
    generations.append(Generation(number, layer, inverse, home.clock.time_ns(), "outside"))


class Grounded:
    """Puts citations of the base into a tree that has none."""

    def __init__(self, pages: Pages, host: Host) -> None:
        self._pages = pages
        self._host = host

    def with_origins(self, directory: Directory, paths: Iterable[bytes]) -> Directory:
        """``directory`` with what the base has at ``paths``."""
        names: Names = {}
        for path in paths:
            at = names
            *above, last = path.split(b"/")
            for name in above:
                inner = at.setdefault(name, {})
                if inner is None:
                    break
                at = inner
            else:
                at[last] = None
        return self._directory(b"", directory, names)

    def _directory(self, path: bytes, directory: Directory, names: Names) -> Directory:
        page = self._pages.page_of(directory)
        changes: dict[bytes, Entry | None] = {}
        count = directory.subdirectories
        for name, inner in names.items():
            where = join(path, name)
            old = self._pages.get(page, name)
            if inner is not None:
                if isinstance(old, Directory):
                    changes[name] = self._directory(where, old, inner)
                continue
            try:
                found = self._host.entry(Origin(0, where))
            except FsError:
                continue
            changes[name] = found
            count += isinstance(found, Directory) - isinstance(old, Directory)
        page = self._pages.update(page, changes)
        return Directory(directory.attributes, None, count, None if page is None else self._pages.save(page))


def cited(root: DirectoryRecord, left_out: Mapping[bytes, str]) -> list[bytes]:
    """The paths that a scan says nothing of: what it left out, and every ``.git``."""
    found = list(left_out)
    found += [join(record.path, b".git") for record in root.all() if record.git]
    return found
