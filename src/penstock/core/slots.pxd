from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


# What is known of one record without its body.
cdef struct SlotRecord:
    int64_t due_ns
    int64_t offset        # from the start of the bytes it was found in, plus SlotRecords.base
    uint64_t instance
    int64_t stamp
    uint32_t ordinal
    uint32_t size


cdef class SlotRecords:
    cdef SlotRecord* items
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t room
    cdef readonly int64_t base
    cdef readonly bytes data
    cdef readonly int64_t next_offset
    cdef readonly int64_t corrupt_count
    cdef readonly int64_t corrupt_size
    cdef readonly int64_t torn_size
    cdef readonly int64_t bad_offset      # in the file: the first bad byte, -1 if there is none
    cdef readonly int64_t bad_end         # one past the last one
    cdef readonly int64_t good_end        # where the last good record ends, 0 if there is none

    cdef int reserve(self, Py_ssize_t count) except -1 nogil
    cdef str topic_at(self, Py_ssize_t i)


cdef class SlotBatch(SlotRecords):
    cdef readonly int64_t number
    cdef uint8_t* buffer
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t buffer_room

    cdef int grow(self, Py_ssize_t size) except -1
    cdef int pack(
        self, uint32_t ordinal, bytes topic, uint64_t instance, bytes body,
        int64_t timestamp_ns, int64_t due_ns, int64_t stamp,
    ) except -1


cdef class Due:
    cdef readonly int64_t slot
    cdef readonly uint32_t ordinal
    cdef readonly str topic
    cdef readonly uint64_t instance
    cdef readonly int64_t timestamp_ns
    cdef readonly int64_t due_ns
    cdef readonly int64_t stamp
    cdef readonly bytes body
    cdef readonly int64_t offset
    cdef readonly uint32_t size


cdef Due parse(const uint8_t* p, Py_ssize_t room, int64_t number, uint32_t ordinal, int64_t offset)
