# What a topic counts with every batch, and how its channels hear of it.

from libc.stdint cimport int64_t

from penstock.core.block cimport Block
from penstock.core.window cimport Window


cdef class Arrivals:
    """The part of a topic that a stored batch comes to."""

    def __cinit__(self, *_args, **_named):
        self.channels = {}

    @property
    def frozen(self):
        """Whether messages wait in the topic, because no channel may have them yet."""
        return self.paused or self.awaiting_channels or not self.channels

    def count_in(self, Block block not None, int64_t body_size):
        """A stored batch becomes visible: count it and let the channels have it.

        Done in Python this cost as much as 16 messages of the publisher for every channel.
        """
        cdef int64_t count = block.count
        cdef Window window
        cdef list woken = []
        self.message_count += count
        self.message_bytes += body_size
        if self.paused or self.awaiting_channels or not self.channels:
            self.held_count += count
            return
        self.released = block.end_index()
        for channel in self.channels.values():
            if channel.plain:
                window = channel.window
                window.queued_count += count
                window.message_count += count
                if channel.ready:
                    woken.append(channel)
            else:
                channel.arrive(block)
        for channel in woken:
            channel.wake()
