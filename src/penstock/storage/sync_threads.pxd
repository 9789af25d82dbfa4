from cpython.object cimport PyObject

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef unsigned long pthread_t

cdef enum:
    THREAD_COUNT_MAX = 8


# One sync, from submit() to drain().
cdef struct Job:
    Job* next
    PyObject* done  # called with the error, or with None
    int fd
    int error       # errno; 0: synced


cdef class SyncThreads:
    cdef readonly int fd              # an eventfd, readable when drain() has something to do
    cdef pthread_mutex_t _mutex       # for all fields below
    cdef pthread_cond_t _submitted
    cdef Job* _first                  # submitted, oldest first
    cdef Job* _last
    cdef Job* _done                   # synced, newest first
    cdef bint _stopping
    cdef int _waiting                 # threads that wait for a job
    cdef int _queued                  # jobs submitted that no thread has taken
    cdef int _thread_count
    cdef pthread_t[THREAD_COUNT_MAX] _threads

    cpdef submit(self, int fd, done)
    cdef void serve(self) noexcept nogil
