"""Packs: what was gathered is there as if put one by one, whatever is damaged, killed, full, or swept meanwhile."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from binascii import hexlify

import pytest

from store import gathering, packs
from store.check import check
from store.disk import Disk
from store.errors import DamagedError, MissingError, NoSpaceError
from store.home import Home, WorkspaceIdentity
from store.refs import digest
from store.sweep import Retention, sweep
from tests.store.faulty_disk import Crash, FaultyDisk
from tests.store.small_store import layer_of, opened, read_tree, set_head

MANY = 84
FIRST = packs.LOOSE_FIRST


@pytest.fixture(autouse=True)
def all_packed(monkeypatch):
    monkeypatch.setattr(gathering, "LOOSE_FIRST", 0)


KILLED = """
import os, sys, time
from store import gathering, packs
from store.disk import Disk
from store.objects import Objects
gathering.LOOSE_FIRST, packs.SPILL_BYTES = 0, 1000
top = os.fsencode(sys.argv[1])
for name in (b"/tmp", b"/packs"):
    os.makedirs(top + b"/objects" + name, exist_ok=True)
with Objects(top + b"/objects", top + b"/objects.lock", Disk()).gathering() as together:
    for number in range(int(os.environ["N"])):
        together.put_blob(b"%d" % number * 100)
    print("gathered", flush=True)
    time.sleep(60)
"""


def contents(count=MANY, size=100):
    return [b"%d " % number * size for number in range(count)]


def gather(objects, data):
    with objects.gathering() as together:
        return [together.put_blob(one) for one in data]


def files(objects, kind):
    """Paths below the objects' directory: ``tmp``, ``packs``, or ``loose``."""
    names = os.listdir(objects.root) if kind == "loose" else [kind.encode()]
    directories = [objects.root + b"/" + name for name in names if kind != "loose" or len(name) == 2]
    return [directory + b"/" + name for directory in directories for name in os.listdir(directory)]


@pytest.fixture
def objects(top):
    return opened(top)


def files_of(*numbers):
    """A tree of one file for each number, in one directory."""
    return {b"%d" % number: b"%d" % number * 300 for number in numbers}


def packed_checkpoint(home, workspace, tree, parent=None):
    """A checkpoint whose objects are in a pack."""
    with home.objects.sealing():
        with home.objects.gathering() as together:
            layer = layer_of(home, tree, into=together)
        home.objects.flush()
        return workspace.history.begin(parent, layer=layer)


