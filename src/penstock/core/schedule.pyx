# The in-memory index of the deferred queue: which record is due when, and how many are pending.
#
# A schedule is one binary heap of 32-byte entries over all slot files that are due soon ("near").
# A record of a slot file is in exactly one of these states:
#
#     unindexed   its bit in ``known`` is clear: only in the file, due at Slot.next_ns or later
#     near        bit set, an entry in the heap
#     firing      bit set, taken by the engine, counted in firing_count
#     done        bit set: fired or void
#
# Invariant 1: an unindexed record still to be fired is due at or after Slot.next_ns (NEVER: none).
# Invariant 2: near_count and firing_count count a slot's entries; a bit is set at most once, so a
#              record that a second scan of the file finds is not indexed twice.
# Invariant 3: there are at most count_max entries; beyond that the latest are dropped (``shrink``):
#              their bits are cleared, next_ns of their slots is lowered, and the engine scans those
#              files again when there is room.
# Invariant 4: of the records scanned, pending_count + done_count - len(known) are unindexed.
# Invariant 5: while ``limited``, a scan indexes nothing later than ``limit``, so that everything in
#              the heap is earlier than what was dropped.

from cpython.array cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memset

from penstock.core.slots cimport Due, SlotRecord, SlotRecords, parse
from penstock.core.tally cimport Tallies

NEVER = 0x7FFFFFFFFFFFFFFF

cdef int64_t NEVER_NS = 0x7FFFFFFFFFFFFFFF


cdef class Bits:
    """A set of ordinals, one bit each."""

    def __dealloc__(self):
        free(self.items)

    cdef bint has(self, uint32_t ordinal) noexcept nogil:
        cdef Py_ssize_t at = ordinal >> 3
        return at < self.room and self.items[at] >> (ordinal & 7) & 1

    cdef int put(self, uint32_t ordinal) except -1:
        cdef Py_ssize_t at = ordinal >> 3, room
        cdef uint8_t* items
        if at >= self.room:
            room = max(at + 1, self.room * 2, 16)
            items = <uint8_t*>realloc(self.items, room)
            if items == NULL:
                raise MemoryError
            memset(items + self.room, 0, room - self.room)
            self.items = items
            self.room = room
        if not self.items[at] >> (ordinal & 7) & 1:
            self.items[at] |= 1 << (ordinal & 7)
            self.count += 1
        return 0

    cdef void drop(self, uint32_t ordinal) noexcept:
        if self.has(ordinal):
            self.items[ordinal >> 3] &= <uint8_t>~(1 << (ordinal & 7))
            self.count -= 1

    def __contains__(self, uint32_t ordinal):
        return self.has(ordinal)

    def __len__(self):
        return self.count

    def count_below(self, int64_t end, Bits other=None):
        """How many ordinals below ``end`` are in the set, or in ``other``."""
        cdef int64_t at, found = 0
        cdef int64_t room = self.room if other is None else max(self.room, other.room)
        cdef uint8_t bits
        for at in range(min(room, (end + 7) >> 3)):
            bits = self.items[at] if at < self.room else 0
            if other is not None and at < other.room:
                bits |= other.items[at]
            if at == end >> 3:
                bits &= (1 << (end & 7)) - 1
            while bits:
                bits &= bits - 1
                found += 1
        return found

    def add(self, uint32_t ordinal):
        self.put(ordinal)

    def add_run(self, uint32_t start, uint32_t count):
        cdef uint64_t ordinal
        for ordinal in range(start, min(<uint64_t>start + count, <uint64_t>1 << 32)):
            self.put(<uint32_t>ordinal)


cdef class Slot:
    """The schedule's state of one slot file; the engine's subclass has more."""

    def __init__(self, int64_t number, int64_t next_ns):
        self.number = number
        self.next_ns = next_ns
        self.known = Bits()
        self.place = -1

    def expect(self, runs):
        """Take these records as soon as a scan finds them: ``taken`` will have those not done.

        They are messages (``Due``) without bodies.  Called before the first scan.
        """
        self.expected = Bits()
        self.taken = []
        for first, count in runs:
            self.expected.add_run(first, count)


cdef inline bint earlier(NearEntry* a, NearEntry* b) noexcept nogil:
    if a.due_ns != b.due_ns:
        return a.due_ns < b.due_ns
    if a.slot != b.slot:
        return a.slot < b.slot
    return a.ordinal < b.ordinal


cdef int by_place(const void* a, const void* b) noexcept nogil:
    cdef NearEntry* x = <NearEntry*>a
    cdef NearEntry* y = <NearEntry*>b
    if x.slot != y.slot:
        return -1 if x.slot < y.slot else 1
    return -1 if x.offset < y.offset else 1


