"""The home: private, of one version, and workspaces known by their directories' identity."""

from __future__ import annotations

import os
import shutil
import stat

import msgspec
import pytest

from store.disk import Disk
from store.errors import DamagedError, FormatError, LockedError, StoreError
from store.home import Home, WorkspaceIdentity, WorkspaceRecord, default_root
from store.refs import WorkspaceId
from tests.store.faulty_disk import Crash, FaultyDisk


def test_everything_is_private(home, workspace):
    checked = 0
    for directory, _, files in os.walk(home.root):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(directory, name)).st_mode) & 0o077 == 0
            checked += 1
    assert checked >= 2
    assert os.path.isdir(home.runtime)


def test_an_empty_directory_that_is_there_becomes_private(top):
    os.mkdir(top + b"/h", 0o755)
    Home.open(top + b"/h")
    assert stat.S_IMODE(os.stat(top + b"/h").st_mode) == 0o700


def test_the_environment_says_where(top, monkeypatch):
    monkeypatch.setenv("PLYFS_HOME", os.fsdecode(top + b"/elsewhere"))
    assert Home.open().root == top + b"/elsewhere"
    monkeypatch.delenv("PLYFS_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", os.fsdecode(top + b"/state"))
    assert default_root() == os.fsdecode(top + b"/state/plyfs")


def test_other_versions_and_foreign_directories_are_refused(top, home):
    with open(home.root + b"/version", "wb") as file:
        file.write(b"plyfs store 2\n")
    with pytest.raises(FormatError, match="version 2") as caught:
        Home.open(home.root)
    assert "PLYFS_HOME" in caught.value.hint
    with open(home.root + b"/version", "wb") as file:
        file.write(b"something else")
    with pytest.raises(FormatError):
        Home.open(home.root)
    os.mkdir(top + b"/photos")
    Disk().write_new(top + b"/photos/cat.jpeg", b"")
    with pytest.raises(FormatError, match=r"cat\.jpeg"):
        Home.open(top + b"/photos")
    assert os.listdir(top + b"/photos") == [b"cat.jpeg"]


def test_a_creation_interrupted_anywhere_is_completed(top):
    os.mkdir(top + b"/project")
    identity = WorkspaceIdentity.of(top + b"/project")
    step = 0
    finished = False
    while not finished:
        step += 1
        for torn in (False, True):
            root = top + b"/home-%d-%d" % (step, torn)
            disk = FaultyDisk(stop_after=step, torn=torn)
            try:
                Home.open(root, disk).workspace(identity, top + b"/project")
                finished = True
            except Crash:
                pass
            if step % 2:
                disk.power_loss(root)
            home = Home.open(root)
            workspace = home.workspace(identity, top + b"/project")
            assert workspace.history.all() == []
            assert workspace.epochs() == []
            assert [record.id for record in home.workspaces()] == [workspace.id]
    assert step > 12


def test_missing_directories_are_made(home):
    os.rmdir(home.runtime)
    os.rmdir(home.objects.root + b"/tmp")
    Home.open(home.root).objects.put_blob(b"content")
    assert os.path.isdir(home.runtime)


def test_a_workspace_is_found_again_also_where_it_was_moved(home, top):
    os.mkdir(top + b"/a")
    one = home.workspace(WorkspaceIdentity.of(top + b"/a"), top + b"/a")
    os.rename(top + b"/a", top + b"/b")
    identity = WorkspaceIdentity.of(top + b"/b")
    assert home.find(identity, top + b"/b").id == one.id
    assert home.workspaces()[0].path == top + b"/a"
    again = Home.open(home.root).workspace(identity, top + b"/b")
    assert again.id == one.id
    assert again.record.path == top + b"/b"
    assert [record.path for record in home.workspaces()] == [top + b"/b"]
    assert home.by_id(one.id).path == one.path
    with pytest.raises(StoreError):
        home.by_id(WorkspaceId("0" * 16))


def test_a_directory_put_in_the_place_of_another_is_another_workspace(home, top):
    os.mkdir(top + b"/a")
    one = home.workspace(WorkspaceIdentity.of(top + b"/a"), top + b"/a")
    os.rename(top + b"/a", top + b"/b")
    os.mkdir(top + b"/a")
    two = home.workspace(WorkspaceIdentity.of(top + b"/a"), top + b"/a")
    assert two.id != one.id
    os.rmdir(top + b"/a")
    os.mkdir(top + b"/a")  # the inode number may well be the same
    three = WorkspaceIdentity.of(top + b"/a")
    if three.birth_ns:
        assert home.find(three, top + b"/a") is None


def test_identities_by_path_and_by_descriptor_agree(top):
    fd = os.open(top, os.O_RDONLY)
    try:
        assert WorkspaceIdentity.of(fd) == WorkspaceIdentity.of(top) == WorkspaceIdentity.of(os.fsdecode(top))
        os.fstat(fd)  # it was not closed
    finally:
        os.close(fd)


def test_a_renumbered_file_system_and_a_hidden_birth_time_are_seen_through_with_the_path_only(home):
    known = home.workspace(WorkspaceIdentity(1, 2, 3), b"/w")
    for identity in (WorkspaceIdentity(9, 2, 3), WorkspaceIdentity(9, 2, 0), WorkspaceIdentity(9, 2, 3)):
        assert home.find(identity, b"/elsewhere") is None or identity == home.workspaces()[0].identity
        assert home.workspace(identity, b"/w").id == known.id
    for identity in (WorkspaceIdentity(8, 2, 4), WorkspaceIdentity(8, 2, 0), WorkspaceIdentity(9, 5, 3)):
        assert home.find(identity, b"/w") is None


def test_a_damaged_record_is_left_out(home, workspace):
    path = workspace.path + b"/record"
    with open(path, "wb") as file:
        file.write(b"damaged")
    assert home.workspaces() == []
    with pytest.raises(DamagedError):
        home.read_record(workspace.id)
    shutil.rmtree(workspace.path)
    os.mkdir(home.workspaces_dir + b"/0123456789abcdef")
    assert home.workspaces() == []


def test_journals_lock_and_parts(home, workspace):
    assert workspace.epochs() == []
    for epoch in (10, 9):
        Disk().write_new(workspace.journal_path(epoch), b"")
    Disk().write_new(workspace.journal_path(3) + b".new", b"")
    assert workspace.epochs() == [9, 10]
    lock = workspace.lock()
    with pytest.raises(LockedError):
        home.by_id(workspace.id).lock()
    lock.release()
    base = workspace.history.begin(None)
    workspace.close()
    assert home.by_id(workspace.id).history.get(base.id) == base
    assert workspace.generations.current == 0
    workspace.close()


def test_records_round_trip(workspace, home):
    assert home.read_record(workspace.id) == workspace.record
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(workspace.record), type=WorkspaceRecord) == workspace.record