class TestGathering:
    def test_many_become_one_file(self, top, objects):
        data = contents()
        refs = gather(objects, data)
        assert refs == [digest(one) for one in data]
        assert len(files(objects, "packs")) == 1
        assert files(objects, "loose") == files(objects, "tmp") == []
        for reader in (objects, opened(top)):
            for ref, one in zip(refs, data, strict=True):
                assert reader.read_blob(ref, len(one)) == reader.get_node(ref) == one
                fd, start = reader.open_blob(ref, len(one))
                assert os.pread(fd, len(one), start) == one
                os.close(fd)
                reader.check_blob(ref, len(one))
                reader.verify(ref)
                assert reader.has(ref)
                assert reader.size(ref) == len(one)
        assert {found.ref for found in objects.inventory.walk()} == set(refs)
        assert objects.inventory.bytes_used() == sum(map(len, data))
        assert objects.inventory.strays() == []

    def test_the_first_have_files_of_their_own(self, objects, monkeypatch):
        monkeypatch.setattr(gathering, "LOOSE_FIRST", FIRST)
        gather(objects, contents(FIRST))
        assert files(objects, "packs") == files(objects, "tmp") == []
        assert len(files(objects, "loose")) == FIRST
        gather(objects, contents(2 * FIRST + 1))
        assert len(files(objects, "packs")) == 1
        assert len(files(objects, "loose")) == 2 * FIRST

    def test_what_is_long_has_a_file_of_its_own(self, objects):
        long = bytes(packs.PACKED_MAX + 1)
        refs = gather(objects, [long, *contents()])
        assert files(objects, "loose") == [objects.path(refs[0])]
        assert objects.read_blob(refs[0], len(long)) == long

    def test_it_is_read_while_it_is_gathered(self, objects, monkeypatch):
        monkeypatch.setattr(packs, "SPILL_BYTES", 3000)
        with objects.gathering() as together:
            made = [(together.put_node(one), one) for one in contents()]
            for ref, one in made:
                assert objects.get_node(ref) == one
                assert objects.has(ref)
                assert objects.size(ref) == len(one)
            objects.check_blob(made[0][0], len(made[0][1]))
        assert all(objects.get_node(ref) == one for ref, one in made)

    def test_nothing_is_stored_twice(self, top, objects):
        data = contents()
        gather(objects, data + data)
        gather(opened(top), data)
        assert objects.put_blob(data[0]) == digest(data[0])
        assert len(list(objects.inventory.walk())) == len(data)

    def test_long_ones_begin_anew(self, objects, monkeypatch):
        monkeypatch.setattr("store.gathering.PACK_BYTES", 20_000)
        data = contents(200, 500)
        refs = gather(objects, data)
        assert len(files(objects, "packs")) > 2
        assert [objects.read_blob(ref, len(one)) for ref, one in zip(refs, data, strict=True)] == data

    def test_by_several_threads(self, objects):
        data = contents(400)
        with objects.gathering() as together:
            threads = [
                threading.Thread(target=lambda n=n: [together.put_blob(one) for one in data[n::2] + data[:50]])
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert {found.ref for found in objects.inventory.walk()} == set(map(digest, data))

    def test_another_process_finds_it(self, top, objects):
        other = opened(top)
        with pytest.raises(MissingError):
            other.verify(digest(b"0 " * 100))
        for generation in range(5):
            data = contents(MANY, 100 + generation)
            refs = gather(objects, data)
            assert [other.read_blob(ref, len(one)) for ref, one in zip(refs, data, strict=True)] == data
        assert len(other.inventory.damaged_packs()) == 0


class TestDurability:
    def test_a_flush_covers_what_is_being_gathered(self, top):
        disk = FaultyDisk()
        objects = opened(top, disk)
        data = contents()
        with objects.gathering() as together:
            refs = [together.put_blob(one) for one in data]
            objects.flush()
            disk.power_loss(top)
            for ref in refs:
                opened(top).verify(ref)

    def test_one_pack_is_one_file_to_be_synced(self, top):
        disk = FaultyDisk()
        objects = opened(top, disk)
        gather(objects, contents())
        disk.effects.clear()
        objects.flush()
        assert disk.effects == ["sync_file", "sync_dir", "sync_dir"]
        gather(opened(top, disk), contents())
        objects.flush()
        assert disk.effects[3:] == ["touch"] * MANY

    def test_a_power_loss_before_the_flush_is_mended_by_putting_again(self, top):
        disk = FaultyDisk()
        data = contents()
        gather(opened(top, disk), data)
        disk.power_loss(top)
        reader = opened(top)
        assert list(reader.inventory.damaged_packs().values()) == [0]
        for ref in gather(reader, data):
            reader.verify(ref)

    @pytest.mark.parametrize("torn", [False, True])
    def test_a_kill_after_any_effect(self, top, torn, monkeypatch):
        monkeypatch.setattr(packs, "SPILL_BYTES", 3000)
        data = contents()
        step = 0
        finished = False
        while not finished:
            step += 1
            where = top + b"/%d" % step
            objects = opened(where, FaultyDisk(stop_after=step, torn=torn))
            try:
                gather(objects, data)
                objects.flush()
                finished = True
            except Crash:
                pass
            after = opened(where)
            assert after.inventory.damaged_packs() == {}
            assert len(list(after.inventory.walk())) in (0, MANY)
            for ref in gather(after, data):
                after.verify(ref)
            assert len(list(after.inventory.walk())) == MANY
        assert step > 8

    def test_a_full_disk_at_any_effect_loses_nothing_that_was_put(self, top, monkeypatch):
        """Whoever puts something takes it for stored, also when a later step fails and all is tried again."""
        monkeypatch.setattr(packs, "SPILL_BYTES", 3000)
        data = contents()
        full_at = 0
        met = True
        while met:
            where = top + b"/%d" % full_at
            disk = FaultyDisk(full_at=full_at)
            objects = opened(where, disk)
            put = []
            try:
                with objects.gathering() as together:
                    for one in data:
                        put.append((together.put_blob(one), one))
            except NoSpaceError:
                assert all(objects.get_node(ref) == one for ref, one in put)
                with objects.gathering() as together:
                    put += [(together.put_blob(one), one) for one in data[: MANY // 2] + contents(MANY, 90)]
            try:
                objects.flush()
            except NoSpaceError:
                objects.flush()
            assert len(put) >= MANY
            met = any(effect.startswith("full") for effect in disk.effects)
            for ref, one in put:
                assert opened(where).read_blob(ref, len(one)) == one
            assert files(objects, "tmp") == []
            full_at += 1
        assert full_at > 6

    def test_several_packs_of_which_one_cannot_be_placed(self, top, monkeypatch):
        disk = FaultyDisk()
        objects = opened(top, disk)
        data, more = contents(), contents(MANY, 50)
        with objects.gathering() as together:
            for one in data:
                together.put_blob(one)
            gather(objects, [])  # another thread's: it places what there is
            for one in more:
                together.put_blob(one)
            monkeypatch.setattr(disk, "rename", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "")))
            with pytest.raises(OSError, match="Errno 5"):
                objects.flush()
            for one in contents(MANY, 30):
                together.put_blob(one)
            monkeypatch.undo()
            monkeypatch.setattr(gathering, "LOOSE_FIRST", 0)
        objects.flush()
        disk.power_loss(top)
        for one in data + more + contents(MANY, 30):
            assert opened(top).get_node(digest(one)) == one

    def test_a_flush_after_another_process_took_the_pack_apart(self, home, workspace):
        other = Home.open(home.root)
        theirs = other.by_id(workspace.id)
        with other.objects.sealing():
            with other.objects.gathering() as together:
                layer = layer_of(other, {b"a": b"a" * 300}, into=together)
                for number in range(50):
                    together.put_blob(b"%d" % number * 100)
            checkpoint = theirs.history.begin(None, layer=layer)
        with theirs.lock():
            assert sweep(home).objects == 50
        other.objects.flush()
        assert read_tree(home, checkpoint.layer) == {b"a": b"a" * 300}

    def test_what_a_killed_process_was_making_goes_with_the_next_pack(self, top):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, os.fsdecode(top)], stdout=subprocess.PIPE, env={**os.environ, "N": str(MANY)}
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"gathered\n"
        objects = opened(top)
        (made,) = files(objects, "tmp")
        os.utime(made, (1, 1))
        gather(objects, contents(MANY, 70))
        assert files(objects, "tmp") == [made], "it is being written"
        assert objects.inventory.abandoned() == []
        child.kill()
        child.wait()
        child.stdout.close()
        assert objects.inventory.abandoned() == [made]
        gather(opened(top), contents(MANY, 90))
        assert files(objects, "tmp") == []


