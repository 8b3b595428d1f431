"""Verifying: every invariant that is broken is told, what is lost is told by path, and repairs lose nothing more."""

from __future__ import annotations

import os
import shutil
import stat

import pytest

from store.check import check
from store.disk import Disk
from store.format import (
    Attributes,
    Blob,
    BranchChild,
    BranchPage,
    Directory,
    Inline,
    Layer,
    LeafPage,
    Linked,
    LinkTarget,
    Origin,
    Regular,
    decode,
    encode,
)
from store.frames import frame
from store.generations import Generation
from store.home import Home
from store.refs import LayerRef, digest
from tests.store.small_store import (
    FIRST_INO,
    add_checkpoint,
    add_journal,
    attributes,
    in_attic,
    layer_of,
    read_tree,
    set_head,
)

BIG = bytes(range(256)) * 1500


@pytest.fixture
def made(home, workspace):
    one = add_checkpoint(home, workspace, {b"a": b"a" * 200, b"d": {b"e": {b"deep": b"d" * 300}}}, kind="base")
    two = add_checkpoint(home, workspace, {b"a": b"A" * 200, b"d": {b"big": BIG, b"e": {b"deep": b"d" * 300}}}, one.id)
    set_head(workspace, two)
    workspace.close()
    return one, two


def damage(home, ref):
    path = home.objects.path(ref)
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    os.chmod(path, 0o400)


def messages(report):
    return [problem.message for problem in report.problems]


def lost(report):
    return [(one.checkpoint, one.path) for one in report.lost]


def flip(path, place):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_a_sound_store_has_nothing_to_tell(home, workspace, made):
    home.objects.put_blob(b"garbage")
    seen = []
    report = check(home, progress=seen.append)
    assert report.problems == []
    assert report.lost == []
    assert report.is_sound
    assert (report.workspaces, report.checkpoints, report.unreferenced) == (1, 2, 1)
    assert seen == list(range(1, report.objects + 1))
    assert report.bytes > len(BIG)


def test_a_damaged_or_missing_blob_is_told_by_every_path(home, workspace, made):
    one, two = made
    damage(home, digest(b"d" * 300))
    os.unlink(home.objects.path(digest(b"a" * 200)))
    report = check(home)
    assert sorted(lost(report)) == sorted([(one.id, b"d/e/deep"), (two.id, b"d/e/deep"), (one.id, b"a")])
    assert not report.is_sound
    repaired = check(home, repair=True)
    assert lost(repaired) == lost(report)  # nothing can bring them back
    assert home.objects.has(digest(b"d" * 300))
    home.objects.put_blob(b"a" * 200)
    Home.open(home.root).objects.put_blob(b"d" * 300)
    assert check(home).is_sound


def test_a_damaged_page_loses_its_directory(home, workspace, made):
    one, two = made
    page = decode(home.objects.get_node(decode(home.objects.get_node(two.layer)).root.node))
    damage(home, dict(page.entries)[b"d"].node)
    damage(home, digest(BIG[: 256 * 1024]))
    report = check(home)
    assert lost(report) == [(two.id, b"d")]
    damage(home, one.layer)
    assert sorted(lost(check(home))) == sorted([(one.id, b""), (two.id, b"d")])
    # What lies behind is not known, so nothing damaged may be taken for unneeded.
    check(home, repair=True)
    assert home.objects.has(digest(BIG[: 256 * 1024]))


def test_chunks(home, workspace, made):
    _, two = made
    damage(home, digest(BIG[256 * 1024 :]))
    (loss,) = check(home).lost
    assert (loss.checkpoint, loss.path) == (two.id, b"d/big")
    assert "bytes 262144 to 384000" in loss.reason


def test_damage_that_nobody_needs_goes(home, workspace, made):
    ref = home.objects.put_blob(b"garbage")
    damage(home, ref)
    report = check(home)
    assert report.is_sound
    assert [problem.severity for problem in report.problems] == ["untidy"]
    assert home.objects.has(ref)
    assert check(home, repair=True).problems[0].repaired
    assert not home.objects.has(ref)
    assert check(home).problems == []


