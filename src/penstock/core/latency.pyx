# Histograms of durations with logarithmic buckets: bounded memory, any range.
#
#     page 0         0 .. 63             64 buckets, exact
#     page k - 5     2^k .. 2^(k+1)      64 buckets of 2^(k-6), for k = 6 .. 62
#
# A bucket's middle is at most 1/128 = 0.8 % from any value in it; the smallest and the largest
# value are kept exactly.  A page (512 bytes) is allocated when first needed: durations within a
# factor of ten take about four pages, and 58 pages (30 KB) cover every value.
#
# Adding a value takes a few instructions and never sorts or compresses, unlike nsqd's quantile
# streams; merging two histograms loses nothing, so a topic's is as precise as its channels'.
#
# No clock: times come in as arguments.

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.math cimport ceil
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long) noexcept

cdef enum:
    PAGE_SIZE = 64      # buckets
    PAGE_BITS = 6


cdef inline int64_t middle_of(int number, int bucket) noexcept:
    if number == 0:
        return bucket
    cdef int shift = number - 1     # a bucket of this page is 2^shift wide
    return ((<int64_t>(PAGE_SIZE + bucket)) << shift) + ((<int64_t>1 << shift) >> 1)


cdef class Histogram:
    def __cinit__(self):
        self.minimum = INT64_MAX

    def __dealloc__(self):
        self.empty()

    def add(self, int64_t value):
        """Count ``value``; below 0 it counts as 0."""
        self.put(value)

    def clear(self):
        """Remove all values."""
        self.empty()

    @property
    def page_count(self):
        """Pages in use, of 512 bytes each."""
        cdef int number
        cdef int used = 0
        for number in range(PAGE_COUNT):
            used += self.pages[number] != NULL
        return used

    def merge(self, Histogram other not None):
        """Add all values of ``other``."""
        cdef int number, bucket
        cdef uint64_t* page
        if not other.count:
            return
        for number in range(PAGE_COUNT):
            if other.pages[number] != NULL:
                page = self.page(number)
                for bucket in range(PAGE_SIZE):
                    page[bucket] += other.pages[number][bucket]
        self.count += other.count
        self.sum += other.sum
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    def quantile(self, double share):
        """The value at or below which ``share`` (above 0, up to 1) of all values are; 0 if none.

        The nearest rank: of 4 values the median is the second.
        """
        cdef uint64_t rank, seen = 0
        cdef int number, bucket
        if not self.count:
            return 0
        rank = <uint64_t>ceil(share * <double>self.count)
        rank = min(self.count, max(<uint64_t>1, rank))
        if rank == self.count:
            return self.maximum
        for number in range(PAGE_COUNT):
            if self.pages[number] == NULL:
                continue
            for bucket in range(PAGE_SIZE):
                seen += self.pages[number][bucket]
                if seen >= rank:
                    return min(max(middle_of(number, bucket), self.minimum), self.maximum)
        return self.maximum

    def counts_up_to(self, limits not None):
        """How many values are at or below each of the ascending ``limits``.

        A bucket that contains a limit counts on the side of its middle.
        """
        cdef list counts = []
        cdef uint64_t seen = 0
        cdef int number = 0
        cdef int bucket = 0
        cdef int64_t limit
        for limit in limits:
            while number < PAGE_COUNT and middle_of(number, bucket) <= limit:
                if self.pages[number] != NULL:
                    seen += self.pages[number][bucket]
                bucket += 1
                if bucket == PAGE_SIZE:
                    bucket = 0
                    number += 1
            counts.append(seen)
        return counts

    cdef int put(self, int64_t value) except -1:
        cdef int number = 0
        cdef int bucket
        cdef uint64_t* page
        if value < 0:
            value = 0       # the clock was stepped back
        if value < PAGE_SIZE:
            bucket = <int>value
        else:
            number = 63 - leading_zeros(<unsigned long long>value) - (PAGE_BITS - 1)
            bucket = <int>(value >> (number - 1)) - PAGE_SIZE
        page = self.pages[number]
        if page == NULL:
            page = self.page(number)
        page[bucket] += 1
        self.count += 1
        self.sum += <double>value
        if value < self.minimum:
            self.minimum = value
        if value > self.maximum:
            self.maximum = value
        return 0

    cdef uint64_t* page(self, int number) except NULL:
        cdef uint64_t* page = self.pages[number]
        if page == NULL:
            page = <uint64_t*>PyMem_Calloc(PAGE_SIZE, sizeof(uint64_t))
            if page == NULL:
                raise MemoryError
            self.pages[number] = page
        return page

    cdef void empty(self) noexcept:
        cdef int number
        for number in range(PAGE_COUNT):
            PyMem_Free(self.pages[number])
            self.pages[number] = NULL
        self.count = 0
        self.sum = 0
        self.minimum = INT64_MAX
        self.maximum = 0


cdef class Latency:
    """Durations of a recent window: two histograms, used in turn, as nsqd does.

    They cover between half and all of ``window_ns``.
    """

    def __cinit__(self, int64_t window_ns):
        self.half_ns = max(1, window_ns // 2)
        self.current = Histogram()
        self.previous = Histogram()

    def add(self, int64_t value_ns, int64_t wall_ns):
        self.record(value_ns, wall_ns)

    def merge_into(self, Histogram total not None, int64_t wall_ns):
        """Add the values of the window that ends at ``wall_ns`` to ``total``."""
        if wall_ns - self.turned_ns >= self.half_ns:
            self.turn(wall_ns)
        total.merge(self.previous)
        total.merge(self.current)

    cdef int record(self, int64_t value_ns, int64_t wall_ns) except -1:
        if wall_ns - self.turned_ns >= self.half_ns or wall_ns < self.turned_ns:
            self.turn(wall_ns)
        return self.current.put(value_ns)

    cdef int turn(self, int64_t wall_ns) except -1:
        cdef int64_t halves = (wall_ns - self.turned_ns) // self.half_ns
        if wall_ns < self.turned_ns:
            # The clock was stepped back; otherwise the window would not turn until it has caught
            # up.
            self.turned_ns = wall_ns
            return 0
        self.current, self.previous = self.previous, self.current
        self.current.empty()
        if halves > 1:
            self.previous.empty()
        self.turned_ns += halves * self.half_ns
        return 0
