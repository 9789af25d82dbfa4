"""A channel: a cursor over its topic's log, and the consumers that share its messages."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.block import Block
from penstock.core.latency import Latency
from penstock.core.ticket import Ticket, settled
from penstock.core.window import Consumer, Window
from penstock.engine.stats.latency import Percentiles, measured
from penstock.engine.topology import EXPERIMENT, LOCALITIES, NearestFirst

if TYPE_CHECKING:
    from penstock.engine.base import BaseTopic
    from penstock.storage.channel_reader import ChannelReader

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
# A lost consumer's message waits 1 s, 2 s, 4 s ... from its second delivery on (R14).
LOST_WAIT_NS = 1_000_000_000
# Unreadable messages that wait for redelivery: how many a turn skips, and how many are remembered.
PASS_COUNT_MAX = 16
UNREADABLE_COUNT_MAX = 1024


class Channel:
    """Delivery of one topic to one group of consumers."""

    ephemeral = False
    pulled = False  # see pull/channel.py
    plain = True  # new messages are only counted, and sent from the log
    named = False  # created because an nsqlookupd listed it, and not used since
    partial = False  # a pull channel created at an index where messages had been removed
    reader: ChannelReader | None = None  # of a pull channel bound to one

    def __init__(self, topic: BaseTopic, name: str, window: Window, *, id: int = 0) -> None:
        shared = topic.shared
        self.topic = topic
        self.name = name
        self.number = next(shared.channel_numbers)
        self.id = id
        self.window = window
        self.paused = False
        self.closed = False
        self.defer_stamp = 0
        self.created: Ticket = settled()
        self.consumers: list[Consumer] = []
        self._shared = shared
        self._turn = shared.turn
        options = shared.context.options
        near = EXPERIMENT in options.enable_experiment
        self.ready: deque[Consumer] | NearestFirst = NearestFirst() if near else deque()
        if options.e2e_processing_latency_percentiles:
            window.latency = Latency(options.e2e_processing_latency_window_time_ns)
        # Messages sent to consumers that have left, by locality.
        self._left_counts = [0] * len(LOCALITIES)
        self._woken = False
        self._reading = False
        self._odd_to_fresh = 1  # who gets the odd message of a share
        self.held_skip_count = 0
        self._redelivery: Block | None = None
        self._cold_frame: tuple[int, bytes] | None = None
        self._stuck_cursor = -1  # where a read failed, until it succeeds
        self._unreadable: dict[int, None] = {}  # messages to redeliver whose read failed

    # ---- what /stats shows

    @property
    def message_count(self) -> int:
        return self.window.message_count

    @property
    def depth(self) -> int:
        return self.window.depth

    @property
    def backend_depth(self) -> int:
        """What NSQ would have on disk: the depth beyond its memory queue."""
        return max(0, self.depth - self._shared.context.options.mem_queue_size)

    @property
    def in_flight_count(self) -> int:
        return self.window.in_flight_count

    @property
    def deferred_count(self) -> int:
        """Messages requeued with a delay, and the topic's deferred publishes for this channel."""
        return self.window.deferred_count + self.topic.deferred_pending(self.defer_stamp)

    @property
    def requeue_count(self) -> int:
        return self.window.requeue_count

    @property
    def timeout_count(self) -> int:
        return self.window.timeout_count

    @property
    def finish_count(self) -> int:
        return self.window.finish_count

    @property
    def delivery_counts(self) -> list[int]:
        """Messages sent, redeliveries included, by locality of the consumer."""
        counts = self._left_counts.copy()
        for consumer in self.consumers:
            counts[consumer.locality] += consumer.message_count
        return counts

    @property
    def latency(self) -> Percentiles:
        """Times from publish to finish."""
        shares = self._shared.context.options.e2e_processing_latency_percentiles
        return measured((self.window.latency,), shares, self._shared.context.clock.wall_ns())

    @property
    def pull(self) -> dict[str, Any] | None:
        """What /stats shows for a pull channel; None for other channels."""
        return None

    def announce(self, exists: bool) -> None:
        """The channel was created or deleted: log it and notify nsqlookupd."""
        verb = "created" if exists else "deleted"
        log.info("topic=%s channel=%s: %s", self.topic.name, self.name, verb)
        if exists:
            self._shared.scan.watch(self)
        self._shared.hooks.on_change(self, exists)

    # ---- consumers

    def join(self, consumer: Consumer) -> None:
        self.window.join(consumer)
        self.consumers.append(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer and requeue its messages (R14)."""
        context = self._shared.context
        self.consumers.remove(consumer)
        self._left_counts[consumer.locality] += consumer.message_count
        if consumer.offered:
            self.ready.remove(consumer)
            consumer.offered = False
        self.window.leave(
            consumer,
            context.options.requeue_on_disconnect and not self.closed,
            context.clock.wall_ns(),
            0 if context.supervisor.exiting else LOST_WAIT_NS,
        )
        if not self.closed:
            self._turn.watch(self)
            self.touched()
            self.wake()
        self.left()

    def left(self) -> None:
        """Hook for ephemeral channels, which are deleted with their last consumer."""

    def offer(self, consumer: Consumer) -> None:
        """``consumer`` answered or changed RDY; serve it if it has room."""
        self.touched()
        if consumer.ready and not consumer.offered:
            consumer.offered = True
            self.ready.append(consumer)
        if self.ready:
            self.wake()
        else:
            self._turn.watch(self)

    def wake(self) -> None:
        """Schedule pump() in this turn of the loop."""
        if not self._woken and not self.closed:
            self._woken = True
            self._turn.wake(self)

    def touched(self) -> None:
        """The channel has progress to journal."""
        self.topic.journal_later()

    # ---- delivery

    def arrive(self, block: Block) -> None:
        """New messages were released to this channel."""
        self.window.queued_count += block.count
        self.window.message_count += block.count
        if self.ready:
            self.wake()

    def release(self, start: int, end: int, count: int) -> None:
        """The topic released messages that it held back."""
        self.window.queued_count += count - self.held_skip_count
        self.window.message_count += count - self.held_skip_count
        self.held_skip_count = 0
        self.wake()

    def skip(self, index: int) -> None:
        """Finish a message before its first delivery."""
        if index >= self.window.cursor:
            released = index < self.topic.released
            self.window.skip(index, index + 1, int(released))
            self.held_skip_count += not released
            self.touched()

    def skip_range(self, start: int, end: int) -> None:
        """Finish messages that were never released to this channel."""
        self.window.skip(start, end, 0)
        self.held_skip_count = 0
        self.touched()

    def pump(self, now_ns: int) -> None:
        """Deliver a bounded amount to the ready consumers, round-robin."""
        self._woken = False
        budget = TURN_COUNT_MAX
        round_count = even = 0
        while self.ready and budget > 0 and not self.paused and not self.closed:
            if not round_count:
                # A round: each ready consumer gets an equal share of the depth.
                round_count = len(self.ready)
                even = -(-self.window.depth // round_count)
            round_count -= 1
            consumer = self.ready.popleft()
            try:
                count, size = self._serve(consumer, even, now_ns) if consumer.ready else (0, 0)
            except BaseException:
                # Keep the consumer in the rotation.
                self.ready.appendleft(consumer)
                self._shared.context.retry(self.wake)
                raise
            budget -= max(count, size >> 10)
            if not consumer.ready:
                consumer.offered = False
            elif count:
                self.ready.append(consumer)
            else:
                self.ready.appendleft(consumer)
                break
        self._turn.watch(self)
        if self.ready and budget <= 0:
            self.wake()

    def _serve(self, consumer: Consumer, even: int, now_ns: int) -> tuple[int, int]:
        """Send ``consumer`` up to ``even`` messages; return their count and size.

        While both fresh and requeued messages wait, each get half of the share (R13).  As in NSQ,
        a requeued message comes after waiting ones, here after at least one.
        """
        window = self.window
        share = min(consumer.room, SHARE_COUNT_MAX, even)
        if share <= 0:
            return 0, 0
        parts: list[bytes | memoryview] = []
        sent = 0
        try:
            if window.ready_count:
                if window.queued_count:
                    fresh = (share + self._odd_to_fresh) // 2
                    self._odd_to_fresh ^= share & 1
                    sent = self._send_fresh(
                        consumer, max(fresh, share - window.ready_count), now_ns, parts
                    )
                again = min(share - sent, window.ready_count)
                sent += self._send_again(consumer, again, now_ns, parts)
            sent += self._send_fresh(consumer, share - sent, now_ns, parts)
        finally:
            if parts:
                consumer.client.send(parts)
        return sent, sum(map(len, parts))

    def _send_fresh(
        self, consumer: Consumer, want: int, now_ns: int, parts: list[bytes | memoryview]
    ) -> int:
        window = self.window
        limit = self.topic.released
        sent = size = 0
        while sent < want and size < CHUNK_SIZE_MAX:
            if not window.loaded and not self._load():
                break
            given: tuple[bytes | memoryview, int] | None
            if consumer.sample_rate:
                given = window.deliver_sampled(consumer, want - sent, TURN_COUNT_MAX, limit, now_ns)
            else:
                room = CHUNK_SIZE_MAX - size
                given = window.deliver(consumer, want - sent, room, limit, now_ns)
            if given is None:
                if window.cursor >= limit:
                    break
                continue
            frames, count = given
            if count:
                parts.append(frames)
            sent += count
            size += len(frames)
        return sent

    def _load(self) -> bool:
        """Load the block at the cursor; False if there is none, or it is being read."""
        window = self.window
        while not window.loaded:
            cursor = window.cursor
            if cursor >= self.topic.released:
                window.queued_count = 0
                return False
            if self._reading or cursor == self._stuck_cursor:
                return False
            block = self.topic.block_at(cursor, READ_SIZE, wait=False)
            if block is None:
                self._read_at(cursor)
                return False
            self._take_block(block)  # all of it may be skipped: then load the next one
        return True

    def _read_at(self, cursor: int) -> None:
        self._reading = True
        self._shared.context.disk.submit(
            partial(self.topic.block_at, cursor, READ_SIZE, wait=True),
            partial(self._loaded, cursor),
        )

    def _take_block(self, block: Block) -> None:
        window = self.window
        if block.count and block.end > window.cursor:
            window.load(block)
        else:
            # Damage or retention removed everything there.  Continue after it.
            window.advance(self.topic.released)
            self.touched()
        if window.cursor >= self.topic.released:
            window.queued_count = 0

    def _loaded(self, cursor: int, block: Block | None, error: Exception | None) -> None:
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
            self._take_block(block)
        self.wake()

    def _load_again(self, cursor: int) -> None:
        if self._stuck_cursor != cursor:
            return
        if self.window.cursor == cursor and not self.closed:
            self._read_at(cursor)
        else:  # emptied since
            self._stuck_cursor = -1
            self._shared.retries.worked(self._source)

    @property
    def _source(self) -> str:
        return f"topic={self.topic.name} channel={self.name}"

    @property
    def _source_again(self) -> str:
        return f"{self._source}, messages to be sent again"

    def _send_again(
        self, consumer: Consumer, want: int, now_ns: int, parts: list[bytes | memoryview]
    ) -> int:
        sent = size = passed = 0
        while sent < want and size < CHUNK_SIZE_MAX:
            index = self.window.next_ready
            if index is None:
                break
            if index in self._unreadable:
                if not self._pass_over(passed):
                    break
                passed += 1
                continue
            frame = self._frame(index)
            if frame is None:
                break
            if not frame:
                self.window.drop_ready()
                continue
            parts.append(self.window.redeliver(consumer, frame, now_ns))
            sent += 1
            size += len(frame)
        return sent

    def _pass_over(self, passed: int) -> bool:
        """Move an unreadable message to the end of the queue, if it is not alone."""
        count = len(self._unreadable)
        if count >= min(self.window.ready_count, UNREADABLE_COUNT_MAX):
            return False
        if passed == PASS_COUNT_MAX:
            self.wake()
            return False
        self.window.rotate_ready()
        return True

    def _frame(self, index: int) -> bytes | None:
        """The frame of a message to redeliver; b"" if the log lost it, None while reading."""
        if self._redelivery is not None:
            frame = self._redelivery.frame(index)
            if frame is not None:
                return frame
        if self._cold_frame is not None and self._cold_frame[0] == index:
            return self._cold_frame[1]
        if self._reading:
            return None
        # Redeliveries are often neighbours: read a block of them at once.
        block = self.topic.block_at(index, REDELIVERY_SIZE, wait=False)
        if block is not None:
            self._redelivery = block
            frame = block.frame(index)
            if frame is not None:
                return frame
        found = self.topic.frame(index, wait=False)
        if found is None:
            self._read_frame(index)
        return found

    def _read_frame(self, index: int) -> None:
        self._reading = True
        self._shared.context.disk.submit(
            partial(self.topic.frame, index, wait=True), partial(self._frame_read, index)
        )

    def _frame_read(self, index: int, found: bytes | None, error: Exception | None) -> None:
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

    def _frame_again(self, index: int) -> None:
        if index in self._unreadable and not self.closed:
            self._read_frame(index)

    # ---- time

    def expire(self, now_ns: int) -> bool:
        """Requeue messages that timed out; whether there were any."""
        consumers = self.window.expire(now_ns, DUE_COUNT_MAX)
        for consumer in consumers:
            self.offer(consumer)
        if consumers or self.window.ready_count:
            self.touched()
            self.wake()
        return bool(consumers)

    def fire(self, wall_ns: int) -> bool:
        """Make deferred messages that are due ready; whether there were any."""
        fired = self.window.fire(wall_ns, DUE_COUNT_MAX)
        if fired:
            self.wake()
        return bool(fired)

    # ---- operations

    def pause(self, paused: bool) -> Ticket:
        self.paused = paused
        if not paused:
            self.wake()
        return self.topic.save_channel(self)

    def empty(self) -> Ticket:
        """Discard all messages: queued, in flight and deferred."""
        self.window.clear(self.topic.released)
        self._redelivery = self._cold_frame = None
        if self._unreadable:
            self._unreadable.clear()
            self._shared.retries.worked(self._source_again)
        self.defer_stamp = self._shared.identity.stamp()
        self._shared.deferred.cut(self.topic.instance, self.defer_stamp)
        for consumer in self.consumers:
            self.offer(consumer)
        return self.topic.save_channel(self)

    def close(self) -> None:
        """Stop delivering and disconnect the consumers (channel or topic deleted)."""
        self.closed = True
        self._shared.scan.forget(self)
        for source in (self._source, self._source_again):
            self._shared.retries.worked(source)
        for consumer in list(self.consumers):
            consumer.client.close()


def _reason(error: Exception | None) -> Exception:
    return error if error is not None else OSError("not read")
