"""A view shows what the operations that made it say, whether or not anything falls through to the base."""

from __future__ import annotations

import os
import random

import pytest

from store.errors import FormatError
from store.format import Directory, Layer, Linked, Origin, Regular
from store.nodes import Fresh, FreshDirectory
from store.refs import Ino
from tests.vfs.overlay import Overlay, World, assert_same, random_base, random_change, snapshot, snapshot_of
from vfs.trees.view import View, within


@pytest.fixture
def world(tmp_path):
    world = World(os.fspath(tmp_path))
    yield world
    world.close()


def fill(world: World) -> None:
    os.makedirs(world.base + "/d/sub")
    for name in ("d/one", "d/two", "d/sub/deep", "top"):
        with open(f"{world.base}/{name}", "w") as file:
            file.write(name)


def test_the_base_alone_is_what_is_on_disk(world):
    random_base(world, random.Random(1), 60)
    view = View.base(world.pages, world.host, 0)
    assert_same(snapshot(view, world.contents), snapshot_of(world.base))


def test_overrides_absences_and_moved_directories(world):
    fill(world)
    tree = Overlay(world)
    tree.remove(b"d/one")
    tree.write(b"d/new", b"made")
    tree.rename(b"d", b"e")
    tree.mkdir(b"d")
    view = tree.seal()
    assert sorted(path for path, _ in view.walk()) == [
        b"", b"d", b"e", b"e/new", b"e/sub", b"e/sub/deep", b"e/two", b"top",
    ]  # fmt: skip
    assert view.lookup(b"d/one") is None
    assert view.lookup(b"top/x") is None
    assert isinstance(moved := view.lookup(b"e"), Directory)
    assert moved.origin == Origin(0, b"d")
    assert view.names(moved) == {b"new", b"sub", b"two"}
    assert list(view.list(moved)) == [b"new", b"sub", b"two"]
    assert {path for path, _ in view.held()} == {b"", b"d", b"e"}
    assert {path for path, _ in view.walk(b"e/sub")} == {b"e/sub", b"e/sub/deep"}


def test_hard_links_resolve_through_the_table(world):
    fill(world)
    os.link(world.base + "/top", world.base + "/d/again")
    tree = Overlay(world)
    tree.write(b"d/again", b"changed")
    tree.link(b"d/one", b"uno")
    view = tree.seal()
    assert world.contents.read(view.lookup(b"top").content, 0, 99) == b"changed"
    assert view.lookup(b"uno") == view.lookup(b"d/one")
    base = view.lookup(b"top").attributes.ino
    linked = view.lookup(b"uno").attributes.ino
    assert view.names_of({base, linked}) == {base: {b"top", b"d/again"}, linked: {b"uno", b"d/one"}}
    tree.rename(b"d", b"moved")
    tree.remove(b"top")
    assert tree.seal().names_of({base}) == {base: {b"moved/again"}}


def test_a_layer_and_a_fresh_tree_show_the_same(world):
    random_base(world, random.Random(2), 40)
    tree = Overlay(world)
    rng = random.Random(3)
    for _ in range(40):
        random_change(tree, rng)
    view = tree.seal()
    layer = Layer(1, None, 0, view.root, None if view.links is None else view.links.ref)
    expected = snapshot(view, world.contents)
    assert_same(snapshot(View.of(world.pages, world.host, layer), world.contents), expected)
    root = view.root
    page = world.pages.page_of(root)
    fresh = FreshDirectory(root.attributes, root.origin, root.subdirectories, None, Fresh(page))
    assert_same(snapshot(View(world.pages, world.host, fresh, view.links, 0), world.contents), expected)


def test_a_name_without_its_row_is_damage(world):
    fill(world)
    view = View.base(world.pages, world.host, 0)
    with pytest.raises(FormatError):
        view.resolve(view.root, b"x", Linked(Ino(1 << 62)))


def test_a_base_path_that_vanished_is_absent(world):
    fill(world)
    view = View.base(world.pages, world.host, 0)
    os.unlink(world.base + "/top")
    assert view.lookup(b"top") is None
    assert isinstance(view.lookup(b"d/one"), Regular)


def test_within():
    top, d, inner = Origin(0, b""), Origin(0, b"d"), Origin(0, b"d/e")
    assert within(top, inner) == b"d/e"
    assert within(d, inner) == b"e"
    assert within(d, d) == b""
    assert within(top, top) == b""
    assert within(Origin(0, b"x"), inner) is None
    assert within(Origin(1, b"d"), inner) is None
    assert within(None, inner) is None
    assert within(Origin(0, b"d"), Origin(0, b"de")) is None
