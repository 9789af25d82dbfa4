from libc.stdint cimport int64_t, uint32_t

from penstock.core.appender cimport Batch


cdef class Visible:
    cdef readonly int64_t size   # bytes of the file
    cdef readonly int64_t end    # one past the last index
    cdef readonly int64_t count  # messages


cdef Visible visible_of(int64_t size, int64_t end, int64_t count)


cdef class Tables:
    cdef readonly object indexes  # array("Q"): first index of a batch for each 32 KiB
    cdef readonly object offsets  # array("Q"): its offset
    cdef readonly object times    # array("q"): its append time, ns
    cdef readonly list gaps       # (start, end) of indexes between batches that do not exist
    cdef readonly object origins  # array("Q"): offsets of batches with origins


cdef class Tally:
    cdef readonly int64_t first            # index of the first message, or the base
    cdef readonly int64_t end              # one past the last index
    cdef readonly int64_t count            # messages
    cdef readonly int64_t size             # bytes, the header included
    cdef readonly int64_t append_ns_first  # of the first batch
    cdef readonly int64_t append_ns_last   # of the last batch
    cdef readonly set slots                # numbers of the slots its messages were deferred in
    cdef readonly int64_t moved_count      # batches of messages that were moved here
    cdef readonly Tables tables
    cdef int64_t noted                     # offset of the last batch in the sparse index

    cpdef int64_t append(self, Batch batch) except -1
    cpdef note(self, int64_t offset, int64_t first, int64_t count, int64_t end, int64_t append_ns,
               int64_t slot, uint32_t flags)
