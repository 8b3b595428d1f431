"""The values of a plan in the making.

Owns what an apply is going to make, move and set, before it is written down (``apply_record``). Does not own deciding
it (``apply_plan``). Concurrency: one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from store.format import Attributes, Directory, Regular, Special, Symlink

if TYPE_CHECKING:
    from store.nodes import Page
    from vfs.apply.record import Fix, Out, Put

Leaf: TypeAlias = Regular | Symlink | Special
"""What is not a directory."""


def with_attributes(inode: Leaf, attributes: Attributes) -> Leaf:
    """``inode`` with other attributes."""
    if isinstance(inode, Regular):
        return Regular(attributes, inode.content)
    if isinstance(inode, Symlink):
        return Symlink(attributes, inode.target)
    return Special(attributes, inode.file_type, inode.rdev)


class StageDirectory(NamedTuple):
    """A new directory, filled before its attributes are set."""

    path: bytes
    attributes: Attributes


class StageLeaf(NamedTuple):
    """Anything new that is not a directory."""

    path: bytes
    inode: Leaf


class StageLink(NamedTuple):
    """One more name, in the staging directory, of the base's ``base``."""

    path: bytes
    base: bytes


class Wrote(NamedTuple):
    """``path`` gets what is staged at ``slot``."""

    path: bytes
    slot: bytes
    inode: Leaf


class AtticCopy(NamedTuple):
    """A copy, called ``name`` in the attic's folder, of the file that the base has at ``base``."""

    name: bytes
    base: bytes


Staged: TypeAlias = StageDirectory | StageLeaf | StageLink | AtticCopy


@dataclass
class Draft:
    """A plan being made; see ``record.Plan``. Paths of ``staged`` and sources of ``puts`` are in staging."""

    staged: list[Staged] = field(default_factory=list)
    outs: list[Out] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)
    staged_fixes: list[Fix] = field(default_factory=list)
    directories: list[Fix] = field(default_factory=list)
    conflicts: list[bytes] = field(default_factory=list)
    lost: list[bytes] = field(default_factory=list)
    written: list[Wrote] = field(default_factory=list)
    made: list[bytes] = field(default_factory=list)
    shared: set[int] = field(default_factory=set)
    inverse: tuple[Directory, Page | None] | None = None

    @property
    def empty(self) -> bool:
        """True if the base is what the tree says."""
        return not (self.staged or self.outs or self.puts or self.fixes or self.staged_fixes or self.directories)
