"""The store through the life of a workspace, stopped after every effect on the disk, reopened and checked.

The fault model stands in ``faulty_disk``. What is promised: a kill loses nothing that was answered; a power failure
loses nothing that was sealed or synced; whatever is there afterwards is sound, and life goes on from it.
"""

from __future__ import annotations

import os

import pytest

from store import gathering
from store.check import check
from store.disk import Disk
from store.errors import NoSpaceError
from store.head import Head
from store.home import Home, WorkspaceIdentity
from store.journal import JournalWriter, journal_header, read_journal
from store.sweep import Retention, sweep
from tests.store.conftest import Counted, Tick
from tests.store.faulty_disk import Crash, FaultyDisk
from tests.store.small_store import FIRST_INO, layer_of, read_tree

IDENTITY = WorkspaceIdentity(1, 2, 3)


def tree_of(number):
    return {b"file": b"%d" % number * 200, b"d": {b"same": b"s" * 300}, b"private": b"p%d" % number * 100}


@pytest.fixture(params=[False, True], ids=["loose", "packed"])
def packed(request, monkeypatch):
    """Whether objects go into packs, however few."""
    monkeypatch.setattr(gathering, "LOOSE_FIRST", 0)
    return request.param


class Life:
    """Lives a workspace's life in the order of effects that vfs keeps, and notes what was answered."""

    def __init__(self, root, disk, packed=False):
        self.packed = packed
        self.root = root
        self.disk = disk
        self.clock = Tick()
        self.ids = Counted()
        self.begun = {}
        self.sealed = set()
        self.records = {}
        self.synced = {}
        self.head = None
        self.durable_head = None

    def run(self):
        home = Home.open(self.root, self.disk, self.clock, self.ids)
        store = home.workspace(IDENTITY, b"/w")
        parent = None
        journal = self.journal(store, 1)
        for number in range(3):
            epoch = number + 1
            for step in range(2):
                record = b"epoch %d step %d" % (epoch, step)
                journal.append(record)
                self.records[epoch].append(record)
                if step == 0:
                    journal.sync()
                    self.synced[epoch] = 1
            self.disk.write_new(store.working_dir + b"/%d" % epoch, tree_of(number)[b"private"])
            checkpoint = store.history.begin(parent, epoch=epoch, next_ino=FIRST_INO + number, label=f"turn {number}")
            self.begun[checkpoint.id] = number
            journal.close()
            journal = self.journal(store, epoch + 1)
            base = next(iter(self.begun))
            head = Head(head=checkpoint.id, base=base, epoch=epoch + 1, generation=0, next_ino=FIRST_INO + number)
            sync = number == 2
            store.history.write_head(head, sync=sync)
            self.head = head
            if sync:
                self.durable_head = head
            self.seal(home, store, checkpoint, number)
            parent = checkpoint.id
        journal.close()
        store.close()

    def journal(self, store, epoch):
        writer = JournalWriter(store.journal_path(epoch), self.disk, journal_header(epoch))
        self.records[epoch] = []
        self.synced[epoch] = 0
        return writer

    def seal(self, home, store, checkpoint, number):
        private = store.working_dir + b"/%d" % checkpoint.epoch
        with home.objects.sealing():
            parent = None if checkpoint.parent is None else store.history.get(checkpoint.parent).layer
            with home.objects.gathering() as together:
                layer = layer_of(home, tree_of(number), parent, into=together if self.packed else None)
            home.objects.flush()
            store.history.seal(checkpoint.id, layer)
        self.sealed.add(checkpoint.id)
        self.disk.unlink(store.journal_path(checkpoint.epoch))
        self.disk.unlink(private)


def reopened(life):
    home = Home.open(life.root, Disk(), life.clock, life.ids)
    return home, home.workspace(IDENTITY, b"/w")


def go_on(life, home, store):
    """Seal what was not, clean up, and find everything sound."""
    life.disk = Disk()
    for checkpoint in store.history.all():
        if checkpoint.state == "sealing":
            life.seal(home, store, checkpoint, life.begun.get(checkpoint.id, 0))
    head = store.history.read_head()
    if head is not None:
        store.history.write_head(head, sync=True)
    store.close()
    sweep(home)
    report = check(home, repair=True)
    assert report.is_sound
    assert report.unreferenced == 0 or life.packed
    again = check(home)
    assert [one for one in again.problems if "cited" not in one.message and "unfinished" not in one.message] == []
    sweep(home, Retention(keep_last=1))
    assert check(home).is_sound


