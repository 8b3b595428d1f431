"""Checkpoints of small trees, made by the store alone, in the order that the sealer keeps."""

from __future__ import annotations

import os

from store.disk import Disk
from store.format import (
    CHUNK_BYTES,
    INLINE_MAX,
    Attributes,
    Blob,
    BlobPiece,
    Chunked,
    ChunkList,
    Directory,
    Inline,
    Layer,
    Origin,
    Original,
    Regular,
    decode,
    encode,
)
from store.head import Head
from store.journal import JournalWriter, journal_header
from store.nodes import Pages
from store.objects import Objects
from store.refs import LayerRef

FIRST_INO = 1 << 62


def opened(top, disk=None):
    """The objects of a store at ``top``, without the rest of a home."""
    root = top + b"/objects"
    for name in (b"/tmp", b"/packs"):
        os.makedirs(root + name, exist_ok=True)
    return Objects(root, top + b"/objects.lock", disk or Disk())


def attributes(ino=FIRST_INO, mode=0o644):
    return Attributes(ino, mode, 0, 0, 1, 1)


def content_of(objects, data):
    if isinstance(data, Original):
        return data
    if len(data) <= INLINE_MAX:
        return Inline(data)
    if len(data) <= CHUNK_BYTES:
        return Blob(objects.put_blob(data), len(data))
    pieces = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    chunks = ChunkList(tuple(BlobPiece(len(piece), objects.put_blob(piece)) for piece in pieces))
    return Chunked(objects.put_node(encode(chunks)), len(data))


def directory_of(home, tree, origin=None, into=None):
    """A directory of ``tree``: names to bytes, to Original, or to a dict for a directory below."""
    changes = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            changes[name] = directory_of(home, value, into=into)
        else:
            changes[name] = Regular(attributes(), content_of(into or home.objects, value))
    page = home.pages.update(None, changes)
    node = None if page is None else home.pages.save(page, into)
    count = sum(isinstance(value, dict) for value in tree.values())
    return Directory(attributes(1, 0o755), origin, 0 if origin else count, node)


def layer_of(home, tree, parent=None, generation=0, origin=None, into=None):
    layer = Layer(1, parent, generation, directory_of(home, tree, origin, into), None)
    return LayerRef((into or home.objects).put_node(encode(layer)))


def add_checkpoint(home, store, tree, parent=None, generation=0, origin=None, **fields):
    """A sealed checkpoint of ``tree``."""
    history = store.history
    with home.objects.sealing():
        before = None if parent is None else history.get(parent).layer
        layer = layer_of(home, tree, before, generation, origin)
        checkpoint = history.begin(parent, generation=generation, **fields)
        home.objects.flush()
        return history.seal(checkpoint.id, layer)


def set_head(store, checkpoint, **fields):
    base = store.history.all()[0].id
    values = {"head": checkpoint.id, "base": base, "epoch": 9, "generation": 0, "next_ino": FIRST_INO}
    head = Head(**(values | fields))
    store.history.write_head(head)
    return head


def read_tree(home, layer):
    """The tree of a layer as nested dicts, every byte read and verified."""
    value = decode(home.objects.get_node(layer))
    assert isinstance(value, Layer)
    return _read_directory(home, Pages(home.objects), value.root)


def _read_directory(home, pages, directory):
    tree = {}
    for name, entry in pages.items(pages.page_of(directory)):
        if isinstance(entry, Directory):
            tree[name] = _read_directory(home, pages, entry)
            continue
        match entry.content:
            case Inline(data):
                tree[name] = data
            case Blob(ref, size):
                tree[name] = home.objects.read_blob(ref, size)
            case Chunked(ref, size):
                chunks = decode(home.objects.get_node(ref))
                tree[name] = b"".join(home.objects.read_blob(piece.ref, piece.length) for piece in chunks.pieces)
                assert len(tree[name]) == size
            case Original():
                tree[name] = entry.content
    return tree


def add_journal(store, epoch, *records, **fields):
    writer = JournalWriter(store.journal_path(epoch), store.disk, journal_header(epoch, **fields))
    for record in records:
        writer.append(record)
    writer.close()


def in_attic(number, path, size, mtime_ns):
    return Original(Origin(number, path), size, mtime_ns)
