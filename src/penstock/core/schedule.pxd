from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.core.tally cimport Tallies


# One deferred message that is near: where it lies and when it is due.  32 bytes, no Python object.
cdef struct NearEntry:
    int64_t due_ns
    int64_t offset
    uint32_t ordinal
    uint32_t size
    uint32_t slot         # place in Schedule.slots
    uint32_t rank         # place in the order of due times, while taken


cdef class Bits:
    cdef uint8_t* items
    cdef Py_ssize_t room
    cdef readonly int64_t count

    cdef bint has(self, uint32_t ordinal) noexcept nogil
    cdef int put(self, uint32_t ordinal) except -1
    cdef void drop(self, uint32_t ordinal) noexcept


cdef class Slot:
    cdef readonly int64_t number
    cdef readonly Bits known
    cdef public Bits origins
    cdef readonly int64_t counted_end
    cdef public int64_t pending_count     # records seen that were not done when first seen
    cdef public int64_t done_count        # ordinals known to be done before their record was seen
    cdef public int64_t sure_end          # ordinals below this were synced by an earlier process
    cdef readonly int64_t sure_count      # of those, the records seen
    cdef readonly int64_t sure_done_count # of these, the ones that were done
    cdef readonly int64_t near_count
    cdef readonly int64_t firing_count
    cdef public int64_t next_ns
    cdef public bint loading
    cdef int64_t place


cdef class Taken:
    cdef NearEntry* items
    cdef readonly Py_ssize_t count
    cdef list slots
    cdef Tallies tallies


cdef class Schedule:
    cdef NearEntry* items
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t room
    cdef readonly Py_ssize_t count_max
    cdef readonly bint limited
    cdef NearEntry limit
    cdef list slots
    cdef list free_places
    cdef readonly list fallen
    cdef readonly Tallies tallies

    cdef uint32_t place_of(self, Slot slot) except? 0
    cdef int resize(self, Py_ssize_t room) except -1
    cdef int push(self, NearEntry entry) except -1
    cdef void pop_top(self) noexcept
    cdef void sift_up(self, Py_ssize_t at) noexcept
    cdef void sift_down(self, Py_ssize_t at) noexcept
    cdef int shrink(self) except -1
    cdef int fall(self, Slot slot, int64_t due_ns) except -1
