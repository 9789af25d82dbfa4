# A channel: a cursor over its topic's log, and the consumers that share its messages.
#
#     offer     a consumer answered or changed RDY: it waits among the ready ones
#     wake      there may be something to deliver: the turn calls pump()
#     pump      ready consumers get a share each, first deliveries from the block at the cursor,
#               and messages to be sent again
#
# Ephemeral and pull channels are subclasses.  What runs for every FIN and every batch of a plain
# channel calls no Python.

import logging
from collections import deque
from functools import partial

from libc.stdint cimport INT64_MAX, int64_t

from penstock.core.block cimport Block
from penstock.core.window cimport Consumer, Window

from penstock.core.latency import Latency
from penstock.core.ticket import settled
from penstock.core.buried import EXPIRED
from penstock.core.window import FAIL_BURY, FAIL_DROP, FAIL_MOVE
from penstock.engine.policy.merge import dead_topic
from penstock.engine.stats.latency import measured
from penstock.engine.topology import EXPERIMENT, LOCALITIES, NearestFirst
from penstock.settings.policy import BURY, DEFAULT, DROP, MOVE

log = logging.getLogger(__name__)

# One turn of the loop delivers at most this many messages, or KiB, of one channel (R13).
TURN_COUNT_MAX = 1024
# One consumer gets at most this many messages in a row while others are ready too.
SHARE_COUNT_MAX = 512
CHUNK_SIZE_MAX = 256 << 10
READ_SIZE = 256 << 10
REDELIVERY_SIZE = 32 << 10
# Messages that one call may expire or fire before the loop serves others.
DUE_COUNT_MAX = 2048
# Ready messages that one call may look at for those that have expired: a millisecond at most.
AGED_COUNT_MAX = 16_384
# A lost consumer's message waits 1 s, 2 s, 4 s ... from its second delivery on (R14).
LOST_WAIT_NS = 1_000_000_000
# Unreadable messages that wait for redelivery: how many a turn skips, and how many are remembered.
PASS_COUNT_MAX = 16
UNREADABLE_COUNT_MAX = 1024
# Messages on their last attempt that one delivery sets apart after a change of the policy.
APART_COUNT_MAX = 1024
# Consumers that a turn considers for a message that must be delivered alone.
LONE_TRY_COUNT = 64
NOT_MOVING = frozenset()
ON_FAILED = {BURY: FAIL_BURY, DROP: FAIL_DROP, MOVE: FAIL_MOVE}

# Batches of expired messages that one delivery passes over.
STALE_COUNT_MAX = 256

cdef enum:
    # A consumer that is served counts as so many messages: its socket will be written to.
    SEND_COUNT = 8

cdef Py_ssize_t turn_count_max = TURN_COUNT_MAX
cdef Py_ssize_t share_count_max = SHARE_COUNT_MAX
cdef Py_ssize_t chunk_size_max = CHUNK_SIZE_MAX


