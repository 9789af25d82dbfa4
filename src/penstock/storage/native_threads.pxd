from cpython.object cimport PyObject
from libc.stdint cimport int64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef unsigned long pthread_t

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef enum:
    THREAD_COUNT_MAX = 8
    PIECE_COUNT_MAX = 3


# One sync or write, until drain().
cdef struct Job:
    Job* next
    PyObject* done      # called with the error, or with None
    PyObject* parts     # of a write: keeps the pieces in memory; NULL: a sync
    iovec[PIECE_COUNT_MAX] pieces
    int piece_count
    int64_t offset      # of the first piece
    int fd
    int error           # errno; 0: done
    int cut_error       # errno of the truncation after a failed write; 0: it is done
    int64_t took_ns


cdef class NativeThreads:
    cdef readonly int fd              # an eventfd, readable when drain() has something to do
    cdef pthread_mutex_t _mutex       # for all fields below
    cdef pthread_cond_t _submitted
    cdef Job* _first                  # submitted, oldest first
    cdef Job* _last
    cdef Job* _done                   # ended, newest first
    cdef bint _stopping
    cdef int _waiting                 # threads that wait for a job
    cdef int _queued                  # jobs submitted that no thread has taken
    cdef int _thread_count
    cdef pthread_t[THREAD_COUNT_MAX] _threads
    cdef int _quick_count             # quick syncs since the last slow one

    cpdef sync(self, int fd, done)
    cpdef write(self, int fd, list parts, int64_t offset, done)
    cdef int _staff(self) except -1
    cdef void _submit(self, Job* job) noexcept
    cpdef bint sync_here(self, int fd) except -1
    cdef void _took(self, int64_t took_ns) noexcept
    cdef void serve(self) noexcept nogil
