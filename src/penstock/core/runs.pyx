# Runs of indexes: cheap to extend at the end, sorted and joined when asked.
#
# A window collects what was finished here until the journal hears of it.  Consumers that finish
# in order make one run, however many messages it is.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport qsort


cdef inline unsigned char* store_u64(unsigned char* p, uint64_t value) noexcept:
    cdef int i
    for i in range(8):
        p[i] = <unsigned char>(value >> (56 - 8 * i))
    return p + 8


cdef int by_start(const void* a, const void* b) noexcept nogil:
    cdef int64_t left = (<const Run*>a).start
    cdef int64_t right = (<const Run*>b).start
    return (left > right) - (left < right)


cdef class RunList:
    """Runs of indexes, cheap to extend at the end, merged when asked."""

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
        # Sort, join what touches, and drop what lies below ``low``.
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
            p = store_u64(p, <uint64_t>self.runs[i].start)
            p = store_u64(p, <uint64_t>self.runs[i].end)
        return data
