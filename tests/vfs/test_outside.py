"""What somebody changed while the base was not mounted is found, and older trees stay what they were."""

from __future__ import annotations

import os
import random
import shutil
import stat
import time

import pytest

from store.disk import Disk
from store.errors import DamagedError
from tests.vfs.applying import run, step_of
from tests.vfs.overlay import Overlay, World, assert_same, random_base, random_change, snapshot
from vfs.apply.record import Explained
from vfs.base import outside
from vfs.base.known import KNOWN_VERSION, KnownFile, load, remember, save
from vfs.base.survey import Surveyed, renew
from vfs.trees.translate import Step, translate, translate_all
from vfs.trees.view import View


@pytest.fixture
def world(tmp_path):
    world = World(os.fspath(tmp_path))
    os.makedirs(world.base + "/src/deep")
    os.makedirs(world.base + "/other")
    for name in ("src/a", "src/deep/b", "other/c", "top"):
        put(world, name, f"this is {name}")
    yield world
    world.close()


def put(world, name, text):
    with open(f"{world.base}/{name}", "w") as file:
        file.write(text)


def written(world, known=()):
    """A tree in which plyfs wrote some files, applied. (its old view, the steps, what is known)"""
    tree = Overlay(world)
    tree.write(b"src/a", b"by plyfs")
    tree.write(b"src/deep/new", b"by plyfs too" * 20)
    tree.mkdir(b"made")
    tree.mkdir(b"made/inner")
    tree.write(b"made/inner/file", b"x" * 400, pieces=True)
    tree.symlink(b"made/link", b"target")
    tree.append(b"top", b" and what plyfs added")
    view = tree.seal()
    applied = run(world, view)
    step = step_of(world, view, applied)
    return view, [step], remembered(world, known, step, applied)


def remembered(world, known, step, applied, later_ns=1_000_000_000):
    """What is known after an apply, remembered so much later that its files are not young any more."""

    def now_ns():
        return time.time_ns() + later_ns

    inverse = step.inverse
    return remember(world.host, world.contents, known, inverse, applied.written, applied.stamps, now_ns)


def ended(world, known, generation=1):
    found = outside.look(world.host, world.contents, known)
    if not found.changes:
        return None, found.known
    ended = outside.end_generation(found.changes, generation, world.host, world.pages, world.contents, world.objects)
    load = [View.load(world.pages, world.host, world.objects, ref) for ref in (ended.applied, ended.inverse)]
    return (Step(*load), ended.paths), found.known


def text(world, view, path):
    return world.contents.read(view.lookup(path).content, 0, 1 << 20)


def test_nothing_changed(world):
    _, _, known = written(world)
    assert [one.path for one in known] == [b"made/inner/file", b"made/link", b"src/a", b"src/deep/new"]
    assert ended(world, known) == (None, known)


def test_what_plyfs_wrote_stays_in_older_trees(world):
    view, steps, known = written(world)
    was = snapshot(translate_all(view, world.objects, steps), world.contents)
    del was[b""]
    put(world, "src/a", "by somebody")
    os.unlink(world.base + "/src/deep/new")
    os.unlink(world.base + "/made/link")
    os.mkdir(world.base + "/made/link")
    os.chmod(world.base + "/made/inner/file", 0o600)
    (step, paths), left = ended(world, known)
    assert paths == [b"made/inner/file", b"made/link", b"src/a", b"src/deep/new"]
    assert left == []
    now = translate_all(view, world.objects, [*steps, step])
    assert now.generation == 2
    found = snapshot(now, world.contents)
    del found[b""]
    for path in (b"made", b"src/deep"):  # the time of a directory was not kept
        was[path] = was[path][:4] + found[path][4:]
    assert_same(found, was)
    base = View.base(world.pages, world.host, 2)
    assert text(world, base, b"src/a") == b"by somebody"
    untouched = translate(View.base(world.pages, world.host, 1), world.objects, step)
    assert text(world, untouched, b"src/a") == b"by plyfs"


