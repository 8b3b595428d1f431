"""What stands in ``format1`` and ``store1``: bytes as the first release wrote them, which every later one must read.

Run as a program it writes the files that are missing; it never touches one that is there. A file of a released
version is never changed: a new version of the format gets a module and files of its own.
"""

from __future__ import annotations

import os
import pathlib
import stat

import msgspec

from store.disk import Disk
from store.format import (
    Absent,
    Attributes,
    Blob,
    BlobPiece,
    BranchChild,
    BranchPage,
    Chunked,
    ChunkList,
    Directory,
    HolePiece,
    Inline,
    Layer,
    LeafPage,
    LeftOut,
    Linked,
    LinkTarget,
    Origin,
    Original,
    OriginPiece,
    Regular,
    Repository,
    RuleText,
    Scope,
    Special,
    Symlink,
    encode,
)
from store.frames import frame
from store.generations import Generation
from store.head import Head
from store.home import Home, WorkspaceIdentity
from store.journal import JournalHeader, JournalWriter
from store.nodes import Pages
from store.refs import BlobRef, CheckpointId, Ino, LayerRef, NodeRef, digest

HERE = pathlib.Path(__file__).parent
OBJECTS = HERE / "format1"
BAD = OBJECTS / "bad"
STORE = HERE / "store1"

REF = digest(b"golden")
PLAIN = Attributes(Ino(1 << 62), 0o644, 1000, 100, 1_700_000_000_123_456_789, -1)
FULL = Attributes(Ino(5), 0o7777, 0, 4294967294, -(2**63), 2**63, ((b"user.a", b""), (b"user.b", b"\0\xff")))
FILE = Regular(PLAIN, Inline(b"text"))

VALUES = {
    "leaf": LeafPage(
        (
            (b"\n", Absent()),
            (b".wh.x", Regular(FULL, Inline(b""))),
            (b"blob", Regular(PLAIN, Blob(BlobRef(REF), 129))),
            (b"chunked", Regular(PLAIN, Chunked(NodeRef(REF), 1 << 40))),
            (b"device", Special(PLAIN, stat.S_IFCHR, 0x103)),
            (b"fallen through", Directory(PLAIN, Origin(0, b"a/b"), -2, None)),
            (b"fifo", Special(PLAIN, stat.S_IFIFO, 0)),
            (b"file", FILE),
            (b"link", Symlink(PLAIN, b"../target")),
            (b"linked", Linked(Ino(77))),
            (b"opaque", Directory(PLAIN, None, 3, NodeRef(REF))),
            (b"original", Regular(PLAIN, Original(Origin(2, b""), 0, 12))),
            (b"\xff\xfe", FILE),
        )
    ),
    "links": LeafPage(
        (
            ((5).to_bytes(8, "big"), LinkTarget(FILE, 2)),
            ((1 << 62).to_bytes(8, "big"), LinkTarget(Symlink(PLAIN, b"t"), 0)),
        )
    ),
    "empty": LeafPage(()),
    "branch": BranchPage((BranchChild(0, 64, NodeRef(REF)), BranchChild(31, 1, NodeRef(bytes(32))))),
    "chunks": ChunkList(
        (
            BlobPiece(262144, BlobRef(REF)),
            HolePiece(1 << 33),
            OriginPiece(5, Origin(1, b"dir/file"), 7, 100, 12),
            BlobPiece(1, BlobRef(bytes(32))),
        )
    ),
    "layer": Layer(1, LayerRef(REF), 3, Directory(PLAIN, Origin(0, b""), 1, NodeRef(REF)), NodeRef(bytes(32))),
    "scope": Scope(
        1,
        "git",
        1 << 20,
        (
            Repository(b"", b"part/of", True, (RuleText(b"", b"*.o\n"), RuleText(b"part", b"!kept.o\n\xff"))),
            Repository(b"vendor/lib", b"", False, ()),
        ),
        (LeftOut(b"a.o", "ignored"), LeftOut(b"vendor/lib/huge", "too big")),
    ),
    "scope-of-all": Scope(1, "all", 0, (), ()),
    "first-layer": Layer(1, None, 0, Directory(PLAIN, Origin(0, b""), 0, None), None),
}


