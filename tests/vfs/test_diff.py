"""Differences are exactly what differs, found without looking at the rest, and renames are seen as such."""

from __future__ import annotations

import os
import random

import pytest

from store.format import Attributes, Directory, Original, Regular
from store.nodes import NO_CONTENT, Fresh, FreshRegular
from store.refs import Ino
from tests.vfs.overlay import Overlay, World, random_base, random_change, snapshot
from vfs.trees.diff import changes, differences, same
from vfs.trees.view import View


@pytest.fixture
def world(tmp_path):
    world = World(os.fspath(tmp_path))
    os.makedirs(world.base + "/src/deep")
    os.makedirs(world.base + "/.git/objects")
    for name in ("src/a.py", "src/b.py", "src/deep/c.py", "README", ".git/HEAD", ".git/objects/x"):
        with open(f"{world.base}/{name}", "w") as file:
            file.write(name)
    yield world
    world.close()


def rows(a, b, skip_git=False):
    return [(changed.kind, changed.path, changed.source) for changed in changes(a, b, skip_git)]


def base(world):
    return View.base(world.pages, world.host, 0)


def test_nothing_differs_from_itself(world):
    assert rows(base(world), base(world)) == []
    tree = Overlay(world)
    tree.write(b"new", b"1")
    assert rows(tree.seal(), tree.seal()) == []


def test_every_kind(world):
    tree = Overlay(world)
    tree.write(b"new", b"1")
    tree.write(b"README", b"2")
    tree.chmod(b"src/a.py", 0o755)
    tree.remove(b"src/b.py")
    tree.remove(b"src/deep/c.py")
    tree.symlink(b"src/deep/c.py", b"x")
    tree.rename(b".git/HEAD", b"HEAD")
    assert rows(base(world), tree.seal()) == [
        ("rename", b"HEAD", b".git/HEAD"),
        ("overwrite", b"README", None),
        ("create", b"new", None),
        ("mode", b"src/a.py", None),
        ("delete", b"src/b.py", None),
        ("type", b"src/deep/c.py", None),
    ]
    (first, *_) = changes(base(world), tree.seal())
    assert (first.change().path, first.change().source) == ("HEAD", ".git/HEAD")


def test_times_count_but_not_those_of_directories(world):
    tree = Overlay(world)
    tree.utime(b"src/a.py", 5)
    tree.utime(b"src", 5)
    assert rows(base(world), tree.seal()) == [("mode", b"src/a.py", None)]


def test_created_and_deleted_directories_are_listed_in_full(world):
    tree = Overlay(world)
    tree.remove(b"src")
    tree.mkdir(b"lib")
    tree.write(b"lib/x", b"1")
    assert rows(base(world), tree.seal()) == [
        ("create", b"lib", None),
        ("create", b"lib/x", None),
        ("delete", b"src", None),
        ("delete", b"src/a.py", None),
        ("delete", b"src/b.py", None),
        ("delete", b"src/deep", None),
        ("delete", b"src/deep/c.py", None),
    ]
    assert [d.path for d in differences(base(world), tree.seal())] == [b"lib", b"src"]


def test_a_renamed_directory_is_one_change_and_what_changed_in_it(world):
    tree = Overlay(world)
    tree.rename(b"src", b"lib")
    assert rows(base(world), tree.seal()) == [("rename", b"lib", b"src")]
    tree.write(b"lib/a.py", b"new content")
    tree.remove(b"lib/b.py")
    tree.write(b"lib/n.py", b"1")
    tree.rename(b"lib/deep/c.py", b"c.py")
    assert rows(base(world), tree.seal()) == [
        ("rename", b"c.py", b"src/deep/c.py"),
        ("rename", b"lib", b"src"),
        ("overwrite", b"lib/a.py", None),
        ("create", b"lib/n.py", None),
        ("delete", b"src/b.py", None),
    ]
    assert rows(tree.seal(), base(world))[0] == ("delete", b"lib/n.py", None)


def test_what_was_saved_from_a_deleted_directory_was_renamed(world):
    tree = Overlay(world)
    tree.rename(b"src/deep", b"kept")
    tree.rename(b"src/a.py", b"kept/a.py")
    tree.remove(b"src")
    assert rows(base(world), tree.seal()) == [
        ("rename", b"kept", b"src/deep"),
        ("rename", b"kept/a.py", b"src/a.py"),
        ("delete", b"src", None),
        ("delete", b"src/b.py", None),
    ]


def test_a_directory_replaced_by_a_file_and_back(world):
    tree = Overlay(world)
    tree.remove(b"src")
    tree.write(b"src", b"a file")
    there = tree.seal()
    assert [row[:2] for row in rows(base(world), there)] == [
        ("type", b"src"), ("delete", b"src/a.py"), ("delete", b"src/b.py"),
        ("delete", b"src/deep"), ("delete", b"src/deep/c.py"),
    ]  # fmt: skip
    assert {row[0] for row in rows(there, base(world))} == {"type", "create"}


def test_rm_and_mkdir_again_hides_what_was_there(world):
    tree = Overlay(world)
    tree.remove(b"src")
    tree.mkdir(b"src")
    tree.write(b"src/n", b"1")
    assert {row[:2] for row in rows(base(world), tree.seal())} == {
        ("create", b"src/n"), ("delete", b"src/a.py"), ("delete", b"src/b.py"),
        ("delete", b"src/deep"), ("delete", b"src/deep/c.py"),
    }  # fmt: skip


