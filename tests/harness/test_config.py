"""The configuration is strict, and tells the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import Config, load, parse
from harness.failure import PlyfsError
from harness.places import config_path
from harness.toml_lines import lines_of_keys


def refused(text: str | bytes) -> PlyfsError:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(PlyfsError) as caught:
        parse(data, "/w", "c.toml")
    assert caught.value.code == "config"
    assert caught.value.hint or "longer" in caught.value.message
    return caught.value


def test_defaults(tmp_path: Path) -> None:
    assert load("/w", str(tmp_path / "none")) == Config()
    assert parse(b"", "/w", "c.toml") == Config()


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert config_path() == "/x/plyfs/config.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert config_path().endswith("/plyfs/config.toml")


def test_a_workspace_has_its_own_over_the_global_over_the_defaults() -> None:
    text = b"""
[mount]
channel = "direct"
mode = "fuse"
[retention]
keep_last = 5
[workspace."/w".mount]
channel = "pyfuse3"
[workspace."/other".run]
on_exit = "keep"
"""
    config = parse(text, "/w", "c.toml")
    assert (config.mount.channel, config.mount.mode) == ("pyfuse3", "fuse")
    assert (config.retention.keep_last, config.run.on_exit) == (5, "apply")
    assert parse(text, "/other", "c.toml").run.on_exit == "keep"
    assert parse(text, "/other", "c.toml").mount.channel == "direct"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[mount]\nchanel = 'direct'\n", 2, "unknown key 'mount.chanel'"),
        ("\n\n[mnt]\nx = 1\n", 3, "unknown key 'mnt'"),
        ("a = 1\n", 1, "unknown key 'a'"),
        ("[mount]\n# c\nchannel = 3\n", 3, "mount.channel: expected str, got int"),
        ("[mount]\nmode = 'tape'\n", 2, "mount.mode: invalid enum value 'tape'"),
        ("mount = 1\n", 1, "mount: expected object"),
        ("[retention]\nkeep_last = 3\nkeep_days = 0\n", 3, "retention.keep_days"),
        ("[retention]\nkeep_days = -1\n", 2, "retention.keep_days"),
        ("[retention]\nkeep_days = 1.5\n", 2, "retention.keep_days"),
        ("[log]\nmax_bytes = 9999\n", 2, "log.max_bytes"),
        ("[workspace.'/w'.mount]\n\nmod = 'auto'\n", 3, "unknown key 'workspace./w.mount.mod'"),
        ("[workspace.'/v'.mount]\nmode = 1\n", 2, "workspace./v.mount.mode"),
        ("[workspace.'/w'.retention]\nkeep_last = 1\n", 1, "unknown key 'workspace./w.retention'"),
        ("\n[workspace.relative.mount]\n", 2, "not an absolute, normal path"),
        ("[workspace.'/a/../b'.mount]\n", 1, "not an absolute, normal path"),
        ("[mount\n", 1, ""),
        ("[mount]\nmode = 'x'\nmode = 'y'\n", 3, ""),
        ("x = \n", 1, ""),
        ("[a]\nx = [1,\n", 3, ""),
    ],
)
def test_refused_with_the_line(text: str, line: int, words: str) -> None:
    error = refused(text)
    assert error.message.startswith(f"c.toml:{line}: "), error.message
    assert words in error.message


def test_a_near_miss_is_named() -> None:
    assert refused("[mount]\nchanel = 'direct'\n").hint == "did you mean 'channel'?"
    assert "mode, channel" in refused("[mount]\nzzz = 1\n").hint


def test_not_text() -> None:
    assert "c.toml:2: not UTF-8" in refused(b"[mount]\nmode = '\xff'\n").message


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(PlyfsError) as caught:
        load("/w", str(tmp_path))
    assert caught.value.code == "config"
    (tmp_path / "big").write_bytes(b"#" * (1 << 21))
    with pytest.raises(PlyfsError):
        load("/w", str(tmp_path / "big"))


def test_lines_of_keys() -> None:
    text = '''# comment [x]
top = """
[not]
a = 1
"""
list = [ # one
  1, "]", 2,
]
"quoted key" = 'a # b'
dotted.name = { in = 1, line = [2] }
[table.sub]
x = 1 # y = 2

  [[array]]
z = '\'' + ""
'''
    text = text.replace("'\\'' + \"\"", "'x'")
    assert lines_of_keys(text) == {
        ("top",): 2,
        ("list",): 6,
        ("quoted key",): 9,
        ("dotted",): 10,
        ("dotted", "name"): 10,
        ("table",): 11,
        ("table", "sub"): 11,
        ("table", "sub", "x"): 12,
        ("array",): 14,
        ("array", "z"): 15,
    }