def test_what_others_may_read_and_what_is_missing_is_put_right(home, workspace, made):
    os.chmod(workspace.path, 0o755)
    os.chmod(workspace.path + b"/history", 0o644)
    os.chmod(home.objects.path(made[0].layer), 0o444)
    shutil.rmtree(workspace.attic_dir)
    os.rmdir(home.runtime)
    report = check(home)
    assert len(report.problems) == 5
    assert not report.is_sound
    report = check(home, repair=True)
    assert len(report.problems) == 5
    assert report.is_sound
    assert check(home).problems == []
    assert stat.S_IMODE(os.stat(workspace.path).st_mode) == 0o700
    assert os.path.isdir(home.runtime)


def test_strangers_are_told(home, workspace, made):
    Disk().write_new(home.root + b"/stranger", b"")
    Disk().write_new(home.objects.root + b"/stranger", b"")
    Disk().write_new(workspace.path + b"/head.new", b"")
    report = check(home)
    assert report.is_sound
    assert len(report.problems) == 3
    shutil.rmtree(workspace.attic_dir)
    Disk().write_new(workspace.attic_dir, b"")
    assert not check(home, repair=True).is_sound


def test_a_torn_end_is_cut(home, workspace, made):
    for name in (b"history", b"generations"):
        path = workspace.path + b"/" + name
        if name == b"generations":
            layer = layer_of(home, {})
            workspace.generations.append(Generation(0, layer, layer_of(home, {}, generation=1), 1, "apply"))
            workspace.close()
        with open(path, "ab") as file:
            file.write(frame(b"unfinished")[:-1])
        size = os.path.getsize(path)
        report = check(home)
        assert report.is_sound
        assert len(report.problems) == 1
        assert os.path.getsize(path) == size
        assert check(home, repair=True).problems[0].repaired
        assert os.path.getsize(path) < size
        assert check(home).problems == []


def test_a_damaged_history_keeps_all_that_can_be_read(home, workspace, made):
    one, two = made
    three = add_checkpoint(home, workspace, {b"x": b"y"}, two.id, label="three")
    set_head(workspace, three)
    workspace.close()
    path = workspace.path + b"/history"
    with open(path, "rb") as file:
        data = file.read()
    flip(path, data.index(two.id.encode()) + 3)
    report = check(home)
    assert not report.is_sound
    report = check(home, repair=True)
    assert report.is_sound
    assert any("damaged at byte" in message for message in messages(report))
    again = home.by_id(workspace.id)
    assert [checkpoint.id for checkpoint in again.history.all()] == [one.id, three.id]
    assert again.history.get(three.id).parent == one.id
    assert again.history.get(three.id).layer == three.layer
    assert read_tree(home, three.layer) == {b"x": b"y"}
    with open(path + b".damaged", "rb") as file:
        assert len(file.read()) == len(data)
    assert check(home).problems == []


def test_what_depends_on_a_lost_event_is_left_out(home, workspace, made):
    one, two = made
    store = home.by_id(workspace.id)
    three = store.history.begin(two.id, layer=two.layer)
    store.history.label(two.id, "of the lost")
    four = store.history.begin(three.id, layer=two.layer)
    store.history.remove([two.id, three.id])
    five = store.history.begin(four.id, layer=one.layer)
    set_head(store, five)
    store.close()
    path = store.path + b"/history"
    with open(path, "rb") as file:
        flip(path, file.read().index(two.id.encode()) + 3)
    assert check(home, repair=True).is_sound
    assert check(home).problems == []
    left = home.by_id(workspace.id).history.all()
    assert [(checkpoint.id, checkpoint.parent) for checkpoint in left] == [
        (one.id, None),
        (four.id, one.id),
        (five.id, four.id),
    ]


def test_a_head_that_cannot_stand_is_put_on_the_newest_checkpoint(home, workspace, made):
    _, two = made
    path = workspace.path + b"/head"
    flip(path, 20)
    report = check(home)
    assert not report.is_sound
    assert any(two.id in message for message in messages(report))
    assert check(home, repair=True).is_sound
    assert check(home).problems == []
    assert home.by_id(workspace.id).history.read_head().head == two.id
    assert os.path.exists(path + b".damaged")
    os.unlink(path)
    assert check(home, repair=True).is_sound
    assert check(home).problems == []