class TestDamage:
    def damaged(self, objects, at, length=1):
        (path,) = files(objects, "packs")
        os.chmod(path, 0o600)
        with open(path, "r+b") as file:
            file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
            wrong = bytes(byte ^ 255 for byte in file.read(length))
            file.seek(-length, os.SEEK_CUR)
            file.write(wrong)

    def test_every_way_of_reading_finds_it(self, top, objects):
        data = contents()
        refs = gather(objects, data)
        at = 16 + 36
        self.damaged(objects, at)
        reader = opened(top)
        for read in (
            reader.get_node,
            reader.verify,
            lambda ref: reader.read_blob(ref, len(data[0])),
            lambda ref: reader.open_blob(ref, len(data[0])),
            lambda ref: reader.check_blob(ref, len(data[0])),
        ):
            with pytest.raises(DamagedError, match=refs[0].hex()):
                read(refs[0])
        for ref in refs[1:]:
            reader.verify(ref)

    @pytest.mark.parametrize("again", ["alone", "gathered"])
    def test_putting_again_mends(self, top, objects, again):
        data = contents()
        refs = gather(objects, data)
        self.damaged(objects, 16 + 36)
        other = opened(top)
        if again == "alone":
            other.put_blob(data[0])
        else:
            gather(other, data[:1] + contents(MANY, 70))
        for reader in (other, opened(top)):
            assert reader.read_blob(refs[0], len(data[0])) == data[0]
            fd, start = reader.open_blob(refs[0], len(data[0]))
            assert os.pread(fd, len(data[0]), start) == data[0]
            os.close(fd)

    @pytest.mark.parametrize(("at", "length"), [(-1, 1), (-50, 2), (-20, 1), (-500, 3)])
    def test_a_damaged_index_hides_nothing(self, top, objects, at, length):
        data = contents()
        refs = gather(objects, data)
        self.damaged(objects, at, length)
        reader = opened(top)
        assert list(reader.inventory.damaged_packs().values()) == [MANY]
        for ref, one in zip(refs, data, strict=True):
            assert reader.read_blob(ref, len(one)) == one

    def test_a_pack_cut_anywhere_gives_what_is_whole(self, top, objects):
        data = contents()
        gather(objects, data)
        (path,) = files(objects, "packs")
        os.chmod(path, 0o600)
        whole = open(path, "rb").read()
        for length in range(0, len(whole), 997):
            with open(path, "wb") as file:
                file.write(whole[:length])
            reader = opened(top)
            readable = list(reader.inventory.damaged_packs().values())
            assert readable == [len(list(reader.inventory.walk()))]
            for found in reader.inventory.walk():
                reader.verify(found.ref)

    def test_fsck_takes_over_what_can_be_read(self, home, workspace):
        made = packed_checkpoint(home, workspace, files_of(*range(30)))
        set_head(workspace, made)
        self.damaged(home.objects, -1)
        again = Home.open(home.root)
        report = check(again)
        assert [(one.severity, one.repaired) for one in report.problems] == [("untidy", False)]
        assert report.is_sound
        assert any("fsck" in one for one in sweep(again).skipped)
        assert [one.repaired for one in check(again, repair=True).problems] == [True]
        assert check(again).problems == []
        assert read_tree(again, made.layer) == files_of(*range(30))

    def test_fsck_leaves_a_damaged_pack_alone_if_something_is_lost(self, home, workspace):
        made = packed_checkpoint(home, workspace, files_of(*range(30)))
        set_head(workspace, made)
        self.damaged(home.objects, 16 + 36)
        self.damaged(home.objects, -1)
        again = Home.open(home.root)
        (path,) = files(home.objects, "packs")
        report = check(again, repair=True)
        assert not report.is_sound
        assert len(report.lost) == 1
        assert [one.repaired for one in report.problems if one.where == os.fsdecode(path)] == [False]
        assert os.path.exists(path)


