# Threads that write and sync files and never take the interpreter's lock.
#
#     loop                         thread                           loop
#     sync(fd, done)    ------>  fdatasync  ------ eventfd ----->  drain(): done(error)
#     write(fd, ...)    ------>  pwritev    ------ eventfd ----->  drain(): done(error)
#
# A thread that runs Python code waits for the interpreter's lock before and after the system call,
# and the loop waits for that thread: together that costs more than the sync of a fast disk.
#
# On a fast disk even this hop costs a third of a sync: two wake-ups.  So while syncs are quick the
# loop may sync by itself, with sync_here().  It stops after one slow sync, and starts again only when
# many in a row have been quick on the threads: a slow disk holds up the loop once, not again and
# again (R9).
#
# Rule 1: all methods are called on the loop.
# Rule 2: the descriptor stays open until ``done`` is called; the caller sees to that.
# Rule 3: threads start when they are needed.  One job is never behind another that waits for the
#         disk, up to THREAD_COUNT_MAX jobs.
# Rule 4: a write is all or nothing: what a failed one wrote is cut off by the thread.

import os

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close, fdatasync, ftruncate, read, write

from penstock.errors import UncutError

cdef extern from "<sys/uio.h>" nogil:
    Py_ssize_t pwritev(int fd, const iovec* pieces, int count, int64_t offset)

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)
    int pthread_create(pthread_t* thread, const void* attributes, void* (*run)(void*) noexcept nogil,
                       void* argument)
    int pthread_join(pthread_t thread, void** result)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t* set)
    int pthread_sigmask(int how, const sigset_t* set, sigset_t* before)
    int SIG_SETMASK

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int value, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK


cdef enum:
    # A sync that takes longer is slow.  Half of what a turn may take (R29).
    QUICK_NS = 1_000_000
    # Quick ones in a row after which the loop may sync: some tens of milliseconds of a busy topic.
    QUICK_COUNT_MIN = 64


cdef int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef int sync(int fd) noexcept nogil:
    # errno, or 0.
    while fdatasync(fd) < 0:
        if errno != EINTR:
            return errno
    return 0


cdef int write_pieces(int fd, iovec* pieces, int count, int64_t offset) noexcept nogil:
    # errno, or 0.  A short write (mostly a full disk) is reported by the next call.
    cdef Py_ssize_t written
    while count:
        written = pwritev(fd, pieces, count, offset)
        if written < 0:
            if errno != EINTR:
                return errno
            continue
        if written == 0:
            return EIO
        offset += written
        while count and written >= <Py_ssize_t>pieces.iov_len:
            written -= pieces.iov_len
            pieces += 1
            count -= 1
        if count:
            pieces.iov_base = <char*>pieces.iov_base + written
            pieces.iov_len -= written
    return 0


cdef void perform(Job* job) noexcept nogil:
    if not job.piece_count:
        job.error = sync(job.fd)
        return
    job.error = write_pieces(job.fd, job.pieces, job.piece_count, job.offset)
    if job.error and ftruncate(job.fd, job.offset) < 0:
        job.cut_error = errno


cdef Job* new_job(int fd, done) except NULL:
    cdef Job* job = <Job*>calloc(1, sizeof(Job))
    if job == NULL:
        raise MemoryError
    Py_INCREF(done)
    job.done = <PyObject*>done
    job.fd = fd
    return job


cdef void* run(void* threads) noexcept nogil:
    (<NativeThreads>threads).serve()
    return NULL


cdef object failure(Job* job):
    # The error of a job, or None.
    if not job.error:
        return None
    error = OSError(job.error, os.strerror(job.error))
    if job.cut_error:
        return UncutError(f"{error}; and cutting back: {os.strerror(job.cut_error)}")
    return error


