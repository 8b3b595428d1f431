"""Objects: never wrong bytes, never half of one, durable after a flush; the fake in memory is held to the same."""

from __future__ import annotations

import os
import stat
import threading
import time

import pytest

from store import objects as objects_module
from store.disk import Disk
from store.errors import DamagedError, MissingError, NoSpaceError
from store.packs import LOOSE_FIRST
from store.refs import digest
from tests.fakes.objects import MemoryObjects
from tests.store.faulty_disk import Crash, FaultyDisk
from tests.store.small_store import opened


@pytest.fixture
def objects(top):
    return opened(top)


def names(objects):
    return {found.ref for found in objects.inventory.walk()}


def damage(objects, ref, data):
    path = objects.path(ref)
    os.chmod(path, 0o600)
    with open(path, "wb") as file:
        file.write(data)


@pytest.fixture(params=["disk", "memory"])
def either(request, top):
    return opened(top) if request.param == "disk" else MemoryObjects()


class TestEither:
    def test_what_is_put_is_read(self, either):
        ref = either.put_blob(b"content")
        assert ref == digest(b"content")
        assert either.read_blob(ref, 7) == b"content"
        fd, start = either.open_blob(ref, 7)
        assert os.pread(fd, 7, start) == b"content"
        os.close(fd)
        node = either.put_node(b"node")
        assert either.get_node(node) == b"node"
        assert either.put_node(b"node") == node
        assert either.has(node)
        assert not either.has(bytes(32))
        either.flush()

    def test_what_is_not_there_is_missing(self, either):
        for read in (lambda: either.get_node(bytes(32)), lambda: either.read_blob(bytes(32), 1)):
            with pytest.raises(MissingError):
                read()
        with pytest.raises(MissingError):
            either.open_blob(bytes(32), 1)

    def test_another_size_is_damage(self, either):
        ref = either.put_blob(b"content")
        with pytest.raises(DamagedError):
            either.read_blob(ref, 8)
        with pytest.raises(DamagedError):
            either.open_blob(ref, 8)


def test_damage_is_found_by_every_way_of_reading(top, objects):
    ref = objects.put_node(b"a node of the tree")
    damage(objects, ref, b"A node of the tree")
    fresh = opened(top)
    for read in (fresh.get_node, lambda ref: fresh.read_blob(ref, 18), lambda ref: fresh.open_blob(ref, 18)):
        with pytest.raises(DamagedError, match=ref.hex()):
            read(ref)
    with pytest.raises(DamagedError):
        fresh.verify(ref)
    with pytest.raises(MissingError):
        fresh.verify(bytes(32))


def test_putting_mends_a_damaged_object(top, objects):
    ref = objects.put_blob(b"content")
    for wrong in (b"", b"cONTENT", b"longer content"):
        damage(objects, ref, wrong)
        fresh = opened(top)
        assert fresh.put_blob(b"content") == ref
        assert fresh.read_blob(ref, 7) == b"content"
    objects.verify(ref)


def test_objects_are_private_and_read_only(objects):
    mode = os.stat(objects.path(objects.put_blob(b"x"))).st_mode
    assert stat.S_IMODE(mode) == 0o400


def test_a_temporary_file_of_a_dead_process_is_no_obstacle(top, objects):
    for number in range(3):
        Disk().write_new(top + b"/objects/tmp/%d-%d" % (os.getpid(), number), b"half")
    assert len(objects.inventory.temporaries()) == 3
    ref = objects.put_blob(b"content")
    assert objects.read_blob(ref, 7) == b"content"


def test_flush_syncs_what_was_put_since(top):
    disk = FaultyDisk()
    objects = opened(top, disk)
    objects.flush()
    assert disk.effects == []
    objects.put_blob(b"one")
    disk.effects.clear()
    objects.flush()
    assert disk.effects == ["sync_file", "sync_dir", "sync_dir"]
    objects.put_blob(b"one")
    disk.effects.clear()
    objects.flush()
    assert disk.effects == []
    for number in range(objects_module.FLUSH_EACH + 1):
        objects.put_blob(b"%d" % number)
    disk.effects.clear()
    objects.flush()
    assert disk.effects == ["syncfs"]


def test_flush_covers_what_another_process_put_and_did_not_flush(top):
    opened(top).put_blob(b"one")
    disk = FaultyDisk()
    objects = opened(top, disk)
    objects.put_blob(b"one")
    objects.flush()
    assert disk.effects == ["touch", "sync_file", "sync_dir", "sync_dir"]