class TestSweep:
    def made(self, home, workspace):
        """Three checkpoints, of which the second has a pack that the third needs little of."""
        made = [packed_checkpoint(home, workspace, files_of(0))]
        made.append(packed_checkpoint(home, workspace, files_of(*range(1, 40)), made[-1].id))
        made.append(packed_checkpoint(home, workspace, files_of(1, 2, 90), made[-1].id))
        set_head(workspace, made[-1])
        return made

    @pytest.fixture
    def three(self, home, workspace):
        return self.made(home, workspace)

    def test_what_is_dead_goes_and_the_rest_is_copied(self, home, workspace, three):
        before = home.objects.inventory.bytes_used()
        told = sweep(home, Retention(keep_last=1), dry_run=True)
        assert home.objects.inventory.bytes_used() == before
        done = sweep(home, Retention(keep_last=1))
        assert (told.checkpoints, told.objects, told.bytes, told.kept_objects, told.kept_bytes) == (
            done.checkpoints,
            done.objects,
            done.bytes,
            done.kept_objects,
            done.kept_bytes,
        )
        assert [id for _, id in done.checkpoints] == [three[1].id]
        assert done.objects == 39  # 39 files, of which two are still needed, their page and their layer
        assert home.objects.inventory.bytes_used() == before - done.bytes
        for reader in (home, Home.open(home.root)):
            assert read_tree(reader, three[2].layer) == files_of(1, 2, 90)
            assert check(reader).problems == []
        assert sweep(home).objects == 0

    def test_a_little_that_is_dead_stays(self, home, workspace):
        first = packed_checkpoint(home, workspace, files_of(*range(40)))
        set_head(workspace, first)
        with home.objects.gathering() as together:
            garbage = together.put_blob(b"garbage")
            layer = layer_of(home, files_of(*range(50, 90)), into=together)
        second = workspace.history.begin(first.id, layer=layer)
        set_head(workspace, second)
        (path,) = {found.path for found in home.objects.inventory.walk() if found.ref == garbage}
        assert sweep(home).objects == 0
        assert os.path.exists(path)
        assert check(home).unreferenced == 1

    def test_a_daemon_that_knew_the_pack_finds_what_was_copied(self, home, workspace, three):
        reader = Home.open(home.root)
        assert read_tree(reader, three[2].layer) == files_of(1, 2, 90)
        sweep(home, Retention(keep_last=1))
        assert read_tree(reader, three[2].layer) == files_of(1, 2, 90)
        with reader.objects.sealing():
            assert reader.objects.put_blob(b"1" * 300) == digest(b"1" * 300)
            reader.objects.flush()
        assert check(reader).is_sound

    def test_what_became_needed_between_the_copy_and_the_end_stays(self, home, workspace, three, monkeypatch):
        """A seal takes what was dead for stored just before the pack goes."""
        other = Home.open(home.root)
        theirs = other.by_id(workspace.id)
        original = home.objects.copy_out
        made = []

        def copy_out(path, refs):
            original(path, refs)
            if not made and digest(b"5" * 300) in {found.ref for found in home.objects.inventory.in_pack(path)}:
                made.append(packed_checkpoint(other, theirs, files_of(5, 6), three[2].id))

        workspace.history.remove([three[1].id])
        monkeypatch.setattr(home.objects, "copy_out", copy_out)
        with theirs.lock():
            sweep(home)
        assert read_tree(home, made[0].layer) == files_of(5, 6)
        assert read_tree(other, made[0].layer) == files_of(5, 6)

    def test_a_pack_with_a_damaged_object_that_is_needed_stays(self, home, workspace, three):
        ref = digest(b"1" * 300)
        (path,) = {found.path for found in home.objects.inventory.walk() if found.ref == ref}
        os.chmod(path, 0o600)
        data = open(path, "rb").read()
        with open(path, "wb") as file:
            file.write(data.replace(b"1" * 300, b"X" * 300))
        again = Home.open(home.root)
        done = sweep(again, Retention(keep_last=1))
        assert any(os.fsdecode(path) in one and ref.hex() in one for one in done.skipped)
        assert os.path.exists(path)
        gather(again.objects, [b"1" * 300])
        assert sweep(again).objects == 39
        assert read_tree(again, three[2].layer) == files_of(1, 2, 90)

    @pytest.mark.parametrize("kind", ["stop", "full"])
    def test_stopped_or_full_at_any_effect(self, top, clock, ids, kind):
        step = 0
        finished = False
        while not finished:
            step += 1
            where = top + b"/home%d" % step
            home = Home.open(where, Disk(), clock, ids)
            os.makedirs(top + b"/w%d" % step)
            workspace = home.workspace(WorkspaceIdentity.of(top + b"/w%d" % step), top + b"/w%d" % step)
            made = self.made(home, workspace)
            workspace.close()
            disk = FaultyDisk(stop_after=step) if kind == "stop" else FaultyDisk(full_at=step)
            try:
                sweep(Home.open(where, disk, clock, ids), Retention(keep_last=1))
                finished = kind == "stop" or not any(effect.startswith("full") for effect in disk.effects)
            except (Crash, NoSpaceError):
                pass
            after = Home.open(where, Disk(), clock, ids)
            assert read_tree(after, made[2].layer) == files_of(1, 2, 90)
            assert check(after).is_sound
            sweep(after, Retention(keep_last=1))
            assert read_tree(after, made[2].layer) == files_of(1, 2, 90)
            assert files(after.objects, "tmp") == []
            assert not any(found.ref == digest(b"7" * 300) for found in after.objects.inventory.walk())
        assert step >= 10


