"""The numbers of the FUSE protocol, against the kernel's own header, and the negotiation."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from tests.conftest import lacking
from vfs.channels import negotiation, wire

HEADER = Path("/usr/include/linux/fuse.h")
CODES = {"uint64_t": "Q", "int64_t": "q", "uint32_t": "I", "int32_t": "i", "uint16_t": "H"}


@pytest.fixture(scope="module")
def header() -> str:
    if not HEADER.exists():
        lacking(f"no {HEADER} (linux-libc-dev)")
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def kernel_layout(header: str, name: str) -> str:
    """The format of a kernel structure, nested ones included, a byte array for unused room."""
    found = re.search(rf"struct {name} \{{(.*?)\n\}};", header, re.DOTALL)
    assert found is not None, name
    code = ""
    for line in found[1].split(";"):
        words = line.split()
        if not words or words[0] == "char":
            continue
        if words[0] == "struct":
            code += kernel_layout(header, words[1])
            continue
        array = re.search(r"\[(\d+)\]", line)
        if array is not None:
            code += f"{int(array[1]) * struct.calcsize('=' + CODES[words[0]])}x"
        else:
            code += CODES[words[0]]
    return code


@pytest.mark.parametrize("name", sorted(wire.FORMATS))
def test_structures_are_the_kernels(header: str, name: str) -> None:
    assert wire.FORMATS[name].lower() == kernel_layout(header, name).lower()


def test_structures_without_hidden_padding() -> None:
    for name, code in wire.FORMATS.items():
        assert struct.calcsize("=" + code) == struct.calcsize("@" + code), name


def test_operations_are_the_kernels(header: str) -> None:
    kernel = {name: int(number) for name, number in re.findall(r"\bFUSE_(\w+)\s*=\s*(\d+)", header)}
    checked = 0
    for name, number in vars(wire).items():
        if isinstance(number, int) and name in kernel:
            assert kernel[name] == number, name
            checked += 1
    assert checked >= 45
    assert kernel["NOTIFY_INVAL_INODE"] == wire.NOTIFY_CODE_INVAL_INODE
    assert kernel["NOTIFY_INVAL_ENTRY"] == wire.NOTIFY_CODE_INVAL_ENTRY
    assert kernel["NOTIFY_DELETE"] == wire.NOTIFY_CODE_DELETE


def test_flags_are_the_kernels(header: str) -> None:
    kernel = dict(re.findall(r"#define\s+(\w+)\s+\(1(?:ULL)? << (\d+)\)", header))
    for name, bit in wire.INIT_FLAGS.items():
        known = kernel.get(f"FUSE_{name}")
        assert known is None or 1 << int(known) == bit, name
    for name in ("FATTR_", "FOPEN_"):
        for ours, bit in vars(wire).items():
            if ours.startswith(name):
                assert 1 << int(kernel[ours]) == bit, ours
    assert 1 << int(kernel["FUSE_WRITE_KILL_SUIDGID"]) == wire.WRITE_KILL_SUIDGID
    assert 1 << int(kernel["FUSE_FSYNC_FDATASYNC"]) == wire.FSYNC_FDATASYNC
    assert 1 << int(kernel["FUSE_SETXATTR_ACL_KILL_SGID"]) == wire.SETXATTR_ACL_KILL_SGID


def test_every_flag_is_taken_or_refused_for_a_reason() -> None:
    assert not set(negotiation.WANTED) & set(negotiation.REFUSED)
    assert set(negotiation.WANTED) | set(negotiation.REFUSED) <= set(wire.INIT_FLAGS)


def init(minor: int, flags: int, major: int = 7, short: bool = False) -> bytes:
    if short:
        return wire.INIT_IN_SHORT.pack(major, minor, 131072, flags & 0xFFFFFFFF)
    return wire.INIT_IN.pack(major, minor, 131072, flags & 0xFFFFFFFF, flags >> 32)


EVERYTHING = sum(wire.INIT_FLAGS.values())
OLD = EVERYTHING & ((1 << 26) - 1)
"""What Linux 5.4 offers."""


def replied_flags(reply: bytes) -> set[str]:
    fields = wire.INIT_REPLY.unpack(reply)
    flags = fields[6] | fields[13] << 32
    return {name for name, bit in wire.INIT_FLAGS.items() if flags & bit}


def test_a_new_kernel_gets_all_we_want() -> None:
    agreement = negotiation.answer(5, init(45, EVERYTHING), negotiation.Options())
    assert len(agreement.reply) == wire.INIT_REPLY.size == 80
    assert agreement.negotiated is not None
    assert replied_flags(agreement.reply) == set(negotiation.WANTED) == set(agreement.negotiated.flags)
    assert agreement.negotiated.epoch
    assert agreement.negotiated.zero_message_open
    assert wire.INIT_REPLY.unpack(agreement.reply)[:3] == (80, 0, 5)


def test_the_oldest_kernel_gets_what_it_offers() -> None:
    agreement = negotiation.answer(5, init(31, OLD, short=True), negotiation.Options())
    assert agreement.negotiated is not None
    assert agreement.negotiated.protocol == (7, 31)
    assert agreement.negotiated.zero_message_open
    assert not agreement.negotiated.epoch
    assert not agreement.negotiated.expire_only
    assert replied_flags(agreement.reply) <= {name for name, bit in wire.INIT_FLAGS.items() if bit & OLD}


def test_nothing_is_asked_for_that_was_not_offered() -> None:
    agreement = negotiation.answer(5, init(40, 0), negotiation.Options(writeback=True))
    assert replied_flags(agreement.reply) == set()
    assert agreement.negotiated is not None
    assert not agreement.negotiated.zero_message_open


def test_writeback_is_an_option() -> None:
    for writeback in (False, True):
        agreement = negotiation.answer(1, init(45, EVERYTHING), negotiation.Options(writeback=writeback))
        assert ("WRITEBACK_CACHE" in replied_flags(agreement.reply)) == writeback


def test_a_newer_major_version_is_asked_to_come_down() -> None:
    agreement = negotiation.answer(1, init(0, 0, major=8), negotiation.Options())
    assert agreement.negotiated is None
    assert wire.INIT_REPLY.unpack(agreement.reply)[3] == 7


@pytest.mark.parametrize("body", [init(30, OLD), init(0, 0, major=6), b"", b"\0" * 15])
def test_an_older_protocol_is_refused(body: bytes) -> None:
    with pytest.raises(negotiation.TooOldError):
        negotiation.answer(1, body, negotiation.Options())