def test_the_users_own_files_are_left_alone(world):
    view, steps, known = written(world)
    put(world, "other/c", "edited")
    put(world, "other/mine", "made")
    assert ended(world, known)[0] is None
    now = translate_all(view, world.objects, steps)
    assert text(world, now, b"other/c") == b"edited"
    assert now.lookup(b"other/mine") is not None


def test_a_directory_that_went(world):
    view, steps, known = written(world)
    shutil.rmtree(world.base + "/made")
    shutil.rmtree(world.base + "/src")
    put(world, "src", "a file now")
    (step, paths), _ = ended(world, known)
    assert paths == [b"made/inner/file", b"made/link", b"src/a", b"src/deep/new"]
    now = translate_all(view, world.objects, [*steps, step])
    assert text(world, now, b"made/inner/file") == b"x" * 200 + bytes(5)
    assert now.lookup(b"made/link").target == b"target"
    assert text(world, now, b"src/deep/new") == b"by plyfs too" * 20
    assert now.lookup(b"src/deep/b") is None, "nobody kept what was not plyfs's"
    back = Overlay(world, now)
    run(world, back.seal())
    with open(world.base + "/src/a") as file:
        assert file.read() == "by plyfs"


def test_a_link_to_another_place_does_not_count_as_the_directory(world):
    _, _, known = written(world)
    os.rename(world.base + "/made", world.base + "/elsewhere")
    os.symlink("elsewhere", world.base + "/made")
    (_, paths), _ = ended(world, known)
    assert paths == [b"made/inner/file", b"made/link"]


def test_the_same_bytes_restored_are_no_change(world):
    _, _, known = written(world)
    path = world.base + "/src/a"
    status = os.stat(path)
    shutil.copy2(path, path + "2")
    os.replace(path + "2", path)
    os.utime(path, ns=(1, status.st_mtime_ns))
    step, left = ended(world, known)
    assert step is None
    assert len(left) == len(known)
    assert ended(world, left) == (None, left)


def test_other_bytes_of_the_same_size_and_time_are_a_change(world):
    _, _, known = written(world)
    path = world.base + "/src/a"
    mtime = os.stat(path).st_mtime_ns
    put(world, "src/a", "BY plyfs")
    os.utime(path, ns=(1, mtime))
    (_, paths), _ = ended(world, known)
    assert paths == [b"src/a"]


def test_what_the_store_no_longer_has_cannot_be_told(world):
    _, _, known = written(world)
    put(world, "src/deep/new", "edited")
    one = next(one for one in known if one.path == b"src/deep/new")
    del world.objects.data[one.inode.content.ref]
    found = outside.look(world.host, world.contents, known)
    assert outside.end_generation(found.changes, 1, world.host, world.pages, world.contents, world.objects) is None


def test_what_is_known_moves_along_with_later_applies(world):
    view, steps, known = written(world)
    tree = Overlay(world, generation=1)
    tree.rename(b"made", b"moved")
    tree.rename(b"src/a", b"a")
    tree.chmod(b"src/deep/new", 0o600)
    tree.write(b"moved/inner/file", b"again")
    second = tree.seal()
    applied = run(world, second)
    steps.append(step_of(world, second, applied))
    known = remembered(world, known, steps[1], applied)
    assert [one.path for one in known] == [b"a", b"moved/inner/file", b"moved/link", b"src/deep/new"]
    assert ended(world, known, 2)[0] is None
    put(world, "a", "edited")
    put(world, "src/deep/new", "edited")
    (step, paths), _ = ended(world, known, 2)
    assert paths == [b"a", b"src/deep/new"]
    first = translate_all(view, world.objects, [*steps, step])
    assert text(world, first, b"src/a") == b"by plyfs"
    assert stat.S_IMODE(first.lookup(b"src/deep/new").attributes.mode) == 0o644
    assert text(world, first, b"src/deep/new") == b"by plyfs too" * 20
    last = translate_all(second, world.objects, [steps[1], step])
    assert text(world, last, b"a") == b"by plyfs"
    assert last.lookup(b"src/deep/new").attributes.mode == 0o600