cdef void select(NearEntry* items, Py_ssize_t count, Py_ssize_t keep) noexcept nogil:
    # Quickselect, with the middle element as pivot: the ``keep`` earliest come first.
    cdef Py_ssize_t low = 0, high = count - 1, i, j
    cdef NearEntry pivot
    while low < high:
        pivot = items[(low + high) // 2]
        i = low
        j = high
        while i <= j:
            while earlier(&items[i], &pivot):
                i += 1
            while earlier(&pivot, &items[j]):
                j -= 1
            if i <= j:
                items[i], items[j] = items[j], items[i]
                i += 1
                j -= 1
        if keep <= j:
            high = j
        elif keep >= i:
            low = i
        else:
            return


cdef class Taken:
    """Entries removed from a schedule; their records have to be read."""

    def __dealloc__(self):
        free(self.items)

    def ranges(self, Py_ssize_t gap_max, Py_ssize_t size_max):
        """What to read: (slot, offset, size, first, end); neighbours in a file form one range."""
        cdef Py_ssize_t i = 0, first
        cdef int64_t start, stop
        cdef list found = []
        if self.count > 1:
            qsort(self.items, self.count, sizeof(NearEntry), by_place)
        while i < self.count:
            first = i
            start = self.items[i].offset
            stop = start + self.items[i].size
            i += 1
            while (
                i < self.count
                and self.items[i].slot == self.items[first].slot
                and self.items[i].offset - stop <= gap_max
                and self.items[i].offset + self.items[i].size - start <= size_max
            ):
                stop = self.items[i].offset + self.items[i].size
                i += 1
            found.append((self.slots[self.items[first].slot], start, stop - start, first, i))
        return found

    def parse(
        self, Slot slot, bytes data not None, int64_t offset,
        Py_ssize_t first, Py_ssize_t end, list out,
    ):
        """Decode the messages of one range into ``out`` by rank.

        Returns those left out: the ordinals of void ones, and (ordinal, offset, size) of damaged
        ones.
        """
        cdef Py_ssize_t i, at
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef NearEntry* entry
        cdef Due due
        cdef list void = [], damaged = []
        if not 0 <= first <= end <= self.count or len(out) < self.count:
            raise ValueError(f"{first}..{end} of {self.count} entries into {len(out)}")
        for i in range(first, end):
            entry = &self.items[i]
            at = entry.offset - offset
            due = None
            if 0 <= at and at + <Py_ssize_t>entry.size <= size:
                due = parse(start + at, entry.size, slot.number, entry.ordinal, entry.offset)
            if due is None:
                # The topic is not known any more: its count stays one too high.
                damaged.append((entry.ordinal, entry.offset, entry.size))
            elif due.body is None:
                self.tallies.change(due.instance, due.due_ns, due.stamp, -1)
                damaged.append((entry.ordinal, entry.offset, entry.size))
            elif due.stamp < self.tallies.tally(due.instance).void_before:
                void.append(entry.ordinal)
            else:
                out[entry.rank] = due
        return void, damaged


cdef class Schedule:
    """The near entries of all slots, soonest first; see the invariants above."""

    def __init__(self, Tallies tallies, Py_ssize_t count_max):
        if count_max < 4:
            raise ValueError("a schedule needs room for four entries")
        self.tallies = tallies
        self.count_max = count_max
        self.slots = []
        self.free_places = []
        self.fallen = []

    def __dealloc__(self):
        free(self.items)

    def __len__(self):
        return self.count

    def attach(self, Slot slot):
        if self.free_places:
            slot.place = self.free_places.pop()
            self.slots[slot.place] = slot
        else:
            slot.place = len(self.slots)
            self.slots.append(slot)

    cdef uint32_t place_of(self, Slot slot) except? 0:
        if slot.place < 0 or self.slots[slot.place] is not slot:
            raise ValueError(f"slot {slot.number} is not attached")
        return <uint32_t>slot.place

    def detach(self, Slot slot):
        self.place_of(slot)
        assert slot.near_count == 0 and slot.firing_count == 0
        self.slots[slot.place] = None
        self.free_places.append(slot.place)
        slot.place = -1

    def index(self, Slot slot, SlotRecords records):
        """Count records not yet counted, and add near ones to the heap.

        Returns (ordinal, topic, instance) of records that have fired already: their origins were
        found in a topic log after a restart.
        """
        cdef Py_ssize_t i
        cdef SlotRecord* record
        cdef NearEntry entry
        cdef list fired = []
        cdef bint done
        cdef Bits known = slot.known
        entry.slot = self.place_of(slot)
        entry.rank = 0
        for i in range(records.count):
            record = &records.items[i]
            done = known.has(record.ordinal)
            if not done:
                if slot.origins is not None and slot.origins.has(record.ordinal):
                    done = True
                    known.put(record.ordinal)
                    slot.done_count += 1
                    fired.append((record.ordinal, records.topic_at(i), record.instance))
                else:
                    if record.ordinal >= slot.counted_end:
                        slot.pending_count += 1
                        self.tallies.change(record.instance, record.due_ns, record.stamp, 1)
                    if slot.expected is not None and slot.expected.has(record.ordinal):
                        known.put(record.ordinal)
                        slot.firing_count += 1
                        slot.taken.append(records.unread(i, slot.number))
                    elif slot.loading or record.due_ns < slot.next_ns:
                        entry.due_ns = record.due_ns
                        entry.offset = records.base + record.offset
                        entry.ordinal = record.ordinal
                        entry.size = record.size
                        if self.count >= self.count_max:
                            self.shrink()
                        if self.limited and earlier(&self.limit, &entry):
                            self.fall(slot, entry.due_ns)
                        else:
                            known.put(record.ordinal)
                            slot.near_count += 1
                            self.push(entry)
            if record.ordinal >= slot.counted_end:
                if record.ordinal < slot.sure_end:
                    slot.sure_count += 1
                    slot.sure_done_count += done
                slot.counted_end = <int64_t>record.ordinal + 1
        return fired

    @property
    def top_ns(self):
        """When the soonest entry is due."""
        return self.items[0].due_ns if self.count else NEVER_NS

    @property
    def limit_ns(self):
        """Records due later than this are not indexed now."""
        return self.limit.due_ns if self.limited else NEVER_NS

    def take(self, int64_t until_ns, Py_ssize_t count_max, int64_t size_max):
        """Remove up to ``count_max`` entries of ``size_max`` bytes; the first may be larger."""
        cdef Taken taken = Taken()
        cdef int64_t size = 0
        cdef Slot slot
        cdef Py_ssize_t room = min(count_max, self.count)
        taken.slots = self.slots
        taken.tallies = self.tallies
        taken.items = <NearEntry*>malloc(max(1, room) * sizeof(NearEntry))
        if taken.items == NULL:
            raise MemoryError
        while taken.count < room and self.items[0].due_ns <= until_ns:
            size += self.items[0].size
            if size > size_max and taken.count:
                break
            taken.items[taken.count] = self.items[0]
            taken.items[taken.count].rank = <uint32_t>taken.count
            slot = <Slot>self.slots[self.items[0].slot]
            slot.near_count -= 1
            slot.firing_count += 1
            taken.count += 1
            self.pop_top()
        if self.limited and self.count < self.count_max // 2:
            self.limited = False
        if self.room > 4096 and self.count < self.room // 4:
            self.resize(self.room // 2)
        return taken

    def put_back(self, Taken taken, Py_ssize_t first, Py_ssize_t end, int64_t due_ns):
        """Put entries that could not be read back, to be retried at ``due_ns``."""
        cdef Py_ssize_t i
        cdef Slot slot
        if not 0 <= first <= end <= taken.count:
            raise ValueError(f"{first}..{end} of {taken.count} entries")
        for i in range(first, end):
            slot = <Slot>self.slots[taken.items[i].slot]
            slot.firing_count -= 1
            slot.near_count += 1
            taken.items[i].due_ns = max(taken.items[i].due_ns, due_ns)
            self.push(taken.items[i])

    def retry(self, Slot slot, Due due, int64_t due_ns):
        """Return a message that could not be fired, to be retried at ``due_ns``."""
        self.give_back(slot, due.ordinal, due.offset, due.size, max(due.due_ns, due_ns))

    def give_back(self, Slot slot, uint32_t ordinal, int64_t offset, uint32_t size,
                  int64_t due_ns):
        """As retry(), for a message known by its place."""
        cdef NearEntry entry
        entry.due_ns = due_ns
        entry.offset = offset
        entry.ordinal = ordinal
        entry.size = size
        entry.slot = self.place_of(slot)
        entry.rank = 0
        if slot.firing_count < 1:
            raise ValueError("nothing of this slot was taken")
        slot.firing_count -= 1
        slot.near_count += 1
        self.push(entry)

    def settle(self, Slot slot, int64_t count):
        """``count`` taken records of ``slot`` were fired or are void."""
        assert 0 <= count <= slot.firing_count
        slot.firing_count -= count

    def group(self, list dues):
        """Subtract the messages from the counts; return topic, ordinals by (slot, instance)."""
        cdef dict groups = {}
        cdef Due due
        cdef int64_t slot = -1
        cdef uint64_t instance = 0
        cdef object ordinals = None
        for due in dues:
            self.tallies.change(due.instance, due.due_ns, due.stamp, -1)
            if due.slot != slot or due.instance != instance or ordinals is None:
                slot = due.slot
                instance = due.instance
                found = groups.get((slot, instance))
                if found is None:
                    found = groups[(slot, instance)] = (due.topic, array("I"))
                ordinals = found[1]
            ordinals.append(due.ordinal)
        return groups

    cdef int resize(self, Py_ssize_t room) except -1:
        cdef NearEntry* items = <NearEntry*>realloc(self.items, room * sizeof(NearEntry))
        if items == NULL:
            raise MemoryError
        self.items = items
        self.room = room
        return 0

    cdef int push(self, NearEntry entry) except -1:
        if self.count >= self.count_max:
            self.shrink()
        if self.count >= self.room:
            self.resize(min(max(64, self.room * 2), self.count_max))
        self.items[self.count] = entry
        self.count += 1
        self.sift_up(self.count - 1)
        return 0

    cdef void pop_top(self) noexcept:
        self.count -= 1
        if self.count:
            self.items[0] = self.items[self.count]
            self.sift_down(0)

    cdef void sift_up(self, Py_ssize_t at) noexcept:
        cdef NearEntry entry = self.items[at]
        cdef Py_ssize_t parent
        while at:
            parent = (at - 1) >> 1
            if not earlier(&entry, &self.items[parent]):
                break
            self.items[at] = self.items[parent]
            at = parent
        self.items[at] = entry

    cdef void sift_down(self, Py_ssize_t at) noexcept:
        cdef NearEntry entry = self.items[at]
        cdef Py_ssize_t child = 2 * at + 1
        while child < self.count:
            if child + 1 < self.count and earlier(&self.items[child + 1], &self.items[child]):
                child += 1
            if not earlier(&self.items[child], &entry):
                break
            self.items[at] = self.items[child]
            at = child
            child = 2 * at + 1
        self.items[at] = entry

    cdef int shrink(self) except -1:
        # Drop the latest quarter at once (25 ms for a million): dropping one by one would need a
        # second heap.
        cdef Py_ssize_t keep = self.count - self.count // 4, i
        cdef Slot slot
        select(self.items, self.count, keep)
        for i in range(keep, self.count):
            slot = <Slot>self.slots[self.items[i].slot]
            slot.near_count -= 1
            slot.known.drop(self.items[i].ordinal)
            self.fall(slot, self.items[i].due_ns)
        self.count = keep
        self.limited = True
        self.limit = self.items[0]
        for i in range(1, keep):
            if earlier(&self.limit, &self.items[i]):
                self.limit = self.items[i]
        for i in range((keep - 2) // 2, -1, -1):
            self.sift_down(i)
        return 0

    cdef int fall(self, Slot slot, int64_t due_ns) except -1:
        # A pending record of ``slot`` is not indexed any more.
        if due_ns < slot.next_ns:
            if slot.next_ns == NEVER_NS or not slot.loading:
                self.fallen.append(slot)
            slot.next_ns = due_ns
        return 0

    def check(self):
        """Assert the heap order and the counts of the slots."""
        cdef Py_ssize_t i
        cdef dict counts = {}
        for i in range(self.count):
            if i:
                assert not earlier(&self.items[i], &self.items[(i - 1) >> 1]), "heap order"
            slot = <Slot>self.slots[self.items[i].slot]
            assert (<Slot>slot).known.has(self.items[i].ordinal), "entry without its bit"
            counts[id(slot)] = counts.get(id(slot), 0) + 1
        for slot in self.slots:
            if slot is not None:
                assert counts.get(id(slot), 0) == (<Slot>slot).near_count, "near_count"
        assert self.count <= self.count_max


cdef int by_value(const void* a, const void* b) noexcept nogil:
    cdef uint32_t x = (<uint32_t*>a)[0]
    cdef uint32_t y = (<uint32_t*>b)[0]
    return -1 if x < y else x > y


cdef Py_ssize_t find_runs(uint32_t* numbers, Py_ssize_t count, uint32_t* runs) noexcept nogil:
    cdef Py_ssize_t i, found = 0
    qsort(numbers, count, sizeof(uint32_t), by_value)
    for i in range(count):
        if found and numbers[i] <= runs[2 * found - 2] + runs[2 * found - 1]:
            runs[2 * found - 1] = numbers[i] - runs[2 * found - 2] + 1
        else:
            runs[2 * found] = numbers[i]
            runs[2 * found + 1] = 1
            found += 1
    return found


def pack_runs(ordinals):
    """Ordinals as (start u32, count u32) runs, big-endian, ascending.

    Sorts without the interpreter's lock, because a checkpoint may have a million of them.
    """
    cdef array numbers = array("I", ordinals)
    cdef array runs = array("I", bytes(8 * len(numbers)))
    cdef uint32_t* numbers_at = numbers.data.as_uints
    cdef uint32_t* runs_at = runs.data.as_uints
    cdef Py_ssize_t count = len(numbers), found
    with nogil:
        found = find_runs(numbers_at, count, runs_at)
    del runs[2 * found:]
    runs.byteswap()
    return runs.tobytes()
