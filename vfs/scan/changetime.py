"""``lstat`` and ``fstat`` whose ``st_ctime_ns`` is when a file last changed, on every system.

Windows keeps that time as others do, but Python gives the time of creation there: then a file that was edited without
changing its size, and whose modification time was set back, would look untouched, and so would one that has become
read-only. Owns asking Windows for it (FILE_BASIC_INFO of GetFileInformationByHandleEx). Raises OSError. No state.
"""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _open = _kernel32.CreateFileW
    _open.restype = wintypes.HANDLE
    _open.argtypes = (
        *(wintypes.LPCWSTR, wintypes.DWORD, wintypes.DWORD, ctypes.c_void_p),
        *(wintypes.DWORD, wintypes.DWORD, wintypes.HANDLE),
    )
    _close = _kernel32.CloseHandle
    _close.argtypes = (wintypes.HANDLE,)
    _ask = _kernel32.GetFileInformationByHandleEx
    _ask.argtypes = (wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD)

    _FILE_READ_ATTRIBUTES, _SHARE_ALL, _OPEN_EXISTING = 0x80, 7, 3
    _BACKUP_SEMANTICS, _OPEN_REPARSE_POINT = 0x0200_0000, 0x0020_0000
    _BASIC_INFO = 0
    _EPOCH_100NS = 116_444_736_000_000_000
    """From 1601, where Windows begins to count, to 1970."""
    _INVALID = wintypes.HANDLE(-1).value

    class _BasicInfo(ctypes.Structure):
        _fields_ = (
            ("created", ctypes.c_int64),
            ("accessed", ctypes.c_int64),
            ("written", ctypes.c_int64),
            ("changed", ctypes.c_int64),
            ("attributes", ctypes.c_uint32),
        )

    def lstat(path: str) -> os.stat_result:
        """lstat of a path, and when it changed."""
        status = os.lstat(path)
        flags = _BACKUP_SEMANTICS | _OPEN_REPARSE_POINT
        handle = _open(path, _FILE_READ_ATTRIBUTES, _SHARE_ALL, None, _OPEN_EXISTING, flags, None)
        if handle == _INVALID:
            raise ctypes.WinError(ctypes.get_last_error())
        try:
            return _with_change(status, handle)
        finally:
            _close(handle)

    def fstat(fd: int) -> os.stat_result:
        """fstat of a descriptor, and when the file changed."""
        return _with_change(os.fstat(fd), msvcrt.get_osfhandle(fd))

    def _with_change(status: os.stat_result, handle: int) -> os.stat_result:
        info = _BasicInfo()
        if not _ask(handle, _BASIC_INFO, ctypes.byref(info), ctypes.sizeof(info)):
            raise ctypes.WinError(ctypes.get_last_error())
        exact = {
            "st_atime_ns": status.st_atime_ns,
            "st_mtime_ns": status.st_mtime_ns,
            "st_ctime_ns": (info.changed - _EPOCH_100NS) * 100,
            "st_file_attributes": status.st_file_attributes,
            "st_reparse_tag": status.st_reparse_tag,
        }
        return os.stat_result(tuple(status)[:10], exact)

else:
    lstat, fstat = os.lstat, os.fstat
