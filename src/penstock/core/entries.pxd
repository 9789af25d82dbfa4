from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

# What a window remembers of one unfinished message.  With its place in the table and in the
# deadline queue that is about 90 bytes a message.
cdef struct Entry:
    int64_t index         # of the message in its topic
    int64_t timestamp_ns  # when it was published
    int64_t delivered_ns  # monotonic; what TOUCH may extend counts from here
    int64_t due_ns        # wall clock; 0 unless deferred
    int32_t before        # neighbours in index order, -1 at the ends
    int32_t after
    int32_t next_ready    # the next entry of the ready list, -1 at its end
    int32_t owner         # consumer number, -1 when it has gone
    uint16_t node_id      # of the message id
    uint16_t attempts     # deliveries so far
    uint8_t state         # IN_FLIGHT, READY or DEFERRED (window.pyx); 0: free
    uint8_t lost          # a delivery ended by a timeout or with its client, not by an answer
    uint8_t kicked        # it was buried and made ready again: it does not expire


cdef class Entries:
    cdef readonly Py_ssize_t unfinished_count  # entries in use
    cdef Entry* entries                        # array of all entries; a slot is a place in it
    cdef Py_ssize_t entry_capacity             # entries that the array has room for
    cdef int32_t free_entry                    # first free slot, -1 if none
    cdef int32_t head                          # slot with the lowest index, -1 if none
    cdef int32_t tail                          # slot with the highest index, -1 if none
    cdef int32_t* table                        # hash table of slots, -1 where empty
    cdef Py_ssize_t table_mask                 # its size - 1, -1 before the first entry
    cdef int table_shift                       # bits of the hash that are not used

    cdef int32_t find(self, int64_t index) noexcept
    cdef int32_t append_entry(self, int64_t index) except -1
    cdef int32_t insert_entry(self, int64_t index, int32_t near) except -1
    cdef void remove_entry(self, int32_t slot) noexcept
    cdef void drop_entries(self) noexcept
    cdef int check_entries(self) except -1
    cdef Py_ssize_t home(self, int64_t index) noexcept
    cdef void table_insert(self, int32_t slot) noexcept
    cdef void table_remove(self, int32_t slot) noexcept
    cdef int grow_table(self) except -1
    cdef int grow_entries(self) except -1