cdef class Channel:
    """Delivery of one topic to one group of consumers."""

    ephemeral = False
    pulled = False  # see pull/channel.py
    plain = True  # new messages are only counted, and sent from the log

    def __init__(self, topic, str name not None, Window window not None, *, id=0):
        shared = topic.shared
        self.topic = topic
        self.name = name
        self.number = next(shared.channel_numbers)
        self.id = self.first_id = id
        self.window = window
        self.created = settled()
        self.policy = DEFAULT
        self.own_policy = {}
        self.idle_from_ns = shared.context.clock.monotonic_ns()
        self.moving = NOT_MOVING
        self._may_move()
        self.consumers = []
        self._shared = shared
        self._feed = topic.feed
        self._turn = shared.turn
        self._progressed = shared.rounds.progressed
        options = shared.context.options
        self.ready = NearestFirst() if EXPERIMENT in options.enable_experiment else deque()
        if options.e2e_processing_latency_percentiles:
            window.latency = Latency(options.e2e_processing_latency_window_time_ns)
        self._left_counts = [0] * len(LOCALITIES)
        self._odd_to_fresh = 1
        self._stuck_cursor = -1
        self._unreadable = {}
        self._watched_ns = self._watched_wall_ns = INT64_MAX

    # ---- what /stats shows

    @property
    def message_count(self):
        return self.window.message_count

    @property
    def depth(self):
        return self.window.depth

    @property
    def backend_depth(self):
        """What NSQ would have on disk: the depth beyond its memory queue."""
        return max(0, self.depth - self._shared.context.options.mem_queue_size)

    @property
    def in_flight_count(self):
        return self.window.in_flight_count

    @property
    def deferred_count(self):
        """Messages requeued with a delay, and the topic's deferred publishes for this channel."""
        return self.window.deferred_count + self.topic.deferred_pending(self.defer_stamp)

    @property
    def requeue_count(self):
        return self.window.requeue_count

    @property
    def timeout_count(self):
        return self.window.timeout_count

    @property
    def finish_count(self):
        return self.window.finish_count

    @property
    def delivery_counts(self):
        """Messages sent, redeliveries included, by locality of the consumer."""
        counts = self._left_counts.copy()
        for consumer in self.consumers:
            counts[consumer.locality] += consumer.message_count
        return counts

    @property
    def latency(self):
        """Times from publish to finish."""
        shares = self._shared.context.options.e2e_processing_latency_percentiles
        return measured((self.window.latency,), shares, self._shared.context.clock.wall_ns())

    @property
    def pull(self):
        """What /stats shows for a pull channel; None for other channels."""
        return None

    def apply_policy(self, policy):
        """The channel's effective policy has changed."""
        self.policy = policy
        action = ON_FAILED[policy.on_max_attempts]
        attempts_max = policy.max_attempts
        if self.ephemeral and action != FAIL_DROP:
            attempts_max = 0  # nothing of it can be kept
        backoff = policy.requeue_backoff or (0, 0)
        self.window.set_policy(attempts_max, action, policy.max_buried, *backoff)
        self._may_move()
        if self.window.buried_count:
            self._shared.hooks.search_moves(self)
        self.wake()
        self.ttl_ns = policy.msg_ttl_ns
        self._expire_drops = self.ephemeral or policy.on_expired == DROP
        self._cutoff_ns = 0
        if self.ttl_ns:
            self._shared.expiry.watch(self.topic)

    def policy_stats(self):
        """What /stats shows besides a channel's policy, if that is shown."""
        cdef Window window = self.window
        stats = {"expired_count": self.expired_count, "dropped_count": self.dropped_count}
        if window.buried is None and not window.strict and not window.dropped_count:
            return stats
        stats |= {
            "buried": window.buried_count,
            "buried_total": window.buried_total,
            "kicked_total": window.kicked_count,
            "moved_total": self.moved_count,
            "discarded_total": window.discarded_count,
            "dropped_attempts_total": window.dropped_count,
            "not_buried_total": window.no_room_count,
        }
        if self.sweep is not None:
            stats["sweeping"] = {"act": self.sweep.act.value, "left": self.sweep.left}
        return stats

    def _may_move(self):
        self.window.movable = (
            not self.ephemeral and not self.pulled and self.dead_topic is not None)

    @property
    def dead_topic(self):
        """The topic that the policy moves messages to; None if its name would be too long."""
        return dead_topic(self.topic.name, self.name, self.policy.dead_topic)

    def announce(self, exists):
        """The channel was created or deleted: log it and notify nsqlookupd."""
        verb = "created" if exists else "deleted"
        log.info("topic=%s channel=%s: %s", self.topic.name, self.name, verb)
        if exists:
            self._shared.scan.watch(self)
        self._shared.hooks.on_change(self, exists)

    def holds(self, int64_t index):
        """Whether the channel has the message, and has not finished it."""
        cdef Window window = self.window
        if window.buried is not None and index in window.buried:
            return True
        if index < window.cursor:
            return window.describe(index) is not None
        return (index < self._feed.shown_end
                and not any([start <= index < end for start, end in window.skipped]))

    # ---- consumers

    def join(self, Consumer consumer not None):
        self.window.join(consumer)
        self.consumers.append(consumer)

    def leave(self, Consumer consumer not None):
        """Remove a consumer and requeue its messages (R14)."""
        context = self._shared.context
        self.consumers.remove(consumer)
        self.idle_from_ns = context.clock.monotonic_ns()
        self._left_counts[consumer.locality] += consumer.message_count
        if consumer.offered:
            self.ready.remove(consumer)
            consumer.offered = False
        if self._held is consumer:
            self._held = None
        self.window.leave(
            consumer,
            context.options.requeue_on_disconnect and not self.closed,
            context.clock.wall_ns(),
            0 if context.supervisor.exiting else LOST_WAIT_NS,
        )
        if not self.closed:
            if self.window.moving:
                self.move_out(self.window.take_moving())
            self.watch()
            self.touched()
            self.wake()
        self.left()

    def left(self):
        """Hook for ephemeral channels, which are deleted with their last consumer."""

    cpdef offer(self, Consumer consumer):
        """``consumer`` answered or changed RDY; serve it if it has room."""
        self.touched()
        if self.window.moving:
            self.move_out(self.window.take_moving())
        if not consumer.offered and consumer.is_ready():
            consumer.offered = True
            self.ready.append(consumer)
        if self.ready:
            self.wake()
        else:
            self.watch()

    cpdef wake(self):
        """Schedule pump() in this turn of the loop."""
        if not self._woken and not self.closed:
            self._woken = True
            self._turn.wake(self)

    cpdef touched(self):
        """The channel has progress to journal."""
        self._progressed.add(self.topic)
        if self._feed.room_wanted:
            self._turn.room_at(self.topic)

    cdef int watch(self) except -1:
        # Let the scan know the earliest deadlines.  What it knows stays a lower bound until it
        # visits the channel (expire, fire), so later deadlines are not reported.
        cdef int64_t deadline_ns = self.window.deadlines.soonest()
        cdef int64_t deferral_ns = self.window.deferrals.soonest()
        if deadline_ns < self._watched_ns or deferral_ns < self._watched_wall_ns:
            self._watched_ns = min(self._watched_ns, deadline_ns)
            self._watched_wall_ns = min(self._watched_wall_ns, deferral_ns)
            self._turn.watch(self)
        return 0

    # ---- delivery

    cpdef arrive(self, Block block):
        """New messages were released to this channel."""
        self.window.queued_count += block.message_count()
        self.window.message_count += block.message_count()
        if self.ready:
            self.wake()

    def release(self, int64_t start, int64_t end):
        """The topic released messages that it held back."""
        count = self.waiting_between(max(start, self.window.cursor), end)
        self.window.queued_count += count
        self.window.message_count += count
        self.wake()

    def skip(self, index):
        """Finish a message before its first delivery."""
        if index >= self.window.cursor:
            self.window.skip(index, index + 1, int(index < self._feed.released))
            self.touched()

    def skip_range(self, start, end):
        """Finish messages that were never released to this channel."""
        start = max(start, self.window.cursor)  # it may start above what is released
        if start < end:
            self.window.skip(start, end, 0)
        self.touched()

    cpdef pump(self, int64_t now_ns):
        """Deliver a bounded amount to the ready consumers, round-robin."""
        cdef Window window = self.window
        cdef Consumer consumer
        cdef Py_ssize_t budget = turn_count_max, round_count = 0, count, size
        cdef Py_ssize_t tries = LONE_TRY_COUNT
        cdef int64_t even = 0
        self._woken = False
        if self.ttl_ns:
            self._cutoff_ns = self.cutoff_ns(self._shared.context.clock.wall_ns())
        while budget > 0 and not self.paused and not self.closed and self.ready:
            if not round_count:
                # A round: each ready consumer gets an equal share of the depth.
                round_count = len(self.ready)
                even = (window.queued_count + window.ready_count + round_count - 1) // round_count
            round_count -= 1
            consumer = self.ready.popleft()
            count = size = 0
            try:
                if consumer.is_ready():
                    if window.lone_count:
                        count = self.serve_lone(consumer, now_ns, &size)
                    if not count and consumer.is_ready():
                        count = self.serve(consumer, even, now_ns, &size)
            except BaseException:
                # Keep the consumer in the rotation.
                self.ready.appendleft(consumer)
                self._shared.context.retry(self.wake)
                raise
            budget -= max(count, size >> 10, <Py_ssize_t>SEND_COUNT)
            if not consumer.is_ready():
                consumer.offered = False
            elif count:
                self.ready.append(consumer)
            elif window.lone_count and tries and len(self.ready):
                tries -= 1
                self.ready.append(consumer)  # another one may have nothing in flight
            else:
                self.ready.appendleft(consumer)
                break
        if self._held is not None and not window.lone_count:
            self.release_held()
        self.watch()
        if budget <= 0 and self.ready:
            self.wake()

    cdef Py_ssize_t serve_lone(self, Consumer consumer, int64_t now_ns,
                               Py_ssize_t* size) except -1:
        # Send ``consumer`` a message that must be delivered alone (R26), if nothing is in flight to
        # it; return whether it got one.
        #
        # If all ready consumers have something in flight, one of them gets nothing until it has
        # answered or timed out; the others go on.  One that stops taking messages meanwhile (RDY 0,
        # CLS, a full socket) is replaced.  After such a message a consumer gets others first, if
        # there are any (R13).
        cdef Window window = self.window
        if consumer.in_flight_count:
            if self._held is not None and not (self._held.ready_count and self._held.writable):
                self._held.alone = False
                self._held = None
            if self._held is None:
                self._held = consumer
                consumer.alone = True
            return 0
        if self._held is consumer:
            self._held = None
        consumer.alone = False
        if not consumer.rested and (
                window.queued_count or window.ready_count > window.lone_count):
            consumer.rested = True
            return 0
        index = window.next_lone
        if index in self._unreadable:
            window.rotate_lone()
            return 0
        frame = self._frame(index)
        if frame is None:
            return 0
        window.choose_lone()
        if self._cutoff_ns and self._has_expired(index):
            if not self._expire_ready():
                window.set_apart()  # it waits for room where it was
            return 0
        if not frame:
            window.drop_ready()
            return 0
        part = window.redeliver(consumer, frame, now_ns)
        consumer.alone = True
        consumer.rested = False
        size[0] = len(part)
        consumer.client.send([part])
        return 1

    cdef int release_held(self) except -1:
        # Nothing is left that the consumer was kept for.
        cdef Consumer consumer = self._held
        self._held = None
        consumer.alone = False
        if not consumer.offered and consumer.is_ready():
            consumer.offered = True
            self.ready.append(consumer)
            self.wake()
        return 0

    cdef Py_ssize_t serve(self, Consumer consumer, int64_t even, int64_t now_ns,
                          Py_ssize_t* size) except -1:
        # Send ``consumer`` up to ``even`` messages; return their count, and their size.
        #
        # While both fresh and requeued messages wait, each get half of the share (R13).  As in NSQ,
        # a requeued message comes after waiting ones, here after at least one.
        cdef Window window = self.window
        cdef Py_ssize_t share = min(
            consumer.ready_count - consumer.in_flight_count, share_count_max, even)
        cdef int64_t again_count = window.ready_count - window.lone_count
        cdef Py_ssize_t sent = 0, fresh
        cdef list parts = []
        if share <= 0:
            return 0
        consumer.alone = False  # it has answered what it got alone
        try:
            if again_count:
                if window.queued_count:
                    fresh = (share + self._odd_to_fresh) // 2
                    self._odd_to_fresh ^= share & 1
                    fresh = max(fresh, share - again_count)
                    sent = self.send_fresh(consumer, fresh, now_ns, parts)
                again = min(share - sent, again_count)
                sent += self._send_again(consumer, again, now_ns, parts)
            sent += self.send_fresh(consumer, share - sent, now_ns, parts)
        finally:
            if parts:
                consumer.client.send(parts)
        for part in parts:
            size[0] += len(part)
        return sent

    cdef Py_ssize_t send_fresh(self, Consumer consumer, Py_ssize_t want, int64_t now_ns,
                               list parts) except -1:
        cdef Window window = self.window
        cdef int64_t limit = self._feed.released
        cdef Py_ssize_t sent = 0, size = 0, count, stale_max = STALE_COUNT_MAX
        while sent < want and size < chunk_size_max:
            if window.block is None and not self._load():
                break
            if self._cutoff_ns and window.stale_end(self._cutoff_ns, limit) > window.cursor:
                stale_max -= 1
                if not stale_max:
                    self.wake()
                    break
                if not self._expire_fresh(window.stale_end(self._cutoff_ns, limit)):
                    break
                continue
            count = 0
            if consumer.sample_rate:
                given = window.deliver_sampled(consumer, want - sent, turn_count_max, limit, now_ns)
                frames = None
                if given is not None:
                    frames, count = given
            else:
                frames = window.give(
                    consumer, want - sent, chunk_size_max - size, limit, now_ns, &count)
            if frames is None:
                if window.cursor >= limit:
                    break
                continue
            if count:
                parts.append(frames)
            sent += count
            size += len(frames)
        return sent

    cpdef bint _load(self) except -1:
        """Load the block at the cursor; False if there is none, or it is being read."""
        cdef Window window = self.window
        cdef Block block
        cdef int64_t cursor
        while window.block is None:
            cursor = window.cursor
            if cursor >= self._feed.released:
                window.queued_count = 0
                return False
            if self._reading or cursor == self._stuck_cursor:
                return False
            block = self._feed.tail.find(cursor)
            if block is None:
                block = self.topic.block_at(cursor, READ_SIZE, wait=False)
            if block is None:
                self._read_at(cursor)
                return False
            # All of it may be skipped: then load the next one.
            self.take_block(block, self._feed.released)
        return True

    def _read_at(self, cursor):
        self._reading = True
        self._shared.context.disk.submit(
            partial(self.topic.block_at, cursor, READ_SIZE, wait=True),
            partial(self._loaded, cursor, self._feed.released),
        )

    cpdef take_block(self, Block block, int64_t released):
        """Continue in a block of the log, read for the cursor when ``released`` was this."""
        cdef Window window = self.window
        if block.span_count and block.end_index() > window.cursor:
            window.load(block)
        else:
            # Damage or retention removed everything there.  Continue after it, with what was
            # published since the read.
            window.advance(max(window.cursor, released))
            self.touched()
        if window.cursor >= self._feed.released:
            window.queued_count = 0

    def _loaded(self, cursor, released, block, error):
        self._reading = False
        if self.closed:
            return
        retries = self._shared.retries
        if error is not None or block is None:
            self._stuck_cursor = cursor
            retries.failed(self._source, _reason(error), partial(self._load_again, cursor))
            self.wake()  # redeliveries need not wait
            return
        if self._stuck_cursor == cursor:
            self._stuck_cursor = -1
            retries.worked(self._source)
        # The channel may have been emptied while the disk was read.
        if not self.window.loaded and self.window.cursor == cursor:
            self.take_block(block, released)
        self.wake()

    def _load_again(self, cursor):
        if self._stuck_cursor != cursor:
            return
        if self.window.cursor == cursor and not self.closed:
            self._read_at(cursor)
        else:  # emptied since
            self._stuck_cursor = -1
            self._shared.retries.worked(self._source)

    @property
    def _source(self):
        return f"topic={self.topic.name} channel={self.name}"

    @property
    def _source_again(self):
        return f"{self._source}, messages to be sent again"

    cdef Py_ssize_t _send_again(self, Consumer consumer, Py_ssize_t want, int64_t now_ns,
                                list parts) except -1:
        cdef Window window = self.window
        cdef Py_ssize_t sent = 0, size = 0, passed = 0, apart = 0
        cdef int64_t index
        cdef bytes frame
        while sent < want and size < chunk_size_max and window.ready_head >= 0:
            index = window.entries[window.ready_head].index
            if window.attempts_max and window.set_apart():
                apart += 1
                self.wake()
                if apart == APART_COUNT_MAX:
                    break
                continue
            if self._unreadable and index in self._unreadable:
                if not self._pass_over(passed):
                    break
                passed += 1
                continue
            frame = self._frame(index)
            if frame is None:
                break
            if not frame:
                window.drop_ready()
                continue
            if self._cutoff_ns and self._has_expired(index):
                if not self._expire_ready():
                    break
                continue
            parts.append(window.redeliver(consumer, frame, now_ns))
            sent += 1
            size += len(frame)
        return sent

    def _pass_over(self, passed):
        """Move an unreadable message to the end of the queue, if it is not alone."""
        count = len(self._unreadable)
        plain_count = self.window.ready_count - self.window.lone_count
        if count >= min(plain_count, UNREADABLE_COUNT_MAX):
            return False
        if passed == PASS_COUNT_MAX:
            self.wake()
            return False
        self.window.rotate_ready()
        return True

    def _frame(self, index):
        """The frame of a message to redeliver; b"" if the log lost it, None while reading."""
        if self._redelivery is not None:
            frame = self._redelivery.frame(index)
            if frame is not None:
                return frame
        if self._redelivery_before is not None:
            frame = self._redelivery_before.frame(index)
            if frame is not None:
                self._take_redelivery(self._redelivery_before)
                return frame
        if self._cold_frame is not None and self._cold_frame[0] == index:
            return self._cold_frame[1]
        if self._reading:
            return None
        # Redeliveries are often neighbours: read a block of them at once.  Those on their second
        # attempt and those on their third are in two places of the log, and take turns.
        block = self.topic.block_at(index, REDELIVERY_SIZE, wait=False)
        if block is not None:
            self._take_redelivery(block)
            frame = block.frame(index)
            if frame is not None:
                return frame
        found = None if self.ttl_ns else self.topic.frame(index, wait=False)
        if found is None:
            self._read_frame(index)
        return found

    cdef int _take_redelivery(self, Block block) except -1:
        self._redelivery_before, self._redelivery = self._redelivery, block
        return 0

    def _appended_ns(self, index):
        """When the message that ``_frame`` found was appended; 0: not known."""
        return 0 if self._redelivery is None else self._redelivery.append_ns(index)

    def _has_expired(self, index):
        """Whether the message that ``_frame`` found is too old to be delivered again.

        A kicked one is not: someone wants it delivered, whatever its age.
        """
        return (0 < self._appended_ns(index) < self._cutoff_ns
                and not self.window.was_kicked(index))

    def _read_frame(self, index):
        self._reading = True
        if self.ttl_ns:  # with its batch, which says how old it is
            self._shared.context.disk.submit(
                partial(self.topic.block_at, index, 1, wait=True),
                partial(self._redelivery_read, index))
            return
        self._shared.context.disk.submit(
            partial(self.topic.frame, index, wait=True), partial(self._frame_read, index)
        )

    def _redelivery_read(self, index, block, error):
        if block is not None:
            self._take_redelivery(block)
        self._frame_read(index, None if block is None else block.frame(index) or b"", error)

    def _frame_read(self, index, found, error):
        self._reading = False
        if self.closed:
            return
        retries = self._shared.retries
        if found is None:
            if not self._unreadable or index in self._unreadable:
                # Retry one on behalf of all.
                again = partial(self._frame_again, index)
                retries.failed(self._source_again, _reason(error), again)
            self._unreadable[index] = None
        else:
            self._cold_frame = (index, found)
            if index in self._unreadable:
                self._unreadable.clear()
            if not self._unreadable:
                retries.worked(self._source_again)
        self.wake()

    def _frame_again(self, index):
        if index in self._unreadable and not self.closed:
            self._read_frame(index)

    # ---- time

    def expire(self, now_ns):
        """Requeue messages that timed out; whether there were any."""
        cdef Window window = self.window
        cdef int64_t timeout_count = window.timeout_count
        self._watched_ns = INT64_MAX
        wall_ns = self._shared.context.clock.wall_ns()
        for consumer in window.expire(now_ns, DUE_COUNT_MAX, wall_ns):
            self.offer(consumer)
        if window.moving:
            self.move_out(window.take_moving())
        if window.timeout_count == timeout_count:
            return False
        self.touched()
        self.wake()
        return True

    def fire(self, wall_ns):
        """Make deferred messages that are due ready; whether there were any."""
        self._watched_wall_ns = INT64_MAX
        fired = self.window.fire(wall_ns, DUE_COUNT_MAX)
        if fired:
            self.wake()
        return bool(fired)

    # ---- giving up messages

    def cutoff_ns(self, int64_t wall_ns):
        """Messages appended before this have expired; 0: none can have.

        The age of those that were in the log when the channel started in the past counts from then.
        They are older than the others: as long as they have not expired, nothing has.
        """
        cdef int64_t cutoff_ns = wall_ns - self.ttl_ns
        return cutoff_ns if self.ttl_ns and cutoff_ns > max(<int64_t>0, self.begun_ns) else 0

    def _expire_fresh(self, int64_t end):
        """The messages from the cursor up to ``end``, of one batch, have expired.

        False if they cannot be buried now: then they wait, undelivered.
        """
        cdef int64_t start = self.window.cursor
        if self._expire_drops:
            self.window.pass_over(end, end - start)
            self.expired_count += end - start
            self.touched()
            return True
        end = min(end, start + DUE_COUNT_MAX)
        return self._bury_expired(range(start, end)) == end - start

    def _bury_expired(self, indexes):
        """Bury messages from the cursor on, in order; returns how many there was room for."""
        cdef int64_t now_ns = self._shared.context.clock.wall_ns()
        buried = []
        for index in indexes:
            if not self.window.bury_fresh(index, EXPIRED, now_ns):
                break
            buried.append(index)
        self._buried(buried)
        return len(buried)

    def _buried(self, indexes):
        self.expired_count += len(indexes)
        if (indexes and self.window.movable
                and (self.policy.on_expired == MOVE or self.window.is_full())):
            self.move_out(indexes)
        self.touched()

    def _expire_ready(self):
        """The next ready message has expired; False if it cannot be buried now."""
        index = self.window.next_ready
        if self._expire_drops:
            self.window.drop_ready()
            self.expired_count += 1
            self.touched()
        elif self.window.bury_ready(EXPIRED, self._shared.context.clock.wall_ns()):
            self._buried([index])
        else:
            return False
        return True

    def expire_below(self, int64_t end):
        """Give up what waits below ``end``, which has expired; return whether there is more."""
        cdef int64_t fresh_end = min(end, self._feed.released)
        if self.window.cursor < fresh_end and self._expire_waiting(fresh_end):
            return True
        more = self._expire_again(end)
        if self._held is not None and not self.window.lone_count:
            self.wake()  # nothing is left that a consumer is kept for
        return more

    def _expire_waiting(self, int64_t end):
        """Give up messages from the cursor on; whether there is more."""
        cdef Window window = self.window
        if self._expire_drops:
            count = self.waiting_between(window.cursor, end)
            window.pass_over(end, count)
            self.expired_count += count
            self.touched()
            return False
        indexes = []
        for start, stop in self.topic.log.existing(window.cursor, end):
            indexes += range(start, min(stop, start + DUE_COUNT_MAX - len(indexes)))
            if len(indexes) >= DUE_COUNT_MAX:
                break
        skipped = window.skipped
        wanted = [i for i in indexes if not any([a <= i < b for a, b in skipped])]
        if self._bury_expired(wanted) < len(wanted):
            return False  # no room: the next second tries again
        window.advance(indexes[len(indexes) - 1] + 1 if indexes else end)
        return window.cursor < end

    def _expire_again(self, int64_t end):
        """Give up messages that were delivered before and wait again; whether there is more.

        They are in no order: all that are ready are looked at once, over several calls.
        """
        cdef Py_ssize_t left = self._unaged_count or self.window.ready_count
        cdef Py_ssize_t least = max(0, left - AGED_COUNT_MAX)
        for _ in range(DUE_COUNT_MAX):
            left, found = self.window.find_old(end, left, least)
            if not found:
                break
            if not self._expire_ready():
                self.window.set_apart()
                left = 0  # no room: the next second tries again
                break
        self._unaged_count = left
        return left > 0

    def drop_below(self, int64_t end):
        """Finish everything below ``end``, in flight included (R20)."""
        cdef Window window = self.window
        count, consumers = window.drop_below(end)
        if window.cursor < end:
            queued_end = max(window.cursor, min(end, self._feed.released))
            queued_count = self.waiting_between(window.cursor, queued_end)
            count += queued_count + self.waiting_between(queued_end, end)
            window.pass_over(end, queued_count)
        self.dropped_count += count
        self._redelivery = self._redelivery_before = self._cold_frame = None
        if self._unreadable:
            self._unreadable.clear()
            self._shared.retries.worked(self._source_again)
        for consumer in consumers:
            self.offer(consumer)
        self.touched()
        self.wake()

    def waiting_between(self, int64_t start, int64_t end):
        """Messages in [start, end), at or above the cursor, that are not skipped."""
        if start >= end:
            return 0
        count = self.topic.log.count_between(start, end)
        for first, stop in self.window.skipped:
            if first < end and stop > start:
                count -= self.topic.log.count_between(max(first, start), min(stop, end))
        return count

    # ---- operations

    def pause(self, paused):
        self.paused = paused
        if not paused:
            self.wake()
        return self.topic.save_channel(self)

    def move_out(self, indexes):
        """Move buried messages to the dead topic (R25)."""
        self._shared.hooks.move_out(self, indexes)

    def empty(self):
        """Discard all messages: queued, in flight and deferred.  Buried ones stay."""
        self.window.clear(self._feed.released)
        self._forget_reads()
        self.defer_stamp = self._shared.identity.stamp()
        self._shared.deferred.cut(self.topic.instance, self.defer_stamp)
        for consumer in self.consumers:
            self.offer(consumer)
        return self.topic.save_channel(self)

    def begin(self, int64_t begun_ns):
        """A new channel does not start where the topic's messages wait, but where its window does.

        ``begun_ns``: now, from when on the age of what is in the log already counts.
        """
        self._count_from_cursor(begun_ns)
        self.window.message_count = self.window.queued_count

    def rewind(self, int64_t id, int64_t start, int64_t begun_ns):
        """Deliver everything from ``start`` on again, as the channel ``id`` (R22)."""
        self.id = id
        self.named = False
        self.window.rewind(start)
        self._count_from_cursor(begun_ns)
        self._forget_reads()
        for consumer in self.consumers:
            self.offer(consumer)
        self.wake()

    def _count_from_cursor(self, begun_ns):
        self.window.queued_count = self.stored_between(self.window.cursor, self._feed.released)
        self.begun_ns, self.begun_end = begun_ns, self._feed.shown_end

    def stored_between(self, start, end):
        """How many messages of the topic's log are in [start, end)."""
        return self.topic.log.count_between(start, end)

    def _forget_reads(self):
        self._redelivery = self._redelivery_before = self._cold_frame = None
        if self._unreadable:
            self._unreadable.clear()
            self._shared.retries.worked(self._source_again)

    def close(self):
        """Stop delivering and disconnect the consumers (channel or topic deleted)."""
        self.closed = True
        self._shared.scan.forget(self)
        for source in (self._source, self._source_again):
            self._shared.retries.worked(source)
        for consumer in list(self.consumers):
            consumer.client.close()


def _reason(error):
    return error if error is not None else OSError("not read")
