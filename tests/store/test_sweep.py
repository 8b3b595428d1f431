"""Garbage collection: nothing reachable goes, the rest does, and being killed is harmless."""

from __future__ import annotations

import os
import threading
import time

import msgspec
import pytest

from store.disk import Disk
from store.errors import DamagedError
from store.format import LeafPage, Origin, Regular, encode
from store.generations import Generation
from store.home import Home, WorkspaceIdentity
from store.refs import digest
from store.sweep import DAY_NS, Retention, sweep
from tests.store.faulty_disk import Crash, FaultyDisk
from tests.store.small_store import (
    add_checkpoint,
    add_journal,
    attributes,
    content_of,
    in_attic,
    layer_of,
    read_tree,
    set_head,
)

BIG = bytes(range(256)) * 1500
"""More than one chunk."""


def tree(number):
    return {b"a": b"%d" % number * 200, b"same": b"s" * 300, b"d": {b"big": BIG + b"%d" % number, b"e": {}}}


@pytest.fixture
def chain(home, workspace):
    """Five checkpoints on top of each other, the last the head."""
    made = []
    for number in range(5):
        made.append(add_checkpoint(home, workspace, tree(number), made[-1].id if made else None))
    set_head(workspace, made[-1])
    return made


def all_readable(home, store):
    for checkpoint in store.history.all():
        if checkpoint.layer is not None:
            read_tree(home, checkpoint.layer)


def test_what_is_needed_stays_and_the_rest_goes(home, workspace, chain):
    garbage = [home.objects.put_blob(b"garbage %d" % number) for number in range(30)]
    before = len(list(home.objects.inventory.walk()))
    told = sweep(home, dry_run=True)
    assert (told.objects, told.kept_objects, told.dry_run) == (30, before - 30, True)
    assert len(list(home.objects.inventory.walk())) == before
    done = sweep(home)
    assert (done.objects, done.bytes) == (told.objects, told.bytes)
    assert not any(home.objects.has(ref) for ref in garbage)
    assert [tree(number) for number in range(5)] == [read_tree(home, one.layer) for one in workspace.history.all()]
    assert sweep(home).objects == 0


def test_every_way_of_being_needed(home, workspace, chain):
    objects = home.objects
    root = objects.put_node(encode(LeafPage(())))
    root_blob = objects.put_blob(b"a root that is no node")
    cited_blob = objects.put_blob(b"cited by a journal")
    cited_page = home.pages.save(home.pages.update(None, {b"x": read_entry(home, b"in a cited page" * 20)}))
    applied, inverse = layer_of(home, {b"applied": b"a" * 300}), layer_of(home, {b"inverse": b"i" * 300}, generation=1)
    workspace.generations.append(Generation(0, applied, inverse, 1, "apply"))
    add_journal(workspace, 9, msgspec.msgpack.encode([1, cited_blob]), msgspec.msgpack.encode({"p": cited_page}))
    planned = layer_of(home, {b"planned": b"p" * 300})
    os.mkdir(workspace.path + b"/apply", 0o700)
    Disk().write_new(workspace.path + b"/apply/plan", msgspec.msgpack.encode([1, [planned]]))
    garbage = objects.put_blob(b"garbage")
    done = sweep(home, roots=[root, root_blob, digest(b"not there")])
    assert done.objects == 1
    assert not objects.has(garbage)
    for ref in (root, root_blob, cited_blob, cited_page, applied, inverse, digest(b"in a cited page" * 20)):
        objects.verify(ref)
    assert read_tree(home, applied) == {b"applied": b"a" * 300}
    assert read_tree(home, planned) == {b"planned": b"p" * 300}
    assert read_tree(home, inverse) == {b"inverse": b"i" * 300}


def read_entry(home, data):
    return Regular(attributes(), content_of(home.objects, data))


def test_a_file_that_holds_the_bytes_of_a_page_does_not_hide_what_is_below_it(home, workspace):
    inner = add_checkpoint(home, workspace, {b"x": {b"y": b"deep" * 100}})
    page = home.objects.get_node(inner.layer)
    add_checkpoint(home, workspace, {b"a copy": page + b"", b"z": b"z" * 200}, inner.id)
    sweep(home)
    all_readable(home, workspace)


