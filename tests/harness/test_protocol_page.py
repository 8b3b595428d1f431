"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from harness import messages
from harness.commands import COMMANDS
from harness.config import Config, parse
from harness.failure import EXIT_STATUS
from vfs import workspace

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()


def row(name: str) -> str:
    """The row of a table whose first cell names ``name``."""
    return next(line for line in PAGE.splitlines() if line.startswith("| ") and f"`{name}`" in line.split("|")[1])


def test_every_method_and_parameter_is_there() -> None:
    page = PAGE[PAGE.index("| method |") :]
    for name, kind in messages.METHODS.items():
        line = next(line for line in page.splitlines() if line.startswith("| ") and f"`{name}`" in line.split("|")[1])
        for field in kind.__struct_fields__:
            assert re.search(rf"`[^`]*\b{field}\b", line.split("|")[2]), (name, field)


def test_every_field_of_a_result_is_there() -> None:
    results = {
        "mount": messages.MountResult,
        "checkpoint": workspace.CheckpointResult,
        "undo": workspace.RestoreResult,
        "log": workspace.LogResult,
        "diff": workspace.DiffResult,
        "status": workspace.StatusResult,
        "unmount": workspace.UnmountResult,
        "ls": workspace.ListedEntry,
    }
    for name, kind in results.items():
        for field in msgspec.structs.fields(kind):
            assert re.search(rf"\b{field.encode_name}\b", row(name)), (name, field.encode_name)


def test_every_error_code_is_there() -> None:
    table = PAGE[PAGE.index("| status | codes |") : PAGE.index("Others:")]
    for code, status in EXIT_STATUS.items():
        line = next(line for line in table.splitlines() if line.startswith(f"| {status} |"))
        assert f"`{code}`" in line
    sources = [path.read_text() for path in (Path(messages.__file__).parent).rglob("*.py")]
    raised = {code for text in sources for code in re.findall(r'(?:PlyfsError|Error)\(\s*"([a-z_]+)"', text)}
    assert {"locked", "usage", "daemon_died", "no_fuse"} <= raised
    for code in raised:
        assert f"`{code}`" in PAGE, code


def test_the_sample_configuration_is_valid_and_whole() -> None:
    sample = PAGE[PAGE.index("```toml\n") + 8 :]
    sample = sample[: sample.index("```")]
    config = parse(sample.encode(), "/home/me/project", "sample")
    assert config.mount.channel == "pyfuse3"
    for section in msgspec.structs.fields(Config):
        assert f"[{section.name}]" in sample
        for field in msgspec.structs.fields(section.type):
            assert re.search(rf"^{field.name} = ", sample, re.MULTILINE), field.name


def test_the_version_of_the_protocol_and_the_limits() -> None:
    assert f"`protocol` ({messages.PROTOCOL_VERSION})" in PAGE
    assert messages.LINE_MAX == 1 << 20
    assert "has at most 1 MiB" in PAGE
    assert messages.CHUNK_MAX == 4 << 20
    assert all(name in PAGE for name in COMMANDS)
