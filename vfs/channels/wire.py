"""The FUSE kernel protocol in numbers: layouts of requests and replies, operation codes, flags.

Owns every structure that crosses ``/dev/fuse``; decides nothing. ``FORMATS`` is keyed by the kernel's names and is
checked against ``linux/fuse.h`` by a test; what is newer than the oldest header in use carries its protocol version.
Byte order is the machine's, structures have no hidden padding (the kernel spells it out). All values are constants.

Source: the kernel's include/uapi/linux/fuse.h (7.31 to 7.45).
"""

from __future__ import annotations

import struct

MAJOR = 7
MINOR = 45
"""What we speak; the kernel and we use the smaller of both minors."""

OLDEST_MINOR = 31
"""Linux 5.4. Older kernels lack zero-message opendir, EXPLICIT_INVAL_DATA or cached symlinks."""

ATTR = "QQQqqqIIIIIIIIII"
"""fuse_attr, with signed seconds: the kernel casts them, and files from before 1970 exist."""

ENTRY = "QQQQII" + ATTR
DIRENT = "QQII"

FORMATS = {
    "fuse_in_header": "IIQQIIIHH",
    "fuse_out_header": "IiQ",
    "fuse_attr": ATTR,
    "fuse_entry_out": ENTRY,
    "fuse_attr_out": "QII" + ATTR,
    "fuse_kstatfs": "QQQQQIIII24x",
    "fuse_forget_in": "Q",
    "fuse_forget_one": "QQ",
    "fuse_batch_forget_in": "II",
    "fuse_getattr_in": "IIQ",
    "fuse_mknod_in": "IIII",
    "fuse_mkdir_in": "II",
    "fuse_rename_in": "Q",
    "fuse_rename2_in": "QII",
    "fuse_link_in": "Q",
    "fuse_setattr_in": "IIQQQqqqIIIIIIII",
    "fuse_open_in": "II",
    "fuse_create_in": "IIII",
    "fuse_open_out": "QII",
    "fuse_read_in": "QQIIQII",
    "fuse_write_in": "QQIIQII",
    "fuse_write_out": "II",
    "fuse_fsync_in": "QII",
    "fuse_setxattr_in": "IIII",
    "fuse_getxattr_in": "II",
    "fuse_getxattr_out": "II",
    "fuse_init_in": "IIIII44x",
    "fuse_init_out": "IIIIHHIIHHI28x",
    "fuse_fallocate_in": "QQQII",
    "fuse_dirent": DIRENT,
    "fuse_direntplus": ENTRY + DIRENT,
    "fuse_lseek_in": "QQII",
    "fuse_lseek_out": "Q",
    "fuse_copy_file_range_in": "QQQQQQQ",
    "fuse_notify_inval_inode_out": "Qqq",
    "fuse_notify_inval_entry_out": "QII",
    "fuse_notify_delete_out": "QQII",
}


def layout(*names: str, tail: str = "") -> struct.Struct:
    """The structures called ``names`` one after the other, then ``tail``."""
    return struct.Struct("=" + "".join(FORMATS[name] for name in names) + tail)


IN_HEADER = layout("fuse_in_header")
"""len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding."""
HEADER_SIZE = IN_HEADER.size
OUT_HEADER = layout("fuse_out_header")
OUT_SIZE = OUT_HEADER.size

FORGET_IN = layout("fuse_forget_in")
FORGET_ONE = layout("fuse_forget_one")
BATCH_FORGET_IN = layout("fuse_batch_forget_in")
MKNOD_IN = layout("fuse_mknod_in")
MKDIR_IN = layout("fuse_mkdir_in")
RENAME_IN = layout("fuse_rename_in")
RENAME2_IN = layout("fuse_rename2_in")
LINK_IN = layout("fuse_link_in")
SETATTR_IN = layout("fuse_setattr_in")
CREATE_IN = layout("fuse_create_in")
READ_IN = layout("fuse_read_in")
WRITE_IN = layout("fuse_write_in")
FSYNC_IN = layout("fuse_fsync_in")
SETXATTR_IN = layout("fuse_setxattr_in")
SETXATTR_IN_COMPAT = struct.Struct("=II")
"""fuse_setxattr_in where SETXATTR_EXT was not negotiated."""
GETXATTR_IN = layout("fuse_getxattr_in")
INIT_IN = layout("fuse_init_in")
INIT_IN_SHORT = struct.Struct("=IIII")
"""fuse_init_in before 7.36."""
FALLOCATE_IN = layout("fuse_fallocate_in")
LSEEK_IN = layout("fuse_lseek_in")
COPY_FILE_RANGE_IN = layout("fuse_copy_file_range_in")

# Replies carry their header, so that each is packed by one call.
ENTRY_REPLY = layout("fuse_out_header", "fuse_entry_out")
ATTR_REPLY = layout("fuse_out_header", "fuse_attr_out")
OPEN_REPLY = layout("fuse_out_header", "fuse_open_out")
TMPFILE_REPLY = layout("fuse_out_header", "fuse_entry_out", "fuse_open_out")
WRITE_REPLY = layout("fuse_out_header", "fuse_write_out")
COPY64_REPLY = struct.Struct("=IiQQ")
"""fuse_out_header, fuse_copy_file_range_out (7.45)."""
STATFS_REPLY = layout("fuse_out_header", "fuse_kstatfs")
GETXATTR_REPLY = layout("fuse_out_header", "fuse_getxattr_out")
LSEEK_REPLY = layout("fuse_out_header", "fuse_lseek_out")
INIT_REPLY = layout("fuse_out_header", "fuse_init_out")

