# Entries of unfinished messages: a linked list in index order with a hash table by index.
#
#     entries   one array; free entries are linked by `after`
#     list      head <-> ... <-> tail by index, through before/after
#     table     index -> place in the array
#
# Appending, finding and removing take constant time.  Inserting walks from the nearest known entry.
#
# Invariants (check_entries):
#   1. Entries ascend by index along before/after, from head to tail.
#   2. The table finds exactly the entries of the list.

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    NEIGHBOUR_COUNT = 8  # indexes below a new one that are looked up before the list is walked


cdef class Entries:
    def __cinit__(self, *arguments, **options):
        self.free_entry = self.head = self.tail = -1
        self.table_mask = -1

    def __dealloc__(self):
        PyMem_Free(self.entries)
        PyMem_Free(self.table)

    cdef int32_t append_entry(self, int64_t index) except -1:
        cdef int32_t slot
        cdef Entry* entry
        if self.free_entry < 0:
            self.grow_entries()
        if self.unfinished_count * 2 >= self.table_mask:
            self.grow_table()
        slot = self.free_entry
        entry = &self.entries[slot]
        self.free_entry = entry.after
        entry.index = index
        entry.attempts = 0
        entry.due_ns = 0
        entry.owner = -1
        entry.lost = entry.kicked = 0
        entry.before = self.tail
        entry.after = -1
        if self.tail >= 0:
            self.entries[self.tail].after = slot
        else:
            self.head = slot
        self.tail = slot
        self.unfinished_count += 1
        self.table_insert(slot)
        return slot

    cdef int32_t insert_entry(self, int64_t index, int32_t near) except -1:
        # ``near`` is a slot from which to look for the place, or -1.
        cdef Entry* entry
        cdef int32_t before, after, slot, step
        if self.tail < 0 or self.entries[self.tail].index < index:
            return self.append_entry(index)
        before = self.tail
        if index - self.entries[self.head].index < self.entries[before].index - index:
            before = self.head
        if near >= 0 and self.entries[near].state and (
                abs(self.entries[near].index - index) < abs(self.entries[before].index - index)):
            before = near
        for step in range(1, NEIGHBOUR_COUNT):
            slot = self.find(index - step)
            if slot >= 0:
                before = slot
                break
        while before >= 0 and self.entries[before].index > index:
            before = self.entries[before].before
        after = self.entries[before].after if before >= 0 else self.head
        while self.entries[after].index < index:
            before = after
            after = self.entries[after].after
        # It begins at the end, and moves to its place.
        slot = self.append_entry(index)
        entry = &self.entries[slot]
        self.tail = entry.before
        self.entries[self.tail].after = -1
        entry.before = before
        entry.after = after
        self.entries[after].before = slot
        if before >= 0:
            self.entries[before].after = slot
        else:
            self.head = slot
        return slot

    cdef void remove_entry(self, int32_t slot) noexcept:
        cdef Entry* entry = &self.entries[slot]
        self.table_remove(slot)
        if entry.before >= 0:
            self.entries[entry.before].after = entry.after
        else:
            self.head = entry.after
        if entry.after >= 0:
            self.entries[entry.after].before = entry.before
        else:
            self.tail = entry.before
        entry.state = 0
        entry.after = self.free_entry
        self.free_entry = slot
        self.unfinished_count -= 1

    # The table maps index to slot: open addressing, linear probing, at most half full.
    # Sixteen neighbouring indexes share a cache line, because they are finished one after the
    # other; lines are spread by multiplicative hashing.  With the index itself as the hash, two
    # dense runs that collide would cost thousands of probes.

    cdef inline Py_ssize_t home(self, int64_t index) noexcept:
        cdef uint64_t line = (<uint64_t>(index >> 4) * <uint64_t>0x9E3779B97F4A7C15)
        return <Py_ssize_t>((line >> self.table_shift) << 4) | (index & 15)

    cdef int32_t find(self, int64_t index) noexcept:
        cdef Py_ssize_t place
        if self.table_mask < 0:
            return -1
        place = self.home(index)
        while self.table[place] >= 0:
            if self.entries[self.table[place]].index == index:
                return self.table[place]
            place = (place + 1) & self.table_mask
        return -1

    cdef void table_insert(self, int32_t slot) noexcept:
        cdef Py_ssize_t place = self.home(self.entries[slot].index)
        while self.table[place] >= 0:
            place = (place + 1) & self.table_mask
        self.table[place] = slot

    cdef void table_remove(self, int32_t slot) noexcept:
        cdef Py_ssize_t hole = self.home(self.entries[slot].index)
        cdef Py_ssize_t place, home
        while self.table[hole] != slot:
            hole = (hole + 1) & self.table_mask
        place = hole
        while True:
            place = (place + 1) & self.table_mask
            if self.table[place] < 0:
                break
            home = self.home(self.entries[self.table[place]].index)
            if ((place - home) & self.table_mask) >= ((place - hole) & self.table_mask):
                self.table[hole] = self.table[place]
                hole = place
        self.table[hole] = -1

    cdef int grow_table(self) except -1:
        cdef Py_ssize_t capacity = max(64, (self.table_mask + 1) * 2)
        cdef int32_t* table = <int32_t*>PyMem_Malloc(capacity * sizeof(int32_t))
        cdef Py_ssize_t i
        cdef int32_t slot
        if table == NULL:
            raise MemoryError
        PyMem_Free(self.table)
        self.table = table
        self.table_mask = capacity - 1
        self.table_shift = 64 + 4 - (capacity.bit_length() - 1)
        for i in range(capacity):
            table[i] = -1
        slot = self.head
        while slot >= 0:
            self.table_insert(slot)
            slot = self.entries[slot].after
        return 0

    cdef int grow_entries(self) except -1:
        cdef Py_ssize_t capacity = max(16, self.entry_capacity * 2)
        cdef Entry* entries = <Entry*>PyMem_Realloc(self.entries, capacity * sizeof(Entry))
        cdef Py_ssize_t i
        if entries == NULL:
            raise MemoryError
        for i in range(self.entry_capacity, capacity):
            entries[i].state = 0
            entries[i].after = <int32_t>(i + 1) if i + 1 < capacity else -1
        self.free_entry = <int32_t>self.entry_capacity
        self.entries = entries
        self.entry_capacity = capacity
        return 0

    cdef void drop_entries(self) noexcept:
        # Remove all, in the same time however many there are.
        PyMem_Free(self.entries)
        PyMem_Free(self.table)
        self.entries = NULL
        self.table = NULL
        self.entry_capacity = self.unfinished_count = 0
        self.free_entry = self.head = self.tail = -1
        self.table_mask = -1

    cdef int check_entries(self) except -1:
        # Assert the invariants above.
        cdef int32_t slot = self.head, before = -1
        cdef Py_ssize_t count = 0
        while slot >= 0:
            assert self.entries[slot].before == before
            assert before < 0 or self.entries[before].index < self.entries[slot].index
            assert self.find(self.entries[slot].index) == slot
            before, slot = slot, self.entries[slot].after
            count += 1
        assert before == self.tail
        assert count == self.unfinished_count
        return 0