def test_git_is_left_out_at_any_depth(world):
    tree = Overlay(world)
    tree.write(b".git/HEAD", b"moved")
    tree.write(b"src/.git", b"gitdir: elsewhere")
    tree.mkdir(b"sub")
    tree.mkdir(b"sub/.git")
    tree.write(b"sub/.git/HEAD", b"1")
    assert rows(base(world), tree.seal(), skip_git=True) == [("create", b"sub", None)]
    assert len(rows(base(world), tree.seal())) == 5


def test_a_write_through_a_hard_link_shows_at_every_name(world):
    os.link(world.base + "/README", world.base + "/src/README")
    tree = Overlay(world)
    tree.link(b"src/a.py", b"a.py")
    before = tree.seal()
    assert rows(base(world), before) == [("create", b"a.py", None)]
    tree.write(b"a.py", b"2")
    tree.write(b"README", b"3")
    assert [row[:2] for row in rows(before, tree.seal())] == [
        ("overwrite", b"README"), ("overwrite", b"a.py"), ("overwrite", b"src/README"), ("overwrite", b"src/a.py"),
    ]  # fmt: skip
    tree.rename(b"src", b"lib")
    assert rows(before, tree.seal()) == [
        ("overwrite", b"README", None),
        ("overwrite", b"a.py", None),
        ("rename", b"lib", b"src"),
        ("overwrite", b"lib/README", None),
        ("overwrite", b"lib/a.py", None),
    ]
    tree.remove(b"README")
    tree.remove(b"a.py")
    assert ("overwrite", b"lib/README", None) in rows(before, tree.seal())


def test_fresh_contents_are_compared_without_being_read():
    attributes = Attributes(Ino(5), 0o644, 0, 0, 0, 0)
    one, two = Fresh("opaque"), Fresh("opaque")
    a, b, c = (FreshRegular(attributes, NO_CONTENT, fresh) for fresh in (one, two, one))
    assert same(a, c)
    assert not same(a, b)
    assert not same(a, Regular(attributes, NO_CONTENT))
    one.sealed = two.sealed = Regular(attributes, NO_CONTENT)
    assert same(a, b)


def test_an_override_that_cites_the_same_file_is_no_difference(world):
    tree = Overlay(world)
    tree.own(b"README")
    assert isinstance(tree.at(b"README").value, Original)
    tree.chmod(b"README", tree.at(b"README").mode)
    assert rows(base(world), tree.seal()) == []


def test_only_what_differs_is_looked_at(world):
    for number in range(300):
        os.makedirs(f"{world.base}/many/{number}")
    tree = Overlay(world)
    for number in range(200):
        tree.write(b"many/%d/x" % number, b"%d" % number)
    before = tree.seal()
    tree.write(b"many/7/x", b"changed")
    after = tree.seal()
    asked = []
    host = world.host
    real = type(host).stat
    try:
        type(host).stat = lambda self, origin: asked.append(origin) or real(self, origin)
        assert rows(before, after) == [("overwrite", b"many/7/x", None)]
    finally:
        type(host).stat = real
    assert len(asked) < 5


@pytest.mark.parametrize("seed", range(12))
def test_differences_of_random_trees_are_those_of_their_snapshots(tmp_path, seed):
    world = World(os.fspath(tmp_path / "w"))
    rng = random.Random(seed)
    random_base(world, rng)
    tree = Overlay(world)
    views = [base(world)]
    for _ in range(4):
        for _ in range(6):
            random_change(tree, rng, [Overlay(world)])
        views.append(tree.seal())
    for a in views:
        for b in views:
            check(world, a, b)
    world.close()


def check(world, a, b):
    """Expanding the differences gives just the paths at which the snapshots differ."""
    left, right = ({path: facts(row) for path, row in snapshot(view, world.contents).items()} for view in (a, b))
    expected = {path for path in left.keys() | right.keys() if left.get(path) != right.get(path)}
    found = set()
    for difference in differences(a, b):
        found.add(difference.path)
        before, after = difference.before, difference.after
        if isinstance(before, Directory) and isinstance(after, Directory):
            continue
        for view, entry in ((a, before), (b, after)):
            if isinstance(entry, Directory):
                found.update(path for path, _ in view.walk_in(difference.path, entry))
    same_bytes = {path for path in found - expected if path in left and path in right}
    assert found - same_bytes == expected
    for path in same_bytes:  # equal bytes that lie elsewhere count as different, nothing else does
        assert left[path] == right[path]
    described = set()
    for changed in changes(a, b):
        described.add(changed.path)
        if changed.source is not None:
            described.add(changed.source)
        for view, entry, at in ((a, changed.before, changed.source), (b, changed.after, changed.path)):
            if changed.kind == "rename" and isinstance(entry, Directory):
                described.update(path for path, _ in view.walk_in(at, entry))
    assert expected <= described


def facts(row):
    """A snapshot's row without the times of directories and without hard link groups."""
    row = row[:7]
    return row[:4] + row[5:] if row[6] is None else row