def test_looking_up_among_many_packs(top):
    """Every object is found in whichever pack it is, and what is in none is not."""
    writer = opened(top)
    reader = opened(top)
    everything = []
    for number in range(40):
        data = [b"%d %d" % (number, index) for index in range(70 + number % 7)]
        everything += zip(gather(writer, data), data, strict=True)
        if number % 9 == 0:
            assert all(reader.get_node(ref) == one for ref, one in everything)
    for objects in (reader, writer, opened(top)):
        assert all(objects.get_node(ref) == one for ref, one in everything)
        assert not objects.has(digest(b"nothing"))
    assert len(files(writer, "packs")) == 40
    name = hexlify(os.urandom(16))
    Disk().write_new(writer.root + b"/packs/" + name, b"no pack at all")
    Disk().write_new(writer.root + b"/packs/stray", b"")
    assert writer.inventory.strays() == [writer.root + b"/packs/stray"]
    assert all(opened(top).get_node(ref) == one for ref, one in everything[:5])


def test_the_bytes_of_a_pack(objects, monkeypatch):
    """As docs/format.md has it, made by hand."""
    data = [b"one", b"two, which is longer"]
    gather(objects, data)
    magic = b"plyfs pack 1\n\0\0\0"
    expected = magic
    rows = []
    for one in data:
        expected += digest(one) + len(one).to_bytes(4, "little")
        rows.append(digest(one) + len(expected).to_bytes(4, "little") + len(one).to_bytes(4, "little"))
        expected += one
    index = b"".join(sorted(rows))
    expected += index + (2).to_bytes(4, "little") + digest(index) + magic
    (path,) = files(objects, "packs")
    assert open(path, "rb").read() == expected
    assert os.stat(path).st_mode & 0o777 == 0o400
