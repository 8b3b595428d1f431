"""Directory overrides as persistent pages: a hash trie whose leaves are sorted lists of (name, entry).

Owns the in-memory trees of one store and their way to and from disk. A page is never changed once it is reachable
from a tree, except that sealing fills in what was still fresh: the same value with its name on disk. One more
change in a directory costs one leaf and the branches above it, whatever the directory's size; two trees are compared
only where they do not share pages.

Concurrency: pages are values and may be read by any thread; the cache has a lock of its own. Sealing happens in one
thread at a time (the workspace's sealer); it only ever turns fresh parts into stored ones, which readers see as the
same value.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeAlias, cast

from blake3 import blake3

from store.errors import FormatError
from store.format import (
    SLOT_BITS,
    SLOTS,
    Absent,
    BranchChild,
    BranchPage,
    Content,
    Directory,
    Entry,
    Inline,
    LeafPage,
    Linked,
    LinkTarget,
    Regular,
    Special,
    Symlink,
    decode,
    encode,
)
from store.refs import NodeRef

LEAF_MAX = 64
"""A page with more entries than this is a branch."""

CACHED_ENTRIES = 48 * 1024
"""The entries of all pages kept in memory because they were loaded or saved lately; about 350 bytes each."""

MAX_DEPTH = 64 // SLOT_BITS
"""Below this depth a name's hash is used up and the page is a leaf whatever its size."""


class Leaf:
    """Up to ``LEAF_MAX`` overrides by name. ``ref`` is its name on disk once it is sealed."""

    __slots__ = ("entries", "ref")

    def __init__(self, entries: dict[bytes, Entry], ref: NodeRef | None = None) -> None:
        self.entries = entries
        self.ref = ref


class Stored:
    """A page known by its name only, with its number of overrides."""

    __slots__ = ("count", "ref")

    def __init__(self, ref: NodeRef, count: int) -> None:
        self.ref = ref
        self.count = count


class Branch:
    """More than ``LEAF_MAX`` overrides, split by hash. ``children`` has ``SLOTS`` places."""

    __slots__ = ("children", "count", "ref")

    def __init__(
        self, children: tuple[Leaf | Branch | Stored | None, ...], count: int, ref: NodeRef | None = None
    ) -> None:
        self.children = children
        self.count = count
        self.ref = ref


Page: TypeAlias = Leaf | Branch


class Fresh:
    """What a fresh entry holds until it is sealed: for a directory its page, for a file whatever the sealer knows to
    turn into content. ``sealed`` is the entry that takes its place.
    """

    __slots__ = ("sealed", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        self.sealed: Regular | Directory | None = None


class FreshDirectory(Directory, array_like=True, frozen=True, tag=2):
    """A directory whose overrides are not on disk yet: ``fresh.value`` is its ``Page`` or None."""

    fresh: Fresh


class FreshRegular(Regular, array_like=True, frozen=True, tag=1):
    """A file whose content is not a blob yet; ``content`` is a placeholder and ``fresh.value`` knows the bytes."""

    fresh: Fresh


NO_CONTENT = Inline(b"")


def settled(entry: Entry) -> Entry:
    """The sealed entry that has taken the place of ``entry``, if sealing has come that far; else ``entry``."""
    kind = type(entry)  # asked of every entry that is looked at, so by identity: three times as fast as isinstance
    if kind is FreshRegular or kind is FreshDirectory:
        return cast("FreshRegular | FreshDirectory", entry).fresh.sealed or entry
    if kind is LinkTarget:
        row = cast("LinkTarget", entry)
        inode = settled(row.inode)
        if inode is not row.inode:
            assert isinstance(inode, Regular)
            return LinkTarget(inode, row.links)
    return entry


def is_fresh(entry: Entry) -> bool:
    """True while some part of ``entry`` still has to be sealed."""
    entry = settled(entry)
    if isinstance(entry, LinkTarget):
        return isinstance(entry.inode, FreshRegular)
    return isinstance(entry, FreshDirectory | FreshRegular)


def same_entry(a: Entry | None, b: Entry | None) -> bool:
    """True if both are certainly the same value, without reading anything below them."""
    if a is b:
        return True
    if a is None or b is None:
        return False
    a, b = settled(a), settled(b)
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, LinkTarget) and isinstance(b, LinkTarget):
        return a.links == b.links and same_entry(a.inode, b.inode)
    if isinstance(a, FreshDirectory | FreshRegular) and isinstance(b, FreshDirectory | FreshRegular):
        return a.fresh is b.fresh and a.attributes == b.attributes
    return a == b


class NodePutter(Protocol):
    """Where pages go."""

    def put_node(self, data: bytes) -> NodeRef:
        """Store ``data`` and return its name."""
        ...


