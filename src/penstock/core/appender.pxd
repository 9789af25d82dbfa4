from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.core.block cimport Block
from penstock.core.ticket cimport Ticket


cdef void store_frame(unsigned char* p, const unsigned char* body, Py_ssize_t size,
                      int64_t timestamp_ns, uint64_t id) noexcept nogil


cdef class Batch:
    cdef public bytes payload         # frames back to back, then ordinals if it has origins
    cdef readonly int64_t first       # index of the first message
    cdef readonly int64_t count       # messages
    cdef readonly int64_t append_ns   # wall clock, when it was sealed; never goes back in a topic
    cdef readonly int64_t publish_ns  # wall clock, the smallest timestamp of its messages
    cdef public int64_t body_size     # bytes of all bodies; for the statistics
    cdef public int64_t origin        # slot, staging and part, or source; 0: plain publishes
    cdef public uint32_t flags        # of core/batches.pyx
    cdef public Ticket ticket         # settled by the engine once the batch is shown
    cdef public object dues           # list[Due] it was made of, or None; set by the engine
    cdef public object part           # staged Part it was made of, or None; set by the engine
    cdef public object segment        # storage Segment it was written to; set by Segment.wrote
    cdef public int64_t segment_size  # bytes of that file with it; set by Segment.wrote

    cpdef bytes header(self)
    cpdef Block block(self, int node_id)


cdef class Appender:
    cdef readonly int node_id         # 10 bits
    cdef readonly int64_t first       # index of the first message of the open batch
    cdef readonly int64_t count       # messages in the open batch
    cdef readonly int64_t publish_ns  # wall clock, the smallest timestamp in the open batch
    cdef readonly int64_t body_size   # bytes of all bodies in the open batch
    cdef readonly Py_ssize_t size     # bytes of all frames in the open batch
    cdef public bint closed           # the topic was deleted: look it up again; set by the topic
    # Set by the bound of the topic (engine/bounds.pyx); see refuse().
    cdef public bint bounded          # publishes are refused while the topic is full
    cdef public bint dropping         # instead, the oldest messages go
    cdef public int64_t index_limit   # below these two, it is not full
    cdef public int64_t size_limit
    cdef public object judge          # called from there on: whether it is full
    cdef public Ticket refusal        # set by then: settled with the error
    cdef readonly int64_t refused_count
    cdef readonly int64_t sealed_size  # bytes of all batches so far, without the open one
    cdef readonly Ticket ticket       # of the open batch; None if it is empty
    cdef readonly bint strained       # the disk is behind: clients that flood are not read
    cdef list _held                   # called when that is over
    cdef public object opened         # called when the first message of a batch arrives
    cdef readonly str topic           # name, for the counts by topic
    cdef PyObject* payload            # bytes object that frames are built in; NULL: no frame yet
    cdef unsigned char* buffer        # its bytes
    cdef Py_ssize_t expected          # bytes of the last batch: the first allocation of the next
    cdef Py_ssize_t capacity          # bytes of ``buffer``

    cpdef Batch seal(self, int64_t append_ns)
    cpdef Ticket refuse(self)
    cdef bint below_limits(self) noexcept
    cdef int append(self, const unsigned char* body, Py_ssize_t size,
                    int64_t timestamp_ns) except -1
    cdef int append_multi(self, const unsigned char* p, Py_ssize_t total, int64_t count,
                          int64_t timestamp_ns) except -1
    cdef uint64_t next_id(self) noexcept
    cdef int begin(self, int64_t timestamp_ns, Py_ssize_t size) except -1
    cdef int open(self) except -1
    cdef int reserve(self, Py_ssize_t size) except -1
    cdef int strain(self, bint strained) except -1
    cdef int hold(self, resume) except -1
