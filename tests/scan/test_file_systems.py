"""Scanner mode on real file systems of other kinds, on loop images: where case does not count, where modes do not
stick, copy-on-write ones, memory, read-only and full ones.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import NoSpaceError
from tests.conftest import lacking, need_programs
from tests.scan.conftest import Scanned, kinds
from tests.treestate import capture
from vfs.scan.names import ignores_case
from vfs.workspace import RefusedError, WorkspaceError

pytestmark = pytest.mark.root

KINDS = {
    "btrfs": (["mkfs.btrfs", "-q"], ["mount", "-o", "loop"], 160),
    "xfs": (["mkfs.xfs", "-q"], ["mount", "-o", "loop"], 320),
    "ext4": (["mkfs.ext4", "-q"], ["mount", "-o", "loop"], 40),
    "ntfs": (["mkfs.ntfs", "-Q", "-F", "-q"], ["lowntfs-3g", "-o", "ignore_case"], 40),
    "tmpfs": ([], ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs"], 0),
}


def mounted(kind: str, top: Path) -> Path:
    """A new file system of that kind, mounted below ``top``."""
    make, mount, megabytes = KINDS[kind]
    point, image = top / kind, top / f"{kind}.img"
    point.mkdir()
    if make:
        need_programs(make[0], mount[0])
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        done = subprocess.run([*make, str(image)], capture_output=True, check=False)
        if done.returncode:
            lacking(f"{make[0]} failed: {done.stderr.decode()[:200]}")
        command = (
            [mount[0], str(image), str(point), *mount[1:]]
            if "lowntfs" in mount[0]
            else [*mount, str(image), str(point)]
        )
    else:
        command = [*mount, str(point)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        lacking(f"{kind} cannot be mounted here: {done.stderr.decode()[:200]}")
    return point


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of the kind that the test asks for."""
    point = tmp_path / request.param
    try:
        point = mounted(request.param, tmp_path)
        work = point / "work"
        work.mkdir()
        yield work
    finally:
        subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)


@pytest.fixture
def there(place: Path, private_home: Path) -> Iterator[Scanned]:
    """A workspace there, not served yet."""
    one = Scanned(place, private_home)
    try:
        yield one
    finally:
        one.stop()


every = pytest.mark.parametrize("place", ["btrfs", "xfs", "ext4", "ntfs", "tmpfs"], indirect=True)
case_blind = pytest.mark.parametrize("place", ["ntfs"], indirect=True)


@every
def test_the_main_job(there: Scanned) -> None:
    top = there.path
    there.write("a", "first")
    there.write("d/b", b"x" * 300_000)
    there.write("d/deep/c", "c")
    (top / "empty").mkdir()
    for link in (lambda: (top / "link").symlink_to("a"), lambda: os.mkfifo(top / "fifo")):
        try:
            link()
        except OSError as error:
            assert error.errno in (errno.EPERM, errno.EOPNOTSUPP)
    ws = there.start()
    before = capture(top, times=False)
    there.write("a", "second")
    os.unlink(top / "d/b")
    os.rename(top / "d/deep", top / "deeper")
    os.rmdir(top / "empty")
    there.write("empty", "a file now")
    there.write("n/e/w", "new")
    made = ws.checkpoint().id
    after = capture(top, times=False)
    undone = ws.undo()
    assert not capture(top, times=False).differences(before)
    assert undone.kept == []
    assert ws.diff().changes == []
    assert ws.redo().head == made
    assert not capture(top, times=False).differences(after)
    ws = there.again()
    assert not ws.status().dirty
    ws.undo()
    assert not capture(top, times=False).differences(before)


@every
def test_modes_that_do_not_stick_are_no_drift(there: Scanned) -> None:
    there.write("run", "x")
    ws = there.start()
    (there.path / "run").chmod(0o755)
    there.write("other", "x")
    ws.checkpoint()
    ws.undo()
    assert not ws.status().dirty
    assert not there.again().status().dirty


@case_blind
def test_case_only_renames(there: Scanned) -> None:
    there.write("readme", "text")
    there.write("Dir/inside", "text")
    ws = there.start()
    assert ignores_case(ws.timeline.platform, ws.timeline.top)
    for name, other in (("readme", "README"), ("Dir", "dir")):
        os.rename(there.path / name, there.path / "between")
        os.rename(there.path / "between", there.path / other)
    there.write("other")
    ws.checkpoint()
    ws.undo()
    # lowntfs-3g shows all names in lower case, however they are spelt.
    assert [name.lower() for name in there.names()] == ["dir", "dir/inside", "readme"]
    assert (there.path / "readme").read_text() == "text"
    assert not ws.status().dirty


@case_blind
def test_names_that_would_collide_are_refused(there: Scanned, tmp_path: Path) -> None:
    """A checkpoint from where case counts, of the same workspace copied to where it does not."""
    there.write("plain", "x")
    ws = there.start()
    ws.close()
    twin = tmp_path / "twin"
    twin.mkdir()
    source = Scanned(twin, there.home)
    try:
        source.write("a", "one")
        source.write("A", "two")
        other = source.start()
        layer = (
            other.timeline.pending.get(other.timeline.head.head)
            or other.timeline.store.history.get(other.timeline.head.head).layer
        )
        scope = other.timeline.store.history.scope(other.timeline.head.head)
    finally:
        source.stop()
    ws = there.start()
    made = ws.timeline.store.history.begin(ws.timeline.head.head, layer=layer, scope=scope)
    with pytest.raises(RefusedError, match="one name"):
        ws.restore(made.id)
    assert there.names() == ["plain"]


@pytest.mark.parametrize("place", ["tmpfs", "ext4"], indirect=True)
def test_a_full_disk_leaves_everything_as_it_was(there: Scanned) -> None:
    there.write("big", os.urandom(20 << 20))
    ws = there.start()
    os.unlink(there.path / "big")
    there.write("small", "x")
    ws.checkpoint()
    filler = there.path.parent / "filler"
    try:
        fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
        while True:
            os.write(fd, bytes(1 << 20))
    except OSError as error:
        assert error.errno == errno.ENOSPC
    finally:
        os.close(fd)
    before = there.names()
    with pytest.raises(NoSpaceError):
        ws.undo()
    assert there.names() == before
    assert not ws.status().dirty
    os.unlink(filler)
    ws.undo()
    assert there.names() == ["big"]


@pytest.mark.parametrize("place", ["ext4", "btrfs"], indirect=True)
def test_a_read_only_file_system(there: Scanned) -> None:
    there.write("a", "first")
    ws = there.start()
    there.write("a", "second")
    ws.checkpoint()
    point = str(there.path.parent)
    subprocess.run(["mount", "-o", "remount,ro", point], check=True)
    try:
        assert ws.checkpoint().created is False
        with pytest.raises((WorkspaceError, OSError)):
            ws.undo()
        assert (there.path / "a").read_text() == "second"
    finally:
        subprocess.run(["mount", "-o", "remount,rw", point], check=True)
    ws.undo()
    assert (there.path / "a").read_text() == "first"


@pytest.mark.parametrize("place", ["tmpfs"], indirect=True)
def test_what_is_mounted_in_the_workspace_is_left_alone(there: Scanned) -> None:
    inner = there.path / "mounted"
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(inner)], check=True)
    try:
        (inner / "precious").write_text("x")
        ws = there.start()
        assert any("mounted" in note for note in ws.notes())
        there.write("a")
        ws.checkpoint()
        assert kinds(ws.undo().changes) == {"a": "delete"}
        assert (inner / "precious").exists()
    finally:
        there.stop()
        subprocess.run(["umount", "-l", str(inner)], check=False)
