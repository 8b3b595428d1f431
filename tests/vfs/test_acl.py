"""ACLs as the kernel keeps them: the bits they stand for, chmod, and what a default gives to what is created."""

from __future__ import annotations

import struct

import pytest

from vfs.live import acl

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF


def pack(*rows: tuple[int, int, int], version: int = 2) -> bytes:
    return struct.pack("<I", version) + b"".join(struct.pack("<HHI", *row) for row in rows)


def minimal(user: int, group: int, other: int) -> bytes:
    return pack((USER_OBJ, user, NOBODY), (GROUP_OBJ, group, NOBODY), (OTHER, other, NOBODY))


FULL = pack(
    (USER_OBJ, 7, NOBODY),
    (USER, 6, 1000),
    (GROUP_OBJ, 5, NOBODY),
    (GROUP, 7, 50),
    (MASK, 6, NOBODY),
    (OTHER, 4, NOBODY),
)


def test_entries():
    assert acl.entries(minimal(7, 5, 4)) == [(1, 7, NOBODY), (4, 5, NOBODY), (32, 4, NOBODY)]


@pytest.mark.parametrize("wrong", [b"", b"\2\0\0", pack(version=3), minimal(7, 5, 4) + b"\0", minimal(7, 5, 4)[:-1]])
def test_what_is_no_acl(wrong):
    with pytest.raises(ValueError, match="version 2"):
        acl.entries(wrong)


def test_bits_of_a_minimal_acl():
    assert acl.mode_of(minimal(7, 5, 4), 0o4000) == 0o4754
    assert acl.is_minimal(minimal(7, 5, 4))


def test_the_mask_stands_for_the_group():
    assert acl.mode_of(FULL, 0o100000) == 0o100764
    assert not acl.is_minimal(FULL)


def test_chmod_of_a_masked_acl_changes_the_mask():
    changed = acl.entries(acl.with_mode(FULL, 0o640))
    assert changed == [
        (USER_OBJ, 6, NOBODY),
        (USER, 6, 1000),
        (GROUP_OBJ, 5, NOBODY),
        (GROUP, 7, 50),
        (MASK, 4, NOBODY),
        (OTHER, 0, NOBODY),
    ]


def test_chmod_without_a_mask_changes_the_group():
    assert acl.with_mode(minimal(7, 7, 7), 0o750) == minimal(7, 5, 0)


def test_what_is_created_gets_the_default_cut_to_its_mode():
    access, mode = acl.inherited(FULL, 0o100666)
    assert mode == 0o100664
    assert access is not None
    assert acl.entries(access) == [
        (USER_OBJ, 6, NOBODY),
        (USER, 6, 1000),
        (GROUP_OBJ, 5, NOBODY),
        (GROUP, 7, 50),
        (MASK, 6, NOBODY),
        (OTHER, 4, NOBODY),
    ]


def test_a_default_that_bits_can_say_leaves_no_acl():
    assert acl.inherited(minimal(7, 7, 0), 0o100666) == (None, 0o100660)


def test_setuid_bits_are_not_an_acls_business():
    _, mode = acl.inherited(minimal(7, 7, 7), 0o102775)
    assert mode == 0o102775