def test_a_head_in_a_generation_that_has_not_begun(home, workspace, made):
    set_head(workspace, made[1], generation=3)
    (problem,) = check(home).problems
    assert "generation 3" in problem.message


def test_journals(home, workspace, made):
    add_journal(workspace, 9, b"one", b"two", b"three")
    add_journal(workspace, 10)
    assert check(home).problems == []
    path = workspace.journal_path(9)
    with open(path, "ab") as file:
        file.write(b"torn")
    assert [problem.severity for problem in check(home).problems] == ["untidy"]
    assert check(home, repair=True).problems[0].repaired
    assert check(home).problems == []
    with open(path, "rb") as file:
        data = file.read()
    flip(path, data.index(b"two"))
    assert not check(home).is_sound
    assert check(home, repair=True).is_sound
    with open(path + b".damaged", "rb") as file:
        assert len(file.read()) == len(data)
    assert check(home).problems == []
    os.rename(path, workspace.journal_path(8))
    assert "epoch 9" in messages(check(home))[0]


def test_a_checkpoint_whose_journal_is_gone_before_it_was_sealed_is_lost(home, workspace, made):
    store = home.by_id(workspace.id)
    sealing = store.history.begin(made[1].id, epoch=9)
    store.close()
    add_journal(workspace, 9)
    assert check(home).is_sound
    os.unlink(workspace.journal_path(9))
    assert lost(check(home)) == [(sealing.id, b"")]


def test_a_workspace_in_use_is_looked_at_and_left_alone(home, workspace, made):
    with open(workspace.path + b"/history", "ab") as file:
        file.write(b"torn")
    with workspace.lock():
        report = check(home, repair=True)
        assert report.checkpoints == 2
        assert [problem.repaired for problem in report.problems] == [False]
        assert check(home, repair=True, owned={workspace.id: workspace}).problems == report.problems


def test_a_checkpoint_that_appears_while_looking_is_no_damage(home, workspace, made, monkeypatch):
    with workspace.lock():
        late = workspace.history.begin(made[1].id, layer=made[1].layer)
        set_head(workspace, late)
        early = home.by_id(workspace.id)
        early.history._all.pop(late.id)
        given = iter([early])
        monkeypatch.setattr(home, "by_id", lambda id: next(given, None) or type(home).by_id(home, id))
        assert check(home).problems == []


def test_a_damaged_record_is_told(home, workspace, made):
    with open(workspace.path + b"/record", "wb") as file:
        file.write(b"damaged")
    report = check(home, repair=True)
    assert not report.is_sound
    assert report.workspaces == 0


def test_the_attic(home, workspace):
    path = workspace.attic_dir + b"/1/sub/f"
    os.makedirs(os.path.dirname(path), 0o700)
    Disk().write_new(path, b"replaced")
    found = os.stat(path)
    file = in_attic(1, b"sub/f", 8, found.st_mtime_ns)
    one = add_checkpoint(home, workspace, {b"f": file, b"gone": in_attic(1, b"none", 1, 1)})
    two = add_checkpoint(home, workspace, {}, one.id, origin=Origin(2, b"x"))
    set_head(workspace, two)
    workspace.close()
    assert lost(check(home)) == [(one.id, b"gone"), (two.id, b"")]
    os.utime(path, ns=(1, 1))
    assert lost(check(home)) == [(one.id, b"f"), (one.id, b"gone"), (two.id, b"")]


def put_layer(home, entries, links=None, subdirectories=0, generation=0):
    pages = home.pages
    page = pages.update(None, entries)
    node = None if page is None else pages.save(page)
    table = None if links is None else pages.save(pages.update(None, links))
    root = Directory(attributes(1, 0o755), None, subdirectories, node)
    return LayerRef(home.objects.put_node(encode(Layer(1, None, generation, root, table))))


def check_layer(home, workspace, layer, generation=0):
    store = home.by_id(workspace.id)
    checkpoint = store.history.begin(None, layer=layer, generation=generation)
    set_head(store, checkpoint)
    store.close()
    return [loss.reason for loss in check(home).lost]


