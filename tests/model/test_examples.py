"""What the state machine once found, one by one, and the cases that were built to be hard."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from store.refs import Ino
from tests.model.machine import Rig
from tests.model.plain import DIR, LNK, REG, Node, at

EMPTY, SMALL, RICH, LINKED, MANY = range(5)


@contextmanager
def served(base: int) -> Iterator[Rig]:
    rig = Rig(base)
    try:
        yield rig
        rig.check()
        rig.check_checkpoints()
        rig.check_sealed()
    finally:
        rig.close()


def node(rig: Rig, path: bytes) -> Node:
    found = at(rig.plain.root, path)
    assert found is not None
    return found


def file(rig: Rig, path: bytes) -> tuple[bytes, Node]:
    return path, node(rig, path)


def number(rig: Rig, path: bytes) -> int:
    return rig.ino(path, node(rig, path))


# What stays over a restore


@pytest.mark.parametrize("path", [b"a", b"b", b"c", b"d/c"])
def test_a_hard_link_made_and_undone_changes_nothing(path):
    """A file, an empty one, a symbolic link, a FIFO: its number and time stay."""
    with served(RICH) as rig:
        before = number(rig, path), node(rig, path).mtime
        rig.link(*file(rig, path), b"", b"other")
        rig.undo()
        assert (number(rig, path), node(rig, path).mtime) == before


def test_a_hard_link_undone_and_redone_and_undone():
    with served(RICH) as rig:
        before = number(rig, b"a")
        rig.link(*file(rig, b"a"), b"d", b"link")
        rig.checkpoint()
        for _ in range(2):
            rig.undo()
            rig.check()
            rig.redo()
            rig.check()
        assert number(rig, b"a") == number(rig, b"d/link") == before


def test_a_hard_link_of_the_base_removed_and_brought_back():
    with served(LINKED) as rig:
        before = number(rig, b"a")
        rig.remove(b"d", b"a", False)
        rig.undo()
        assert number(rig, b"a") == number(rig, b"d/a") == before


def test_a_file_that_got_its_name_by_link_and_unlink_is_a_plain_one():
    """As git makes its objects: nothing of it stands in the link table."""
    with served(RICH) as rig:
        made = rig.make(b".git", b"tmp")
        assert made is not None
        rig.write(b".git/tmp", made, 0, b"object")
        rig.link(b".git/tmp", made, b".git/d", b"object")
        rig.remove(b".git", b"tmp", False)
        rig.write(b".git/d/object", made, 3, b"ECT")
        rig.checkpoint()
        assert rig.core.tree.links is None
        rig.crash()
        rig.check()
        rig.link(b".git/d/object", node(rig, b".git/d/object"), b"", b"again")
        rig.remove(b".git/d", b"object", False)
        rig.checkpoint()
        rig.undo()
        rig.check()


def test_writing_through_one_of_several_names_undone():
    """All names show another inode with the old bytes; who has it open keeps the new ones."""
    with served(LINKED) as rig:
        rig.hold(*file(rig, b"b"))
        before = number(rig, b"a")
        rig.write(*file(rig, b"d/a"), 0, b"changed")
        rig.undo()
        assert number(rig, b"a") == number(rig, b"b") == number(rig, b"d/a") != before


def test_chmod_while_the_content_is_being_sealed_and_undone():
    """The checkpoint's entry gets its stored form, the present one does not: they are the same content still."""
    with served(SMALL) as rig:
        rig.write(*file(rig, b"a"), 0, b"x" * 500)
        rig.checkpoint()
        before = number(rig, b"a")
        rig.set(*file(rig, b"a"), mode=0o600)
        rig.fold()
        rig.world.seal_all()
        rig.undo()
        assert number(rig, b"a") == before


def test_chmod_of_a_restored_file_undone():
    with served(SMALL) as rig:
        rig.write(*file(rig, b"a"), 0, b"new")
        rig.undo()
        restored = number(rig, b"a"), node(rig, b"a").mtime
        rig.set(*file(rig, b"a"), mode=0o600)
        rig.undo()
        assert (number(rig, b"a"), node(rig, b"a").mtime) == restored


def test_two_directories_exchanged_and_exchanged_back():
    with served(RICH) as rig:
        numbers = number(rig, b"d"), number(rig, b".git")
        rig.rename(b"", b"d", b"", b"e", 0)
        rig.make(b"", b"d", DIR)
        rig.checkpoint()
        rig.rename(b"", b"d", b"", b"e", 2)
        rig.undo()
        rig.check()
        rig.reopen()
        rig.check()
        assert number(rig, b".git") == numbers[1]


