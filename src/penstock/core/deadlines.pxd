from libc.stdint cimport INT64_MAX, int32_t, int64_t



cdef struct Deadline:
    int64_t deadline_ns
    int32_t item


cdef class DeadlineQueue:
    cdef Deadline* heap
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef int32_t* places
    cdef Py_ssize_t place_capacity

    cdef int put(self, int32_t item, int64_t deadline_ns) except -1
    cdef void drop(self, int32_t item) noexcept
    cdef bint holds(self, int32_t item) noexcept
    cdef inline int64_t soonest(self) noexcept:
        return self.heap[0].deadline_ns if self.size else INT64_MAX
    cdef void sift_up(self, Py_ssize_t place) noexcept
    cdef void sift_down(self, Py_ssize_t place) noexcept
    cdef int _grow_heap(self) except -1
    cdef int _grow_places(self, int32_t item) except -1