def sealed_trees_are_whole(home, store, numbers):
    for checkpoint in store.history.all():
        if checkpoint.layer is not None:
            assert read_tree(home, checkpoint.layer) == tree_of(numbers[checkpoint.id])


def steps(top, torn, packed):
    """After which effects to stop; only an append can be torn."""
    effects = effects_of_a_life(top, packed)
    return [number for number, effect in enumerate(effects[:-1], 1) if effect == "append" or not torn]


def effects_of_a_life(top, packed):
    disk = FaultyDisk()
    life = Life(top + b"/whole", disk, packed)
    life.run()
    home, store = reopened(life)
    assert check(home).problems == []
    assert len(store.history) == 3
    return disk.effects


@pytest.mark.parametrize("torn", [False, True])
def test_killed_after_any_effect(top, torn, packed):
    for step in steps(top, torn, packed):
        life = Life(top + b"/%d" % step, FaultyDisk(stop_after=step, torn=torn), packed)
        with pytest.raises(Crash):
            life.run()
        home, store = reopened(life)
        ids = [checkpoint.id for checkpoint in store.history.all()]
        assert set(life.begun) <= set(ids)
        numbers = {id: number for number, id in enumerate(ids)}
        life.begun = numbers
        sealed_trees_are_whole(home, store, numbers)
        for checkpoint in store.history.all():
            if checkpoint.id in life.sealed:
                assert checkpoint.state == "sealed"
            if checkpoint.state == "sealing":
                assert checkpoint.epoch in store.epochs()
        for epoch in store.epochs():
            contents = read_journal(store.journal_path(epoch))
            known = life.records.get(epoch, [])
            assert contents.records[: len(known)] == known
            assert len(contents.records) <= len(known) + 1
        head = store.history.read_head()
        if life.head is not None:
            assert head.epoch >= life.head.epoch
            assert store.history.problems == [] or torn
        report = check(home)
        assert report.lost == []
        assert report.is_sound or life.head is None  # a checkpoint without any head yet
        go_on(life, home, store)


@pytest.mark.parametrize("torn", [False, True])
def test_power_fails_after_any_effect(top, torn, packed):
    for step in steps(top, torn, packed):
        life = Life(top + b"/%d" % step, FaultyDisk(stop_after=step, torn=torn), packed)
        with pytest.raises(Crash):
            life.run()
        life.disk.power_loss(life.root)
        home, store = reopened(life)
        ids = [checkpoint.id for checkpoint in store.history.all()]
        assert life.sealed <= set(ids)
        numbers = {id: number for number, id in enumerate(ids)}
        sealed_trees_are_whole(home, store, numbers)
        life.begun = numbers
        for epoch in store.epochs():
            contents = read_journal(store.journal_path(epoch))
            known = life.records.get(epoch, [])
            promised = life.synced.get(epoch, 0)
            assert len(contents.records) >= promised
            assert contents.records[:promised] == known[:promised]
        head = store.history.read_head()
        assert (head is None) == (not ids)
        if head is not None:
            assert head.head in ids
            if life.durable_head is not None:
                assert head == life.durable_head
        for checkpoint in store.history.all():
            if checkpoint.state == "sealing":  # its private file may have lost its bytes: here they are written anew
                private = store.working_dir + b"/%d" % checkpoint.epoch
                if os.path.exists(private):
                    os.unlink(private)
                Disk().write_new(private, tree_of(numbers[checkpoint.id])[b"private"])
                if checkpoint.epoch not in store.epochs():
                    JournalWriter(
                        store.journal_path(checkpoint.epoch), Disk(), journal_header(checkpoint.epoch)
                    ).close()
        go_on(life, home, store)


def test_the_disk_fills_up_at_any_effect(top, packed):
    """Whatever could not be written is told, and all before it stays."""
    for step in range(len(effects_of_a_life(top, packed))):
        disk = FaultyDisk(full_at=step)
        life = Life(top + b"/%d" % step, disk, packed)
        try:
            life.run()
        except NoSpaceError:
            assert any(effect.startswith("full") for effect in disk.effects)
        home, store = reopened(life)
        ids = [checkpoint.id for checkpoint in store.history.all()]
        assert set(life.begun) <= set(ids)
        numbers = {id: number for number, id in enumerate(ids)}
        sealed_trees_are_whole(home, store, numbers)
        for epoch in store.epochs():
            assert read_journal(store.journal_path(epoch)).records == life.records[epoch]