def test_what_is_made_in_a_restored_directory_keeps_its_number_and_time():
    with served(SMALL) as rig:
        rig.remove(b"d", b"a", False)
        rig.remove(b"", b"d", True)
        rig.undo()
        rig.make(b"d", b"new")
        rig.set(*file(rig, b"d/new"), mtime=1_000_000_007)
        rig.checkpoint()
        before = number(rig, b"d/new")
        rig.kernel.shrink_all()
        rig.check()
        assert number(rig, b"d/new") == before
        assert node(rig, b"d/new").mtime == 1_000_000_007


def test_what_is_moved_into_a_restored_directory_keeps_its_number_and_time():
    with served(SMALL) as rig:
        rig.remove(b"d", b"a", False)
        rig.remove(b"", b"d", True)
        rig.undo()
        before = number(rig, b"a")
        rig.rename(b"", b"a", b"d", b"b")
        rig.checkpoint()
        rig.kernel.shrink_all()
        assert number(rig, b"d/b") == before


def test_a_time_set_on_a_restored_file_to_the_one_it_had_is_kept():
    with served(SMALL) as rig:
        old = node(rig, b"a").mtime
        rig.write(*file(rig, b"a"), 0, b"new")
        rig.undo()
        rig.set(*file(rig, b"a"), mtime=old)
        rig.checkpoint()
        rig.kernel.shrink_all()
        rig.check()
        assert node(rig, b"a").mtime == old


def test_a_file_held_over_a_restore_that_takes_it_away_shows_no_names():
    with served(SMALL) as rig:
        rig.make(b"", b"new")
        rig.write(*file(rig, b"new"), 0, b"bytes")
        rig.hold(*file(rig, b"new"))
        rig.kernel.stat(number(rig, b"new"))
        rig.undo()
        held = rig.open[0]
        assert rig.core.getattr(Ino(held.ino)).nlink == 0
        assert bytes(rig.core.read(Ino(held.ino), 0, 10)) == b"bytes"


def test_a_name_that_is_replaced_is_listed_once():
    """Programs save by writing another file and renaming it; who reads the directory meanwhile sees each name once."""
    with served(MANY) as rig:
        rig.make(b"d", b"new")
        rig.begin_reading(*file(rig, b"d"))
        rig.read_on(0)
        rig.read_on(0)
        seen = [name for name in rig.cursors[0].seen if name in node(rig, b"d").entries]
        rig.rename(b"d", b"new", b"d", seen[0])
        rig.rename(b"d", seen[1], b"d", b"g50", 2)
        rig.checkpoint()
        rig.write(*file(rig, b"d/" + seen[2]), 0, b"changed")
        rig.undo()
        while rig.cursors:
            rig.read_on(0)


def test_a_directory_held_over_a_restore_that_takes_it_away_is_empty():
    """The kernel is told, though it has the listing."""
    with served(SMALL) as rig:
        rig.make(b"", b"new", DIR)
        rig.make(b"new", b"file")
        rig.hold(*file(rig, b"new"))
        rig.look(*file(rig, b"new"))
        rig.undo()
        rig.check()


def test_reading_a_directory_over_a_restore():
    with served(MANY) as rig:
        for count in range(8):
            rig.make(b"d", b"new%d" % count)
        rig.begin_reading(*file(rig, b"d"))
        for _ in range(5):
            rig.read_on(0)
        rig.undo()
        while rig.cursors:
            rig.read_on(0)


def test_a_moved_directory_with_changes_inside_moves_back():
    with served(RICH) as rig:
        before = number(rig, b"d/b/c")
        rig.rename(b"d", b"b", b"", b"moved")
        rig.write(*file(rig, b"moved/a"), 0, b"changed")
        rig.make(b"moved/c", b"new")
        rig.undo()
        rig.check()
        assert number(rig, b"d/b/c") == before
        rig.redo()
        rig.check()


# Paths of a checkpoint, and kept repositories


def test_bringing_back_one_name_of_a_changed_hard_link_leaves_the_other():
    """Never through a hard link into another file's content."""
    with served(LINKED) as rig:
        base = rig.head
        rig.write(*file(rig, b"a"), 0, b"changed through a")
        rig.restore_paths(base, [b"b"])
        assert bytes(node(rig, b"a").data).startswith(b"changed")
        assert bytes(node(rig, b"b").data).startswith(b"base")
        rig.check()
        rig.remove(b"", b"a", False)
        rig.remove(b"d", b"a", False)
        rig.check()


def test_bringing_back_a_removed_name_of_a_base_hard_link():
    with served(LINKED) as rig:
        base = rig.head
        rig.remove(b"", b"a", False)
        rig.restore_paths(base, [b"a"])
        rig.check()
        assert number(rig, b"a") == number(rig, b"b")


def test_bringing_back_all_names_of_a_base_hard_link_one_after_another():
    with served(LINKED) as rig:
        base = rig.head
        for above, name in ((b"", b"a"), (b"", b"b"), (b"d", b"a")):
            rig.remove(above, name, False)
        for path in (b"a", b"d/a", b"b"):
            rig.restore_paths(base, [path])
            rig.check()


