"""Somebody works in the base below the mount while an apply writes it, or right after, within one tick of the clock.

Whatever they do at whichever effect, what they made is still there: at its path, and then it counts as changed outside
when the next mount looks; or in the attic, and then the apply tells of it and its kept tree has it. And nothing else is
taken for somebody else's.
"""

from __future__ import annotations

import os

import pytest

from tests.vfs.applying import paths, run, step_of
from tests.vfs.overlay import Overlay, World
from vfs.apply.effects import Effects
from vfs.apply.found import found_layer
from vfs.apply.whole import apply, finish, is_committed
from vfs.base import outside
from vfs.base.known import remember
from vfs.errors import FsError
from vfs.trees.host import Host
from vfs.trees.view import View

MARK = b"THEIRS"


class Meddled(Effects):
    """Effects before one of which somebody else acts."""

    def __init__(self, at, act) -> None:
        super().__init__()
        self.at = at
        self.act = act
        self.made = 0

    def step(self) -> None:
        if self.made == self.at:
            self.act()
        self.made += 1


def put(world, path, data):
    with open(os.path.join(world.base, path), "wb") as file:
        file.write(data)


def new_world(top):
    world = World(os.fspath(top))
    for directory in ("src/deep", "other", "gone", "moving/in"):
        os.makedirs(f"{world.base}/{directory}")
    for path in ("src/a", "src/deep/b", "src/c", "other/c", "gone/x", "moving/in/f", "away", "top"):
        put(world, path, b"this is " + path.encode())
    return world


def first_round(world):
    """plyfs writes some files and applies them."""
    tree = Overlay(world)
    tree.mkdir(b"known")
    for name in (b"same", b"fixed", b"renamed", b"again"):
        tree.write(b"known/" + name, b"ours: " + name)
    view = tree.seal()
    applied = run(world, view)
    step = step_of(world, view, applied)
    return remember(world.host, world.contents, (), step.inverse, applied.written, applied.stamps)


def second_tree(world):
    tree = Overlay(world, generation=1)
    tree.write(b"src/a", b"overwritten")
    tree.append(b"top", b" and more")
    tree.chmod(b"src/deep/b", 0o600)
    tree.remove(b"gone")
    tree.rename(b"moving", b"moved")
    tree.rename(b"away", b"src/here")
    tree.mkdir(b"made")
    tree.write(b"made/inner", b"made by plyfs")
    tree.write(b"new", b"made by plyfs")
    tree.symlink(b"link", b"target")
    tree.chmod(b"known/fixed", 0o600)
    tree.rename(b"known/renamed", b"known/elsewhere")
    tree.write(b"known/again", b"ours once more")
    return tree.seal()


def append(path):
    with open(path, "ab") as file:
        file.write(MARK)


def overwrite(path):
    """As many bytes as there were, in place."""
    size = os.stat(path).st_size
    with open(path, "r+b") as file:
        file.write((MARK + b" bytes" * 9)[:size])


def overwrite_in_secret(path):
    """And the modification time is put back."""
    status = os.stat(path)
    overwrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path):
    with open(path + b".tmp", "wb") as file:
        file.write(MARK)
    os.rename(path + b".tmp", path)


ACTS = (append, overwrite, overwrite_in_secret, replace, os.unlink)

VICTIMS = (
    b"src/a", b"top", b"src/deep/b", b"src/c", b"other/c", b"gone/x", b"moving/in/f", b"moved/in/f", b"away",
    b"src/here", b"made/inner", b"made/more", b"new", b"link", b"known/same", b"known/fixed", b"known/renamed",
    b"known/elsewhere", b"known/again",
)  # fmt: skip


def marked(top):
    found = set()
    root = os.fsencode(top)
    for directory, _, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                with open(path, "rb") as file:
                    if MARK in file.read():
                        found.add(os.path.relpath(path, root))
    return found


def meddle(world, victim, act, at):
    """One apply with one meddling. Returns how many effects it had."""
    acted = []

    def once():
        path = os.path.join(os.fsencode(world.base), victim)
        act_now = replace if os.path.islink(path) and act is not os.unlink else act
        if act_now in (append, replace) or os.path.lexists(path):
            try:
                act_now(path)
            except (FileNotFoundError, NotADirectoryError):
                return
            acted.append(os.path.lexists(path))

    known = first_round(world)
    effects = Meddled(at, once)
    view = second_tree(world)
    work, attic = paths(world)
    try:
        applied = apply(view, world.host, world.contents, world.objects, work, attic, effects=effects)
    except FsError:  # what it needed of the base had gone before it was staged: refused, and served again
        assert acted and not is_committed(work) and victim == b"top"
        assert not [name for name in os.listdir(world.base) if name.startswith(".plyfs")]
        assert act is os.unlink or victim in marked(world.base)
        return at
    world.host.open_attic(attic)
    inverse = View.load(world.pages, world.host, world.objects, applied.inverse)
    remembered = []

    def now():
        remembered.extend(remember(world.host, world.contents, known, inverse, applied.written, applied.stamps))

    finish(work, world.base_fd, attic, effects, remember=now)
    if effects.made <= at:
        once()
    check(world, victim, act, bool(acted), applied, inverse, remembered)
    return effects.made


def check(world, victim, act, acted, applied, inverse, known):
    base_fd = os.open(world.base, os.O_RDONLY | os.O_DIRECTORY)
    host = Host({0: base_fd})
    changed = {one.known.path: one.now for one in outside.look(host, world.contents, known).changes}
    os.close(base_fd)
    there, kept_back = marked(world.base), marked(world.attic)
    is_known = {one.path for one in known}
    assert changed.keys() <= {victim, b"known/elsewhere" if victim == b"known/renamed" else victim}
    if not acted:
        assert not changed and not applied.conflicts
        return
    if act is not os.unlink and victim != b"link":
        assert there or kept_back, "it is lost"
    for path in there & is_known:
        assert path in changed or path in applied.conflicts, "nobody was told"
    if kept_back and not there:
        told = applied.conflicts
        if act is overwrite_in_secret and not told:  # without a signature it counts as what was there before
            told = (victim,)
        ref = found_layer(inverse, applied.found, world.host, world.pages, world.objects)
        tree = View.load(world.pages, world.host, world.objects, ref)
        bodies = [world.contents.read(tree.lookup(path).content, 0, 1 << 20) for path in told]
        assert any(MARK in body for body in bodies), "nobody was told, or it cannot be had back"
    gone = {path for path in is_known if not os.path.lexists(os.path.join(os.fsencode(world.base), path))}
    assert gone <= changed.keys()


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("victim", VICTIMS, ids=os.fsdecode)
def test_somebody_else_works_in_the_base(tmp_path, victim, act):
    at = made = 0
    while at <= made + 1:  # the last one comes when all is over
        world = new_world(tmp_path / str(at))
        made = meddle(world, victim, act, at)
        world.close()
        at += 1