DIRENT_SIZE = layout("fuse_dirent").size
DIRENTPLUS_SIZE = layout("fuse_direntplus").size

NOTIFY_INVAL_INODE = layout("fuse_out_header", "fuse_notify_inval_inode_out")
NOTIFY_INVAL_ENTRY = layout("fuse_out_header", "fuse_notify_inval_entry_out")
NOTIFY_DELETE = layout("fuse_out_header", "fuse_notify_delete_out")

# enum fuse_opcode
LOOKUP = 1
FORGET = 2
GETATTR = 3
SETATTR = 4
READLINK = 5
SYMLINK = 6
MKNOD = 8
MKDIR = 9
UNLINK = 10
RMDIR = 11
RENAME = 12
LINK = 13
OPEN = 14
READ = 15
WRITE = 16
STATFS = 17
RELEASE = 18
FSYNC = 20
SETXATTR = 21
GETXATTR = 22
LISTXATTR = 23
REMOVEXATTR = 24
FLUSH = 25
INIT = 26
OPENDIR = 27
READDIR = 28
RELEASEDIR = 29
FSYNCDIR = 30
GETLK = 31
SETLK = 32
SETLKW = 33
ACCESS = 34
CREATE = 35
INTERRUPT = 36
BMAP = 37
DESTROY = 38
IOCTL = 39
POLL = 40
NOTIFY_REPLY = 41
BATCH_FORGET = 42
FALLOCATE = 43
READDIRPLUS = 44
RENAME2 = 45
LSEEK = 46
COPY_FILE_RANGE = 47
SYNCFS = 50
TMPFILE = 51
STATX = 52
COPY_FILE_RANGE_64 = 53

# enum fuse_notify_code; INC_EPOCH is 7.44
NOTIFY_CODE_INVAL_INODE = 2
NOTIFY_CODE_INVAL_ENTRY = 3
NOTIFY_CODE_DELETE = 6
NOTIFY_CODE_INC_EPOCH = 8
EPOCH_MINOR = 44

# fuse_setattr_in.valid
FATTR_MODE = 1 << 0
FATTR_UID = 1 << 1
FATTR_GID = 1 << 2
FATTR_SIZE = 1 << 3
FATTR_ATIME = 1 << 4
FATTR_MTIME = 1 << 5
FATTR_ATIME_NOW = 1 << 7
FATTR_MTIME_NOW = 1 << 8
FATTR_CTIME = 1 << 10
FATTR_KILL_SUIDGID = 1 << 11

FOPEN_KEEP_CACHE = 1 << 1
FOPEN_CACHE_DIR = 1 << 3

WRITE_KILL_SUIDGID = 1 << 2
FSYNC_FDATASYNC = 1 << 0
SETXATTR_ACL_KILL_SGID = 1 << 0
EXPIRE_ONLY = 1 << 0

# Flags of INIT; from bit 32 on they travel in flags2 (7.36)
INIT_FLAGS = {
    "ASYNC_READ": 1 << 0,
    "POSIX_LOCKS": 1 << 1,
    "ATOMIC_O_TRUNC": 1 << 3,
    "EXPORT_SUPPORT": 1 << 4,
    "BIG_WRITES": 1 << 5,
    "DONT_MASK": 1 << 6,
    "SPLICE_WRITE": 1 << 7,
    "SPLICE_MOVE": 1 << 8,
    "SPLICE_READ": 1 << 9,
    "FLOCK_LOCKS": 1 << 10,
    "HAS_IOCTL_DIR": 1 << 11,
    "AUTO_INVAL_DATA": 1 << 12,
    "DO_READDIRPLUS": 1 << 13,
    "READDIRPLUS_AUTO": 1 << 14,
    "ASYNC_DIO": 1 << 15,
    "WRITEBACK_CACHE": 1 << 16,
    "NO_OPEN_SUPPORT": 1 << 17,
    "PARALLEL_DIROPS": 1 << 18,
    "HANDLE_KILLPRIV": 1 << 19,
    "POSIX_ACL": 1 << 20,
    "ABORT_ERROR": 1 << 21,
    "MAX_PAGES": 1 << 22,
    "CACHE_SYMLINKS": 1 << 23,
    "NO_OPENDIR_SUPPORT": 1 << 24,
    "EXPLICIT_INVAL_DATA": 1 << 25,
    "MAP_ALIGNMENT": 1 << 26,
    "SUBMOUNTS": 1 << 27,
    "HANDLE_KILLPRIV_V2": 1 << 28,
    "SETXATTR_EXT": 1 << 29,
    "INIT_EXT": 1 << 30,
    "SECURITY_CTX": 1 << 32,
    "HAS_INODE_DAX": 1 << 33,
    "CREATE_SUPP_GROUP": 1 << 34,
    "HAS_EXPIRE_ONLY": 1 << 35,
    "DIRECT_IO_ALLOW_MMAP": 1 << 36,
    "PASSTHROUGH": 1 << 37,
    "NO_EXPORT_SUPPORT": 1 << 38,
    "HAS_RESEND": 1 << 39,
    "ALLOW_IDMAP": 1 << 40,
    "OVER_IO_URING": 1 << 41,
    "REQUEST_TIMEOUT": 1 << 42,
}