def test_a_file_moved_away_and_its_old_path_brought_back_are_two_files():
    with served(SMALL) as rig:
        base = rig.head
        rig.rename(b"", b"a", b"d", b"moved")
        rig.restore_paths(base, [b"a"])
        rig.write(*file(rig, b"a"), 0, b"one")
        rig.write(*file(rig, b"d/moved"), 0, b"other")
        rig.check()
        rig.crash()


def test_a_directory_brought_back_beside_what_was_moved_out_of_it():
    """Its file is there twice, with one past; linking and writing tell them apart."""
    with served(RICH) as rig:
        base = rig.head
        rig.rename(b"d/b", b"a", b"", b"moved")
        rig.remove(b"d/b/c", b"a", False)
        rig.remove(b"d/b", b"c", True)
        rig.remove(b"d", b"b", True)
        rig.restore_paths(base, [b"d/b"])
        rig.link(*file(rig, b"moved"), b"", b"moved2")
        rig.link(*file(rig, b"d/b/a"), b"d", b"second")
        rig.write(*file(rig, b"moved2"), 0, b"one")
        rig.write(*file(rig, b"d/second"), 0, b"other")
        rig.check()
        rig.checkpoint()
        rig.crash()
        rig.check()


@pytest.mark.parametrize("part", [b"d", b"c/a"])
def test_a_directory_with_hard_links_brought_back_beside_itself(part):
    """The tree has more names for an inode than the base: when as many as the base has are gone, others are left."""
    with served(LINKED) as rig:
        base = rig.head
        above, _, name = part.rpartition(b"/")
        rig.rename(above, name, b"", b"e")
        rig.restore_paths(base, [part])
        rig.check()
        names = sorted(node(rig, b"e").entries)
        for name in names:
            if node(rig, b"e/" + name).kind == REG:
                rig.write(*file(rig, part + b"/" + name), 0, b"changed")
                rig.remove(b"e", name, False)
        rig.check()
        rig.checkpoint()
        rig.crash()
        rig.check()


def test_a_directory_with_hard_links_kept_beside_where_it_was():
    with served(LINKED) as rig:
        base = rig.head
        rig.rename(b"", b"d", b"", b"e")
        rig.checkpoint()
        rig.restore_paths(base, [b"d"])
        rig.write(*file(rig, b"e/c"), 0, b"changed")
        rig.remove(b"d", b"c", False)
        rig.remove(b"d", b"d", False)
        rig.remove(b"c/a", b"a", False)
        rig.crash()
        rig.check()
        rig.undo()
        rig.redo()


def test_a_path_brought_back_twice():
    with served(SMALL) as rig:
        base = rig.head
        rig.write(*file(rig, b"a"), 0, b"changed")
        rig.restore_paths(base, [b"a"])
        before = number(rig, b"a")
        rig.restore_paths(base, [b"a"])
        assert number(rig, b"a") == before


@pytest.mark.parametrize("sealed", [0, 1, 2])
def test_a_kill_after_bringing_back_paths(sealed):
    """Whatever of the saved present and of the result has been sealed by then."""
    with served(SMALL) as rig:
        base = rig.head
        rig.write(*file(rig, b"a"), 0, b"changed")
        rig.write(*file(rig, b"d/a"), 0, b"changed too")
        rig.restore_paths(base, [b"a"])
        rig.make(b"", b"after")
        for _ in range(sealed):
            rig.seal_one()
        rig.crash()
        rig.check()


def test_a_restore_to_a_result_that_is_not_sealed_yet_and_a_kill():
    with served(SMALL) as rig:
        base = rig.head
        rig.remove(b"", b"a", False)
        rig.restore_paths(base, [b"a"])
        rig.restore(rig.head)
        rig.crash()
        rig.check()


def test_hard_links_of_a_repository_that_stays():
    """Linked objects in ``.git``: the link table follows them into the tree that is restored."""
    with served(RICH) as rig:
        rig.make(b".git", b"one")
        rig.write(*file(rig, b".git/one"), 0, b"object")
        rig.link(*file(rig, b".git/one"), b".git/d", b"two")
        rig.write(*file(rig, b"a"), 0, b"work")
        rig.undo()
        rig.check()
        assert number(rig, b".git/one") == number(rig, b".git/d/two")
        rig.remove(b".git", b"one", False)
        rig.crash()
        rig.check()


# Crashes


