"""What stands in ``records1``: whole files of vfs as the first release wrote them, which every later one must read.

Run as a program it writes the files that are missing; it never touches one that is there.
"""

from __future__ import annotations

import pathlib
import stat

import msgspec

from store.disk import Disk
from store.format import Blob, Inline, Regular, Special, Symlink
from store.refs import BlobRef, LayerRef
from store.whole import write_whole
from tests.golden.format1 import FULL, PLAIN, REF
from vfs.apply.record import Explained, Fix, Out, Plan, Put, Written
from vfs.base.known import Known, KnownFile
from vfs.base.overlaid import Overlaid
from vfs.leaving import Applying

RECORDS = pathlib.Path(__file__).parent / "records1"

BLOB = Regular(PLAIN, Blob(BlobRef(REF), 129))
LINK = Symlink(FULL, b"../\xff")
FIFO = Special(PLAIN, stat.S_IFIFO, 0)

VALUES = {
    "known": KnownFile(2, 3, (Known(b"d/file", BLOB, 77, 1), Known(b"link", LINK, 0, 0), Known(b"pipe", FIFO, 1, -1))),
    "overlaid": Overlaid(3, 1_700_000_000_000_000_000),
    "explained": Explained((b"a", b"b/\xff"), (b"moved",), (b"gone",), (5, 1 << 63)),
    "plan": Plan(
        2,
        "0123456789ab",
        3,
        4,
        (Out(b"old", "attic", b"1", 5, 6), Out(b"dir", "stage", b"m2")),
        (Put(b"new", b"s3"), Put(b"linked", b"s4", link=True)),
        (Fix(b"fixed", stat.S_IFREG, PLAIN, 7, 8), Fix(b".plyfs-apply-0123456789ab/s4", stat.S_IFREG, FULL)),
        (Fix(b"", stat.S_IFDIR, PLAIN),),
        LayerRef(REF),
        (b"conflict",),
        (b"lost",),
        (Written(b"new", Regular(PLAIN, Inline(b"text")), 9, 10),),
        (b"new/inner",),
        (11, 12),
        13,
    ),
    "applying": Applying(3, LayerRef(REF)),
}


def main() -> None:
    """Write the files that are missing."""
    RECORDS.mkdir(exist_ok=True)
    for name, value in VALUES.items():
        path = RECORDS / name
        if not path.exists():
            write_whole(Disk(), bytes(path), msgspec.msgpack.encode(value), sync=False)


if __name__ == "__main__":
    main()
