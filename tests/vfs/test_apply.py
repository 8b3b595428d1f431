"""An apply makes the base equal to the tree, whatever dies when, and never loses what it replaces."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import textwrap

import pytest

from store.disk import Disk
from store.errors import DamagedError, NoSpaceError
from store.format import Blob, Directory
from store.refs import BlobRef
from tests.vfs.applying import Crash, Stopping, paths, run, step_of
from tests.vfs.overlay import Overlay, World, assert_same, random_base, random_change, snapshot, snapshot_of
from vfs.apply.effects import Effects
from vfs.apply.whole import apply, finish, plan_apply, resume
from vfs.trees.diff import differences
from vfs.trees.translate import translate
from vfs.trees.view import View

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")

MIB = 1 << 20


def fill(base: str) -> None:
    os.makedirs(base + "/src/deep/deeper")
    os.makedirs(base + "/docs")
    for name in ("src/a", "src/b", "src/deep/c", "src/deep/deeper/d", "docs/readme", "top"):
        with open(f"{base}/{name}", "w") as file:
            file.write(f"this is {name}")
    os.symlink("src/a", base + "/link")
    for path in ("top", "docs/readme", "src/a", "src/deep/deeper", "src/deep", "src", "docs", ""):
        os.utime(os.path.join(base, path), ns=(1, 1_234_567_890_123_456_789 + len(path)))


@pytest.fixture
def world(tmp_path):
    world = World(os.fspath(tmp_path))
    fill(world.base)
    yield world
    world.close()


def applied(world, tree, **options):
    """Apply ``tree``; check the base, and that the old base is still to be seen. Returns the result."""
    before = View.base(world.pages, world.host, tree.generation)
    was = snapshot(before, world.contents)
    view = tree.seal()
    expected = snapshot(view, world.contents)
    result = run(world, view, **options)
    assert_same(snapshot_of(world.base), expected)
    if result is not None:
        step = step_of(world, view, result)
        assert_same(snapshot(translate(before, world.objects, step), world.contents), was)
        now = translate(view, world.objects, step)
        assert list(differences(View.base(world.pages, world.host, tree.generation + 1), now)) == []
        assert_same(snapshot(step.inverse, world.contents), was)
    assert not [name for name in os.listdir(world.base) if name.startswith(".plyfs")]
    assert os.listdir(world.work) == []
    return result


def test_nothing_to_do(world):
    assert applied(world, Overlay(world)) is None
    tree = Overlay(world)
    tree.own(b"src/deep/c")
    assert applied(world, tree) is None


def test_every_kind_of_change(world):
    tree = Overlay(world)
    tree.write(b"new", b"made")
    tree.write(b"src/a", b"overwritten")
    tree.append(b"docs/readme", b" and more")
    tree.remove(b"src/b")
    tree.mkdir(b"dir")
    tree.mkdir(b"dir/inner", 0o700)
    tree.write(b"dir/inner/file", b"x" * 300, pieces=True)
    tree.symlink(b"dir/sym", b"/nowhere/\xff")
    tree.mkfifo(b"dir/pipe", 0o640)
    tree.chmod(b"top", 0o4711)
    tree.setxattr(b"top", b"user.test", b"value")
    tree.setxattr(b"src", b"user.test", b"value")
    tree.utime(b"link", 1_000_000_000_000_000_001)
    tree.write(b"\xff\n", b"odd name")
    result = applied(world, tree)
    assert result.conflicts == result.lost == result.notes == ()
    assert {row.path for row in result.written} == {
        b"new", b"src/a", b"dir/inner/file", b"dir/sym", b"dir/pipe", b"\xff\n",
    }  # fmt: skip


def test_a_directory_is_renamed_not_copied(world):
    tree = Overlay(world)
    ino = os.stat(world.base + "/src/deep/deeper/d").st_ino
    tree.rename(b"src", b"lib")
    tree.write(b"lib/new", b"1")
    tree.rename(b"lib/a", b"docs/a")
    applied(world, tree)
    assert os.stat(world.base + "/lib/deep/deeper/d").st_ino == ino


def test_swaps(world):
    tree = Overlay(world)
    tree.exchange(b"src", b"docs")
    tree.exchange(b"src/readme", b"top")
    tree.exchange(b"docs/deep", b"link")
    applied(world, tree)


def test_a_directory_changes_places_with_its_own_parent(world):
    tree = Overlay(world)
    tree.rename(b"src/deep", b"tmp")
    tree.rename(b"src", b"tmp/inside")
    tree.rename(b"tmp", b"src")
    applied(world, tree)
    assert sorted(os.listdir(world.base + "/src/inside")) == ["a", "b"]


def test_a_ring_of_renames(world):
    tree = Overlay(world)
    for old, new in ((b"src/a", b"t"), (b"src/b", b"src/a"), (b"top", b"src/b"), (b"t", b"top")):
        tree.rename(old, new)
    inodes = {os.stat(f"{world.base}/{name}").st_ino for name in ("src/a", "src/b", "top")}
    applied(world, tree)
    assert {os.stat(f"{world.base}/{name}").st_ino for name in ("src/a", "src/b", "top")} == inodes


def test_removed_and_made_again_holds_only_what_is_new(world):
    tree = Overlay(world)
    tree.remove(b"src")
    tree.mkdir(b"src")
    tree.write(b"src/n", b"1")
    tree.mkdir(b"src/deep")
    applied(world, tree)
    assert sorted(os.listdir(world.base + "/src")) == ["deep", "n"]
    tree = Overlay(world, generation=1)
    tree.remove(b"src")
    applied(world, tree)


def test_directory_to_file_to_symlink_and_back(world):
    tree = Overlay(world)
    tree.remove(b"src")
    tree.write(b"src", b"a file now")
    tree.remove(b"top")
    tree.mkdir(b"top")
    tree.write(b"top/x", b"1")
    tree.remove(b"link")
    tree.mkdir(b"link")
    first = tree.seal()
    applied(world, tree)
    tree = Overlay(world, generation=1)
    tree.remove(b"src")
    tree.symlink(b"src", b"docs")
    tree.remove(b"top")
    tree.write(b"top", b"")
    applied(world, tree)
    assert first.root


def test_what_was_moved_out_of_a_deleted_directory_survives(world):
    tree = Overlay(world)
    tree.rename(b"src/deep/deeper", b"kept")
    tree.rename(b"src/b", b"kept/b")
    tree.remove(b"src")
    applied(world, tree)
    assert sorted(os.listdir(world.base + "/kept")) == ["b", "d"]


def test_one_object_at_two_places(world):
    """Part of an older state was restored beside what had been renamed: one gets the original, the other a copy."""
    tree = Overlay(world)
    tree.rename(b"src", b"lib")
    tree.graft(b"src", Overlay(world).at(b"src"))
    tree.graft(b"top2", Overlay(world).at(b"top"))
    tree.write(b"src/deep/c", b"only in this one")
    applied(world, tree)


def test_restored_from_the_attic(world):
    tree = Overlay(world)
    before = tree.seal()
    tree.remove(b"src")
    tree.write(b"docs/readme", b"2")
    view = tree.seal()
    step = step_of(world, view, applied(world, tree))
    back = Overlay(world, translate(before, world.objects, step))
    assert isinstance(back.seal().lookup(b"src"), Directory)
    applied(world, back)


def test_hard_links(world):
    os.link(world.base + "/top", world.base + "/src/top")
    tree = Overlay(world)
    tree.link(b"src/a", b"docs/a")
    tree.mkdir(b"new")
    tree.write(b"new/one", b"1")
    tree.link(b"new/one", b"new/two")
    tree.link(b"new/one", b"three")
    tree.write(b"top", b"seen through the other name too")
    applied(world, tree)
    assert os.stat(world.base + "/new/two").st_nlink == 3
    tree = Overlay(world, generation=1)
    tree.remove(b"new")
    tree.chmod(b"three", 0o600)
    tree.utime(b"docs/a", world.tick())
    tree.remove(b"src/top")
    tree.link(b"top", b"docs/top")
    applied(world, tree)


def test_a_link_to_the_outside_is_not_written_through(world, tmp_path):
    outside = tmp_path / "outside"
    os.link(world.base + "/top", outside)
    tree = Overlay(world)
    tree.write(b"top", b"changed")
    applied(world, tree)
    assert outside.read_text() == "this is top"


def test_mode_zero_setuid_and_read_only_directories(world):
    os.chmod(world.base + "/src/deep", 0o555)
    tree = Overlay(world)
    tree.write(b"secret", b"1", mode=0)
    tree.write(b"tool", b"2", mode=0o6755)
    tree.mkdir(b"shut", 0)
    tree.write(b"shut/file", b"3")
    tree.write(b"src/deep/new", b"4")
    tree.chmod(b"docs", 0)
    applied(world, tree)
    assert stat.S_IMODE(os.stat(world.base + "/tool").st_mode) == 0o6755


@root_only
@pytest.mark.root
def test_owners_devices_and_capabilities(world):
    tree = Overlay(world)
    tree.write(b"owned", b"1", mode=0o4755)
    tree.own(b"owned").uid = tree.own(b"owned").gid = 1234
    tree.own(b"top").uid = 4321
    device = tree._make(b"null", stat.S_IFCHR, 0o666, os.makedev(1, 3))
    assert device.value
    applied(world, tree)
    assert os.stat(world.base + "/owned").st_uid == 1234


def test_sparse_files_stay_sparse(world):
    with open(world.base + "/sparse", "wb") as file:
        file.seek(32 * MIB)
        file.write(b"middle")
        file.truncate(64 * MIB)
    tree = Overlay(world)
    tree.append(b"sparse", b"the end")
    view = tree.seal()
    run(world, view)
    status = os.stat(world.base + "/sparse")
    assert status.st_size == 64 * MIB + 7
    assert status.st_blocks * 512 < MIB


def test_shown_times_win(world):
    """A file that a restore brought back was shown with a fresh time: builds rely on it after the unmount too."""
    tree = Overlay(world)
    tree.write(b"new", b"1")
    tree.own(b"src/a")
    shown = {b"new": 1_700_000_000_000_000_001, b"src/a": 1_700_000_000_000_000_002, b"top": 1_700_000_000_000_000_003}
    before = View.base(world.pages, world.host, 0)
    was = snapshot(before, world.contents)
    view = tree.seal()
    result = run(world, view, presented=shown)
    for path, mtime_ns in shown.items():
        assert os.stat(os.path.join(world.base, os.fsdecode(path))).st_mtime_ns == mtime_ns
    step = step_of(world, view, result)
    old = snapshot(translate(before, world.objects, step), world.contents)
    del old[b"top"], was[b"top"]  # the two trees have the same: both show what the base has now
    assert_same(old, was)
    now = translate(view, world.objects, step)
    assert list(differences(View.base(world.pages, world.host, 1), now)) == [], "what was applied is the base"


def test_a_plan_costs_what_differs(world):
    for number in range(400):
        os.makedirs(f"{world.base}/many/{number}")
    tree = Overlay(world)
    tree.write(b"many/7/x", b"1")
    tree.rename(b"many/9", b"nine")
    view = tree.seal()
    real = type(world.host).stat
    asked = []
    try:
        type(world.host).stat = lambda self, origin: asked.append(origin) or real(self, origin)
        plan_apply(view, world.host, world.contents, paths(world)[1], since_ns=1)
    finally:
        type(world.host).stat = real
    assert len(asked) < 30


def test_a_damaged_object_stops_everything_before_it_begins(world):
    tree = Overlay(world)
    tree.write(b"src/a", b"1")
    tree.write(b"big", b"x" * 500)
    tree.at(b"big").value = Blob(BlobRef(bytes(32)), 500)
    before = snapshot_of(world.base)
    with pytest.raises(Exception, match="missing"):
        run(world, tree.seal())
    assert_same(snapshot_of(world.base), before)
    assert os.listdir(world.attic) == os.listdir(world.work) == []


# Changes below the mount


def since(world) -> int:
    """A moment after everything in the base, by its own clock."""
    path = world.base + "/clock"
    for _ in range(100):
        with open(path, "w"):
            pass
        now = os.stat(path).st_ctime_ns
        os.unlink(path)
        with open(path, "w"):
            pass
        later = os.stat(path).st_ctime_ns
        os.unlink(path)
        if later > now:
            break
    os.utime(world.base, ns=(1, 1_234_567_890_123_456_789))
    return now


def test_what_changed_below_the_mount_is_kept_and_told(world):
    moment = since(world)
    tree = Overlay(world)
    tree.write(b"src/a", b"ours")
    tree.remove(b"docs")
    tree.chmod(b"top", 0o600)
    tree.write(b"src/b", b"ours, without a conflict")
    view = tree.seal()
    for name in ("src/a", "docs/readme"):
        with open(f"{world.base}/{name}", "w") as file:
            file.write(f"theirs {name}")
    with open(world.base + "/top", "a") as file:
        file.write("!")
    result = run(world, view, since_ns=moment)
    assert set(result.conflicts) == {b"src/a", b"docs/readme"}
    assert result.lost == (b"top",)
    inverse = step_of(world, view, result).inverse
    for name in ("src/a", "docs/readme"):
        content = inverse.lookup(name.encode()).content
        assert world.contents.read(content, 0, 99) == f"theirs {name}".encode()
    with open(world.base + "/src/a") as file:
        assert file.read() == "ours"
    with open(world.base + "/top") as file:
        assert file.read() == "this is top!"


class Meddling(Effects):
    """Somebody writes into the base between the plan and its execution."""

    def __init__(self, at: int, meddle) -> None:
        super().__init__()
        self.at = at
        self.meddle = meddle

    def step(self) -> None:
        self.at -= 1
        if self.at == 0:
            self.meddle()


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_somebody_meddles_meanwhile(world, at):
    """Whatever they do, and whenever, the apply ends, and their bytes are in the base or in the attic."""

    done = []

    def meddle():
        done.append(1)
        with open(world.base + "/src/new", "w") as file:
            file.write("foreign 1")
        with open(world.base + "/top", "w") as file:
            file.write("foreign 2")
        shutil.rmtree(world.base + "/docs", ignore_errors=True)

    tree = Overlay(world)
    tree.write(b"src/new", b"ours")
    tree.write(b"top", b"ours")
    tree.write(b"docs/deep", b"ours")
    tree.rename(b"src/deep", b"docs/moved")
    run(world, tree.seal(), effects=Meddling(at, meddle))
    found = []
    for top in (world.base, world.attic):
        for directory, _, names in os.walk(top):
            for name in names:
                with open(os.path.join(directory, name), "rb") as file:
                    found.append(file.read())
    assert not done or {b"foreign 1", b"foreign 2"} <= set(found)
    assert done or found.count(b"ours") == 3
    assert not [name for name in os.listdir(world.base) if name.startswith(".plyfs")]


def test_a_base_directory_that_vanished(world):
    tree = Overlay(world)
    tree.write(b"src/deep/new", b"1")
    tree.rename(b"docs", b"texts")
    tree.chmod(b"top", 0o600)
    view = tree.seal()
    shutil.rmtree(world.base + "/src")
    shutil.rmtree(world.base + "/docs")
    os.unlink(world.base + "/top")
    result = run(world, view)
    assert set(result.lost) == {b"src", b"src/deep", b"texts", b"top"}
    assert os.listdir(world.base + "/src/deep") == ["new"]


@pytest.fixture
def mounted(tmp_path):
    """A function that mounts a tmpfs of a size at a directory."""
    points = []

    def mount(path, size):
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)
        points.append(path)

    yield mount
    for path in reversed(points):
        subprocess.run(["umount", "-l", path], check=True)


# Crashes


def rich_tree(world) -> Overlay:
    os.link(world.base + "/top", world.base + "/docs/top")
    tree = Overlay(world)
    tree.exchange(b"src/a", b"src/b")
    tree.rename(b"src/deep", b"moved")
    tree.rename(b"moved/deeper", b"src/deep")
    tree.write(b"src/deep/d", b"new content")
    tree.write(b"top", b"through a link")
    tree.remove(b"docs/readme")
    tree.mkdir(b"fresh")
    tree.write(b"fresh/one", b"1" * 200)
    tree.link(b"fresh/one", b"two")
    tree.rename(b"moved/c", b"fresh/c")
    tree.remove(b"link")
    tree.mkdir(b"link", 0o711)
    tree.chmod(b"docs", 0o2750)
    return tree


def test_a_crash_after_every_effect(tmp_path):
    """Whenever the machine stops, the base is the old tree or, once committed, becomes the new one."""
    assert crash_everywhere(tmp_path, None) > 30


@root_only
@pytest.mark.root
def test_a_crash_after_every_effect_with_an_attic_on_another_file_system(tmp_path, mounted):
    mounted(tmp_path / "elsewhere", "64m")
    assert crash_everywhere(tmp_path, tmp_path / "elsewhere") > 30


def crash_everywhere(tmp_path, attics) -> int:
    """The number of effects after which the machine stopped and the apply was rolled forward."""
    allowed = 0
    finished = False
    committed = set()
    while not finished:
        top = tmp_path / str(allowed)
        world = World(os.fspath(top))
        if attics is not None:
            world.attic = os.fspath(attics / str(allowed))
            os.mkdir(world.attic)
        fill(world.base)
        tree = rich_tree(world)
        before = View.base(world.pages, world.host, 0)
        was = snapshot(before, world.contents)
        view = tree.seal()
        expected = snapshot(view, world.contents)
        work, attic = paths(world)
        effects = Stopping(allowed)
        try:
            result = apply(view, world.host, world.contents, world.objects, work, attic, effects=effects)
            finish(work, world.base_fd, attic, effects)
            finished = True
        except Crash:
            result = None
            for second in (2, 5, 1000000):  # it stops again while it is mended
                try:
                    effects = Stopping(second)
                    result = resume(work, world.base_fd, attic, effects)
                    if result is not None:
                        finish(work, world.base_fd, attic, effects)
                    break
                except Crash:
                    pass
            world.host.forget_names()
        real = snapshot_of(world.base)
        assert os.listdir(world.work) == []
        if real != was or finished:
            assert_same(real, expected)
            world.host.open_attic(attic)
            if result is not None:
                committed.add(allowed)
                step = step_of(world, view, result)
                assert_same(snapshot(translate(before, world.objects, step), world.contents), was)
        else:
            assert result is None
            assert os.listdir(world.attic) == []
        world.close()
        shutil.rmtree(top)
        allowed += 1
    return len(committed)


@pytest.mark.parametrize("seed", range(6))
def test_crashes_in_random_trees(tmp_path, seed):
    rng = random.Random(1000 + seed)
    for attempt in range(8):
        world = World(os.fspath(tmp_path / str(attempt)))
        random_base(world, random.Random(seed))
        tree = Overlay(world)
        changes = random.Random(seed)
        for _ in range(12):
            random_change(tree, changes, [Overlay(world)])
        before = View.base(world.pages, world.host, 0)
        was = snapshot(before, world.contents)
        view = tree.seal()
        expected = snapshot(view, world.contents)
        work, attic = paths(world)
        result = None
        try:
            effects = Stopping(rng.randrange(10, 120))
            result = apply(view, world.host, world.contents, world.objects, work, attic, effects=effects)
            finish(work, world.base_fd, attic, effects)
        except Crash:
            result = resume(work, world.base_fd, attic) or result
            finish(work, world.base_fd, attic)
        real = snapshot_of(world.base)
        assert_same(real, was if result is None and real != expected else expected)
        world.close()


@pytest.mark.parametrize("name", ["plan", "intent"])
def test_a_damaged_record_is_never_followed(world, name):
    """A flipped bit could move another file, or clear away another folder of the attic."""
    tree = Overlay(world)
    tree.write(b"src/a", b"overwritten")
    tree.remove(b"docs")
    view = tree.seal()
    expected = snapshot(view, world.contents)
    work, attic = paths(world)
    path = os.path.join(world.work, name)
    effects = Stopping(0)
    while not os.path.exists(path):
        effects.allowed += 1
        with pytest.raises(Crash):
            resume(work, world.base_fd, attic, Effects())
            effects.made = 0
            apply(view, world.host, world.contents, world.objects, work, attic, effects=effects)
    with open(path, "rb") as file:
        good = file.read()
    before = snapshot_of(world.base)
    for at in range(0, len(good), 7):
        with open(path, "wb") as file:
            file.write(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(DamagedError):
            resume(work, world.base_fd, attic)
        assert snapshot_of(world.base) == before
    with open(path, "wb") as file:
        file.write(good)
    if resume(work, world.base_fd, attic) is not None:
        finish(work, world.base_fd, attic)
        assert_same(snapshot_of(world.base), expected)
    assert os.listdir(world.work) == []


class FullAt(Disk):
    """A store whose file system is full."""

    def replace(self, path, data, sync):
        if path.endswith(b"plan"):
            raise NoSpaceError("no space left")
        super().replace(path, data, sync)


def test_no_space_for_the_record_takes_everything_back(world):
    before = snapshot_of(world.base)
    tree = rich_tree(world)
    before = snapshot_of(world.base)
    with pytest.raises(NoSpaceError):
        run(world, tree.seal(), effects=Effects(FullAt()))
    assert_same(snapshot_of(world.base), before)
    assert os.listdir(world.work) == os.listdir(world.attic) == []


@root_only
@pytest.mark.root
def test_no_space_while_staging(tmp_path, mounted):
    mounted(tmp_path / "base", "1m")
    world = World(os.fspath(tmp_path))
    fill(world.base)
    tree = Overlay(world)
    tree.write(b"src/a", b"1")
    tree.remove(b"docs")
    tree.write(b"big", bytes(range(256)) * 8192)
    before = snapshot_of(world.base)
    with pytest.raises(NoSpaceError):
        run(world, tree.seal())
    assert_same(snapshot_of(world.base), before)
    assert os.listdir(world.work) == os.listdir(world.attic) == []
    tree.remove(b"big")
    applied(world, tree)
    world.close()


@root_only
@pytest.mark.root
def test_an_attic_on_another_file_system(tmp_path, mounted):
    mounted(tmp_path / "attic", "8m")
    world = World(os.fspath(tmp_path))
    fill(world.base)
    tree = rich_tree(world)
    os.link(world.base + "/src/deep/c", world.base + "/docs/c2")
    tree = Overlay(world)
    tree.rename(b"src/deep/deeper", b"kept")
    tree.remove(b"src")
    tree.write(b"top", b"2")
    tree.remove(b"docs/readme")
    tree.write(b"docs/readme", b"3")
    view = tree.seal()
    result = applied(world, tree)
    assert result.attic == 1
    step = step_of(world, view, result)
    assert isinstance(step.inverse.lookup(b"src/deep"), Directory)
    world.close()


@root_only
@pytest.mark.root
@pytest.mark.parametrize("seed", range(6))
def test_random_trees_with_an_attic_on_another_file_system(tmp_path, mounted, seed):
    mounted(tmp_path / "attic", "8m")
    world = World(os.fspath(tmp_path))
    rng = random.Random(seed)
    random_base(world, rng)
    tree = Overlay(world)
    for _ in range(12):
        random_change(tree, rng, [Overlay(world)])
    applied(world, tree)
    world.close()


@root_only
@pytest.mark.root
def test_a_file_system_mounted_inside_the_workspace(tmp_path, mounted):
    os.makedirs(tmp_path / "base/modules")
    mounted(tmp_path / "base/modules", "8m")
    world = World(os.fspath(tmp_path))
    fill(world.base)
    with open(world.base + "/modules/inner", "w") as file:
        file.write("inner")
    tree = Overlay(world)
    tree.rename(b"src/a", b"modules/a")
    tree.rename(b"modules/inner", b"docs/inner")
    tree.rename(b"src/deep", b"modules/deep")
    tree.write(b"modules/new", b"1")
    tree.mkdir(b"modules/dir")
    tree.write(b"modules/dir/x", b"2")
    applied(world, tree)
    tree = Overlay(world, generation=1)
    tree.remove(b"modules/deep")
    tree.write(b"modules/new", b"2")
    applied(world, tree)
    world.close()


@root_only
@pytest.mark.root
def test_a_crash_while_moving_between_file_systems(tmp_path, mounted):
    for allowed in range(20, 75):
        top = tmp_path / str(allowed)
        os.makedirs(top / "base/modules")
        mounted(top / "base/modules", "1m")
        world = World(os.fspath(top))
        fill(world.base)
        os.makedirs(world.base + "/modules/d/e")
        with open(world.base + "/modules/d/e/inner", "w") as file:
            file.write("inner")
        tree = Overlay(world)
        tree.rename(b"src", b"modules/src")
        tree.rename(b"modules/d", b"docs/d")
        tree.write(b"modules/new", b"1")
        view = tree.seal()
        expected = snapshot(view, world.contents)
        work, attic = paths(world)
        effects = Stopping(allowed)
        try:
            apply(view, world.host, world.contents, world.objects, work, attic, effects=effects)
            finish(work, world.base_fd, attic, effects)
        except Crash:
            resume(work, world.base_fd, attic)
            finish(work, world.base_fd, attic)
        if os.path.exists(world.base + "/modules/src"):
            assert_same(snapshot_of(world.base), expected)
        world.close()


@root_only
@pytest.mark.root
def test_as_an_ordinary_user_through_closed_doors(tmp_path):
    """Our own read-only and mode 000 directories do not keep an apply out, and have their modes in the end."""
    script = textwrap.dedent(
        """
        import os, sys
        from tests.vfs.overlay import World, Overlay
        from tests.vfs.applying import run
        os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
        world = World(sys.argv[1])
        for name in ("shut", "shut/inner", "ro", "open", "ro/sub"):
            os.mkdir(world.base + "/" + name)
        for name in ("shut/inner/f", "ro/f", "ro/sub/g", "open/h"):
            open(world.base + "/" + name, "w").close()
        tree = Overlay(world)
        for path, mode in ((b"ro", 0o555), (b"ro/sub", 0o500), (b"shut", 0), (b"shut/inner", 0)):
            os.chmod(os.path.join(os.fsencode(world.base), path), 0o700)
        os.chmod(world.base + "/ro/sub", 0o500)
        os.chmod(world.base + "/ro", 0o555)
        os.chmod(world.base + "/shut/inner", 0)
        os.chmod(world.base + "/shut", 0)
        tree.write(b"ro/new", b"1")
        tree.rename(b"ro/sub", b"open/sub")
        tree.remove(b"ro/f")
        tree.write(b"shut/inner/new", b"2")
        tree.write(b"none", b"3", mode=0)
        tree.mkdir(b"closed", 0)
        tree.write(b"closed/x", b"4")
        view = tree.seal()
        run(world, view)
        assert os.stat(world.base + "/ro").st_mode & 0o777 == 0o555
        assert os.stat(world.base + "/open/sub").st_mode & 0o777 == 0o500
        assert os.stat(world.base + "/shut").st_mode & 0o777 == 0
        assert os.stat(world.base + "/closed").st_mode & 0o777 == 0
        assert sorted(os.listdir(world.base + "/ro")) == ["new"]
        os.chmod(world.base + "/shut", 0o700)
        assert os.stat(world.base + "/shut/inner").st_mode & 0o777 == 0
        os.chmod(world.base + "/shut/inner", 0o700)
        assert sorted(os.listdir(world.base + "/shut/inner")) == ["f", "new"]
        """
    )
    for above in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        above.chmod(0o777)
    subprocess.run([sys.executable, "-c", script, tmp_path / "w"], check=True, cwd=os.getcwd())


def test_errors_of_the_base_are_not_swallowed(world):
    class Broken(Effects):
        def move(self, *args):
            raise OSError(errno.EIO, "the disk is broken")

    before = snapshot_of(world.base)
    tree = Overlay(world)
    tree.remove(b"src")
    with pytest.raises(OSError, match="broken"):
        run(world, tree.seal(), effects=Broken())
    work, attic = paths(world)
    result = resume(work, world.base_fd, attic)
    assert result is not None
    finish(work, world.base_fd, attic)
    assert not os.path.exists(world.base + "/src")
    assert before
