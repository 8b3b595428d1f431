"""Some paths of one whole tree in another, against a dict of paths."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from store.entries import link_key
from store.format import Attributes, Directory, Entry, Inline, Linked, LinkTarget, Regular
from store.nodes import Pages
from store.refs import Ino
from tests.fakes.objects import MemoryObjects
from vfs.live.tree import Root
from vfs.scan.picking import pick

NAMES = [b"a", b"b", b"c"]
Leaves = dict[bytes, tuple[int, bytes]]
"""(number, content) by path; a number that several paths have is one inode."""

leaves = st.dictionaries(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join),
    st.tuples(st.integers(2, 5), st.sampled_from([b"x", b"y"])),
    max_size=6,
)


def tidy(found: Leaves) -> Leaves:
    """One content for each number, and no file below a file."""
    contents: dict[int, bytes] = {}
    kept: Leaves = {}
    for path, (number, data) in sorted(found.items()):
        if not any(path.startswith(other + b"/") for other in kept):
            kept[path] = number, contents.setdefault(number, data)
    return kept


def attributes(number: int) -> Attributes:
    return Attributes(Ino(number), 0o644, 0, 0, 0, 0)


def built(pages: Pages, found: Leaves) -> Root:
    numbers = [number for number, _ in found.values()]

    def directory(prefix: bytes) -> Directory:
        entries: dict[bytes, Entry | None] = {}
        inner = 0
        for path, (number, data) in found.items():
            if not path.startswith(prefix):
                continue
            name, _, rest = path[len(prefix) :].partition(b"/")
            if rest:
                inner += name not in entries
                entries[name] = directory(prefix + name + b"/")
            elif numbers.count(number) > 1:
                entries[name] = Linked(Ino(number))
            else:
                entries[name] = Regular(attributes(number), Inline(data))
        page = pages.update(None, entries)
        return Directory(attributes(1), None, inner, None if page is None else pages.save(page))

    rows: dict[bytes, Entry | None] = {
        link_key(Ino(number)): LinkTarget(Regular(attributes(number), Inline(data)), numbers.count(number))
        for number, data in found.values()
        if numbers.count(number) > 1
    }
    links = pages.update(None, rows)
    if links is not None:
        pages.save(links)
    return Root(directory(b""), links, 0)


def read(pages: Pages, root: Root) -> tuple[dict[bytes, bytes], dict[Ino, set[bytes]]]:
    """Contents by path, and the names of each shared inode."""
    contents: dict[bytes, bytes] = {}
    shared: dict[Ino, set[bytes]] = {}
    waiting = [(b"", root.directory)]
    while waiting:
        prefix, directory = waiting.pop()
        inner = 0
        for name, entry in pages.items(pages.page_of(directory)):
            if isinstance(entry, Directory):
                inner += 1
                waiting.append((prefix + name + b"/", entry))
                continue
            if isinstance(entry, Linked):
                shared.setdefault(entry.ino, set()).add(prefix + name)
                row = pages.get(root.links, link_key(entry.ino))
                assert isinstance(row, LinkTarget)
                assert isinstance(row.inode, Regular)
                inode = row.inode
            else:
                assert isinstance(entry, Regular)
                inode = entry
            assert isinstance(inode.content, Inline)
            contents[prefix + name] = inode.content.data
        assert inner == directory.subdirectories
    for ino, names in shared.items():
        row = pages.get(root.links, link_key(ino))
        assert isinstance(row, LinkTarget)
        assert row.links == len(names)
    assert pages.count(root.links) == len(shared)
    return contents, shared


@settings(max_examples=150, deadline=None)
@given(leaves.map(tidy), leaves.map(tidy), st.lists(st.sampled_from(NAMES), min_size=1, max_size=2).map(b"/".join))
def test_picking(onto: Leaves, source: Leaves, path: bytes) -> None:
    pages = Pages(MemoryObjects())
    fresh = count(100)
    result = pick(pages, built(pages, onto), built(pages, source), [path], lambda: Ino(next(fresh)))
    contents, _ = read(pages, result)

    def inside(one: bytes) -> bool:
        return one == path or one.startswith(path + b"/")

    came = {one: data for one, (_, data) in source.items() if inside(one)}
    # A file that stands where the path needs a directory gives way, if something comes.
    blocked = [one for one in onto if path.startswith(one + b"/")]
    stays = {one: data for one, (_, data) in onto.items() if not inside(one) and not (one in blocked and came)}
    assert contents == {**stays, **came}