@pytest.mark.parametrize("seed", range(10))
def test_random_meddling(tmp_path, seed):
    """Of everything that plyfs wrote, the applied tree still shows what it wrote."""
    world = World(os.fspath(tmp_path / "w"))
    rng = random.Random(seed)
    random_base(world, rng)
    tree = Overlay(world)
    for _ in range(15):
        random_change(tree, rng)
    view = tree.seal()
    was = snapshot(view, world.contents)
    applied = run(world, view)
    steps = [step_of(world, view, applied)]
    known = remembered(world, [], steps[0], applied)
    for one in known:
        full = os.path.join(os.fsencode(world.base), one.path)
        roll = rng.random()
        if roll < 0.3 and os.path.lexists(full):
            os.unlink(full)
        elif roll < 0.5 and os.path.isfile(full) and not os.path.islink(full):
            with open(full, "ab") as file:
                file.write(b"more")
        elif roll < 0.6 and b"/" in one.path:
            shutil.rmtree(os.path.dirname(full), ignore_errors=True)
    found, _ = ended(world, known)
    if found is not None:
        step, paths = found
        now = snapshot(translate_all(view, world.objects, [*steps, step]), world.contents)
        for path in paths:
            assert now[path][:7] == was[path][:7]
    world.close()


def test_saving(world, tmp_path):
    _, _, known = written(world)
    path = os.fsencode(tmp_path / "known")
    assert load(path).known == ()
    save(path, 3, known, Disk())
    assert load(path) == KnownFile(KNOWN_VERSION, 3, tuple(known))
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[len(data) // 2] ^= 1
        file.seek(0)
        file.write(data)
    with pytest.raises(DamagedError):
        load(path)


# The survey


def test_a_survey_finds_every_kind_of_change(world, tmp_path):
    index = os.fsencode(tmp_path / "survey")
    assert renew(world.host, index, Disk()) == []
    assert renew(world.host, index, Disk()) == []
    put(world, "src/a", "edited")
    put(world, "src/new", "made")
    shutil.rmtree(world.base + "/other")
    os.makedirs(world.base + "/zoo/inner")
    put(world, "zoo/inner/x", "1")
    os.unlink(world.base + "/src/deep/b")
    os.rename(world.base + "/top", world.base + "/src.txt")
    assert renew(world.host, index, Disk()) == [
        Surveyed(b"other", "deleted"),
        Surveyed(b"src.txt", "created"),
        Surveyed(b"top", "deleted"),
        Surveyed(b"zoo", "created"),
        Surveyed(b"src/a", "changed"),
        Surveyed(b"src/new", "created"),
        Surveyed(b"src/deep/b", "deleted"),
    ]
    assert renew(world.host, index, Disk()) == []


def test_what_plyfs_did_itself_is_explained(world, tmp_path):
    index = os.fsencode(tmp_path / "survey")
    renew(world.host, index, Disk())
    put(world, "src/a", "edited")
    put(world, "src/deep/b", "edited")
    put(world, "top", "edited")
    explained = Explained(moved=(b"src/deep",), paths=(b"top",))
    assert renew(world.host, index, Disk(), explained=explained) == [Surveyed(b"src/a", "changed")]


def surveyed(world, tmp_path, tree, meddle):
    """What a survey finds after an apply of ``tree`` and a change by somebody else."""
    index = os.fsencode(tmp_path / "survey")
    renew(world.host, index, Disk())
    applied = run(world, tree.seal())
    meddle()
    return renew(world.host, index, Disk(), explained=applied.explained)


def test_what_an_apply_did_is_explained_and_no_more(world, tmp_path):
    os.link(world.base + "/other/c", world.base + "/src/c")
    os.link(world.base + "/src/deep/b", world.base + "/top2")
    os.makedirs(world.base + "/replaced/inner")
    put(world, "replaced/inner/old", "old")
    put(world, "replaced/kept", "kept")
    os.makedirs(world.base + "/going")
    put(world, "going/along", "1")
    tree = Overlay(world)
    tree.remove(b"src/c")
    tree.chmod(b"top2", 0o600)
    tree.link(b"top", b"top3")
    tree.write(b"src/a", b"by plyfs")
    tree.remove(b"replaced")
    tree.mkdir(b"replaced")
    tree.write(b"replaced/kept", b"by plyfs")
    tree.mkdir(b"made")
    tree.mkdir(b"made/inner")
    tree.write(b"made/inner/file", b"by plyfs")
    tree.rename(b"going", b"made/gone")

    def meddle():
        put(world, "made/theirs", "1")
        put(world, "made/inner/theirs", "1")
        os.mkdir(world.base + "/made/folder")
        put(world, "made/folder/x", "in a folder that is named")
        put(world, "replaced/theirs", "1")
        put(world, "other/theirs", "1")

    assert {(row.path, row.what) for row in surveyed(world, tmp_path, tree, meddle)} == {
        (b"made/theirs", "created"),
        (b"made/inner/theirs", "created"),
        (b"made/folder", "created"),
        (b"replaced/theirs", "created"),
        (b"other/theirs", "created"),
    }


@pytest.mark.parametrize("seed", range(12))
def test_random_applies_explain_themselves(tmp_path, seed):
    world = World(os.fspath(tmp_path / "w"))
    rng = random.Random(seed)
    random_base(world, rng, 40)
    index = os.fsencode(tmp_path / "survey")
    renew(world.host, index, Disk())
    explained = Explained()
    for generation in range(3):
        tree = Overlay(world, generation=generation)
        for _ in range(10):
            random_change(tree, rng)
        applied = run(world, tree.seal())
        if applied is not None:
            explained |= applied.explained
    assert renew(world.host, index, Disk(), explained=explained) == []
    world.close()


def test_a_survey_can_be_stopped_and_survives_a_torn_index(world, tmp_path):
    index = os.fsencode(tmp_path / "survey")
    renew(world.host, index, Disk())
    put(world, "src/a", "edited")
    assert renew(world.host, index, Disk(), should_stop=lambda: True) is None
    assert not os.path.exists(index + b".new")
    assert renew(world.host, index, Disk()) == [Surveyed(b"src/a", "changed")]
    os.truncate(index, os.path.getsize(index) - 3)
    put(world, "src/a", "again")
    assert renew(world.host, index, Disk()) == []


@pytest.mark.parametrize("seed", range(8))
def test_random_surveys(tmp_path, seed):
    world = World(os.fspath(tmp_path / "w"))
    rng = random.Random(seed)
    random_base(world, rng, 40)
    index = os.fsencode(tmp_path / "survey")
    renew(world.host, index, Disk())
    before = listed(world.base)
    tree = Overlay(world)
    for _ in range(10):
        random_change(tree, rng)
    run(world, tree.seal())
    after = listed(world.base)
    expected = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    found = {row.path for row in renew(world.host, index, Disk())}
    assert found <= expected
    for path in expected:
        while path and path not in found:
            path = path.rpartition(b"/")[0]
        assert path
    world.close()


def listed(top):
    """Path to what a survey looks at; the change time counts, so does nothing of a directory."""
    found = {}
    root = os.fsencode(top)
    for directory, names, files in os.walk(root):
        for name in names + files:
            status = os.lstat(os.path.join(directory, name))
            path = os.path.relpath(os.path.join(directory, name), root)
            facts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)
            found[path] = "directory" if stat.S_ISDIR(status.st_mode) else facts
    return found
