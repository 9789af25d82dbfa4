from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

# What a window remembers of one unfinished message.  With its place in the table and in the
# deadline queue that is about 90 bytes a message.
cdef struct Entry:
    int64_t index
    int64_t timestamp_ns    # when it was published
    int64_t delivered_ns    # monotonic; what TOUCH may extend counts from here
    int64_t due_ns          # wall clock; 0 unless deferred
    int32_t before          # neighbours in index order, -1 at the ends
    int32_t after
    int32_t next_ready
    int32_t owner           # consumer number, -1 when it has gone
    uint16_t node_id
    uint16_t attempts
    uint8_t state


cdef class Entries:
    cdef readonly Py_ssize_t unfinished_count
    cdef Entry* entries
    cdef Py_ssize_t entry_capacity
    cdef int32_t free_entry
    cdef int32_t head
    cdef int32_t tail
    cdef int32_t* table
    cdef Py_ssize_t table_mask
    cdef int table_shift

    cdef int32_t find(self, int64_t index) noexcept
    cdef int32_t append_entry(self, int64_t index) except -1
    cdef void remove_entry(self, int32_t slot) noexcept
    cdef int check_entries(self) except -1
    cdef Py_ssize_t home(self, int64_t index) noexcept
    cdef void table_insert(self, int32_t slot) noexcept
    cdef void table_remove(self, int32_t slot) noexcept
    cdef int grow_table(self) except -1
    cdef int grow_entries(self) except -1
