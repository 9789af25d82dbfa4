from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.core.tally cimport Tallies


# A deferred message that is due soon: its place in its file and its due time.  32 bytes.
cdef struct NearEntry:
    int64_t due_ns    # wall clock
    int64_t offset    # of the record in its file
    uint32_t ordinal  # of the record
    uint32_t size     # bytes of the record
    uint32_t slot     # place in Schedule.slots
    uint32_t rank     # place in the order of due times, while taken


cdef class Bits:
    cdef uint8_t* items          # eight ordinals a byte
    cdef Py_ssize_t room         # bytes allocated
    cdef readonly int64_t count  # bits set

    cdef bint has(self, uint32_t ordinal) noexcept nogil
    cdef int put(self, uint32_t ordinal) except -1
    cdef void drop(self, uint32_t ordinal) noexcept


cdef class Slot:
    cdef readonly int64_t number           # of the slot file
    cdef readonly Bits known               # ordinals that are near, firing or done
    # Ordinals found in topic logs after a restart; None once read.
    cdef public Bits origins
    # Ordinals to be taken as soon as they are found, and those that were; see expect().
    cdef Bits expected
    cdef readonly list taken
    cdef readonly int64_t counted_end      # ordinals below this were counted
    cdef public int64_t pending_count      # records scanned, not done at that time
    cdef public int64_t done_count         # ordinals done before their record was scanned
    cdef public int64_t sure_end           # ordinals below this were synced by an earlier process
    cdef readonly int64_t sure_count       # of those, records scanned
    cdef readonly int64_t sure_done_count  # of these, records done
    cdef readonly int64_t near_count       # entries in the heap
    cdef readonly int64_t firing_count     # taken, not settled
    cdef public int64_t next_ns            # wall clock; no unindexed record is due before
    cdef public bint loading               # the engine scans the file
    cdef int64_t place                     # in Schedule.slots, -1 if not attached


cdef class Taken:
    cdef NearEntry* items           # by due time; by file after ranges()
    cdef readonly Py_ssize_t count  # entries
    cdef list slots                 # the schedule's
    cdef Tallies tallies            # the schedule's


cdef class Schedule:
    cdef NearEntry* items           # binary heap, soonest first
    cdef readonly Py_ssize_t count  # entries
    cdef Py_ssize_t room            # entries allocated
    cdef readonly Py_ssize_t count_max
    cdef readonly bint limited      # something was dropped for want of room
    cdef NearEntry limit            # then, the latest entry that may be added
    cdef list slots                 # Slot by place, None if detached
    cdef list free_places
    cdef readonly list fallen       # slots to be scanned again; emptied by the engine
    cdef readonly Tallies tallies   # pending messages by topic

    cdef uint32_t place_of(self, Slot slot) except? 0
    cdef int resize(self, Py_ssize_t room) except -1
    cdef int push(self, NearEntry entry) except -1
    cdef void pop_top(self) noexcept
    cdef void sift_up(self, Py_ssize_t at) noexcept
    cdef void sift_down(self, Py_ssize_t at) noexcept
    cdef int shrink(self) except -1
    cdef int fall(self, Slot slot, int64_t due_ns) except -1
