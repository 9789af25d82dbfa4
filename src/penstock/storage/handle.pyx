# An open file, and the one system call that every batch makes.
#
# Only storage/files.pyx makes these.
#
# Rule 1: an append is all or nothing.
# Rule 2: changes of one file are serialised; the interpreter's lock is released during a write.

import os

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t

from penstock.errors import UncutError

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    Py_ssize_t pwritev(int fd, const iovec* pieces, int count, int64_t offset)

cdef enum:
    PIECES_MAX = 64     # more are joined first
    ZEROS_SIZE = 64 << 10


cdef Py_ssize_t put(int fd, const iovec* pieces, int count, int64_t offset) except -1:
    cdef Py_ssize_t written
    while True:
        with nogil:
            written = pwritev(fd, pieces, count, offset)
        if written > 0:
            return written
        if written == 0:
            raise OSError(EIO, "pwritev wrote 0 bytes")
        if errno != EINTR:
            PyErr_SetFromErrno(OSError)
        PyErr_CheckSignals()


cpdef int64_t write_all(int fd, parts, int64_t offset) except -1:
    """Write ``parts`` at ``offset``, all of them, and return where they end."""
    cdef iovec[PIECES_MAX] pieces
    cdef Py_ssize_t size = 0, done = 0, skipped
    cdef int count
    cdef bytes part
    cdef list all_parts = parts if type(parts) is list else list(parts)
    if len(all_parts) > PIECES_MAX:
        all_parts = [b"".join(all_parts)]
    for part in all_parts:
        size += len(part)
    while done < size:
        # Usually once.  A short write (mostly a full disk) is reported by the next call.
        count = 0
        skipped = done
        for part in all_parts:
            if skipped < len(part):
                pieces[count].iov_base = PyBytes_AS_STRING(part) + skipped
                pieces[count].iov_len = len(part) - skipped
                count += 1
            skipped = max(0, skipped - len(part))
        done += put(fd, pieces, count, offset + done)
    return offset + size


cdef class Handle(Pins):
    """A file of the data path that is open."""

    def __init__(self, str path not None, int fd):
        self.path = path
        self.fd = fd
        self.size = -1
        self.users = 1      # the creator

    cdef int64_t end(self) except -1:
        # The size; under the lock, and not earlier: another handle may have been used before.
        if self.size < 0:
            self.size = os.fstat(self.fd).st_size
        return self.size

    cpdef int64_t append(self, parts, int64_t offset=-1) except -1:
        """Append ``parts``, or truncate the file to what it was; return the new size.

        With ``offset`` they are written there, over zeros; if that fails, the zeros are cut off too.
        """
        cdef int64_t old_size
        with self.lock:
            old_size = offset if offset >= 0 else self.end()
            try:
                self.size = write_all(self.fd, parts, old_size)
            except OSError as error:
                try:
                    os.ftruncate(self.fd, old_size)
                except OSError as second:
                    raise UncutError(f"{self.path}: {error}; and cutting back: {second}") from error
                raise
        return self.size

    cdef int64_t begin(self, int64_t offset) except -1:
        # Begin a write by a native thread: no other change until ended().  Returns where it begins.
        self.lock.acquire()
        try:
            return offset if offset >= 0 else self.end()
        except BaseException:
            self.lock.release()
            raise

    cdef int ended(self, int64_t size) except -1:
        # The file has this size now.
        self.size = size
        self.lock.release()
        return 0

    cdef int cut(self, int64_t size) except -1:
        # Truncate the file to ``size``.
        with self.lock:
            os.ftruncate(self.fd, size)
            self.size = size
        return 0

    cdef int extend(self, int64_t start, int64_t end) except -1:
        # Write zeros from ``start``, the end of the file, to ``end``.
        cdef bytes piece = bytes(min(end - start, ZEROS_SIZE))
        cdef int64_t at = start
        with self.lock:
            try:
                while at < end:
                    at = write_all(self.fd, [piece[:end - at]], at)
            except OSError:
                os.ftruncate(self.fd, start)
                raise
        return 0

    cdef int allocate(self, int64_t size) except -1:
        # Allocate disk space up to ``size``, durably.
        cdef int64_t old_size
        with self.lock:
            old_size = self.end()
            try:
                os.posix_fallocate(self.fd, 0, size)
                os.fsync(self.fd)
            except OSError:
                os.ftruncate(self.fd, old_size)
                raise
            self.size = max(size, old_size)
        return 0
