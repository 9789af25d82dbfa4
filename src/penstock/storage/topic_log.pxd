from libc.stdint cimport int64_t, uint64_t

from penstock.core.appender cimport Batch
from penstock.core.runs cimport Runs
from penstock.storage.files cimport Files
from penstock.storage.log_writer cimport LogWriter
from penstock.storage.segment cimport Extent, Segment


cdef class TopicLog:
    cdef readonly str folder
    cdef readonly uint64_t instance
    cdef readonly int node_id
    cdef readonly int64_t end              # one past the last index committed
    cdef readonly int64_t synced_end       # one past the last index known to be synced
    cdef readonly bint full                # the last segment is large enough to roll
    cdef readonly tuple files              # Segment, ascending; a new tuple after each change
    cdef readonly Extent extent            # what was written
    cdef readonly int64_t corrupt_count    # batches found damaged
    cdef readonly int64_t torn_count
    cdef public int64_t removed_ns         # no message appended later was removed; 0: none was
    cdef readonly dict holds               # see removable()
    cdef public set pinned_slots           # slots whose messages may be needed again
    cdef public list buried                # tables of buried messages, see has_buried()
    cdef public object on_damage           # called when there is damage to take; on any thread
    cdef readonly Files _files
    cdef LogWriter writer
    cdef Runs _runs                        # indexes that exist
    cdef object _reader                    # LogReader
    cdef dict _damage                      # found by reads, by (path, offset)
    cdef object _before                    # array: bytes of all files before each
    cdef tuple _sized                      # the files that it is for
    cdef list _lost                        # found by the writer; not in a segment any more

    cpdef write(self, Batch batch)
    cpdef commit(self, Batch batch)
    cpdef sync_here(self)
    cdef bint wants_zeros(self) noexcept
    cdef list _finished(self, int64_t low)
    cdef bint _removable(self, Segment segment) except -1
    cdef bint overgrown(self) noexcept
    cdef bint _has_buried(self, Segment segment) except -1
    cpdef bint needs_roll(self, int64_t low=*) except -1
