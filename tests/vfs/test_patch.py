"""A patch is text that git accepts and that makes the one tree out of the other."""

from __future__ import annotations

import os
import random
import shutil
import subprocess

import pytest

from tests.vfs.overlay import Overlay, World
from vfs.trees.diff import changes
from vfs.trees.patch import COMPARED_LINES, line_counts, opcodes, patch
from vfs.trees.view import View


@pytest.fixture
def world(tmp_path):
    world = World(os.fspath(tmp_path))
    os.makedirs(world.base + "/dir")
    write(world, "long", "".join(f"line {n}\n" for n in range(100)))
    write(world, "no newline", "a\nb")
    write(world, "dir/moved", "same\n")
    write(world, "gone", "x\ny\n")
    write(world, "crlf", "a\r\nb\r\n")
    write(world, "empty", "")
    with open(world.base + "/binary", "wb") as file:
        file.write(bytes(range(256)))
    os.symlink("long", world.base + "/link")
    yield world
    world.close()


def write(world, name, text):
    with open(f"{world.base}/{name}", "w", newline="") as file:
        file.write(text)


def both(world, tree, function=patch):
    a, b = View.base(world.pages, world.host, 0), tree.seal()

    def read(entry, offset, length):
        return world.contents.read(entry.content, offset, length)

    return function(changes(a, b), a, b, read, read)


def changed(world):
    tree = Overlay(world)
    lines = [b"line %d\n" % n for n in range(100)]
    lines[10] = b"changed\n"
    lines[60:62] = []
    lines.append(b"end without newline")
    tree.write(b"long", b"".join(lines))
    tree.write(b"no newline", b"a\nb\nc\n")
    tree.write(b"crlf", b"a\r\nB\r\n")
    tree.remove(b"gone")
    tree.rename(b"dir", b"other")
    tree.write(b"new", b"1\n2\n")
    tree.write(b"empty", b"filled\n")
    tree.write(b"spaced name", b"1\n")
    tree.write(b'q"uo\ted\n\xff', b"1\n")
    tree.chmod(b"new", 0o755)
    tree.remove(b"link")
    tree.symlink(b"link", b"empty")
    return tree


def test_git_applies_it(world, tmp_path):
    text = both(world, changed(world)).encode("utf-8", "surrogateescape")
    target = tmp_path / "target"
    shutil.copytree(world.base, target, symlinks=True)
    subprocess.run(["git", "apply", "-p1", "-"], cwd=target, input=text, check=True)
    tree = changed(world)
    view = tree.seal()
    for path, thing in tree.paths():
        full = os.path.join(os.fsencode(target), path)
        if thing.kind == 0o100000:
            with open(full, "rb") as file:
                assert file.read() == world.contents.read(view.lookup(path).content, 0, 1 << 20), path
    assert os.readlink(target / "link") == "empty"
    assert not (target / "gone").exists()
    assert os.access(target / "new", os.X_OK)


def test_the_form(world):
    tree = Overlay(world)
    tree.write(b"no newline", b"a\nc\n")
    tree.write(b"binary", bytes(300))
    tree.chmod(b"crlf", 0o755)
    tree.rename(b"dir/moved", b"here")
    assert both(world, tree) == (
        "diff --git a/binary b/binary\n"
        "Binary files a/binary and b/binary differ\n"
        "diff --git a/crlf b/crlf\n"
        "old mode 100644\nnew mode 100755\n"
        "diff --git a/dir/moved b/here\n"
        "rename from dir/moved\nrename to here\n"
        "diff --git a/no newline b/no newline\n"
        "--- a/no newline\t\n+++ b/no newline\t\n"
        "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
    )


def test_a_change_of_type_is_a_deletion_and_a_creation(world):
    tree = Overlay(world)
    tree.remove(b"gone")
    tree.symlink(b"gone", b"t")
    text = both(world, tree)
    assert "deleted file mode 100644" in text
    assert "new file mode 120000" in text


def test_times_alone_say_nothing(world):
    tree = Overlay(world)
    tree.utime(b"long", 1)
    assert both(world, tree) == ""


def test_line_counts(world):
    counts = both(world, changed(world), line_counts)
    assert counts["long"] == (2, 3)
    assert counts["gone"] == (0, 2)
    assert counts["new"] == (2, 0)
    assert counts["other/moved"] == (0, 0)
    tree = Overlay(world)
    tree.write(b"binary", bytes(9))
    assert both(world, tree, line_counts) == {"binary": (-1, -1)}


@pytest.mark.parametrize("seed", range(30))
def test_opcodes_make_b_out_of_a(seed):
    rng = random.Random(seed)
    a = [b"%d\n" % rng.randrange(6) for _ in range(rng.randrange(30))]
    b = [line for line in a if rng.random() < 0.7]
    for _ in range(rng.randrange(5)):
        b.insert(rng.randrange(len(b) + 1), b"new\n")
    made, at = [], 0
    for tag, a0, a1, b0, b1 in opcodes(a, b):
        assert a0 == at
        at = a1
        made += a[a0:a1] if tag == "equal" else b[b0:b1]
    assert made == b
    assert at == len(a)


def test_a_rewritten_big_file_takes_no_time():
    a = [b"a%d\n" % n for n in range(COMPARED_LINES * 5)]
    b = [b"b%d\n" % n for n in range(COMPARED_LINES * 5)]
    assert opcodes(a, b) == [("replace", 0, len(a), 0, len(b))]