def test_keeping_the_newest(home, workspace, chain):
    done = sweep(home, Retention(keep_last=2))
    # The first is the base, which is never let go.
    assert [id for _, id in done.checkpoints] == [chain[2].id, chain[1].id]
    left = home.by_id(workspace.id).history
    assert [one.id for one in left.all()] == [chain[0].id, chain[3].id, chain[4].id]
    assert left.get(chain[3].id).parent == chain[0].id
    assert not home.objects.has(chain[1].layer)
    all_readable(home, home.by_id(workspace.id))


def test_a_dry_run_tells_the_same_and_does_nothing(home, workspace, chain):
    told = sweep(home, Retention(keep_last=1), dry_run=True)
    assert len(home.by_id(workspace.id).history) == 5
    done = sweep(home, Retention(keep_last=1))
    assert (told.checkpoints, told.objects, told.bytes) == (done.checkpoints, done.objects, done.bytes)
    assert told.objects > 0


def test_keeping_days(home, workspace, clock):
    old = [add_checkpoint(home, workspace, tree(0)), add_checkpoint(home, workspace, tree(1))]
    clock.now += 10 * DAY_NS
    young = add_checkpoint(home, workspace, tree(2), old[1].id)
    last = add_checkpoint(home, workspace, tree(3), young.id)
    set_head(workspace, last)
    assert [id for _, id in sweep(home, Retention(keep_days=5), dry_run=True).checkpoints] == [old[1].id]
    assert sweep(home, Retention(keep_days=5, keep_last=3), dry_run=True).checkpoints == []
    assert sweep(home, Retention(keep_days=50), dry_run=True).checkpoints == []


def test_what_is_never_let_go(home, workspace):
    add = [add_checkpoint(home, workspace, tree(0))]
    for number, fields in enumerate(
        [
            {"label": "named"},
            {"session": "s", "node": "n"},
            {"session": "s", "node": "n"},
            {},
            {},
            {},
            {},
            {},
        ]
    ):
        add.append(add_checkpoint(home, workspace, tree(number + 1), add[-1].id, **fields))
    base, _named, replaced, _session, redo, cited, pinned, plain, head = add
    sealing = workspace.history.begin(head.id)
    set_head(workspace, head, redo=(redo.id,))
    add_journal(workspace, 9, b"record", head=head.id, extra=msgspec.msgpack.encode(["graft", cited.id]))
    done = sweep(home, Retention(keep_last=0), pinned=[pinned.id])
    assert {id for _, id in done.checkpoints} == {replaced.id, plain.id}
    assert sealing.id in workspace.history or sealing.id in home.by_id(workspace.id).history
    assert base.id in home.by_id(workspace.id).history
    assert len(sweep(home, Retention(keep_last=0, sessions=False)).checkpoints) == 2
    assert sweep(home, Retention(keep_last=0, sessions=False)).checkpoints == []


def test_keeping_what_fits(home, workspace, chain):
    everything = sweep(home, dry_run=True).kept_bytes
    assert sweep(home, Retention(max_bytes=everything), dry_run=True).checkpoints == []
    limit = everything - 1000
    done = sweep(home, Retention(max_bytes=limit))
    assert [id for _, id in done.checkpoints] == [chain[1].id]
    assert done.kept_bytes <= limit
    assert len(sweep(home, Retention(max_bytes=0)).checkpoints) == 2
    all_readable(home, home.by_id(workspace.id))


def test_a_workspace_in_use_keeps_its_checkpoints(home, workspace, chain, top):
    os.mkdir(top + b"/other")
    idle = home.workspace(WorkspaceIdentity.of(top + b"/other"), top + b"/other")
    one = add_checkpoint(home, idle, tree(7))
    two = add_checkpoint(home, idle, tree(8), one.id)
    three = add_checkpoint(home, idle, tree(9), two.id)
    set_head(idle, three)
    with workspace.lock():
        done = sweep(home, Retention(keep_last=1))
        assert done.checkpoints == [(idle.id, two.id)]
        assert len(done.skipped) == 1
        assert str(os.getpid()) in done.skipped[0]
        mine = sweep(home, Retention(keep_last=1), owned={workspace.id: workspace})
        assert len(mine.checkpoints) == 3
        assert mine.skipped == []
        assert len(workspace.history) == 2
    with idle.lock():  # it was given back
        pass
    all_readable(home, home.by_id(workspace.id))


