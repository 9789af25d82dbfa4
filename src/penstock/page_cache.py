# File data in the page cache: reading it does not wait for the disk, and the kernel can send it.
#
# Uses cachestat, which Linux has since 6.5; on an older kernel nothing counts as cached.

from __future__ import annotations

import ctypes
import mmap
import os
import sys

# The same on all architectures.
_CACHESTAT = 451

_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Found(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


def is_cached(fd: int, offset: int, size: int) -> bool:
    """Whether all of these bytes are in the page cache; False if the kernel cannot report it."""
    if sys.platform != "linux":
        return False
    first = offset // mmap.PAGESIZE
    pages = -(-(offset + size) // mmap.PAGESIZE) - first
    wanted, found = _Range(offset, size), _Found()
    failed = _libc.syscall(_CACHESTAT, fd, ctypes.byref(wanted), ctypes.byref(found), 0)
    return not failed and found.cached >= pages


def fetch(fd: int, offset: int, size: int) -> None:
    """Ask the kernel to read bytes into the page cache; do not wait for them."""
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)


class FileSlice:
    """A slice of an open file; all of it was in the page cache when this was created."""

    __slots__ = ("fd", "offset", "size")

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self.fd = fd
        self.offset = offset
        self.size = size

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
