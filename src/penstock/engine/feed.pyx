# What a topic gives its channels: how far they may read, the newest blocks, and counts.
#
#     log     |---------------------------|=================|
#             first                    released         shown_end
#                  channels read here        held back
#
# Rule 1: `released` follows `shown_end`, except while the topic is frozen: paused, without
#         channels, or new and waiting for nsqlookupd to list its channels (R2).
# Rule 2: a batch costs a plain channel two additions: its messages are counted, and read from here
#         or from the log when they are delivered.  In Python this cost as much per channel as
#         publishing 16 messages.

from libc.stdint cimport int64_t

from penstock.core.appender cimport Batch
from penstock.core.block cimport Block
from penstock.core.tail cimport Tail, TailBudget
from penstock.core.window cimport Window


cdef class Feed:
    """The messages of a topic, as its channels see them."""

    def __init__(self, TailBudget budget not None, int64_t first):
        self.tail = Tail(budget)
        self.channels = {}
        self.shown_end = self.released = first

    @property
    def frozen(self):
        """Whether new messages wait in the topic because no channel may read them yet."""
        return self.is_frozen()

    cdef bint is_frozen(self) noexcept:
        return self.paused or self.awaiting_channels or not self.channels

    def pause(self, bint paused):
        """Freeze, or not; release() then moves ``released``."""
        self.paused = paused

    def await_channels(self, bint awaiting):
        """Freeze until channels are known, or not; release() then moves ``released``."""
        self.awaiting_channels = awaiting

    def restore(self, int64_t released):
        """At start: channels may read up to ``released``."""
        self.released = released

    def restore_held(self, int64_t count):
        """At start: ``count`` messages are held back."""
        self.held_count = count

    cpdef show(self, Batch batch, int node_id):
        """A batch is in the log: keep it in the tail and show it to the channels."""
        cdef Block block = batch.block(node_id)
        self.tail.add(block)
        self.count_in(block, batch.body_size)

    cpdef count_in(self, Block block, int64_t body_size):
        """Count a stored batch and notify the channels."""
        cdef int64_t count = block.message_count()
        cdef Window window
        if self.is_frozen():
            self.hold(block, body_size, count)
            return
        self.message_count += count
        self.message_bytes += body_size
        self.released = self.shown_end = block.end_index()
        for channel in self.channels.values():
            if channel.plain:
                window = channel.window
                window.queued_count += count
                window.message_count += count
                if channel.ready:
                    channel.wake()
            else:
                channel.arrive(block)

    def hold(self, Block block not None, int64_t body_size, int64_t held_count):
        """Count a stored batch that is held back, with the messages of it that are kept."""
        self.message_count += block.message_count()
        self.message_bytes += body_size
        self.shown_end = block.end_index()
        self.held_count += held_count

    def release(self):
        """Let channels read everything; the caller notifies them."""
        self.released = self.shown_end
        self.held_count = 0

    def drop_below(self, int64_t end, int64_t count):
        """The first ``count`` messages held back, those below ``end``, were dropped."""
        self.released = end
        self.held_count -= count

    def drop_held(self):
        """An ephemeral topic dropped what it held back."""
        self.held_count = 0
