cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.core.appender cimport Batch
from penstock.storage.files cimport Files
from penstock.storage.segment cimport Extent, Segment


cdef class LogWriter:
    cdef readonly Segment active           # the segment that is written to; None: none yet
    cdef readonly Extent extent            # all that was written since the start
    cdef readonly list events              # what the loop has to apply, in order; few
    cdef readonly object cuts              # deque of (Segment, size) to truncate
    cdef readonly int64_t segment_size_max  # bytes at which a segment is full
    cdef readonly int64_t segment_count_max  # messages at which it is full
    cdef public bint roll_wanted           # seal the active segment, whatever its size
    cdef int64_t _size_max                 # without a bound of the topic
    cdef int64_t _bound_size               # with it
    cdef int64_t _excess_max               # bytes that a full segment may grow by
    cdef int64_t _zeros_end                # the active segment is zeros up to here; 0: none
    cdef bint _zeros_refused               # none are written any more to the active segment
    cdef Files _files
    cdef str _folder
    cdef uint64_t _instance
    cdef int _node_id
    cdef bint _folder_dirty
    cdef object _sync_lock
    cdef cython.pymutex _lock

    cpdef write(self, Batch batch)
    cpdef sync_here(self)
    cdef bint _is_plain(self)
    cdef bint overgrown(self) noexcept
    cdef int64_t zeros_size(self) noexcept
    cdef bint wants_zeros(self) noexcept
    cdef int64_t _ahead(self) noexcept
    cpdef bint needs_roll(self, int64_t low=*) except -1
