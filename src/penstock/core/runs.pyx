# Runs of indexes.
#
# RunList: cheap to append to, sorted and merged on demand.  A window collects finished messages
# here until they are written to the journal.  Consumers that finish in order make one run of any
# number of messages.
#
# Runs: which indexes of a topic exist, so that counts are exact (R1: an index difference is never a
# count).
#
#     runs    [100, 250)      [4096, 9000)   [9010, 9500)
#     before   0               150            5054           messages before each run
#
# Invariants of Runs, see check():
#  1. runs are not empty, ascend and do not touch.
#  2. before[i + 1] - before[i] is the length of run i.

from bisect import bisect_left, bisect_right

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport qsort

from penstock.core.bytes cimport store_u64


cdef int by_start(const void* a, const void* b) noexcept nogil:
    cdef int64_t left = (<const Run*>a).start
    cdef int64_t right = (<const Run*>b).start
    return (left > right) - (left < right)


cdef class RunList:
    """Runs of indexes, cheap to append to, merged on demand."""

    def __dealloc__(self):
        PyMem_Free(self.runs)

    cdef int add(self, int64_t start, int64_t end) except -1:
        cdef Run* last
        if self.size:
            last = &self.runs[self.size - 1]
            if last.end == start:
                last.end = end
                return 0
            if last.start == end:
                last.start = start
                return 0
        if self.size == self.capacity:
            self.grow()
        self.runs[self.size] = Run(start, end)
        self.size += 1
        return 0

    cdef int grow(self) except -1:
        cdef Py_ssize_t capacity = max(64, self.capacity * 2)
        cdef Run* runs = <Run*>PyMem_Realloc(self.runs, capacity * sizeof(Run))
        if runs == NULL:
            raise MemoryError
        self.runs = runs
        self.capacity = capacity
        return 0

    cdef void merge(self, int64_t low) noexcept:
        # Sort, join adjacent runs, and drop what is below ``low``.
        cdef Py_ssize_t i, kept = 0
        cdef Run run
        if not self.size:
            return
        qsort(self.runs, self.size, sizeof(Run), by_start)
        for i in range(self.size):
            run = self.runs[i]
            if run.end <= low:
                continue
            if run.start < low:
                run.start = low
            if kept and run.start <= self.runs[kept - 1].end:
                if run.end > self.runs[kept - 1].end:
                    self.runs[kept - 1].end = run.end
            else:
                self.runs[kept] = run
                kept += 1
        self.size = kept

    cdef bytes encode(self):
        # (start u64, end u64) each, big-endian, as the journal stores them.
        cdef bytes data = PyBytes_FromStringAndSize(NULL, 16 * self.size)
        cdef unsigned char* p = <unsigned char*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t i
        for i in range(self.size):
            store_u64(p + 16 * i, <uint64_t>self.runs[i].start)
            store_u64(p + 16 * i + 8, <uint64_t>self.runs[i].end)
        return data


cdef class Runs:
    """A set of indexes; usually grows at its end and shrinks at its start."""

    def __init__(self, runs=()):
        self.starts = []
        self.ends = []
        self.before = []
        for start, end in runs:
            self.add(start, end)

    def __len__(self):
        """The number of runs."""
        return len(self.starts)

    @property
    def count(self):
        """The number of indexes."""
        if not self.starts:
            return 0
        return self.before[len(self.before) - 1] - self.before[0] + self._last_length()

    @property
    def first(self):
        return self.starts[0] if self.starts else None

    cpdef add(self, int64_t start, int64_t end):
        """Add [start, end), which must be after all others."""
        cdef Py_ssize_t last = len(self.ends) - 1
        cdef int64_t last_end
        if last >= 0:
            last_end = self.ends[last]
            if start == last_end:
                self.ends[last] = end
                return
            assert start > last_end, f"{start} is before {last_end}"
        self.before.append(self.before[last] + self._last_length() if last >= 0 else 0)
        self.starts.append(start)
        self.ends.append(end)

    def replace(self, start, end, runs=()):
        """Replace everything in [start, end) by ``runs``."""
        cdef Py_ssize_t low = bisect_right(self.ends, start)
        cdef Py_ssize_t high = max(low, bisect_left(self.starts, end))
        kept = []
        if low < high and self.starts[low] < start:
            kept.append((self.starts[low], start))
        kept += [(a, b) for a, b in runs if a < b]
        if low < high and self.ends[high - 1] > end:
            kept.append((end, self.ends[high - 1]))
        if low == 0 and not kept:  # the common case, removed segments: O(runs removed)
            del self.starts[:high], self.ends[:high], self.before[:high]
            return
        # Include a run before them, so that adjacent runs are joined.
        if low > 0:
            low -= 1
            kept.insert(0, (self.starts[low], self.ends[low]))
        kept += zip(self.starts[high:], self.ends[high:], strict=True)
        del self.starts[low:], self.ends[low:], self.before[low:]
        for a, b in kept:
            self.add(a, b)

    def next(self, index):
        """The smallest index in the set at or above ``index``."""
        place = bisect_right(self.ends, index)
        if place == len(self.starts):
            return None
        return max(index, self.starts[place])

    def count_between(self, start, end):
        return max(0, self._below(end) - self._below(start)) if end > start else 0

    def between(self, start, end):
        """The dense runs inside [start, end)."""
        place = bisect_right(self.ends, start)
        while place < len(self.starts) and self.starts[place] < end:
            yield max(start, self.starts[place]), min(end, self.ends[place])
            place += 1

    def check(self):
        for i, (start, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            assert start < end
            if i:
                assert self.ends[i - 1] < start
                length = self.ends[i - 1] - self.starts[i - 1]
                assert self.before[i] - self.before[i - 1] == length

    cdef _last_length(self):
        cdef Py_ssize_t last = len(self.ends) - 1
        return self.ends[last] - self.starts[last]

    cdef _below(self, index):
        cdef Py_ssize_t place = <Py_ssize_t>bisect_right(self.starts, index) - 1
        if place < 0:
            return self.before[0] if self.before else 0
        return self.before[place] + min(index, self.ends[place]) - self.starts[place]