class ObjectStore(NodePutter, Protocol):
    """Where pages lie; ``store.objects`` on disk, a dict in tests."""

    def get_node(self, ref: NodeRef) -> bytes:
        """The verified bytes named ``ref``. Raises MissingError or DamagedError."""
        ...


def name_hash(name: bytes) -> int:
    """The 64 bits that place ``name`` in a trie; the first ``SLOT_BITS`` of them choose the top slot."""
    return int.from_bytes(blake3(name).digest(length=8), "little")


class Pages:
    """Reads, changes, compares and saves pages over one object store. Keeps recent ones, ``cached`` entries in all."""

    def __init__(self, objects: ObjectStore, cached: int = CACHED_ENTRIES) -> None:
        self._objects = objects
        self._cached = cached
        self._cache: OrderedDict[NodeRef, Page] = OrderedDict()
        self._room = cached
        self._keeping = threading.Lock()

    def load(self, ref: NodeRef) -> Page:
        """The page named ``ref``. Raises MissingError, DamagedError or FormatError."""
        page = self._cache.get(ref)
        if page is not None:
            return page
        value = decode(self._objects.get_node(ref))
        if isinstance(value, LeafPage):
            page = Leaf(dict(value.entries), ref)
        elif isinstance(value, BranchPage):
            children: list[Leaf | Branch | Stored | None] = [None] * SLOTS
            for child in value.children:
                children[child.slot] = Stored(child.ref, child.count)
            page = Branch(tuple(children), sum(child.count for child in value.children), ref)
        else:
            raise FormatError(f"object {ref.hex()} is not a page")
        self._keep(ref, page)
        return page

    def _keep(self, ref: NodeRef, page: Page) -> None:
        with self._keeping:
            if ref in self._cache:
                return
            self._cache[ref] = page
            self._room -= _size(page)
            while self._room < 0:
                self._room += _size(self._cache.popitem(last=False)[1])

    def page_of(self, directory: Directory) -> Page | None:
        """The overrides of ``directory``, None if it has none."""
        current = settled(directory)
        if isinstance(current, FreshDirectory):
            return cast("Page | None", current.fresh.value)
        assert isinstance(current, Directory)
        return None if current.node is None else self.load(current.node)

    def _child(self, child: Leaf | Branch | Stored) -> Page:
        return self.load(child.ref) if isinstance(child, Stored) else child

    def get(self, page: Page | None, name: bytes) -> Entry | None:
        """The override for ``name``, None if there is none."""
        if page is None:
            return None
        bits = name_hash(name) if isinstance(page, Branch) else 0
        while isinstance(page, Branch):
            child = page.children[bits % SLOTS]
            if child is None:
                return None
            page = self._child(child)
            bits >>= SLOT_BITS
        return page.entries.get(name)

    def items(self, page: Page | None) -> Iterator[tuple[bytes, Entry]]:
        """Every override, in no particular order."""
        if page is None:
            return
        waiting: list[Page] = [page]
        while waiting:
            page = waiting.pop()
            if isinstance(page, Leaf):
                yield from page.entries.items()
            else:
                waiting.extend(self._child(child) for child in page.children if child is not None)

    def count(self, page: Page | None) -> int:
        """The number of overrides."""
        if page is None:
            return 0
        return len(page.entries) if isinstance(page, Leaf) else page.count

    def update(self, page: Page | None, changes: Mapping[bytes, Entry | None]) -> Page | None:
        """A page with ``changes`` made: an entry replaces or adds, None removes. ``page`` stays as it is."""
        if not changes:
            return page
        if isinstance(page, Branch) or self.count(page) + len(changes) > LEAF_MAX:
            hashed = [(name_hash(name), name, entry) for name, entry in changes.items()]
            return self._update(page, hashed, 0)
        entries = dict(page.entries) if page is not None else {}
        for name, entry in changes.items():
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        return Leaf(entries) if entries else None

    def _update(self, page: Page | None, changes: list[tuple[int, bytes, Entry | None]], depth: int) -> Page | None:
        """As ``update``, for names whose hash has been shifted right by ``depth`` slots."""
        if not isinstance(page, Branch):
            entries = dict(page.entries) if page is not None else {}
            for _, name, entry in changes:
                if entry is None:
                    entries.pop(name, None)
                else:
                    entries[name] = entry
            return self._build(entries, depth)
        slots: dict[int, list[tuple[int, bytes, Entry | None]]] = {}
        for bits, name, entry in changes:
            slots.setdefault(bits % SLOTS, []).append((bits >> SLOT_BITS, name, entry))
        children = list(page.children)
        for slot, below in slots.items():
            child = children[slot]
            children[slot] = self._update(None if child is None else self._child(child), below, depth + 1)
        count = sum(self._weight(child) for child in children)
        if count > LEAF_MAX:
            return Branch(tuple(children), count)
        merged: dict[bytes, Entry] = {}
        for child in children:
            if child is not None:
                merged.update(self.items(self._child(child)))
        return Leaf(merged) if merged else None

    @staticmethod
    def _weight(child: Leaf | Branch | Stored | None) -> int:
        if child is None:
            return 0
        return len(child.entries) if isinstance(child, Leaf) else child.count

    def _build(self, entries: dict[bytes, Entry], depth: int) -> Page | None:
        """A page of just ``entries``, whose names' hashes are used up to ``depth`` slots."""
        if not entries:
            return None
        if len(entries) <= LEAF_MAX or depth >= MAX_DEPTH:
            return Leaf(entries)
        shift = depth * SLOT_BITS
        slots: list[dict[bytes, Entry]] = [{} for _ in range(SLOTS)]
        for name, entry in entries.items():
            slots[(name_hash(name) >> shift) % SLOTS][name] = entry
        return Branch(tuple(self._build(below, depth + 1) for below in slots), len(entries))

    def differences(self, a: Page | None, b: Page | None) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
        """Each name whose override is not certainly the same in both, with both overrides; shared pages are skipped."""
        waiting: list[tuple[Page | None, Page | None]] = [(a, b)]
        while waiting:
            a, b = waiting.pop()
            if a is b or (a is not None and b is not None and a.ref is not None and a.ref == b.ref):
                continue
            if isinstance(a, Branch) and isinstance(b, Branch):
                for left, right in zip(a.children, b.children, strict=True):
                    if left is right or (left is not None and right is not None and left.ref and left.ref == right.ref):
                        continue
                    waiting.append(
                        (
                            None if left is None else self._child(left),
                            None if right is None else self._child(right),
                        )
                    )
                continue
            before = dict(self.items(a))
            for name, entry in self.items(b):
                old = before.pop(name, None)
                if old is not entry and not same_entry(old, entry):
                    yield name, old, entry
            for name, old in before.items():
                yield name, old, None

    def save(self, page: Page, into: NodePutter | None = None) -> NodeRef:
        """Store ``page`` and all fresh pages below it, whose entries must all be sealed; returns its name.

        They are put ``into`` what gathers objects of this store, if that is given.
        """
        if page.ref is not None:
            return page.ref
        value: LeafPage | BranchPage
        if isinstance(page, Leaf):
            entries = [(name, settled(entry)) for name, entry in _by_name(page.entries.items())]
            assert not any(is_fresh(entry) for _, entry in entries), "a page is saved before its entries"
            page.entries = dict(entries)
            value = LeafPage(tuple(entries))
        else:
            children = []
            for slot, child in enumerate(page.children):
                if child is not None:
                    ref = child.ref if isinstance(child, Stored) else self.save(child, into)
                    children.append(BranchChild(slot, self._weight(child), ref))
            value = BranchPage(tuple(children))
        page.ref = (into or self._objects).put_node(encode(value))
        self._keep(page.ref, page)
        return page.ref

    def fresh_entries(self, page: Page | None) -> Iterator[Entry]:
        """The entries of pages not on disk yet that still have to be sealed. Does not enter directories."""
        waiting: list[Page] = [] if page is None else [page]
        while waiting:
            page = waiting.pop()
            if page.ref is not None:
                continue
            if isinstance(page, Leaf):
                yield from (entry for entry in page.entries.values() if is_fresh(entry))
            else:
                waiting.extend(child for child in page.children if isinstance(child, Leaf | Branch))


def _size(page: Page) -> int:
    """How many entries a page holds, or children."""
    return 1 + len(page.entries) if isinstance(page, Leaf) else SLOTS


def _by_name(items: Iterable[tuple[bytes, Entry]]) -> list[tuple[bytes, Entry]]:
    return sorted(items, key=lambda item: item[0])


def attributes_entry(entry: Entry) -> Regular | Directory | Symlink | Special | None:
    """The entry itself if it carries attributes, None for ``Absent`` and ``Linked``."""
    if isinstance(entry, LinkTarget):
        return entry.inode
    return None if isinstance(entry, Absent | Linked) else entry


__all__ = [
    "LEAF_MAX",
    "NO_CONTENT",
    "SLOTS",
    "SLOT_BITS",
    "Branch",
    "Content",
    "Fresh",
    "FreshDirectory",
    "FreshRegular",
    "Leaf",
    "ObjectStore",
    "Page",
    "Pages",
    "Stored",
    "attributes_entry",
    "is_fresh",
    "name_hash",
    "same_entry",
    "settled",
]
