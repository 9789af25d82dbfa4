from libc.stdint cimport int64_t, uint32_t

from penstock.clock cimport Clock
from penstock.core.appender cimport Appender, Batch
from penstock.core.latency cimport Histogram
from penstock.core.marks cimport Marks
from penstock.core.ticket cimport Ticket
from penstock.engine.feed cimport Feed
from penstock.storage.topic_log cimport TopicLog


cdef class Part:
    cdef public bytes body            # like MPUB's; emptied when it is encoded
    cdef readonly int64_t count       # messages
    cdef readonly int64_t origin      # the staging and the part
    cdef readonly int64_t publish_ns
    cdef readonly Ticket ticket


cdef class Arrival:
    cdef readonly list messages       # of (body, timestamp_ns); emptied when they are appended
    cdef readonly int64_t origin      # of storage/moved.py
    cdef readonly uint32_t flags
    cdef readonly bytes ordinals
    cdef readonly Ticket ticket
    cdef readonly int64_t first       # index of the first message here; -1: not appended yet
    cdef readonly int64_t end


cdef class Waiting:
    cdef list batches
    cdef list tickets


cdef class TopicWriter:
    cdef readonly str name             # of the topic
    cdef readonly TopicLog log
    cdef readonly Appender appender    # collects publishes for the next batch
    cdef readonly int64_t unshown_count  # messages of batches that are not shown yet
    cdef readonly int64_t unshown_size   # their bytes
    cdef readonly tuple synced_at      # (base, offset) that a sync reached; None: none yet
    cdef object _topic
    cdef Feed _feed
    cdef object _inventory             # of the log's files, as journaled
    cdef Marks _progressed             # topics that the rounds have work for
    cdef Marks _unsynced
    cdef Marks _used
    cdef dict _awaited                 # by name, topics that long polls wait for
    cdef object _arrived               # called for those
    cdef object _unfired               # called with deferred messages that were not written
    cdef object _disk
    cdef object _zeros_disk
    cdef object _first_disk            # for the first write and sync, which open files (Rule 5)
    cdef Clock _clock
    cdef object _reserve
    cdef Histogram _sync_times
    cdef object _fired                 # deque of list[Due], a slot each
    cdef object _parts                 # deque of Part and Arrival
    cdef Waiting _waiting              # for the next sync
    cdef Waiting _lost                 # for what a failed sync may have lost; None: nothing
    cdef Ticket _roll_ticket           # of a roll that somebody waits for
    cdef bint _open                    # the topic's folder exists
    cdef bint _written_once
    cdef bint _busy                    # a thread writes or rolls
    cdef bint _writing                 # a native thread writes: the next sync includes that
    cdef bint _exclusive               # a thread rolls or rewrites: no sync meanwhile
    cdef bint _syncing
    cdef bint _preparing               # a thread writes zeros ahead
    cdef bint _troubled                # the last write or sync failed
    cdef int64_t _sync_every
    cdef int64_t _append_ns            # of the last batch
    cdef int64_t _sync_ns              # when the last sync began
    cdef int64_t _slow_until_ns        # write on a thread until then

    cpdef flush(self, bint alone=*)
    cpdef start_sync(self)
    cdef bint _seal_later(self) except -1
    cdef int _relieve(self, error) except -1
    cdef Batch take_next(self)
    cdef int64_t fired_count(self) except -1
    cdef int ended(self, Batch batch) except -1
    cdef int write(self, Batch batch, bint alone) except -1
    cdef int written(self, Batch batch, int64_t now_ns, bint alone) except -1
    cdef bint _sync_here(self) except -1
    cdef int _end_sync(self, Waiting waiting, token, error) except -1
    cdef int _prepare(self, Batch batch) except -1
    cdef int show(self, Batch batch) except -1
    cdef bint pending(self) except -1
