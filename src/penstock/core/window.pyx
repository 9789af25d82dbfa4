# The delivery window of a channel: the state of each message between the low-water mark, below
# which everything is finished, and the cursor, above which nothing was delivered yet.
#
#       finished            window                      not delivered
#     ------------- | F u F F u u F F F u F u | ------------------------------->  index
#                  low                      cursor
#
# Only unfinished messages (u) have an entry; those without one are finished.  So memory is
# proportional to the unfinished messages (R10): one stuck message with 100 million finished after
# it is one entry.
#
# An entry is in one of three states, and changes state in place:
#
#     IN_FLIGHT  sent to a consumer, in the deadline queue by monotonic deadline
#     READY      to be sent again, in a FIFO list; those to be delivered alone (R26) in another
#     DEFERRED   until a wall-clock time (REQ n, a lost consumer), in the deferral queue
#
# A buried message (R24) has no entry.  It is finished as far as the marks and the journal's runs
# are concerned, and is in a table of its own, from which kick() returns it to the window.
#
# Invariants (check), beside those of entries.pyx:
#   1. The first entry is the low-water mark; all are below the cursor.
#   2. The deadline queue holds exactly the IN_FLIGHT ones, the deferral queue the DEFERRED
#      ones, the two ready lists the READY ones.
#   3. A consumer's in_flight_count is the number of IN_FLIGHT entries it owns.
#   4. A buried message has no entry, and is below the cursor or skipped.
#   5. Skipped runs ascend and do not overlap.
#
# Changes that must survive a restart (finished runs, attempts) are collected as they happen, and
# drain() returns them for the journal.  No I/O, no clock: times are arguments.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint16_t, uint64_t

from penstock.core.block cimport Block, Span
from penstock.core.buried cimport Buried
from penstock.core.bytes cimport load_i64, load_u32, store_u16, store_u64
from penstock.core.deadlines cimport DeadlineQueue
from penstock.core.latency cimport Latency
from penstock.core.layouts cimport FRAME_ATTEMPTS, FRAME_HEADER, FRAME_ID, FRAME_TIMESTAMP

from penstock.core.buried import REASONS

FAIL_BURY = 0
FAIL_DROP = 1
FAIL_MOVE = 2

cdef enum:
    IN_FLIGHT = 1
    READY = 2
    DEFERRED = 3

cdef enum:
    ATTEMPTS_MAX = 65535
    RUN_COUNT_MAX = 65536   # finished runs kept between two drains before they are merged
    VIEW_SIZE_MIN = 8192
    BY_ATTEMPTS = 1  # reasons of core/buried.pyx
    BY_CLIENT = 2
    DROP = 1         # FAIL_DROP
    MOVE = 2         # FAIL_MOVE
    BURIED_COUNT_MAX = 1_000_000  # unless a policy says otherwise
    MOVING_COUNT_MAX = 10_000  # buried beyond the bound, while they are moved
    MARK_SIZE = 18  # of a mark in the journal
    LAST = 2048  # messages that one call of kick() or discard() returns or finishes

# A message that failed too often and cannot be buried waits so long, and is delivered again.
cdef int64_t NO_ROOM_WAIT_NS = 60_000_000_000
KICK_COUNT_MAX = LAST

cdef dict STATE_NAMES = {IN_FLIGHT: "in flight", READY: "ready", DEFERRED: "deferred"}


cdef inline int hex_digit(unsigned char c) noexcept:
    if c'0' <= c <= c'9':
        return c - c'0'
    return c - c'a' + 10


cdef inline unsigned char* put_mark(unsigned char* p, Entry* entry, int attempts_max) noexcept:
    cdef int attempts = entry.attempts
    if entry.state == IN_FLIGHT and 0 < attempts_max <= attempts:
        # If a crash ends it, it did not fail: the next delivery is the last attempt again.
        attempts = attempts_max - 1
    store_u64(p, <uint64_t>entry.index)
    store_u16(p + 8, <uint16_t>attempts)
    store_u64(p + 10, <uint64_t>(~entry.due_ns if entry.kicked else entry.due_ns))
    return p + MARK_SIZE


cdef list joined(list runs):
    # The same runs, in order, with those joined that overlap or touch.
    cdef list found = []
    for start, end in sorted(runs):
        if found and start <= found[len(found) - 1][1]:
            found[len(found) - 1] = (found[len(found) - 1][0], max(end, found[len(found) - 1][1]))
        else:
            found.append((start, end))
    return found


cdef class Consumer:
    """The delivery state of a subscribed client."""

    def __cinit__(self, client, int64_t msg_timeout_ns, int sample_rate=0):
        self.client = client
        self.msg_timeout_ns = msg_timeout_ns
        self.sample_rate = sample_rate
        self.writable = True
        self.rested = True
        self.label = ""
        self.number = -1

    @property
    def ready(self):
        return self.is_ready()

    @property
    def room(self):
        """How many more messages may be in flight."""
        return max(0, self.ready_count - self.in_flight_count) if self.writable else 0