def key(ino):
    return ino.to_bytes(8, "big")


FILE = Regular(Attributes(5, 0o644, 0, 0, 1, 1), Inline(b"x"))


def test_link_tables(home, workspace):
    ino = FIRST_INO + 1
    names = {b"a": Linked(ino), b"b": Linked(ino), b"base": Linked(77)}
    rows = {key(ino): LinkTarget(FILE, 2), key(77): LinkTarget(FILE, 5)}
    assert check_layer(home, workspace, put_layer(home, names, rows)) == []
    (reason,) = check_layer(home, workspace, put_layer(home, names, rows | {key(ino): LinkTarget(FILE, 3)}))
    assert "2 names, not 3" in reason
    reasons = check_layer(home, workspace, put_layer(home, names | {b"c": Linked(78)}, rows))
    assert "not in the link table" in reasons[-1]
    blob = home.objects.put_blob(b"b" * 200)
    row = {key(ino): LinkTarget(Regular(attributes(ino), Blob(blob, 200)), 2)}
    layer = put_layer(home, names, rows | row)
    os.unlink(home.objects.path(blob))
    assert f"inode {ino}" in check_layer(home, workspace, layer)[-1]


def test_counts_and_places(home, workspace):
    empty = Directory(attributes(9), None, 3, None)
    assert "0 subdirectories, not 3" in check_layer(home, workspace, put_layer(home, {b"d": empty}))[0]
    assert "speaks of generation 4" in check_layer(home, workspace, put_layer(home, {}, generation=4))[-1]
    leaf = home.objects.put_node(encode(LeafPage(((b"name", FILE),))))
    for children in ((BranchChild(0, 1, leaf), BranchChild(1, 1, leaf)), (BranchChild(0, 2, leaf),)):
        branch = home.objects.put_node(encode(BranchPage(children)))
        root = Directory(attributes(1), None, 0, branch)
        layer = LayerRef(home.objects.put_node(encode(Layer(1, None, 0, root, None))))
        reasons = " ".join(check_layer(home, workspace, layer))
        assert "never looked for" in reasons or "not 2" in reasons
        assert "not canonical" in reasons
    crowd = tuple((b"%03d" % number, FILE) for number in range(65))
    big = home.objects.put_node(encode(LeafPage(crowd)))
    root = Directory(attributes(1), None, 0, big)
    layer = LayerRef(home.objects.put_node(encode(Layer(1, None, 0, root, None))))
    assert "65 entries in a leaf" in check_layer(home, workspace, layer)[-1]


def test_layers_that_are_something_else(home, workspace):
    page = LayerRef(home.objects.put_node(encode(LeafPage(()))))
    assert "not a layer" in check_layer(home, workspace, page)[0]
    root = Directory(attributes(1), None, 0, put_layer(home, {}))
    layer = LayerRef(home.objects.put_node(encode(Layer(1, None, 0, root, None))))
    assert "not a page" in check_layer(home, workspace, layer)[-1]


def test_generations(home, workspace, made):
    good = layer_of(home, {b"x": b"x" * 300}, generation=0)
    inverse = layer_of(home, {b"y": b"y" * 300}, generation=1)
    store = home.by_id(workspace.id)
    store.generations.append(Generation(0, good, inverse, 1, "apply"))
    store.close()
    assert check(home).is_sound
    os.unlink(home.objects.path(digest(b"y" * 300)))
    report = check(home)
    assert not report.is_sound
    assert "'y'" in messages(report)[0]
    path = store.path + b"/generations"
    flip(path, os.path.getsize(path) - 3)
    report = check(home)
    assert not report.is_sound or report.problems[0].severity == "untidy"


def test_deep_trees(home, workspace):
    directory = Directory(attributes(9), None, 0, None)
    for _ in range(1500):
        node = home.pages.save(home.pages.update(None, {b"d": directory}))
        directory = Directory(attributes(9), None, 1, node)
    layer = LayerRef(home.objects.put_node(encode(Layer(1, None, 0, directory, None))))
    assert check_layer(home, workspace, layer) == []