cdef class NativeThreads:
    """A few threads that write and sync, and when the loop may sync instead."""

    def __cinit__(self):
        pthread_mutex_init(&self._mutex, NULL)
        pthread_cond_init(&self._submitted, NULL)
        self.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        self.close()
        pthread_cond_destroy(&self._submitted)
        pthread_mutex_destroy(&self._mutex)

    cpdef sync(self, int fd, done):
        """Sync ``fd``; drain() then calls ``done(error)``, with None if there was none."""
        self._staff()
        self._submit(new_job(fd, done))

    cpdef write(self, int fd, list parts, int64_t offset, done):
        """Write ``parts``, at most PIECE_COUNT_MAX bytes objects, at the end of a file.

        drain() then calls ``done(error)``.  After an error the file is truncated to ``offset``, or
        the error is an UncutError.
        """
        cdef int i, count = len(parts)
        cdef bytes part
        cdef Job* job
        assert 0 < count <= PIECE_COUNT_MAX
        self._staff()
        job = new_job(fd, done)
        job.parts = <PyObject*>parts
        Py_INCREF(parts)
        job.offset = offset
        job.piece_count = count
        for i in range(count):
            part = parts[i]
            job.pieces[i].iov_base = PyBytes_AS_STRING(part)
            job.pieces[i].iov_len = <size_t>len(part)
        self._submit(job)

    cdef int _staff(self) except -1:
        # Start a thread for the next job, if all of them are busy.
        cdef bint busy
        pthread_mutex_lock(&self._mutex)
        busy = self._queued >= self._waiting
        pthread_mutex_unlock(&self._mutex)
        if busy and self._thread_count < THREAD_COUNT_MAX:
            self._start()
        return 0

    cdef void _submit(self, Job* job) noexcept:
        pthread_mutex_lock(&self._mutex)
        if self._first == NULL:
            self._first = job
        else:
            self._last.next = job
        self._last = job
        self._queued += 1
        pthread_mutex_unlock(&self._mutex)
        pthread_cond_signal(&self._submitted)

    cpdef bint sync_here(self, int fd) except -1:
        """Sync ``fd`` on the loop, if syncs have been quick; False if a thread has to do it."""
        cdef int64_t started_ns
        cdef int error
        if self._quick_count < QUICK_COUNT_MIN:
            return False
        with nogil:
            started_ns = monotonic_ns()
            error = sync(fd)
        self._took(monotonic_ns() - started_ns)
        if error:
            self._quick_count = 0
            raise OSError(error, os.strerror(error))
        return True

    cdef void _took(self, int64_t took_ns) noexcept:
        if took_ns > QUICK_NS:
            self._quick_count = 0
        elif self._quick_count < QUICK_COUNT_MIN:
            self._quick_count += 1

    def drain(self):
        """Call back for all jobs that have ended."""
        cdef uint64_t count
        cdef Job* job
        cdef Job* first = NULL
        cdef Job* after
        cdef object defect = None
        read(self.fd, &count, sizeof(count))
        pthread_mutex_lock(&self._mutex)
        job, self._done = self._done, NULL
        pthread_mutex_unlock(&self._mutex)
        while job != NULL:      # oldest first
            after = job.next
            job.next = first
            first = job
            job = after
        while first != NULL:
            job = first
            first = job.next
            done = <object>job.done
            Py_DECREF(done)
            error = failure(job)
            if job.parts != NULL:
                Py_DECREF(<object>job.parts)
            else:
                self._took(job.took_ns)
            free(job)
            try:
                done(error)
            except Exception as raised:
                defect = raised     # of one topic; the others wait for theirs
        if defect is not None:
            raise defect

    def close(self):
        """Wait until all jobs have ended, and end the threads."""
        cdef int i
        if self.fd < 0:
            return
        pthread_mutex_lock(&self._mutex)
        self._stopping = True
        pthread_cond_broadcast(&self._submitted)
        pthread_mutex_unlock(&self._mutex)
        with nogil:
            for i in range(self._thread_count):
                pthread_join(self._threads[i], NULL)
        self._thread_count = 0
        self.drain()
        close(self.fd)
        self.fd = -1

    def _start(self):
        cdef sigset_t every, before
        cdef int error
        # Signals are for the main thread.
        sigfillset(&every)
        pthread_sigmask(SIG_SETMASK, &every, &before)
        error = pthread_create(&self._threads[self._thread_count], NULL, run, <void*>self)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if not error:
            self._thread_count += 1
        elif not self._thread_count:
            raise OSError(error, os.strerror(error))

    cdef void serve(self) noexcept nogil:
        cdef Job* job
        cdef uint64_t one = 1
        cdef int64_t started_ns
        pthread_mutex_lock(&self._mutex)
        while True:
            while self._first == NULL and not self._stopping:
                self._waiting += 1
                pthread_cond_wait(&self._submitted, &self._mutex)
                self._waiting -= 1
            job = self._first
            if job == NULL:
                break
            self._first = job.next
            self._queued -= 1
            pthread_mutex_unlock(&self._mutex)
            started_ns = monotonic_ns()
            perform(job)
            job.took_ns = monotonic_ns() - started_ns
            pthread_mutex_lock(&self._mutex)
            job.next = self._done
            self._done = job
            write(self.fd, &one, sizeof(one))
        pthread_mutex_unlock(&self._mutex)
