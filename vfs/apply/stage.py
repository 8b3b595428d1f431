"""The first half of an apply: everything new is made beside the base, in a staging directory in it.

Owns making and clearing the staging directory and the copies in the attic. Nothing that the user sees changes, but for
the staging directory itself: until the commit, which follows, all of it can be taken back.

Concurrency: one thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from store.disk import make_directories
from store.format import Regular, Symlink
from vfs.apply.draft import AtticCopy, Staged, StageDirectory, StageLeaf, StageLink
from vfs.apply.effects import Effects, Site

if TYPE_CHECKING:
    from collections.abc import Iterable

    from store.format import Attributes
    from vfs.trees.contents import Contents


class Grounds:
    """The directories that an apply works in: the base, the staging directory in it, and the attic's new folder."""

    def __init__(self, base_fd: int, stage: bytes, attic_dir: bytes, attic: int) -> None:
        self.base = Site(base_fd)
        self.stage_name = stage
        self.attic_path = os.path.join(attic_dir, b"%d" % attic)
        self._attic: Site | None = None

    def stage(self, path: bytes) -> bytes:
        """The path in the base of ``path`` in the staging directory."""
        return self.stage_name + b"/" + path

    @property
    def attic(self) -> Site:
        """The attic's folder, which must have been made."""
        if self._attic is None:
            self._attic = Site(os.open(self.attic_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return self._attic

    def make_attic(self, effects: Effects) -> None:
        """Make the attic's folder."""
        effects.step()
        make_directories(effects.disk, self.attic_path)

    def close(self) -> None:
        """Give all descriptors back, the base's top excepted."""
        self.base.forget()
        if self._attic is not None:
            self._attic.forget()
            os.close(self._attic.fd)
            self._attic = None


def make_staged(
    grounds: Grounds, staged: Iterable[Staged], contents: Contents, effects: Effects
) -> dict[bytes, os.stat_result]:
    """Make everything that a plan needs. Raises NoSpaceError, FsError or DamagedError; then ``clear_staged``. Returns
    what became of each ``StageLeaf``, by its path.
    """
    base = grounds.base
    made: dict[bytes, os.stat_result] = {}
    effects.mkdir(base, grounds.stage_name)
    directories: list[tuple[bytes, Attributes]] = []
    for item in staged:
        if isinstance(item, StageDirectory):
            effects.mkdir(base, grounds.stage(item.path))
            directories.append((grounds.stage(item.path), item.attributes))
        elif isinstance(item, StageLeaf):
            made[item.path] = _make_leaf(grounds, item, contents, effects)
        elif isinstance(item, StageLink):
            effects.link(base, item.base, base, grounds.stage(item.path))
        else:
            assert isinstance(item, AtticCopy)
            effects.copy_file(base, item.base, grounds.attic, item.name)
    for path, attributes in reversed(directories):
        effects.set_attributes(base, path, attributes)
    effects.sync(base)
    effects.sync(grounds.attic)
    return made


def _make_leaf(grounds: Grounds, item: StageLeaf, contents: Contents, effects: Effects) -> os.stat_result:
    base, path, inode = grounds.base, grounds.stage(item.path), item.inode
    if isinstance(inode, Regular):
        return effects.make_file(base, path, inode.content, contents, inode.attributes)
    if isinstance(inode, Symlink):
        effects.symlink(base, path, inode.target)
    else:
        effects.mknod(base, path, inode.file_type, inode.rdev)
    effects.set_attributes(base, path, inode.attributes)
    status = base.stat(path)
    assert status is not None, "it was made just now"
    return status


def clear_staged(grounds: Grounds, mtime_ns: int, effects: Effects) -> None:
    """Take everything back that ``make_staged`` made, as far as it came; the top gets its modification time back."""
    base = grounds.base
    base.forget()
    effects.remove_tree(base, grounds.stage_name)
    effects.set_mtime(base, b"", mtime_ns)
    if os.path.isdir(grounds.attic_path):
        attic = Site(os.open(os.path.dirname(grounds.attic_path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            effects.remove_tree(attic, os.path.basename(grounds.attic_path))
        finally:
            attic.forget()
            os.close(attic.fd)
