from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


# What is known of one record without its body.
cdef struct SlotRecord:
    int64_t due_ns     # wall clock
    int64_t offset     # from the start of the bytes it was found in, plus SlotRecords.base
    uint64_t instance  # of the topic
    int64_t stamp      # ascends with acceptance
    uint32_t ordinal   # ascends in the file
    uint32_t size      # bytes of the whole record


cdef class Due


cdef class SlotRecords:
    cdef SlotRecord* items               # in file order
    cdef readonly Py_ssize_t count       # records
    cdef Py_ssize_t room                 # records allocated
    cdef readonly int64_t base           # offset in the file that the bytes start at
    cdef readonly bytes data             # the bytes; None in a batch
    cdef readonly int64_t next_offset    # in the file: where the next scan starts
    cdef readonly int64_t corrupt_count  # places with bad bytes before a good record
    cdef readonly int64_t corrupt_size   # bytes there
    cdef readonly int64_t torn_size      # bad bytes at the end of the file
    cdef readonly int64_t bad_offset     # in the file: the first bad byte, -1 if there is none
    cdef readonly int64_t bad_end        # one past the last one
    cdef readonly int64_t good_end       # where the last good record ends, 0 if there is none

    cdef int reserve(self, Py_ssize_t count) except -1 nogil
    cdef str topic_at(self, Py_ssize_t i)
    cdef Due unread(self, Py_ssize_t i, int64_t number)


cdef class SlotBatch(SlotRecords):
    cdef readonly int64_t number   # of the slot file
    cdef uint8_t* buffer           # packed records; NULL once settled
    cdef readonly Py_ssize_t size  # bytes packed
    cdef Py_ssize_t buffer_room    # bytes allocated

    cdef int grow(self, Py_ssize_t size) except -1
    cdef int pack(
        self, uint32_t ordinal, bytes topic, uint64_t instance, bytes body,
        int64_t timestamp_ns, int64_t due_ns, int64_t stamp,
    ) except -1


cdef class Due:
    cdef readonly int64_t slot          # number of its file; 0: held in memory only
    cdef readonly uint32_t ordinal      # in that file
    cdef readonly str topic             # name
    cdef readonly uint64_t instance     # of the topic
    cdef readonly int64_t timestamp_ns  # wall clock, when it was published
    cdef readonly int64_t due_ns        # wall clock
    cdef readonly int64_t stamp         # ascends with acceptance over all topics
    cdef readonly bytes body            # None: damaged, or not read
    cdef readonly int64_t offset        # of the record in its file
    cdef readonly uint32_t size         # bytes of the record


cdef Due parse(const uint8_t* p, Py_ssize_t room, int64_t number, uint32_t ordinal, int64_t offset)