cdef class Window(Entries):
    def __cinit__(self, int64_t cursor, bint recording=True, uint64_t seed=1):
        self.cursor = cursor
        self.recording = recording
        self.random_state = seed or 1
        self.consumers = []
        self.free_numbers = []
        self.ready_head = self.ready_tail = self.lone_head = self.lone_tail = -1
        self.kicked_slot = self.near_slot = -1
        self.buried_max = BURIED_COUNT_MAX
        self.moving = []
        self.deadlines = DeadlineQueue()
        self.deferrals = DeadlineQueue()
        self.finished = RunList()
        self.skips = []
        self.next_skip = INT64_MAX
        self.marked = set()

    # ---- properties

    @property
    def low(self):
        """The low-water mark: everything below is finished."""
        return self.entries[self.head].index if self.head >= 0 else self.cursor

    @property
    def depth(self):
        """Messages that wait for a consumer, as NSQ counts them."""
        return self.queued_count + self.ready_count

    @property
    def in_flight_count(self):
        return self.deadlines.size

    @property
    def deferred_count(self):
        return self.deferrals.size

    @property
    def next_deadline_ns(self):
        """Monotonic; when the first message in flight times out."""
        return self.deadlines.soonest()

    @property
    def next_deferral_ns(self):
        """Wall clock; when the first deferred message is due."""
        return self.deferrals.soonest()

    def unfinished(self, int64_t start, int64_t end, Py_ssize_t count_max):
        """Indexes with an entry in start..end, or None if there are more than ``count_max``."""
        cdef list found = []
        cdef int32_t slot = self.head, near = self.near_slot
        # Searches ascend: continue where the last one ended.
        if (0 <= near < self.entry_capacity and self.entries[near].state
                and self.entries[near].index <= start):
            slot = near
        while slot >= 0 and self.entries[slot].index < end:
            self.near_slot = slot
            if self.entries[slot].index >= start:
                if len(found) == count_max:
                    return None
                found.append(self.entries[slot].index)
            slot = self.entries[slot].after
        return found

    def oldest(self, Py_ssize_t count_max):
        """(index, state, attempts, due_ns) of the first unfinished messages."""
        cdef list found = []
        cdef int32_t slot = self.head
        while slot >= 0 and len(found) < count_max:
            entry = self.entries[slot]
            found.append((entry.index, STATE_NAMES[entry.state], entry.attempts, entry.due_ns))
            slot = entry.after
        return found

    @property
    def skipped(self):
        """(start, end) of messages finished without a delivery, ascending."""
        return list(self.skips)

    def describe(self, int64_t index):
        """(state, attempts, due_ns) of an unfinished delivered message, or None."""
        cdef int32_t slot = self.find(index)
        if slot < 0:
            return None
        entry = self.entries[slot]
        return STATE_NAMES[entry.state], entry.attempts, entry.due_ns

    # ---- consumers

    def join(self, Consumer consumer not None):
        assert consumer.number < 0
        if self.free_numbers:
            consumer.number = self.free_numbers.pop()
            self.consumers[consumer.number] = consumer
        else:
            consumer.number = <int32_t>len(self.consumers)
            self.consumers.append(consumer)

    def leave(self, Consumer consumer not None, bint requeue, int64_t wall_ns,
              int64_t wait_ns):
        """Remove a consumer; return how many messages became ready.

        With ``requeue`` a message on its first attempt is ready at once.  Later attempts wait; the
        delay doubles from ``wait_ns`` up to the consumer's timeout (R14): one poison message must
        not use up the attempts of everything that was in flight with it.  Without ``requeue``
        messages stay in flight until their deadline, as in nsqd.
        """
        cdef Py_ssize_t i
        cdef Entry* entry
        cdef int64_t wait
        cdef int64_t back = self.ready_count
        assert self.holds(consumer)
        cdef list slots = [
            self.deadlines.heap[i].item for i in range(self.deadlines.size)
            if self.entries[self.deadlines.heap[i].item].owner == consumer.number
        ]
        slots.sort(key=self._index_of)
        for slot in slots:
            entry = &self.entries[<int32_t>slot]
            entry.owner = -1
            if not requeue:
                continue
            self.deadlines.drop(slot)
            self.requeue_count += 1
            wait = 0
            if entry.attempts > 1:
                wait = min(wait_ns << min(entry.attempts - 2, 20), consumer.msg_timeout_ns)
            if wait_ns:
                entry.lost = True
                if self.strict:
                    wait = max(wait, self.backoff(entry.attempts))
                    self.fail(slot, consumer.label, wall_ns + wait if wait else 0, wall_ns)
                    continue
            self.mark(entry.index)
            if entry.attempts <= 1:
                self.push_ready(slot)
            else:
                entry.state = DEFERRED
                entry.due_ns = wall_ns + wait
                self.deferrals.put(slot, entry.due_ns)
        consumer.in_flight_count = 0
        self.consumers[consumer.number] = None
        self.free_numbers.append(consumer.number)
        consumer.number = -1
        return self.ready_count - back

    cdef bint holds(self, Consumer consumer) noexcept:
        return (0 <= consumer.number < len(self.consumers)
                and self.consumers[consumer.number] is consumer)

    def _index_of(self, int32_t slot):
        return self.entries[slot].index

    # ---- first deliveries

    cpdef load(self, Block block):
        """Continue in ``block``, which has the cursor's index or the next existing one."""
        self.block = block
        self.settle_cursor()

    @property
    def loaded(self):
        """Whether there is a block to deliver from at the cursor."""
        return self.block is not None

    def deliver(self, Consumer consumer not None, Py_ssize_t count_max, Py_ssize_t size_max,
                int64_t limit, int64_t now_ns):
        """Deliver the next messages below ``limit`` to ``consumer``.

        Returns (frames to send, count), or None if the block has no more: load() the next one, or
        nothing is left.  Each message is in flight before the caller can send its first byte
        (S0-1).
        """
        cdef Py_ssize_t count = 0
        frames = self.give(consumer, count_max, size_max, limit, now_ns, &count)
        return None if frames is None else (frames, count)

    cdef object give(self, Consumer consumer, Py_ssize_t count_max, Py_ssize_t size_max,
                     int64_t limit, int64_t now_ns, Py_ssize_t* given_count):
        # deliver(), for compiled callers: the frames or None, and their count.
        cdef const unsigned char* data
        cdef Py_ssize_t start, at, end, next_at, count = 0
        cdef int64_t stop
        cdef int32_t slot
        cdef Block block
        assert self.holds(consumer)
        if self.cursor >= self.next_skip:
            self.settle_cursor()
        if self.block is None or self.cursor >= limit:
            return None
        block = self.block
        data = block.bytes_at
        end = block.spans[self.span].end
        stop = min(limit, self.next_skip,
                   block.spans[self.span].first + block.spans[self.span].count)
        start = at = self.offset
        while count < count_max and self.cursor < stop:
            next_at = self.frame_end(at, end)
            if next_at < 0:
                if not count:
                    self.refuse_frame()
                break   # those before it are good and are sent; the next call raises
            if next_at - start > size_max and count:
                break
            slot = self.append_entry(self.cursor)
            self.entries[slot].timestamp_ns = load_i64(data + at + FRAME_TIMESTAMP)
            self.entries[slot].node_id = <uint16_t>block.node_id
            self.send_entry(slot, consumer, now_ns)
            at = next_at
            self.cursor += 1
            count += 1
        self.queued_count -= count
        self.offset = at
        if self.cursor >= stop:
            self.settle_cursor()
        given_count[0] = count
        # A view keeps the whole block in memory until it is sent; small ones are copied.
        if at - start <= VIEW_SIZE_MIN:
            return PyBytes_FromStringAndSize(<const char*>data + start, at - start)
        return memoryview(block.data)[start:at]

    def deliver_sampled(self, Consumer consumer not None, Py_ssize_t count_max,
                        Py_ssize_t scan_max, int64_t limit, int64_t now_ns):
        """``deliver`` for a client with a sample rate.

        A message is sent if a random number in 0..99 is <= the rate; the others are finished
        without being sent, as in nsqd.  ``scan_max`` bounds how many are examined.
        """
        cdef list kept = []
        cdef Py_ssize_t at, next_at, seen = 0
        cdef int32_t slot
        cdef Span span
        assert self.holds(consumer)
        while len(kept) < count_max and seen < scan_max:
            if self.cursor >= self.next_skip:
                self.settle_cursor()
            if self.block is None or self.cursor >= limit:
                break
            at = self.offset
            span = self.block.spans[self.span]
            next_at = self.frame_end(at, span.end)
            if next_at < 0:
                if not seen:
                    self.refuse_frame()
                break
            seen += 1
            self.queued_count -= 1
            if <int>(self.random() % 100) <= consumer.sample_rate:
                slot = self.append_entry(self.cursor)
                self.entries[slot].timestamp_ns = load_i64(
                    self.block.bytes_at + at + FRAME_TIMESTAMP)
                self.entries[slot].node_id = <uint16_t>self.block.node_id
                self.send_entry(slot, consumer, now_ns)
                kept.append(self.block.data[at:next_at])
            else:
                self.note_finished(self.cursor, self.cursor + 1)
            self.offset = next_at
            self.cursor += 1
            if self.cursor >= span.first + span.count:
                self.settle_cursor()
        if not seen:
            return None
        return b"".join(kept), len(kept)

    def skip(self, int64_t start, int64_t end, int64_t count):
        """Finish the ``count`` messages in [start, end), at or above the cursor, unsent."""
        cdef Py_ssize_t last = len(self.skips) - 1
        assert self.cursor <= start < end
        if last >= 0 and self.skips[last][1] == start:
            # They come message by message: join them to one run.
            self.skips[last] = (self.skips[last][0], end)
        else:
            self.skips.append((start, end))
            if last >= 0 and start < self.skips[last][1]:
                self.skips = joined(self.skips)
        self.next_skip = self.skips[0][0]
        self.queued_count -= count
        self.note_finished(start, end)

    cdef int settle_cursor(self) except -1:
        # Move the cursor past skipped runs and gaps in the log; set span and offset to it.
        cdef int64_t first
        cdef Block block
        while True:
            while self.skips and self.cursor >= self.next_skip:
                self.cursor = max(self.cursor, self.skips.pop(0)[1])
                self.next_skip = self.skips[0][0] if self.skips else INT64_MAX
            if self.block is None:
                return 0
            self.span = self.block.find(self.cursor)
            if self.span < 0:
                self.block = None
                return 0
            first = self.block.spans[self.span].first
            if first <= self.cursor:
                block, self.block = self.block, None    # stays None if the frames are damaged
                self.offset = block.offset_of(self.span, self.cursor)
                self.block = block
                return 0
            self.cursor = first
            if self.cursor < self.next_skip:
                self.offset = self.block.spans[self.span].start
                return 0

    cdef Py_ssize_t frame_end(self, Py_ssize_t at, Py_ssize_t end) noexcept:
        # -1 if the frame does not fit its span.
        cdef Py_ssize_t next_at
        if at + FRAME_HEADER > end:
            return -1
        next_at = at + 4 + <Py_ssize_t>load_u32(self.block.bytes_at + at)
        return next_at if at + FRAME_HEADER <= next_at <= end else -1

    cdef int refuse_frame(self) except -1:
        raise ValueError(f"frame of index {self.cursor} does not fit its span")

    # ---- redeliveries

    @property
    def next_ready(self):
        """Index of the next message to send again, or None; not of those to be delivered alone."""
        return self.entries[self.ready_head].index if self.ready_head >= 0 else None

    @property
    def next_lone(self):
        """Index of the next message to deliver alone, or None."""
        return self.entries[self.lone_head].index if self.lone_head >= 0 else None

    cpdef bint set_apart(self) noexcept:
        """Whether the next ready message must be delivered alone: it is then in that list.

        Only messages from before a change of the policy are found here.
        """
        if self.ready_head < 0 or not self.must_be_alone(self.ready_head):
            return False
        self.push_ready(self.pop_ready())
        return True

    def choose_lone(self):
        """Make the next message to be delivered alone the next ready one."""
        cdef int32_t slot = self.pop_lone()
        self.entries[slot].next_ready = self.ready_head
        self.ready_head = slot
        if self.ready_tail < 0:
            self.ready_tail = slot
        self.ready_count += 1

    cpdef bytes redeliver(self, Consumer consumer, bytes frame, int64_t now_ns):
        """Deliver the next ready message again; return its frame with the new attempts."""
        cdef int32_t slot
        cdef Entry* entry
        cdef bytes copy
        cdef unsigned char* p
        if consumer is None or frame is None:
            raise TypeError("redeliver() wants a consumer and a frame")
        assert self.ready_head >= 0 and self.holds(consumer) and len(frame) >= FRAME_HEADER
        slot = self.pop_ready()
        entry = &self.entries[slot]
        copy = PyBytes_FromStringAndSize(PyBytes_AS_STRING(frame), len(frame))
        p = <unsigned char*>PyBytes_AS_STRING(copy)
        entry.timestamp_ns = load_i64(p + FRAME_TIMESTAMP)
        entry.node_id = <uint16_t>(
            hex_digit(p[FRAME_ID]) << 6 | hex_digit(p[FRAME_ID + 1]) << 2
            | hex_digit(p[FRAME_ID + 2]) >> 2)
        self.send_entry(slot, consumer, now_ns)
        store_u16(p + FRAME_ATTEMPTS, entry.attempts)
        return copy

    def rotate_ready(self):
        """Move the next ready message to the end of the list: it cannot be read now."""
        assert self.ready_head >= 0
        self.push_ready(self.pop_ready())

    def rotate_lone(self):
        """As rotate_ready(), for messages to be delivered alone."""
        self.push_ready(self.pop_lone())

    def find_old(self, int64_t end, Py_ssize_t left, Py_ssize_t least):
        """Make a ready message below ``end`` the next one: (left, whether there was one).

        Kicked ones are never old.  Those before it go to the end of their list.  ``left`` is what a
        pass over both lists has not seen yet, of which those to be delivered alone come last; this
        goes down to ``least``.
        """
        while left > least:
            left -= 1
            if left < self.lone_count:
                if self.is_old(self.lone_head, end):
                    self.choose_lone()
                    return left, True
                self.push_ready(self.pop_lone())
            elif self.ready_head >= 0:  # otherwise they were delivered meanwhile
                if self.is_old(self.ready_head, end):
                    return left, True
                self.push_ready(self.pop_ready())
        return left, False

    cdef bint is_old(self, int32_t slot, int64_t end) noexcept:
        return self.entries[slot].index < end and not self.entries[slot].kicked

    def drop_ready(self):
        """Finish the next ready message without sending it: the log does not have it any more."""
        assert self.ready_head >= 0
        self.forget(self.pop_ready())

    cdef int send_entry(self, int32_t slot, Consumer consumer, int64_t now_ns) except -1:
        cdef Entry* entry = &self.entries[slot]
        entry.state = IN_FLIGHT
        if entry.attempts < ATTEMPTS_MAX:  # the field has 16 bits and saturates
            entry.attempts += 1
        entry.owner = consumer.number
        entry.delivered_ns = now_ns
        entry.due_ns = 0
        self.deadlines.put(slot, now_ns + consumer.msg_timeout_ns)
        consumer.in_flight_count += 1
        consumer.message_count += 1
        return 0

    # ---- FIN, REQ, TOUCH

    cdef int32_t owned(self, Consumer consumer, int64_t index, int node_id, int* status) noexcept:
        cdef int32_t slot = self.find(index)
        if (slot < 0 or self.entries[slot].state != IN_FLIGHT
                or self.entries[slot].node_id != node_id):
            status[0] = NOT_IN_FLIGHT
            return -1
        if self.entries[slot].owner != consumer.number or consumer.number < 0:
            status[0] = NOT_OWNER
            return -1
        status[0] = DONE
        return slot

    cdef int finish(self, Consumer consumer, int64_t index, int node_id,
                    int64_t wall_ns) except -1:
        cdef int status
        cdef int32_t slot = self.owned(consumer, index, node_id, &status)
        if slot < 0:
            return status
        if self.latency is not None:
            self.latency.record(wall_ns - self.entries[slot].timestamp_ns, wall_ns)
        consumer.in_flight_count -= 1
        consumer.finish_count += 1
        self.finish_count += 1
        self.deadlines.drop(slot)
        self.forget(slot)
        return DONE

    cdef int requeue(self, Consumer consumer, int64_t index, int node_id, int64_t due_ns,
                     int64_t wall_ns=0) except -1:
        cdef int status
        cdef int32_t slot = self.owned(consumer, index, node_id, &status)
        if slot < 0:
            return status
        consumer.in_flight_count -= 1
        consumer.requeue_count += 1
        self.requeue_count += 1
        self.deadlines.drop(slot)
        if self.strict:
            if not due_ns and self.backoff_min_ns:
                due_ns = wall_ns + self.backoff(self.entries[slot].attempts)
            self.fail(slot, consumer.label, due_ns, wall_ns)
            return DONE
        self.mark(index)
        if due_ns:
            self.entries[slot].state = DEFERRED
            self.entries[slot].due_ns = due_ns
            self.deferrals.put(slot, due_ns)
        else:
            self.push_ready(slot)
        return DONE

    cdef int touch(self, Consumer consumer, int64_t index, int node_id, int64_t now_ns,
                   int64_t timeout_ns, int64_t timeout_max_ns) except -1:
        cdef int status
        cdef int32_t slot = self.owned(consumer, index, node_id, &status)
        if slot < 0:
            return status
        self.deadlines.put(
            slot, min(now_ns + timeout_ns, self.entries[slot].delivered_ns + timeout_max_ns))
        return DONE

    def finish_index(self, Consumer consumer not None, int64_t index, int node_id,
                     int64_t wall_ns=0):
        """``finish`` for Python: 0 = done, 1 = not in flight, 2 = owned by another client."""
        return self.finish(consumer, index, node_id, wall_ns)

    def requeue_index(self, Consumer consumer not None, int64_t index, int node_id,
                      int64_t due_ns, int64_t wall_ns=0):
        return self.requeue(consumer, index, node_id, due_ns, wall_ns)

    def bury_index(self, Consumer consumer not None, int64_t index, int node_id,
                   int64_t wall_ns, str text=""):
        return self.bury(consumer, index, node_id, wall_ns, text)

    def touch_index(self, Consumer consumer not None, int64_t index, int node_id,
                    int64_t now_ns, int64_t timeout_ns, int64_t timeout_max_ns):
        return self.touch(consumer, index, node_id, now_ns, timeout_ns, timeout_max_ns)

    # ---- time

    def expire(self, int64_t now_ns, Py_ssize_t count_max, int64_t wall_ns=0):
        """Make timed-out messages ready; return the consumers that have room again."""
        cdef set consumers = set()
        cdef int32_t slot
        cdef int64_t wait
        cdef Entry* entry
        while count_max > 0 and self.deadlines.size and self.deadlines.soonest() <= now_ns:
            count_max -= 1
            slot = self.deadlines.heap[0].item
            entry = &self.entries[slot]
            client = ""
            if entry.owner >= 0:
                consumer = <Consumer>self.consumers[entry.owner]
                (<Consumer>consumer).in_flight_count -= 1
                client = (<Consumer>consumer).label
                consumers.add(consumer)
            self.deadlines.drop(slot)
            self.timeout_count += 1
            entry.lost = True
            if self.strict:
                wait = self.backoff(entry.attempts)
                self.fail(slot, client, wall_ns + wait if wait else 0, wall_ns)
                continue
            self.mark(entry.index)
            self.push_ready(slot)
        return consumers

    def fire(self, int64_t wall_ns, Py_ssize_t count_max):
        """Make ready the deferred messages that are due; return how many."""
        cdef Py_ssize_t fired = 0
        cdef int32_t slot
        while fired < count_max and self.deferrals.size and self.deferrals.soonest() <= wall_ns:
            slot = self.deferrals.heap[0].item
            self.deferrals.drop(slot)
            self.push_ready(slot)
            fired += 1
        return fired

    # ---- failed deliveries (R26)

    def set_policy(self, int attempts_max, int on_failed, Py_ssize_t buried_max,
                   int64_t backoff_min_ns=0, int64_t backoff_max_ns=0):
        """What happens to messages whose delivery failed; 0: no limit, no wait."""
        cdef int64_t count = self.lone_count
        self.attempts_max = attempts_max
        self.on_failed = on_failed
        self.buried_max = buried_max
        self.backoff_min_ns = backoff_min_ns
        self.backoff_max_ns = max(backoff_min_ns, backoff_max_ns)
        self.strict = attempts_max > 0 or backoff_min_ns > 0
        while count > 0:
            count -= 1
            self.push_ready(self.pop_lone())

    cdef bint must_be_alone(self, int32_t slot) noexcept:
        return (self.attempts_max > 0 and self.entries[slot].lost
                and self.entries[slot].attempts + 1 >= self.attempts_max)

    cdef int64_t backoff(self, int attempts) noexcept:
        cdef int64_t wait = self.backoff_min_ns
        while attempts > 1 and 0 < wait < self.backoff_max_ns:
            wait *= 2
            attempts -= 1
        return min(wait, self.backoff_max_ns)

    cdef int fail(self, int32_t slot, str client, int64_t due_ns, int64_t wall_ns) except -1:
        # A delivery failed; the message is not in flight any more.
        cdef Entry* entry = &self.entries[slot]
        if self.attempts_max and entry.attempts >= self.attempts_max:
            if self.give_up(slot, client, wall_ns):
                return 0
            due_ns = max(due_ns, wall_ns + NO_ROOM_WAIT_NS)
        self.mark(entry.index)
        if due_ns:
            entry.state = DEFERRED
            entry.due_ns = due_ns
            self.deferrals.put(slot, due_ns)
        else:
            self.push_ready(slot)
        return 0

    cdef bint give_up(self, int32_t slot, str client, int64_t wall_ns) except -1:
        # False if there is no room to bury it.
        if self.on_failed == DROP:
            self.dropped_count += 1
            self.forget(slot)
            return True
        if not self.recording:
            return False
        if not self.has_room():
            self.no_room_count += 1
            return False
        if self.movable and (self.on_failed == MOVE or self.is_full()):
            self.moving.append(self.entries[slot].index)
        self.bury_entry(slot, BY_ATTEMPTS, client, "", wall_ns)
        return True

    def is_full(self):
        """Whether as many messages are buried as the policy allows."""
        return self.buried is not None and self.buried.count >= self.buried_max

    cdef bint has_room(self) noexcept:
        if self.buried is None:
            return True
        if self.movable:
            return (self.buried.count < self.buried_max + MOVING_COUNT_MAX
                    and len(self.moving) < MOVING_COUNT_MAX)
        return self.buried.count < self.buried_max

    cdef int bury_entry(self, int32_t slot, int reason, str client, str text,
                        int64_t wall_ns) except -1:
        # The journal gets the burial before the finish: see drain_buried().
        if self.buried is None:
            self.buried = Buried()
        self.buried.add(
            self.entries[slot].index, self.entries[slot].attempts, reason, wall_ns, client, text)
        self.burial_counts[reason] += 1
        self.forget(slot)
        return 0

    cdef int bury(self, Consumer consumer, int64_t index, int node_id, int64_t wall_ns,
                  str text) except -1:
        cdef int status
        cdef int32_t slot = self.owned(consumer, index, node_id, &status)
        if slot < 0:
            return status
        if not self.recording:
            return NOT_DURABLE
        if not self.has_room():
            self.no_room_count += 1
            return NO_ROOM
        if self.movable and self.is_full():
            self.moving.append(index)
        consumer.in_flight_count -= 1
        self.deadlines.drop(slot)
        self.bury_entry(slot, BY_CLIENT, consumer.label, text, wall_ns)
        return DONE

    def bury_ready(self, int reason, int64_t wall_ns):
        """Bury the next ready message; False if there is no room."""
        assert self.ready_head >= 0 and self.recording
        if not self.has_room():
            self.no_room_count += 1
            return False
        self.bury_entry(self.pop_ready(), reason, "", "", wall_ns)
        return True

    def bury_fresh(self, int64_t index, int reason, int64_t wall_ns):
        """Bury an undelivered, released message; False if there is no room."""
        assert index >= self.cursor and self.recording
        if not self.has_room():
            self.no_room_count += 1
            return False
        if self.buried is None:
            self.buried = Buried()
        self.skip(index, index + 1, 1)
        self.buried.add(index, 0, reason, wall_ns, "", "")
        self.burial_counts[reason] += 1
        return True

    def take_moving(self):
        """The indexes of messages that were buried to be moved, since the last call."""
        cdef list moving = self.moving
        self.moving = []
        return moving

    @property
    def buried_total(self):
        """All messages that were ever buried, by reason."""
        return {name: self.burial_counts[reason] for reason, name in REASONS.items()}

    @property
    def buried_count(self):
        return 0 if self.buried is None else self.buried.count

    def kick(self, int64_t start, int64_t end, Py_ssize_t count_max, int reason=0):
        """Make up to ``count_max`` buried messages in start..end ready, in order.

        drain() must have been called.  Returns (count, where to continue, the ranges in which all
        buried messages were taken, as an UNBURIED record has them).
        """
        return self._unbury(start, end, count_max, reason, True)

    def discard(self, int64_t start, int64_t end, Py_ssize_t count_max, int reason=0):
        """As kick(), but finish them."""
        return self._unbury(start, end, count_max, reason, False)

    def _unbury(self, int64_t start, int64_t end, Py_ssize_t count_max, int reason, bint ready):
        cdef int64_t[LAST] indexes
        cdef int64_t after = end
        cdef Py_ssize_t i, count = 0
        cdef int32_t slot
        cdef RunList runs = RunList()
        assert self.buried is None or not self.buried.pending_count
        if self.cursor >= self.next_skip:
            self.settle_cursor()  # past what was buried before its first delivery
        if self.buried is not None:
            count = self.buried.take(start, end, min(count_max, LAST), reason, indexes, &after)
        if count and not reason:
            runs.add(indexes[0], indexes[count - 1] + 1)
        for i in range(count):
            if reason:
                runs.add(indexes[i], indexes[i] + 1)
            if not ready:
                continue
            if indexes[i] >= self.cursor:
                self.unskip(indexes[i])
                continue
            slot = self.insert_entry(indexes[i], self.kicked_slot)
            self.entries[slot].kicked = True
            self.mark(indexes[i])
            self.push_ready(slot)
            self.kicked_slot = slot
        if ready:
            self.kicked_count += count
        self.changed = self.changed or count > 0
        return count, after, runs.encode()

    cpdef bint was_kicked(self, int64_t index) noexcept:
        """Whether an unfinished message was buried and kicked: somebody wants it, however old."""
        cdef int32_t slot = self.find(index)
        return slot >= 0 and self.entries[slot].kicked

    cdef int unskip(self, int64_t index) except -1:
        # A skipped message is queued again.
        cdef Py_ssize_t i
        for i in range(len(self.skips) - 1, -1, -1):
            start, end = self.skips[i]
            if start <= index < end:
                self.skips[i:i + 1] = [run for run in ((start, index), (index + 1, end))
                                       if run[0] < run[1]]
                break
        else:
            raise AssertionError(f"{index} is neither delivered nor skipped")
        self.next_skip = self.skips[0][0] if self.skips else INT64_MAX
        self.queued_count += 1
        return 0

    def restore_buried(self, Buried buried not None):
        """After a restart: the buried messages, all of which are finished in this window."""
        self.buried = buried

    def drain_buried(self):
        """Bodies of BURIED records for what was buried since the last call.

        They must be in the journal before what drain() returns, which says that they are finished.
        """
        return [] if self.buried is None else self.buried.drain()

    # ---- emptying, restoring, journal

    def clear(self, int64_t end):
        """Finish everything below ``end``: queued, in flight and deferred (channel empty).

        Skips beyond it remain.
        """
        while self.head >= 0:
            self.deadlines.drop(self.head)
            self.deferrals.drop(self.head)
            self.forget(self.head)
        self.ready_head = self.ready_tail = self.lone_head = self.lone_tail = -1
        self.ready_count = self.lone_count = self.queued_count = 0
        for consumer in self.consumers:
            if consumer is not None:
                (<Consumer>consumer).in_flight_count = 0
        self.marked.clear()
        self.block = None
        self.cursor = max(self.cursor, end)
        self.settle_cursor()
        self.changed = True

    def rewind(self, int64_t start):
        """Deliver everything from ``start`` on as if for the first time, skipped or not (R22).

        Everything below is finished, and stays buried if it was.  Nothing of this is in the next
        drain(): the caller journals it, and sets queued_count.
        """
        self.drop_entries()
        self.deadlines, self.deferrals = DeadlineQueue(), DeadlineQueue()
        self.ready_head = self.ready_tail = self.lone_head = self.lone_tail = -1
        self.kicked_slot = -1
        self.ready_count = self.lone_count = self.queued_count = 0
        for consumer in self.consumers:
            if consumer is not None:
                (<Consumer>consumer).in_flight_count = 0
                (<Consumer>consumer).alone = False
        if self.buried is not None:
            self.buried.remove(start, INT64_MAX)
            self.moving = [index for index in self.moving if index < start]
        self.marked.clear()
        self.finished.size = 0
        self.skips.clear()
        self.next_skip = INT64_MAX
        self.block = None
        self.cursor = start
        self.changed = False

    def restore(self, int64_t index, int attempts, int64_t due_ns):
        """Restore an unfinished message after a restart; indexes ascend over the calls.

        As a mark has it: if ``due_ns`` is inverted, the message was kicked.
        """
        cdef int32_t slot
        cdef bint kicked = due_ns < 0
        if kicked:
            due_ns = ~due_ns
        assert index >= self.cursor and (self.tail < 0 or self.entries[self.tail].index < index)
        slot = self.append_entry(index)
        self.entries[slot].attempts = <uint16_t>attempts
        self.entries[slot].lost = attempts > 0  # it is not known how they failed
        self.entries[slot].kicked = kicked
        if due_ns:
            self.entries[slot].state = DEFERRED
            self.entries[slot].due_ns = due_ns
            self.deferrals.put(slot, due_ns)
        else:
            self.push_ready(slot)
        self.cursor = index + 1

    def advance(self, int64_t cursor):
        """Move the cursor over messages known to be finished."""
        assert cursor >= self.cursor
        self.cursor = cursor
        self.block = None
        self.settle_cursor()

    # ---- giving up messages: expired, or dropped at a bound (R20)

    def stale_run(self, int64_t cutoff_ns, int64_t limit):
        """Where the messages end that start at the cursor and were appended before ``cutoff_ns``.

        They are of one batch, below ``limit``; the cursor if there are none.
        """
        return self.stale_end(cutoff_ns, limit)

    cdef int64_t stale_end(self, int64_t cutoff_ns, int64_t limit) except -1:
        cdef Span span
        if self.cursor >= self.next_skip:
            self.settle_cursor()
        if self.block is None or self.cursor >= limit:
            return self.cursor
        span = self.block.spans[self.span]
        if not 0 < span.append_ns < cutoff_ns:
            return self.cursor
        return min(limit, self.next_skip, span.first + span.count)

    def pass_over(self, int64_t end, int64_t count):
        """Finish the ``count`` messages from the cursor up to ``end`` that are not skipped, unsent."""
        assert end >= self.cursor
        if end > self.cursor:
            self.note_finished(self.cursor, end)
            self.queued_count -= count
            self.cursor = end
            self.settle_cursor()

    def drop_below(self, int64_t end):
        """Finish the delivered messages below ``end``, in flight or not.

        Returns their count, and the consumers that some were in flight to.
        """
        cdef set consumers = set()
        cdef int64_t count = 0, left, lone_left = self.lone_count
        cdef int32_t slot
        left = self.ready_count
        while left > 0:
            left -= 1
            slot = self.pop_lone() if left < lone_left else self.pop_ready()
            if self.entries[slot].index < end:
                self.forget(slot)
                count += 1
            else:
                self.push_ready(slot)
        while self.head >= 0 and self.entries[self.head].index < end:
            slot = self.head
            if self.entries[slot].state == IN_FLIGHT and self.entries[slot].owner >= 0:
                consumer = <Consumer>self.consumers[self.entries[slot].owner]
                (<Consumer>consumer).in_flight_count -= 1
                consumers.add(consumer)
            self.deadlines.drop(slot)
            self.deferrals.drop(slot)
            self.forget(slot)
            count += 1
        return count, consumers

    def mark_all(self):
        """Include the attempts of every delivered message in the next drain() (clean exit).

        A last attempt that this exit ends is not counted: it did not fail.
        """
        cdef int32_t slot = self.head
        while slot >= 0:
            if self.entries[slot].attempts:
                if self.attempts_max and self.entries[slot].attempts >= self.attempts_max:
                    self.entries[slot].attempts = <uint16_t>(self.attempts_max - 1)
                self.mark(self.entries[slot].index)
            slot = self.entries[slot].after

    def drain(self):
        """Changes since the last call, for the journal: (low, runs, marks), the latter as bytes.

        Runs are (start u64, end u64), marks (index u64, attempts u16, due_ns i64), big-endian,
        as the journal stores them.  The bits of due_ns are inverted if the message was kicked.
        """
        cdef int64_t low = self.entries[self.head].index if self.head >= 0 else self.cursor
        cdef bytes runs, marks
        cdef unsigned char* p
        cdef Py_ssize_t i
        self.finished.merge(low)
        runs = self.finished.encode()
        self.finished.size = 0
        marks = self._encode_marks(sorted(self.marked))
        self.marked.clear()
        self.changed = False
        return low, runs, marks

    def snapshot(self):
        """The whole window in the form of drain(), for a compacted journal."""
        cdef int64_t low = self.entries[self.head].index if self.head >= 0 else self.cursor
        cdef int64_t at = low
        cdef int32_t slot = self.head
        cdef RunList runs = RunList()
        cdef bytes marks = PyBytes_FromStringAndSize(NULL, MARK_SIZE * self.unfinished_count)
        cdef unsigned char* start = <unsigned char*>PyBytes_AS_STRING(marks)
        cdef unsigned char* p = start
        while slot >= 0:
            if at < self.entries[slot].index:
                runs.add(at, self.entries[slot].index)
            at = self.entries[slot].index + 1
            if self.entries[slot].attempts or self.entries[slot].kicked:
                p = put_mark(p, &self.entries[slot], self.attempts_max)
            slot = self.entries[slot].after
        if at < self.cursor:
            runs.add(at, self.cursor)
        for first, end in self.skips:
            runs.add(first, end)
        return low, runs.encode(), marks[:p - start]

    def _encode_marks(self, list indexes):
        cdef bytes marks = PyBytes_FromStringAndSize(NULL, MARK_SIZE * len(indexes))
        cdef unsigned char* start = <unsigned char*>PyBytes_AS_STRING(marks)
        cdef unsigned char* p = start
        cdef int32_t slot
        for index in indexes:
            slot = self.find(index)
            if slot >= 0:
                p = put_mark(p, &self.entries[slot], self.attempts_max)
        return marks[:p - start]

    cdef int note_finished(self, int64_t start, int64_t end) except -1:
        self.changed = True
        if self.recording:
            self.finished.add(start, end)
            if self.finished.size >= RUN_COUNT_MAX and self.finished.size == self.finished.capacity:
                # Memory between two drains is proportional to the holes, not to the finishes.
                self.finished.merge(
                    self.entries[self.head].index if self.head >= 0 else self.cursor)
                if self.finished.size * 2 > self.finished.capacity:
                    # Otherwise each of the next finishes would merge again.
                    self.finished.grow()
        return 0

    cdef int mark(self, int64_t index) except -1:
        self.changed = True
        if self.recording:
            self.marked.add(index)
        return 0

    # ---- entries and the ready list

    cdef uint64_t random(self) noexcept:
        # xorshift64*: sampling needs speed and uniformity, not secrecy.
        self.random_state ^= self.random_state >> 12
        self.random_state ^= self.random_state << 25
        self.random_state ^= self.random_state >> 27
        return (self.random_state * <uint64_t>2685821657736338717) >> 32

    cdef int forget(self, int32_t slot) except -1:
        cdef int64_t index = self.entries[slot].index
        self.remove_entry(slot)
        self.note_finished(index, index + 1)
        return 0

    cdef void push_ready(self, int32_t slot) noexcept:
        self.entries[slot].state = READY
        self.entries[slot].due_ns = 0
        self.entries[slot].next_ready = -1
        if self.attempts_max and self.must_be_alone(slot):
            if self.lone_tail >= 0:
                self.entries[self.lone_tail].next_ready = slot
            else:
                self.lone_head = slot
            self.lone_tail = slot
            self.lone_count += 1
            self.ready_count += 1
            return
        if self.ready_tail >= 0:
            self.entries[self.ready_tail].next_ready = slot
        else:
            self.ready_head = slot
        self.ready_tail = slot
        self.ready_count += 1

    cdef int32_t pop_ready(self) noexcept:
        cdef int32_t slot = self.ready_head
        self.ready_head = self.entries[slot].next_ready
        if self.ready_head < 0:
            self.ready_tail = -1
        self.ready_count -= 1
        return slot

    cdef int32_t pop_lone(self) noexcept:
        cdef int32_t slot = self.lone_head
        self.lone_head = self.entries[slot].next_ready
        if self.lone_head < 0:
            self.lone_tail = -1
        self.lone_count -= 1
        self.ready_count -= 1
        return slot

    def check(self):
        """Assert the invariants above."""
        cdef int32_t slot = self.head
        cdef dict owned = {}
        states = {IN_FLIGHT: 0, READY: 0, DEFERRED: 0}
        self.check_entries()
        self.deadlines.check()
        self.deferrals.check()
        while slot >= 0:
            entry = self.entries[slot]
            assert entry.index < self.cursor
            assert self.deadlines.holds(slot) == (entry.state == IN_FLIGHT)
            assert self.deferrals.holds(slot) == (entry.state == DEFERRED)
            states[entry.state] += 1
            if entry.state == IN_FLIGHT and entry.owner >= 0:
                owned[entry.owner] = owned.get(entry.owner, 0) + 1
            slot = entry.after
        assert states[IN_FLIGHT] == self.deadlines.size
        assert states[DEFERRED] == self.deferrals.size
        for slot, count in ((self.ready_head, self.ready_count - self.lone_count),
                            (self.lone_head, self.lone_count)):
            for _ in range(count):
                assert self.entries[slot].state == READY
                slot = self.entries[slot].next_ready
            assert slot < 0
        assert states[READY] == self.ready_count
        assert sum(states.values()) == self.unfinished_count
        for number, consumer in enumerate(self.consumers):
            if consumer is not None:
                assert (<Consumer>consumer).in_flight_count == owned.get(number, 0)
        for i in range(1, len(self.skips)):
            assert self.skips[i - 1][1] <= self.skips[i][0]
        if self.buried is not None:
            self.buried.check()
            for index in self.buried.indexes():
                assert self.find(index) < 0, f"{index} is unfinished and buried"
                assert index < self.cursor or any(a <= index < b for a, b in self.skips)
