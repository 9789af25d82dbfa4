# Bytes of files that are in memory: reading them waits for no disk, and the kernel can send them.
#
# It tells by cachestat, which Linux has since 6.5; with an older one nothing counts as cached.

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
    """Whether all of these bytes are in the page cache; False if the kernel cannot tell."""
    if sys.platform != "linux":
        return False
    first = offset // mmap.PAGESIZE
    pages = -(-(offset + size) // mmap.PAGESIZE) - first
    asked, found = _Range(offset, size), _Found()
    failed = _libc.syscall(_CACHESTAT, fd, ctypes.byref(asked), ctypes.byref(found), 0)
    return not failed and found.cached >= pages


def fetch(fd: int, offset: int, size: int) -> None:
    """Have the kernel bring bytes into the page cache, without waiting for them."""
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)


class Stretch:
    """Bytes of an open file, all of them in the page cache when it was made."""

    __slots__ = ("fd", "offset", "size")

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self.fd = fd
        self.offset = offset
        self.size = size

    def close(self) -> None:
        """Give the file back; a second time changes nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
