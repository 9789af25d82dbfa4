from libc.stdint cimport INT64_MAX, int32_t, int64_t


cdef struct Deadline:
    int64_t deadline_ns  # whichever clock the caller uses
    int32_t item         # small number, chosen by the caller


cdef class DeadlineQueue:
    cdef Deadline* heap             # 4-ary heap, soonest first
    cdef Py_ssize_t size            # items in the heap
    cdef Py_ssize_t capacity        # items that ``heap`` has room for
    cdef int32_t* places            # place in the heap by item, -1 if absent
    cdef Py_ssize_t place_capacity  # items that ``places`` has room for

    cdef int put(self, int32_t item, int64_t deadline_ns) except -1
    cdef void drop(self, int32_t item) noexcept
    cdef bint holds(self, int32_t item) noexcept
    cdef inline int64_t soonest(self) noexcept:
        return self.heap[0].deadline_ns if self.size else INT64_MAX
    cdef void sift_up(self, Py_ssize_t place) noexcept
    cdef void sift_down(self, Py_ssize_t place) noexcept
    cdef int _grow_heap(self) except -1
    cdef int _grow_places(self, int32_t item) except -1
