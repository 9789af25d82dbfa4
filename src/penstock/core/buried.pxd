from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

cdef enum:
    REASON_COUNT = 4


# What is remembered of a buried message.  24 bytes.
cdef struct Burial:
    int64_t index
    int64_t buried_ns   # wall clock
    uint16_t attempts
    uint16_t client     # in Buried.clients; 0: unknown
    uint16_t text       # in Buried.texts; 0: none
    uint8_t reason      # ATTEMPTS, BURY or EXPIRED


cdef class Chunk:
    cdef Burial* items    # ascending by index
    cdef int32_t count
    cdef int32_t room     # items allocated
    cdef int64_t stamp    # of the table when it was made; if older, a snapshot may share it


cdef class Names:
    cdef list names       # by number; "" where free
    cdef dict numbers     # by name
    cdef list free_numbers
    cdef uint32_t* counts  # burials that use each number
    cdef Py_ssize_t count_max

    cdef uint16_t acquire(self, str name) except? 0
    cdef int release(self, uint16_t number) except -1


cdef class Buried:
    cdef list chunks                      # Chunk, ascending, none of them empty
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t[REASON_COUNT] counts  # by reason
    cdef int64_t stamp
    cdef Names clients
    cdef Names texts
    cdef int64_t* pending                 # indexes put since the last drain()
    cdef Py_ssize_t pending_count
    cdef Py_ssize_t pending_room

    cdef int64_t next(self, int64_t index) noexcept
    cdef Py_ssize_t chunk_of(self, int64_t index) noexcept
    cdef Burial* find(self, int64_t index) noexcept
    cdef bint seek(self, int64_t index, Py_ssize_t* place, Py_ssize_t* at) noexcept
    cdef Chunk writable(self, Py_ssize_t place)
    cdef int insert(self, Burial* item) except -1
    cdef int forget(self, Burial* item) except -1
    cdef int tidy(self, Py_ssize_t place) except -1
    cdef int add(self, int64_t index, int attempts, int reason, int64_t buried_ns, str client,
                 str text) except -1
    cdef Py_ssize_t take(self, int64_t start, int64_t end, Py_ssize_t count_max, int reason,
                         int64_t* indexes, int64_t* after) except -1
