"""What the attic shares with the workspace becomes its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store.disk import Disk
from vfs.apply.apart import STAGE, set_apart


@pytest.fixture
def attic(tmp_path: Path) -> Path:
    (tmp_path / "attic" / "1" / "d").mkdir(parents=True)
    (tmp_path / "workspace").write_text("shared")
    os.utime(tmp_path / "workspace", ns=(1, 1_500_000_000_000_000_001))
    (tmp_path / "workspace").chmod(0o640)
    for name in ("1/one", "1/d/two"):
        os.link(tmp_path / "workspace", tmp_path / "attic" / name)
    (tmp_path / "attic" / "1" / "own").write_text("own")
    os.link(tmp_path / "attic" / "1" / "own", tmp_path / "attic" / "1" / "own too")
    os.utime(tmp_path / "attic" / "1" / "d", ns=(1, 1_400_000_000_000_000_001))
    return tmp_path / "attic"


def test_what_is_shared_is_copied_with_all_that_it_has(attic: Path) -> None:
    before = (attic / "1" / "own").stat()
    assert set_apart(Disk(), os.fsencode(attic)) == []
    one, two = (attic / "1" / "one").stat(), (attic / "1" / "d" / "two").stat()
    assert one.st_ino == two.st_ino != (attic.parent / "workspace").stat().st_ino
    assert (one.st_nlink, one.st_mode & 0o777, one.st_mtime_ns) == (2, 0o640, 1_500_000_000_000_000_001)
    assert (attic / "1" / "d").stat().st_mtime_ns == 1_400_000_000_000_000_001
    assert (attic / "1" / "own").stat() == before
    (attic.parent / "workspace").write_text("written to")
    assert (attic / "1" / "d" / "two").read_text() == "shared"
    assert set_apart(Disk(), os.fsencode(attic)) == []
    assert (attic / "1" / "one").stat().st_ino == one.st_ino


@pytest.mark.parametrize("effect", ["link", "rename", "syncfs"])
def test_killed_on_the_way_and_again(attic: Path, effect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    disk = Disk()
    with monkeypatch.context() as patch:
        if effect == "link":
            patch.setattr(os, "link", die)
        else:
            patch.setattr(disk, effect, die)
        with pytest.raises(Killed):
            set_apart(disk, os.fsencode(attic))
    assert {(attic / name).read_text() for name in ("1/one", "1/d/two")} == {"shared"}
    assert set_apart(Disk(), os.fsencode(attic)) == []
    assert os.listdir(attic) == ["1"]
    assert not (attic / os.fsdecode(STAGE)).exists()
    assert (attic / "1" / "one").stat().st_ino != (attic.parent / "workspace").stat().st_ino
