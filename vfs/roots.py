"""From a checkpoint to its tree, in terms of the base as it is now.

Owns the trees that are frozen but not sealed yet, and a few of those loaded last. A tree of an earlier generation is
translated (``translate``) through every state that the base has been in since.

Concurrency: any thread; one lock guards the tables.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import nullcontext

from store.errors import DamagedError, FormatError
from store.format import Layer, decode
from store.generations import Generations
from store.history import History
from store.nodes import Pages
from store.refs import CheckpointId, LayerRef, NodeRef
from vfs.live.tree import Root
from vfs.translations import Translations
from vfs.trees.contents import Contents
from vfs.trees.diff import Changed
from vfs.trees.host import Host
from vfs.trees.translate import PutStore, steps, translate_all
from vfs.trees.view import View

CACHED = 64
"""How many trees of sealed checkpoints are kept by reference (a tree itself is a few hundred bytes)."""


def load_layer(objects: PutStore, ref: LayerRef) -> Layer:
    """The layer named ``ref``. Raises MissingError, DamagedError or FormatError."""
    layer = decode(objects.get_node(NodeRef(ref)))
    if not isinstance(layer, Layer):
        raise FormatError(f"object {ref.hex()} is not a layer")
    return layer


class Roots:
    """The trees of one workspace's checkpoints."""

    def __init__(
        self,
        objects: PutStore,
        pages: Pages,
        host: Host,
        history: History,
        generations: Generations,
        translations: Translations | None = None,
    ) -> None:
        self._translations = translations
        self._objects = objects
        self._pages = pages
        self._host = host
        self._history = history
        self._generations = generations
        self._lock = threading.Lock()
        self._frozen: dict[CheckpointId, Root] = {}
        self._loaded: OrderedDict[tuple[CheckpointId, int], Root] = OrderedDict()

    def freeze(self, id: CheckpointId, root: Root) -> None:
        """Keep the tree of a checkpoint that is not sealed yet."""
        with self._lock:
            self._frozen[id] = root

    def forget(self, id: CheckpointId) -> None:
        """The checkpoint was withdrawn."""
        with self._lock:
            self._frozen.pop(id, None)

    def sealed(self, id: CheckpointId) -> None:
        """The checkpoint's layer is stored: its tree need not be kept here."""
        with self._lock:
            root = self._frozen.pop(id, None)
            if root is not None:
                self._keep((id, root.generation), root)

    def _keep(self, key: tuple[CheckpointId, int], root: Root) -> None:
        self._loaded[key] = root
        while len(self._loaded) > CACHED:
            self._loaded.popitem(last=False)

    def of(self, id: CheckpointId) -> Root:
        """The tree of a checkpoint. Raises UnknownCheckpointError, MissingError, DamagedError or FormatError."""
        generation = self._generations.current
        with self._lock:
            root = self._frozen.get(id) or self._loaded.get((id, generation))
        if root is not None and root.generation == generation:
            return root
        if root is None:
            checkpoint = self._history.get(id)
            if checkpoint.layer is None:
                raise DamagedError(
                    f"checkpoint {id} was never sealed and its working data is gone",
                    hint="`plyfs fsck` tells what is left of it",
                )
            layer = load_layer(self._objects, checkpoint.layer)
            root = Root(layer.root, None if layer.links is None else self._pages.load(layer.links), layer.generation)
        if root.generation != generation:
            root = self._translated(root, generation)
        with self._lock:
            self._keep((id, generation), root)
        return root

    def _translated(self, root: Root, generation: int) -> Root:
        with nullcontext() if self._translations is None else self._translations.keeping():
            view, through = self.view(root), self._generations.since(root.generation)
            view = translate_all(view, self._objects, steps(view, self._objects, through))
            found = Root(view.root, view.links, generation)
            if self._translations is not None:
                self._translations.add(found)
        return found

    def close(self) -> None:
        """Nobody counts on these trees any more."""
        if self._translations is not None:
            self._translations.end()

    def uncovered(self, id: CheckpointId, changes: Iterable[Changed]) -> dict[bytes, str]:
        """Of the changes that going to ``id`` would make, the paths that it says nothing of because it was scanned and
        left them out, and why.
        """
        ref = self._history.scope(id)
        layer = self._history.get(id).layer
        if ref is None or layer is None:
            return {}
        from vfs.scan.coverage import Coverage, load_scope, uncovered  # most workspaces never need the scanner

        own = View.load(self._pages, self._host, self._objects, layer)
        contents = Contents(self._objects, self._host)
        coverage = Coverage(
            load_scope(self._objects, ref),
            own,
            lambda entry, offset, length: contents.read(entry.content, offset, length),
        )
        return uncovered(changes, coverage)

    def view(self, root: Root) -> View:
        """A tree to look into."""
        return View(self._pages, self._host, root.directory, root.links, root.generation)
