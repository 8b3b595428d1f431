"""An old tree over the new base is the old tree over the old base."""

from __future__ import annotations

import os
import random

import pytest

from tests.vfs.applying import run, step_of
from tests.vfs.overlay import Overlay, World, assert_same, random_base, random_change, snapshot, snapshot_of
from vfs.trees.diff import differences
from vfs.trees.translate import translate, translate_all
from vfs.trees.view import View


@pytest.fixture
def world(tmp_path):
    world = World(os.fspath(tmp_path))
    yield world
    world.close()


def looks_into_attic(view: View) -> bool:
    """An apply of such a tree copies from the attic; a hard link between a copy and what was not copied comes apart
    there and in older trees (each still has its bytes): nothing short of listing everything would tell.
    """
    return any(directory.origin is not None and directory.origin.tree for _, directory in view.held())


def without_links(rows):
    return {path: row[:7] for path, row in rows.items()}


@pytest.mark.parametrize("seed", range(20))
def test_random_trees_through_three_generations(tmp_path, seed):
    world = World(os.fspath(tmp_path / "w"))
    check_random(world, seed)
    world.close()


def check_random(world: World, seed: int, changes: int = 5) -> None:
    rng = random.Random(seed)
    random_base(world, rng)
    old: list[tuple[View, dict]] = []
    steps = []
    tree = Overlay(world)
    for generation in range(3):
        if old and rng.random() < 0.5:  # go on from an older state
            view, _ = rng.choice(old)
            tree = Overlay(world, translate_all(view, world.objects, steps[view.generation :]))
        else:
            tree = Overlay(world, generation=generation)
        others = [Overlay(world, generation=generation)]
        for _ in range(3):
            view = tree.seal()
            old.append((view, snapshot(view, world.contents)))
            for _ in range(changes):
                random_change(tree, rng, others)
        view = tree.seal()
        expected = snapshot(view, world.contents)
        old.append((view, expected))
        applied = run(world, view)
        real = snapshot_of(world.base)
        if looks_into_attic(view):
            assert_same(without_links(real), without_links(expected))
        else:
            assert_same(real, expected)
        if applied is None:
            empty = View.base(world.pages, world.host, generation + 1)
            steps.append(None)
            raise_generation(world, steps, view, empty)
        else:
            steps.append(step_of(world, view, applied))
        now = translate(view, world.objects, steps[-1])
        left = list(differences(View.base(world.pages, world.host, generation + 1), now))
        assert not left, left
        for before, was in old:
            now = translate_all(before, world.objects, steps[before.generation :])
            assert now.generation == generation + 1
            found = snapshot(now, world.contents)
            if any(looks_into_attic(step.applied) for step in steps):
                found, was = without_links(found), without_links(was)
            assert_same(found, was)
            check_counts(now)


def raise_generation(world, steps, view, empty):
    """Nothing was applied: a generation that ends with the base as it was."""
    from vfs.trees.translate import Step

    steps[-1] = Step(view, empty)


def check_counts(view: View) -> None:
    """The counts of subdirectories agree with what is there."""
    from store.format import Directory

    for _, entry in view.walk():
        if isinstance(entry, Directory):
            there = sum(isinstance(child, Directory) for child in view.list(entry).values())
            base = 0
            if entry.origin is not None:
                base = sum(row.type << 12 == 0o040000 for row in view.host.list(entry.origin))
            assert there - base == entry.subdirectories