def test_translations_that_no_checkpoint_needs_go_with_their_attic(home, workspace):
    old = add_checkpoint(home, workspace, {b"old": b"o" * 300}, generation=0)
    layers = []
    for number in range(2):
        os.makedirs(workspace.attic_dir + b"/%d/x" % (number + 1))
        path = workspace.attic_dir + b"/%d/f" % (number + 1)
        Disk().write_new(path, b"in the attic")
        applied = layer_of(home, {b"applied": b"%d" % number * 300}, generation=number)
        found = os.stat(path)
        inverse = layer_of(
            home, {b"f": in_attic(number + 1, b"f", found.st_size, found.st_mtime_ns)}, generation=number + 1
        )
        workspace.generations.append(Generation(number, applied, inverse, 1, "apply"))
        layers += [applied, inverse]
    new = add_checkpoint(home, workspace, {b"new": b"n" * 300}, generation=1)
    set_head(workspace, new, base=new.id, generation=2)
    assert sweep(home).attic == 0
    done = sweep(home, Retention(keep_last=1))
    assert done.checkpoints == [(workspace.id, old.id)]
    assert done.attic == 1
    assert os.listdir(workspace.attic_dir) == [b"2"]
    assert [home.objects.has(layer) for layer in layers] == [False, False, True, True]


def test_the_attic_is_left_alone_while_it_may_be_being_filled(home, workspace):
    one = add_checkpoint(home, workspace, {}, origin=Origin(0, b""))
    os.mkdir(workspace.attic_dir + b"/1")
    set_head(workspace, one, mounted=True)
    assert sweep(home).attic == 0
    set_head(workspace, one)
    add_journal(workspace, 9)
    assert sweep(home).attic == 0
    os.unlink(workspace.journal_path(9))
    os.mkdir(workspace.path + b"/apply", 0o700)
    Disk().write_new(workspace.path + b"/apply/intent", b"1 staging")
    assert sweep(home).attic == 0
    os.unlink(workspace.path + b"/apply/intent")
    with workspace.lock():
        assert sweep(home).attic == 0
    assert sweep(home, dry_run=True).attic == 1
    assert os.listdir(workspace.attic_dir) == [b"1"]
    assert sweep(home).attic == 1
    assert os.listdir(workspace.attic_dir) == []


def test_what_dead_processes_left_goes(home, workspace, chain):
    disk = Disk()
    for number in range(200):
        disk.write_new(home.objects.root + b"/tmp/%d-%d" % (2**22 + 1, number), b"half of an object")
    disk.write_new(home.objects.root + b"/tmp/%d-7" % os.getpid(), b"being written now")
    ancient = home.objects.root + b"/tmp/%d-8" % os.getpid()
    disk.write_new(ancient, b"")
    os.utime(ancient, (1, 1))
    disk.write_new(workspace.path + b"/head.new", b"half")
    disk.write_new(workspace.working_dir + b"/17", b"cited by no journal")
    assert sweep(home, dry_run=True).temporaries == 203
    assert sweep(home).temporaries == 203
    assert os.listdir(home.objects.root + b"/tmp") == [b"%d-7" % os.getpid()]
    assert os.listdir(workspace.working_dir) == []
    disk.write_new(workspace.working_dir + b"/17", b"cited by a journal")
    add_journal(workspace, 9, b"speaks of 17")
    assert sweep(home).temporaries == 0
    all_readable(home, workspace)


def test_damage_stops_a_sweep_before_it_has_done_anything(home, workspace, chain):
    garbage = home.objects.put_blob(b"garbage")
    os.unlink(home.objects.path(chain[2].layer))
    with pytest.raises(DamagedError):
        sweep(home, Retention(keep_last=4))
    assert home.objects.has(garbage)
    assert len(home.by_id(workspace.id).history) == 5
    with open(workspace.path + b"/record", "wb") as file:
        file.write(b"damaged")
    with pytest.raises(DamagedError, match="record"):
        sweep(home)


