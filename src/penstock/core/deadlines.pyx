# A priority queue of deadlines: a heap of (deadline, item) whose items can be moved and removed.
#
# Items are small integers (the slot of a message in its window, the number of a channel), so an
# item's place in the heap is an array lookup, and nothing is allocated per deadline.
#
# Invariants (check):
#   1. heap[parent].deadline <= heap[child].deadline
#   2. places[heap[i].item] == i, and places[item] == -1 for every item that is absent
#
# Four children a node, not two: deadlines arrive nearly in order, so an insert is one comparison,
# and removing the soonest visits half as many levels.

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport INT64_MAX, int32_t, int64_t


NEVER_NS = INT64_MAX


cdef class DeadlineQueue:
    def __dealloc__(self):
        PyMem_Free(self.heap)
        PyMem_Free(self.places)

    def __len__(self):
        return self.size

    def __contains__(self, int32_t item):
        return self.holds(item)

    @property
    def next_ns(self):
        """The soonest deadline, or NEVER_NS."""
        return self.soonest()

    def set(self, int32_t item, int64_t deadline_ns):
        """Add ``item``, or move it to another deadline."""
        if item < 0:
            raise ValueError("items are not negative")
        self.put(item, deadline_ns)

    def remove(self, int32_t item):
        """Remove ``item``, if it is there."""
        self.drop(item)

    def expire(self, int64_t now_ns, Py_ssize_t count_max):
        """Remove and return what is due at ``now_ns``, soonest first.

        ``count_max`` bounds one call, so a burst of timeouts cannot hold the loop.
        """
        cdef list due = []
        cdef int32_t item
        while self.size and self.heap[0].deadline_ns <= now_ns and len(due) < count_max:
            item = self.heap[0].item
            self.drop(item)
            due.append(item)
        return due

    def check(self):
        """Assert the invariants above."""
        cdef Py_ssize_t i
        cdef Py_ssize_t present = 0
        for i in range(1, self.size):
            assert self.heap[(i - 1) // 4].deadline_ns <= self.heap[i].deadline_ns
        for i in range(self.size):
            assert self.places[self.heap[i].item] == i
        for i in range(self.place_capacity):
            present += self.places[i] >= 0
        assert present == self.size

    cdef bint holds(self, int32_t item) noexcept:
        return 0 <= item < self.place_capacity and self.places[item] >= 0

    cdef int put(self, int32_t item, int64_t deadline_ns) except -1:
        cdef Py_ssize_t place
        if item >= self.place_capacity:
            self._grow_places(item)
        place = self.places[item]
        if place < 0:
            if self.size == self.capacity:
                self._grow_heap()
            place = self.size
            self.size += 1
            self.heap[place] = Deadline(deadline_ns, item)
            self.places[item] = <int32_t>place
            self.sift_up(place)
        elif deadline_ns < self.heap[place].deadline_ns:
            self.heap[place].deadline_ns = deadline_ns
            self.sift_up(place)
        else:
            self.heap[place].deadline_ns = deadline_ns
            self.sift_down(place)
        return 0

    cdef void drop(self, int32_t item) noexcept:
        cdef Py_ssize_t place
        cdef Deadline last
        if not self.holds(item):
            return
        place = self.places[item]
        self.places[item] = -1
        self.size -= 1
        if place == self.size:
            return
        last = self.heap[self.size]
        self.heap[place] = last
        self.places[last.item] = <int32_t>place
        if place and last.deadline_ns < self.heap[(place - 1) // 4].deadline_ns:
            self.sift_up(place)
        else:
            self.sift_down(place)

    cdef void sift_up(self, Py_ssize_t place) noexcept:
        cdef Deadline due = self.heap[place]
        cdef Py_ssize_t parent
        while place:
            parent = (place - 1) // 4
            if self.heap[parent].deadline_ns <= due.deadline_ns:
                break
            self.heap[place] = self.heap[parent]
            self.places[self.heap[place].item] = <int32_t>place
            place = parent
        self.heap[place] = due
        self.places[due.item] = <int32_t>place

    cdef void sift_down(self, Py_ssize_t place) noexcept:
        cdef Deadline due = self.heap[place]
        cdef Py_ssize_t child, best, last
        while True:
            child = 4 * place + 1
            if child >= self.size:
                break
            best = child
            last = min(child + 4, self.size)
            child += 1
            while child < last:
                if self.heap[child].deadline_ns < self.heap[best].deadline_ns:
                    best = child
                child += 1
            if due.deadline_ns <= self.heap[best].deadline_ns:
                break
            self.heap[place] = self.heap[best]
            self.places[self.heap[place].item] = <int32_t>place
            place = best
        self.heap[place] = due
        self.places[due.item] = <int32_t>place

    cdef int _grow_heap(self) except -1:
        cdef Py_ssize_t capacity = max(16, self.capacity * 2)
        cdef Deadline* heap = <Deadline*>PyMem_Realloc(self.heap, capacity * sizeof(Deadline))
        if heap == NULL:
            raise MemoryError
        self.heap = heap
        self.capacity = capacity
        return 0

    cdef int _grow_places(self, int32_t item) except -1:
        cdef Py_ssize_t capacity = max(16, self.place_capacity * 2, item + 1)
        cdef int32_t* places = <int32_t*>PyMem_Realloc(self.places, capacity * sizeof(int32_t))
        cdef Py_ssize_t i
        if places == NULL:
            raise MemoryError
        for i in range(self.place_capacity, capacity):
            places[i] = -1
        self.places = places
        self.place_capacity = capacity
        return 0
