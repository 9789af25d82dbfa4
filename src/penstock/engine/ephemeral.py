"""Ephemeral channels and topics: in memory only, bounded, deleted with their last user (R15).

An ephemeral channel that has ``mem_queue_size`` messages, or keeps ``mem_queue_bytes``, drops new
ones on arrival, as nsqd does.  Its topic's ``max_messages`` and ``max_bytes`` bound it in the same
way (R20).  It keeps messages that wait, are in flight or were requeued, in its
own blocks, so it never pins a segment.

One that starts in the past is ``behind``: it reads the log by cursor, as far as the log still has
the messages, and counts the others as dropped.  At the end of the log it becomes an ordinary one.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain

from penstock.core.appender import Appender
from penstock.core.block import Block
from penstock.core.ticket import Ticket, settled
from penstock.core.window import Window
from penstock.engine.base import BaseTopic
from penstock.engine.channel import READ_SIZE, Channel
from penstock.engine.deferred.queue import Due
from penstock.engine.policy.subjects import RuledChannel
from penstock.engine.shared import Shared, random_number
from penstock.wire.names import is_ephemeral

# Delivered blocks kept complete; of older ones only the unfinished messages are kept.
SENT_BLOCK_COUNT = 8
# Memory that a single kept message needs besides its bytes.
HELD_OVERHEAD_SIZE = 256


class EphemeralChannel(Channel):
    """Delivers from its own bounded queue of blocks."""

    ephemeral = True
    plain = False

    def __init__(self, topic: BaseTopic, name: str, start: int | None = None) -> None:
        start = topic.released if start is None else start
        super().__init__(topic, name, Window(start, False, random_number()))
        self._blocks: deque[Block] = deque()
        self._sent: deque[Block] = deque()
        self._held: dict[int, bytes] = {}
        self._held_ns: dict[int, int] = {}  # their append times, while they may expire
        self._memory = topic.shared.ephemeral
        self._count_max = topic.shared.context.options.mem_queue_size
        self._size = 0  # of all of these
        self.behind = False  # new messages are only counted, and read from the log
        self._sorted_gone_count = 0

    @property
    def backend_depth(self) -> int:
        return 0

    def begin(self, begun_ns: int) -> None:
        self.behind = True
        super().begin(begun_ns)

    def rewind(self, id: int, start: int, begun_ns: int) -> None:
        self.behind = True
        self._forget()
        super().rewind(id, start, begun_ns)

    def arrive(self, block: Block) -> None:
        window = self.window
        if self.behind and (window.queued_count or window.cursor > block.first):
            super().arrive(block)
        else:
            self.behind = False
            self._accept(block)

    def _accept(self, block: Block) -> bool:
        """Accept as many messages as there is room for; whether that is all."""
        memory, block_count, window = self._memory, block.count, self.window
        count = min(block_count, self._count_max - window.depth)
        if count_max := self.topic.policy.max_messages:
            count = min(count, count_max - window.queued_count - window.unfinished_count)
        if count > 0 and block.size > self._room():
            self._make_room()
            count = min(count, block.count_within(self._room()))
        if count < block_count:
            memory.dropped_count += block_count - max(0, count)
            if count <= 0:
                return False
            block = block.head(count)
        self._resize(block.size)
        self._blocks.append(block)
        super().arrive(block)
        for start, end in (0, window.cursor), *window.skipped:
            if end > block.first:  # skipped while the topic held the block back
                passed = block.indexes(start, end - start)
                window.queued_count -= sum(index < end for index in passed)
        return count == block_count

    def _room(self) -> int:
        """Bytes that may be added."""
        return _least(self._memory.room(self._size), self.topic.policy.max_bytes, self._size)

    def _resize(self, size: int) -> None:
        self._size += size
        self._memory.size += size

    def release(self, start: int, end: int) -> None:
        """Accept messages that the topic held back, as far as there is room."""
        if self.behind:
            super().release(start, end)
            return
        while start < end:
            block = self.topic.block_at(start, READ_SIZE, wait=True)
            if block is None or block.end <= start or not self._accept(block):
                break
            start = block.end

    def skip(self, index: int) -> None:
        """Finish a message before its first delivery, if the channel has it or may get it."""
        if self.behind:
            super().skip(index)
        elif index >= self.window.cursor:
            self.window.skip(index, index + 1, int(self._has(index)))

    def _has(self, index: int) -> bool:
        """Whether an undelivered message was accepted."""
        for block in chain(reversed(self._blocks), reversed(self._sent)):
            if block.first <= index:
                return index < block.end
        return False

    def touched(self) -> None:
        """Nothing of an ephemeral channel is journaled."""

    def left(self) -> None:
        if not self.consumers and not self.closed and is_ephemeral(self.name):
            self.topic.delete_channel(self.name)

    def empty(self) -> Ticket:
        # One that starts above what is released does not get what comes before that.
        self.behind = self.behind and self.window.cursor > self.topic.released
        self._forget()
        return super().empty()

    def close(self) -> None:
        super().close()
        self._forget()

    def _forget(self) -> None:
        self._blocks.clear()
        self._sent.clear()
        self._held.clear()
        self._held_ns.clear()
        self._resize(-self._size)

    def _load(self) -> bool:
        if self.behind:
            return self._load_stored()
        while self._blocks:
            block = self._blocks.popleft()
            if block.end > self.window.cursor:
                self.window.load(block)
                self._sent.append(block)
                self._shed()
                if self.window.loaded:
                    return True
                # All of it is skipped.
            else:
                self._resize(-block.size)
        return False

    def _load_stored(self) -> bool:
        if self._size and self._memory.room(self._size) < READ_SIZE:
            self._make_room()
            if self._size and self._memory.room(self._size) < READ_SIZE:
                return False  # until more is finished
        if super()._load():
            return True
        self.behind = self.window.cursor != self.topic.released
        return False

    def take_block(self, block: Block, released: int) -> None:
        """Continue in a block of the log."""
        self._count_removed(block.first if block.span_count else released)
        super().take_block(block, released)
        if self.window.loaded:
            self._resize(block.size)
            self._sent.append(block)
            self._shed()

    def _count_removed(self, first: int) -> None:
        """Count what was removed between the cursor and ``first``."""
        window = self.window
        if first <= window.cursor:
            return
        released = self.topic.released
        left = self.stored_between(first, released)
        for start, end in window.skipped:
            left -= self.stored_between(max(start, first), min(end, released))
        if left < window.queued_count:
            self._memory.dropped_count += window.queued_count - left
            window.queued_count = left

    def _shed(self, count: int = SENT_BLOCK_COUNT) -> None:
        """Drop sent blocks, keeping copies of their unfinished messages."""
        while len(self._sent) > count:
            block = self._sent.popleft()
            self._resize(-block.size)
            for index in self.window.unfinished(block.first, block.end, block.count) or ():
                frame = block.frame(index)
                if frame is not None:
                    self._held[index] = frame
                    if self.ttl_ns:
                        self._held_ns[index] = block.append_ns(index)
                    self._resize(len(frame) + HELD_OVERHEAD_SIZE)
        if len(self._held) > 2 * self.window.unfinished_count + 64:
            self._sort_out()

    def _sort_out(self) -> None:
        """Drop single messages that are finished."""
        self._sorted_gone_count = self._gone_count
        for index in [index for index in self._held if not self.window.describe(index)]:
            self._resize(-len(self._held.pop(index)) - HELD_OVERHEAD_SIZE)
            self._held_ns.pop(index, None)

    @property
    def _gone_count(self) -> int:
        """Messages that were finished or given up."""
        return self.window.finish_count + self.window.dropped_count + self.expired_count

    def _make_room(self) -> None:
        """Drop everything that is finished."""
        sending = bool(self._sent) and self._sent[-1].end > self.window.cursor
        self._shed(int(sending))
        # With few gone since the last search, another would find little.
        if self._gone_count - self._sorted_gone_count > len(self._held) // 8:
            self._sort_out()

    def kept_frame(self, index: int) -> bytes:
        """A delivered message that may be redelivered; b"" if it is not kept."""
        return self._frame(index) or b""

    def kept_blocks(self) -> list[Block]:
        """All undelivered messages, possibly with delivered ones before them; in order."""
        return [*self._sent, *self._blocks]

    def _frame(self, index: int) -> bytes | None:
        for block in reversed(self._sent):
            frame = block.frame(index)
            if frame is not None:
                return frame
        return self._held.get(index, b"")

    def _appended_ns(self, index: int) -> int:
        for block in reversed(self._sent):
            if append_ns := block.append_ns(index):
                return append_ns
        return self._held_ns.get(index, 0)

    def expire_below(self, end: int) -> bool:
        """Only a delivery gives up messages: there is a consumer, and little waits."""
        return False


def _least(room: int, bound: int, used: int) -> int:
    """``room``, or what a bound that is set leaves of it."""
    return min(room, max(0, bound - used)) if bound else room


class EphemeralTopic(BaseTopic):
    """A topic without a log: blocks go straight to the channels, or wait in a bounded queue."""

    ephemeral = True

    def __init__(self, shared: Shared, name: str, node_id: int, first: int) -> None:
        super().__init__(shared, name, random_number(), first)
        self.appender = Appender(name, node_id, first, partial(shared.turn.flush_later, self))
        self._memory = shared.ephemeral
        self._waiting: deque[Block] = deque()
        self._waiting_size = 0
        self._fired: deque[list[Due]] = deque()

    @property
    def backend_depth(self) -> int:
        return 0

    def flush(self) -> None:
        while self.appender.count or self._fired:
            dues: list[Due] = []
            if not self.appender.count:
                dues = self._fired.popleft()
                for due in dues:
                    self.appender.add(due.body, due.timestamp_ns)
            batch = self.appender.seal(0)
            block = batch.block(self.appender.node_id)
            if self.feed.frozen:
                self.feed.hold(block, batch.body_size, self._wait(block))
            else:
                self.feed.count_in(block, batch.body_size)
            self.skip_void(dues, batch.first)
            batch.ticket.settle()
            if dues:
                self.shared.deferred.fired(dues)

    def _wait(self, block: Block) -> int:
        """Keep as many messages as there is room for; return how many."""
        memory, block_count = self._memory, block.count
        count = _least(
            self._options.mem_queue_size - self.depth, self.policy.max_messages, self.depth
        )
        count = min(block_count, count)
        room = memory.room(self._waiting_size)
        room = _least(room, self.policy.max_bytes, self._waiting_size)
        if block.size > room:
            count = min(count, block.count_within(room))
        if count < block_count:
            memory.dropped_count += block_count - max(0, count)
            if count <= 0:
                return 0
            block = block.head(count)
        self._waiting.append(block)
        self._resize(block.size)
        return count

    def _resize(self, size: int) -> None:
        self._waiting_size += size
        self._memory.size += size

    def release(self) -> None:
        if not self.feed.frozen:
            self.feed.release()
            while self._waiting:
                block = self._waiting.popleft()
                self._resize(-block.size)
                for channel in self.channels.values():
                    channel.arrive(block)

    def _defer(self, body: bytes, now_ns: int, due_ns: int, stamp: int) -> Ticket:
        # Beyond the limit it is dropped, like a publish.
        if not self.shared.deferred.defer_memory(
            self.name, self.instance, body, now_ns, due_ns, stamp
        ):
            self._memory.dropped_count += 1
        return settled()

    def fire(self, dues: list[Due]) -> None:
        self._fired.append(dues)
        self.flush()

    def create_channel(
        self, name: str, *, named: bool = False, start: int | None = None
    ) -> tuple[Channel, Ticket]:
        channel = self.channels.get(name)
        if channel is None:
            channel = EphemeralChannel(self, name)
            self.channels[name] = channel
            self.shared.policies.admit_channel(channel)
            self.release()
            channel.announce(True)
        return channel, settled()

    def delete_channel(self, name: str) -> Ticket:
        channel = self.channels.pop(name)
        channel.close()
        channel.announce(False)
        if not self.channels and not self.closed:
            self.shared.hooks.on_deserted(self)
        return settled()

    def pause(self, paused: bool) -> Ticket:
        self.feed.pause(paused)
        self.release()
        return settled()

    def empty(self) -> Ticket:
        self._forget()
        self.void_stamp = self.shared.identity.stamp()
        self.shared.deferred.purge(self.instance, self.void_stamp)
        return settled()

    def close(self) -> None:
        super().close()
        self._forget()

    def _forget(self) -> None:
        self._waiting.clear()
        self._resize(-self._waiting_size)
        self.feed.drop_held()

    def block_at(self, index: int, size_max: int, *, wait: bool) -> Block | None:
        return None

    def frame(self, index: int, wait: bool) -> bytes | None:
        return b""

    def save(self) -> Ticket:
        return settled()

    def save_policy(self, channel: RuledChannel | None) -> Ticket:
        return settled()

    def save_channel(self, channel: Channel) -> Ticket:
        return settled()

    def journal_later(self) -> None:
        """Nothing of an ephemeral topic is journaled."""