def test_a_file_without_a_name_gets_one_after_a_checkpoint():
    with served(SMALL) as rig:
        made = rig.tmpfile(b"")
        rig.write(None, made, 0, b"bytes" * 200)
        rig.write(None, made, 3000, b"end")
        rig.set(None, made, mode=0o640, mtime=1_000_000_009)
        rig.checkpoint()
        rig.world.seal_all()
        rig.link(None, made, b"d", b"named")
        rig.crash()
        rig.check()
        assert bytes(node(rig, b"d/named").data).endswith(b"end")


def test_copying_from_a_file_without_a_name():
    with served(SMALL) as rig:
        made = rig.tmpfile(b"")
        rig.write(None, made, 0, b"bytes" * 100)
        rig.make(b"", b"new")
        rig.checkpoint()
        rig.world.seal_all()
        rig.copy((None, made), 0, file(rig, b"a"), 0, 500)
        rig.crash()
        rig.check()


def test_writing_to_a_removed_file_in_a_later_epoch_is_nobodys_loss():
    """The file goes with the daemon, and nothing is said about it."""
    with served(SMALL) as rig:
        rig.hold(*file(rig, b"a"))
        rig.remove(b"", b"a", False)
        rig.make(b"", b"new")
        rig.checkpoint()
        rig.write(None, rig.open[0], 0, b"for nobody")
        rig.crash()


def test_a_hard_link_held_over_a_restore_and_written_to():
    with served(LINKED) as rig:
        rig.truncate(*file(rig, b"d/c"), 1000)
        rig.hold(*file(rig, b"d/c"))
        rig.undo()
        rig.write(None, rig.open[0], 0, b"for nobody")
        rig.crash()


def test_changes_that_cancel_out_before_an_undo_and_a_kill():
    with served(SMALL) as rig:
        rig.write(*file(rig, b"a"), 0, b"x")
        rig.checkpoint()
        rig.make(b"d", b"new")
        rig.remove(b"d", b"new", False)
        rig.undo()
        rig.crash()


def test_numbers_given_out_before_a_kill_are_not_given_out_again():
    """Looking into a directory that came back takes numbers that no journal tells of."""
    with served(MANY) as rig:
        for path in [*sorted(node(rig, b"d").entries)]:
            rig.remove(b"d", path, False)
        rig.remove(b"", b"d", True)
        rig.undo()
        for name in sorted(node(rig, b"d").entries)[:20]:
            number(rig, b"d/" + name)
        made = [rig.make(b"", b"new%d" % count) for count in range(5)]
        rig.set(*file(rig, b"d/g1"), mode=0o600)
        rig.make(b"", b"last")
        rig.crash()
        rig.check()
        assert all(one is not None and one.ino is not None for one in made)


def test_several_checkpoints_frozen_at_once_and_a_kill():
    with served(RICH) as rig:
        for count in range(4):
            rig.write(*file(rig, b"a"), count * 200, b"%d" % count * 150)
            rig.rename(b"", b"c", b"d", b"c2") if count == 1 else None
            rig.checkpoint()
        rig.seal_one()
        rig.undo(2)
        rig.crash()
        rig.check()
        rig.check_checkpoints()
        rig.redo()


def test_a_restore_shows_its_times_after_a_kill():
    with served(SMALL) as rig:
        rig.write(*file(rig, b"a"), 0, b"new")
        rig.undo()
        shown = node(rig, b"a").mtime
        rig.world.seal_all()
        rig.crash()
        assert node(rig, b"a").mtime == shown
        rig.set(*file(rig, b"a"), mode=0o600)
        rig.crash()
        assert node(rig, b"a").mtime == shown


# Content


def test_a_time_set_on_an_untouched_file_does_not_hide_its_bytes():
    with served(SMALL) as rig:
        rig.set(*file(rig, b"a"), mtime=1_000_000_001)
        rig.check()
        rig.crash()


def test_holes_written_over_and_punched_again():
    with served(RICH) as rig:
        path = b"d/" + sorted(name for name, one in node(rig, b"d").entries.items() if len(one.data) == 20_000)[0]
        rig.write(*file(rig, path), 100, b"x" * 50)
        rig.hole(*file(rig, path), 120, 10, False, True)
        rig.hole(*file(rig, path), 19_990, 100, True, False)
        rig.checkpoint()
        rig.write(*file(rig, path), 120, b"y" * 5)
        rig.world.seal_all()
        rig.check()
        rig.crash()
        rig.check()


@pytest.mark.parametrize("kind", [REG, DIR, LNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
def test_every_type_replaces_every_other_and_back(kind):
    with served(EMPTY) as rig:
        for other in (REG, DIR, LNK, stat.S_IFIFO):
            rig.make(b"", b"x", kind)
            rig.checkpoint()
            rig.remove(b"", b"x", kind == DIR)
            rig.make(b"", b"x", other)
            rig.checkpoint()
            rig.undo()
            rig.check()
            rig.redo()
            rig.check()
            rig.remove(b"", b"x", other == DIR)
