"""Some paths of one whole tree in another: for trees without origins, such as scans are.

Owns nothing; a pure function over pages. ``vfs.trees.graft`` does the same for trees over a base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from store.entries import link_key
from store.format import Directory, Entry, Linked, LinkTarget, Regular, Special, Symlink
from store.nodes import Page, Pages, same_entry, settled
from store.refs import Ino
from vfs.live.tree import Root
from vfs.trees.diff import same


def pick(pages: Pages, onto: Root, source: Root, paths: Iterable[bytes], fresh: Callable[[], Ino]) -> Root:
    """``onto`` with everything at and below ``paths`` as ``source`` has it; its pages are saved.

    ``fresh`` numbers a shared inode that is another in ``source`` than under the same number in ``onto``.
    """
    return _Pick(pages, onto, source, fresh).run(sorted(paths))


class _Pick:
    def __init__(self, pages: Pages, onto: Root, source: Root, fresh: Callable[[], Ino]) -> None:
        self._pages = pages
        self._onto = onto
        self._source = source
        self._fresh = fresh
        self._numbers: dict[Ino, Ino] = {}
        self._rows: dict[Ino, LinkTarget] = {}

    def run(self, paths: list[bytes]) -> Root:
        directory = self._onto.directory
        for path in paths:
            if not path:
                return self._source
            directory = self._at(directory, self._source.directory, path.split(b"/"))
        return Root(directory, self._links(directory), self._onto.generation)

    def _at(self, onto: Directory, source: Directory | None, parts: list[bytes]) -> Directory:
        name, rest = parts[0], parts[1:]
        page = self._pages.page_of(onto)
        ours = self._pages.get(page, name)
        theirs = None if source is None else self._pages.get(self._pages.page_of(source), name)
        new: Entry | None
        if rest and (isinstance(ours, Directory) or isinstance(theirs, Directory)):
            if isinstance(ours, Directory):
                above = ours
            else:  # the directory above it is gone here: it comes back for the path
                assert isinstance(theirs, Directory)
                above = Directory(theirs.attributes, None, 0, None)
            new = self._at(above, theirs if isinstance(theirs, Directory) else None, rest)
            if new is above:
                return onto
        elif rest:
            return onto
        else:
            new = None if theirs is None else self._carried(theirs)
            if new is ours or (new is not None and ours is not None and same_entry(ours, new)):
                return onto
        return self._with(onto, page, {name: new}, int(isinstance(new, Directory)) - int(isinstance(ours, Directory)))

    def _with(
        self, directory: Directory, page: Page | None, changes: dict[bytes, Entry | None], more: int
    ) -> Directory:
        page = self._pages.update(page, changes)
        ref = None if page is None else self._pages.save(page)
        return Directory(directory.attributes, None, directory.subdirectories + more, ref)

    # --- shared inodes ---------------------------------------------------------------------------------------------

    def _carried(self, entry: Entry) -> Entry:
        """``entry`` of the source, with the numbers of shared inodes that the new tree has for them."""
        if isinstance(entry, Linked):
            return Linked(self._number(entry.ino))
        if not isinstance(entry, Directory) or self._source.links is None:
            return entry
        page = self._pages.page_of(entry)
        changes: dict[bytes, Entry | None] = {}
        for name, inner in self._pages.items(page):
            carried = self._carried(inner)
            if carried is not inner and carried != inner:
                changes[name] = carried
        return entry if not changes else self._with(entry, page, changes, 0)

    def _number(self, ino: Ino) -> Ino:
        known = self._numbers.get(ino)
        if known is None:
            row, other = self._row(self._source.links, ino), self._row(self._onto.links, ino)
            is_it = other is None or (row is not None and same(row.inode, other.inode))
            known = self._numbers[ino] = ino if is_it else self._fresh()
            if row is not None:
                self._rows[known] = row if known == ino else _renumbered(row, known)
        return known

    def _row(self, links: Page | None, ino: Ino) -> LinkTarget | None:
        row = self._pages.get(links, link_key(ino))
        return row if isinstance(row, LinkTarget) else None

    def _links(self, directory: Directory) -> Page | None:
        """The table of the new tree: a row for each shared inode, with the number of its names."""
        if self._onto.links is None and self._source.links is None:
            return None
        counts: dict[Ino, int] = {}
        waiting = [directory]
        while waiting:
            for _, entry in self._pages.items(self._pages.page_of(waiting.pop())):
                if isinstance(entry, Directory):
                    waiting.append(entry)
                elif isinstance(entry, Linked):
                    counts[entry.ino] = counts.get(entry.ino, 0) + 1
        rows: dict[bytes, Entry | None] = {}
        for ino, count in counts.items():
            row = self._rows.get(ino) or self._row(self._onto.links, ino)
            assert row is not None, "a name of a shared inode comes with its row"
            rows[link_key(ino)] = LinkTarget(row.inode, count)
        page = self._pages.update(None, rows)
        if page is not None:
            self._pages.save(page)
        return page


def _renumbered(row: LinkTarget, ino: Ino) -> LinkTarget:
    inode = settled(row.inode)
    assert isinstance(inode, Regular | Symlink | Special)
    attributes = msgspec.structs.replace(inode.attributes, ino=ino)
    return LinkTarget(msgspec.structs.replace(inode, attributes=attributes), row.links)