def test_being_killed_after_any_step_is_harmless(top, clock, ids):
    step = 0
    finished = False
    while not finished:
        step += 2
        root = top + b"/%d" % step
        home = Home.open(root, Disk(), clock, ids)
        store = home.workspace(WorkspaceIdentity(1, 2, 3), b"/w")
        made = []
        for number in range(4):
            made.append(add_checkpoint(home, store, tree(number), made[-1].id if made else None))
        set_head(store, made[-1])
        os.makedirs(store.attic_dir + b"/1/d")
        Disk().write_new(store.working_dir + b"/1", b"left")
        home.objects.put_blob(b"garbage")
        store.close()
        disk = FaultyDisk(stop_after=step)
        try:
            sweep(Home.open(root, disk, clock, ids), Retention(keep_last=1))
            finished = True
        except Crash:
            disk.power_loss(root)
        again = Home.open(root, Disk(), clock, ids)
        left = again.by_id(store.id)
        assert left.history.read_head().head == made[-1].id
        all_readable(again, left)
        sweep(again, Retention(keep_last=1))
        after = again.by_id(store.id)
        assert [one.id for one in after.history.all()] == [made[0].id, made[3].id]
        all_readable(again, after)
        assert os.listdir(after.attic_dir) == []
        assert sweep(again, Retention(keep_last=1)).objects == 0
    assert step > 15


def test_a_checkpoint_made_during_a_sweep_keeps_what_it_refers_to(home, workspace, chain, monkeypatch):
    """Content that was garbage when the sweep looked is used again before it deletes."""
    monkeypatch.setattr("store.sweep.BATCH", 1)
    with home.objects.sealing():
        layer_of(home, tree(77))
    other = Home.open(home.root)
    daemon = other.by_id(workspace.id)
    lock = daemon.lock()
    made = []
    entered = other.objects.sealing

    def seal():
        with entered():
            made.append(add_checkpoint(other, daemon, tree(77), chain[-1].id))

    original = home.objects.sweeping
    calls = []

    def sweeping():
        calls.append(1)
        if len(calls) == 2:  # some of it is gone already
            thread = threading.Thread(target=seal)
            thread.start()
            thread.join()
        return original()

    home.objects.sweeping = sweeping
    done = sweep(home)
    lock.release()
    assert len(calls) > 2
    assert done.objects >= 1
    assert read_tree(home, made[0].layer) == tree(77)
    all_readable(home, home.by_id(workspace.id))


def test_what_was_put_for_a_checkpoint_that_waits_to_be_sealed_stays(home, workspace, chain):
    """Sealing fails because the disk is full, and later goes on with pages that it takes to be stored."""
    store = home.by_id(workspace.id)
    reused = home.objects.put_blob(b"garbage until it is put again")
    garbage = home.objects.put_blob(b"garbage")
    for ref in (reused, garbage):
        os.utime(home.objects.path(ref), (1, 1))
    home.clock.now = time.time_ns()
    waiting = store.history.begin(chain[-1].id, epoch=9)
    add_journal(store, 9)
    with home.objects.sealing():
        fresh = layer_of(home, tree(99))
        home.objects.put_blob(b"garbage until it is put again")
    with store.lock():
        sweep(home)
    for ref in (fresh, reused):
        home.objects.verify(ref)
    assert not home.objects.has(garbage)
    store.history.seal(waiting.id, fresh)
    sweep(home)
    assert read_tree(home, fresh) == tree(99)
    assert not home.objects.has(reused)


def test_a_clock_that_was_ahead_does_not_hide_what_was_put(home, workspace, clock):
    clock.now = time.time_ns() + 10**15
    one = add_checkpoint(home, workspace, tree(1))
    clock.now = time.time_ns()
    workspace.history.begin(one.id, epoch=9)
    add_journal(workspace, 9)
    fresh = layer_of(home, tree(2))
    sweep(home)
    assert read_tree(home, fresh) == tree(2)