@pytest.mark.parametrize("many", [1, objects_module.FLUSH_EACH + 3, LOOSE_FIRST + 20])
def test_after_a_flush_that_failed_everything_is_written_once_more(top, many):
    """The kernel forgets what it could not write: a second fsync alone would succeed without it."""
    disk = FaultyDisk()
    objects = opened(top, disk)
    with objects.gathering() as together:
        refs = [together.put_blob(b"content %d" % number) for number in range(many)]
    assert any(map(objects.inventory.is_pack, {found.path for found in objects.inventory.walk()})) == (
        many > LOOSE_FIRST
    )
    disk.fail_syncs = 2
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            objects.flush()
    objects.flush()
    disk.power_loss(top)
    for ref in refs:
        opened(top).verify(ref)


def test_blobs_are_checked_again_once_their_file_was_touched(top, objects):
    ref = objects.put_blob(b"content")
    objects.check_blob(ref, 7)
    objects.check_blob(ref, 7)
    damage(objects, ref, b"cONTENT")
    with pytest.raises(DamagedError):
        objects.check_blob(ref, 7)
    with pytest.raises(DamagedError):
        objects.open_blob(ref, 7)
    with pytest.raises(MissingError):
        objects.check_blob(bytes(32), 7)
    assert objects.inventory.bytes_used() == 7


def test_a_crash_after_any_effect_leaves_whole_objects(top):
    step = 0
    while True:
        step += 1
        for torn in (False, True):
            where = top + b"/%d-%d" % (step, torn)
            disk = FaultyDisk(stop_after=step, torn=torn)
            objects = opened(where, disk)
            try:
                objects.put_blob(b"first")
                objects.put_blob(b"second")
                objects.flush()
                finished = True
            except Crash:
                finished = False
            reopened = opened(where)
            for ref in names(reopened):
                reopened.verify(ref)
            for content in (b"first", b"second"):
                reopened.put_blob(content)
            assert len(names(reopened)) == 2
        if finished:
            break
    assert step > 10


def test_power_loss_without_a_flush_is_mended_by_putting_again(top):
    disk = FaultyDisk()
    objects = opened(top, disk)
    kept = objects.put_blob(b"flushed")
    objects.flush()
    lost = objects.put_blob(b"not flushed")
    disk.power_loss(top)
    reopened = opened(top)
    reopened.verify(kept)
    with pytest.raises(DamagedError):
        reopened.verify(lost)
    assert reopened.put_blob(b"not flushed") == lost
    reopened.verify(lost)


def test_a_full_disk_leaves_no_object_and_no_file(top):
    for full_at in range(4):
        where = top + b"/%d" % full_at
        objects = opened(where, FaultyDisk(full_at=full_at))
        try:
            objects.put_blob(b"content")
        except NoSpaceError:
            assert names(objects) == set()
        assert objects.put_blob(b"content") == digest(b"content")
        objects.verify(digest(b"content"))


def test_walking_and_deleting(top, objects):
    refs = {objects.put_blob(b"%d" % number * number) for number in range(1, 40)}
    assert names(objects) == refs
    assert sum(found.size for found in objects.inventory.walk()) == sum(len(b"%d" % n * n) for n in range(1, 40))
    victim = refs.pop()
    objects.delete(victim)
    objects.delete(victim)
    assert names(objects) == refs
    assert objects.inventory.strays() == []
    Disk().write_new(top + b"/objects/stray", b"")
    Disk().write_new(os.path.dirname(objects.path(next(iter(refs)))) + b"/stray", b"")
    assert len(objects.inventory.strays()) == 2
    assert names(objects) == refs


def test_a_sweep_waits_for_sealing(top, objects):
    order = []
    other = opened(top)

    def sweep():
        with other.sweeping():
            order.append("sweeping")

    with objects.sealing(), objects.sealing():
        thread = threading.Thread(target=sweep)
        thread.start()
        deadline = time.monotonic() + 0.05
        while time.monotonic() < deadline:
            assert order == []
        order.append("sealed")
    thread.join()
    assert order == ["sealed", "sweeping"]


def test_what_was_known_to_be_there_is_forgotten_after_a_sweep(top):
    disk = FaultyDisk()
    objects = opened(top, disk)
    with objects.sealing():
        ref = objects.put_blob(b"content")
        objects.flush()
    other = opened(top)
    with other.sweeping():
        other.delete(ref)
    other.put_blob(b"content")
    with objects.sealing():
        disk.effects.clear()
        objects.put_blob(b"content")
        objects.flush()
        assert "sync_file" in disk.effects


def test_memory_of_checked_objects_is_bounded(top, objects, monkeypatch):
    monkeypatch.setattr(objects_module, "REMEMBERED", 10)
    refs = [objects.put_blob(b"%d" % number) for number in range(30)]
    objects.flush()
    assert len(objects._checked) == 10
    for number, ref in enumerate(refs):
        os.close(objects.open_blob(ref, len(b"%d" % number)).fd)
