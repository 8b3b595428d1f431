"""Trees made of two: one tree's ``.git`` directories in another, or some paths of one tree in another.

Pure functions from trees to a tree; nothing live is touched. They cost what differs between the two.
"""

from __future__ import annotations

from store.format import Absent, Directory, Entry, Linked, LinkTarget
from store.nodes import Fresh, FreshDirectory, Page, same_entry, settled
from vfs.swap import Value, effective
from vfs.tree import Root, Tree, link_key

GIT = b".git"


class Grafter:
    """Builds trees over the pages of ``tree``; ``onto`` gets what it lacks from ``source``."""

    def __init__(self, tree: Tree, onto: Root, source: Root) -> None:
        self._tree = tree
        self._onto = onto
        self._source = source
        self._links: dict[bytes, Entry | None] = {}

    def keep_git(self) -> Root:
        """``onto``, but with the ``.git`` that ``source`` has, wherever both have the directory that holds it.

        A ``.git`` that ``source`` has not is left as ``onto`` has it: what is gone comes back.
        """
        directory = self._graft(self._onto.directory, self._source.directory)
        return self._root(directory)

    def pick(self, paths: list[bytes]) -> Root:
        """``onto``, but with everything at and below ``paths`` as ``source`` has it (nothing, where it has nothing)."""
        directory = self._onto.directory
        for path in sorted(paths):
            if not path:
                return self._source
            directory = self._pick(directory, self._source.directory, path.split(b"/"))
        return self._root(directory)

    def _root(self, directory: Directory) -> Root:
        links = self._onto.links
        if self._links:
            links = self._tree.pages.update(links, self._links)
        return Root(directory, links, self._onto.generation)

    # --- .git ------------------------------------------------------------------------------------------------------

    def _graft(self, onto: Directory, source: Directory) -> Directory:
        if same_entry(onto, source):
            return onto
        pages = self._tree.pages
        page, source_page = self._page(onto), self._page(source)
        changes: dict[bytes, Entry | None] = {}
        more = 0
        for name in self._differing(onto, page, source, source_page):
            theirs = effective(self._tree, source, source_page, name)
            if theirs is None:
                continue
            ours = effective(self._tree, onto, page, name)
            if name == GIT:
                if ours is None or not same_entry(ours, theirs):
                    changes[name] = theirs
                    more += isinstance(theirs, Directory) - isinstance(ours, Directory)
                    self._carry_links(theirs)
            elif isinstance(theirs, Directory) and isinstance(ours, Directory):
                grafted = self._graft(ours, theirs)
                if grafted is not ours:
                    changes[name] = grafted
        if not changes:
            return onto
        return self._with(onto, pages.update(page, changes), more)

    def _differing(self, a: Directory, a_page: Page | None, b: Directory, b_page: Page | None) -> set[bytes]:
        pages = self._tree.pages
        if a.origin == b.origin:
            return {name for name, _, _ in pages.differences(a_page, b_page)}
        names = {name for name, _ in pages.items(a_page)} | {name for name, _ in pages.items(b_page)}
        if b.origin is not None:
            names.update(name for name, _, kind in self._tree.base.list(b.origin) if kind == 4 or name == GIT)
        return names

    # --- paths -----------------------------------------------------------------------------------------------------

    def _pick(self, onto: Directory, source: Directory | None, parts: list[bytes]) -> Directory:
        name, rest = parts[0], parts[1:]
        page = self._page(onto)
        ours = effective(self._tree, onto, page, name)
        theirs = None if source is None else effective(self._tree, source, self._page(source), name)
        if rest and isinstance(ours, Directory):
            below = self._pick(ours, theirs if isinstance(theirs, Directory) else None, rest)
            return onto if below is ours else self._with(onto, self._tree.pages.update(page, {name: below}), 0)
        if rest and isinstance(theirs, Directory):  # the directory above it is gone here: it comes back for the path
            empty = Directory(theirs.attributes, None, 0, None)
            below = self._pick(empty, theirs, rest)
            if below is empty:
                return onto
            theirs = below
        elif rest:
            return onto
        if (ours is None and theirs is None) or (ours is not None and theirs is not None and same_entry(ours, theirs)):
            return onto
        more = int(isinstance(theirs, Directory)) - int(isinstance(ours, Directory))
        entry: Entry | None
        if theirs is None:
            entry = Absent() if onto.origin is not None else None
        else:
            entry = theirs
            self._carry_links(theirs)
        return self._with(onto, self._tree.pages.update(page, {name: entry}), more)

    # --- both ------------------------------------------------------------------------------------------------------

    def _carry_links(self, value: Value) -> None:
        """Take the rows of the link table that ``value`` and everything below it name."""
        waiting: list[Value] = [value]
        pages = self._tree.pages
        while waiting:
            at = waiting.pop()
            if isinstance(at, Linked):
                row = pages.get(self._source.links, link_key(at.ino))
                if isinstance(row, LinkTarget):
                    self._links[link_key(at.ino)] = row
            elif isinstance(at, Directory):
                for _, entry in pages.items(self._page(at)):
                    entry = settled(entry)
                    if isinstance(entry, Linked | Directory):
                        waiting.append(entry)

    def _page(self, directory: Directory) -> Page | None:
        return self._tree.pages.page_of(directory)

    @staticmethod
    def _with(directory: Directory, page: Page | None, more: int) -> Directory:
        value = settled(directory)
        assert isinstance(value, Directory)
        count = value.subdirectories + more
        if page is None or page.ref is not None:
            return Directory(value.attributes, value.origin, count, None if page is None else page.ref)
        return FreshDirectory(value.attributes, value.origin, count, None, Fresh(page))
