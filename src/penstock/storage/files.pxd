from libc.stdint cimport int64_t

from penstock.storage.handle cimport Handle
from penstock.storage.native_threads cimport NativeThreads


cdef class Files:
    cdef int _open_max
    cdef int _access                # flags of open()
    cdef dict _handles              # Handle by path
    cdef object _lock               # for changes of _handles, not for lookups
    cdef int64_t _name_changes
    cdef dict _folder_locks         # descriptor by folder
    cdef object _barred             # OSError, or None
    cdef bint _nowait
    cdef bytearray _buffer
    cdef NativeThreads _native_threads  # None: every write and sync is a call that waits

    cpdef int64_t append(self, str path, parts, int64_t offset=*) except -1
    cpdef bint start_append(self, str path, list parts, int64_t offset, done) except -1
    cpdef sync(self, str path)
    cpdef bint sync_here(self, str path) except -1
    cpdef bint start_sync(self, str path, done) except -1
    cdef Handle pin(self, str path, bint create)
    cdef Handle pin_open(self, str path)
    cdef Handle pin_new(self, str path, bint create)
    cdef int unpin(self, Handle handle) except -1