def _raw(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def bad_values() -> dict[str, bytes]:
    """Bytes that must be refused, by what is wrong with them."""
    leaf, layer = VALUES["leaf"], VALUES["layer"]
    assert isinstance(leaf, LeafPage)
    good = encode(leaf)
    scope = VALUES["scope"]
    assert isinstance(scope, Scope)
    return {
        "scope-of-version-2": _raw(msgspec.structs.replace(scope, version=2)),
        "scope-of-other-rules": _raw(["scope", 1, "svn", 0, [], []]),
        "scope-with-a-field-more": _raw(["scope", 1, "git", 0, [], [], 0]),
        "scope-out-of-order": _raw(msgspec.structs.replace(scope, left_out=tuple(reversed(scope.left_out)))),
        "scope-leads-out": _raw(Scope(1, "all", 0, (), (LeftOut(b"../x", "ignored"),))),
        "scope-of-less-than-nothing": _raw(["scope", 1, "git", -1, [], []]),
        "nothing": b"",
        "trailing-byte": good + b"\0",
        "cut-short": good[:-1],
        "long-number": _raw(["chunks", [[0, 5]]])[:-1] + b"\xcc\x05",
        "layer-of-version-2": _raw(msgspec.structs.replace(layer, version=2)),
        "unknown-object": _raw(["twig", []]),
        "unknown-entry": _raw(["leaf", [[b"a", [9]]]]),
        "unknown-field": _raw(["leaf", [], 1]),
        "missing-field": _raw(["leaf"]),
        "a-map": _raw({"leaf": []}),
        "names-out-of-order": _raw(LeafPage(tuple(reversed(leaf.entries)))),
        "name-twice": _raw(LeafPage((leaf.entries[0], leaf.entries[0]))),
        "name-with-slash": _raw(LeafPage(((b"../x", FILE),))),
        "name-dot-dot": _raw(LeafPage(((b"..", FILE),))),
        "name-empty": _raw(LeafPage(((b"", FILE),))),
        "name-as-text": _raw(["leaf", [["name", [0]]]]),
        "origin-leads-out": _raw(LeafPage(((b"x", Directory(PLAIN, Origin(0, b"../x"), 0, None)),))),
        "origin-absolute": _raw(LeafPage(((b"x", Regular(PLAIN, Original(Origin(0, b"/etc/passwd"), 1, 1))),))),
        "half-a-link-table": _raw(LeafPage(((b"12345678", LinkTarget(FILE, 1)), (b"a", FILE)))),
        "inline-too-long": _raw(LeafPage(((b"x", Regular(PLAIN, Inline(bytes(129)))),))),
        "mode-too-big": _raw(LeafPage(((b"x", Regular(Attributes(Ino(5), 0o100644, 0, 0, 1, 1), Inline(b""))),))),
        "xattrs-out-of-order": _raw(
            LeafPage(((b"x", Symlink(Attributes(Ino(5), 0, 0, 0, 1, 1, ((b"b", b""), (b"a", b""))), b"t")),))
        ),
        "special-regular": _raw(LeafPage(((b"x", Special(PLAIN, stat.S_IFREG, 0)),))),
        "reference-too-short": _raw(BranchPage((BranchChild(0, 1, NodeRef(bytes(31))),))),
        "branch-without-children": _raw(BranchPage(())),
        "slots-out-of-order": _raw(BranchPage((BranchChild(2, 1, NodeRef(REF)), BranchChild(1, 1, NodeRef(REF))))),
        "slot-32": _raw(BranchPage((BranchChild(32, 1, NodeRef(REF)),))),
        "empty-piece": _raw(ChunkList((HolePiece(0),))),
        "holes-side-by-side": _raw(ChunkList((HolePiece(1), HolePiece(1)))),
        "no-pieces": _raw(ChunkList(())),
    }


class _Clock:
    def __init__(self) -> None:
        self._now = 1_700_000_000_000_000_000

    def time_ns(self) -> int:
        self._now += 1_000_000_000
        return self._now


class _Ids:
    def __init__(self) -> None:
        self._number = 0

    def checkpoint(self) -> CheckpointId:
        self._number += 1
        return CheckpointId(f"{self._number:04x}" * 3)


IDENTITY = WorkspaceIdentity(11, 22, 33)
WORKSPACE_PATH = b"/home/user/project"
BLOB = b"a line of text\n" * 20
JOURNAL = JournalHeader(
    1, "00000000-0000-0000-0000-000000000000", 4, CheckpointId("000200020002"), 1, 1 << 62, b"extra"
)
RECORDS = [b"\x93\x01\x02\x03", b"\x91\xc0"]
HEAD = Head(
    head=CheckpointId("000200020002"),
    base=CheckpointId("000100010001"),
    epoch=4,
    generation=1,
    next_ino=(1 << 62) + 2,
    redo=(CheckpointId("000300030003"),),
    mounted=True,
    left="keep",
)


def write_store(root: pathlib.Path) -> None:
    """A store with one workspace: checkpoints, one of them removed, a generation, a head, a journal."""
    home = Home.open(os.fsencode(root), Disk(), _Clock(), _Ids())
    store = home.workspace(IDENTITY, WORKSPACE_PATH)
    pages = Pages(home.objects)
    many = {b"%03d" % number: FILE for number in range(70)}
    below = pages.save(_page(pages, many))
    trees = [
        {},
        {
            b"blob": Regular(PLAIN, Blob(home.objects.put_blob(BLOB), len(BLOB))),
            b"many": Directory(PLAIN, None, 0, below),
        },
        {b"gone": Absent()},
    ]
    layers = []
    for number, tree in enumerate(trees):
        node = pages.save(_page(pages, tree)) if tree else None
        root_entry = Directory(PLAIN, Origin(0, b""), 1 if number == 1 else 0, node)
        parent = layers[-1] if layers else None
        layers.append(LayerRef(home.objects.put_node(encode(Layer(1, parent, min(number, 1), root_entry, None)))))
    history = store.history
    base = history.begin(None, kind="base", layer=layers[0])
    one = history.begin(
        base.id, label="label", session="session", node="node", changed=2, generation=1, epoch=2, next_ino=1 << 62
    )
    history.seal(one.id, layers[1])
    two = history.begin(one.id, kind="outside", generation=1, epoch=3, outside=(b"gone",), layer=layers[2])
    history.label(two.id, "second")
    three = history.begin(two.id, kind="hidden", generation=1)
    history.remove([three.id])
    history.begin(two.id, kind="automatic", generation=1, epoch=4)
    store.generations.append(Generation(0, layers[0], layers[2], 1_700_000_000_000_000_000, "apply"))
    history.write_head(HEAD)
    journal = JournalWriter(store.journal_path(4), home.disk, JOURNAL)
    for record in RECORDS:
        journal.append(record)
    journal.sync()
    journal.close()
    store.close()


def _page(pages: Pages, entries: dict[bytes, object]):
    page = pages.update(None, entries)  # type: ignore[arg-type]
    assert page is not None
    return page


def main() -> None:
    """Write the files that are missing."""
    BAD.mkdir(parents=True, exist_ok=True)
    wanted = {OBJECTS / f"{name}.bin": encode(value) for name, value in VALUES.items()}
    wanted |= {BAD / f"{name}.bin": data for name, data in bad_values().items()}
    wanted[BAD / "frame-of-zeros.frames"] = frame(b"good") + bytes(64)
    for path, data in wanted.items():
        if not path.exists():
            path.write_bytes(data)
    if not STORE.exists():
        write_store(STORE)


if __name__ == "__main__":
    main()
