"""When readers of logs have to wait for clients.

    loop's time   [ clients ..... ][ readers ][ idle ]   time to spare: readers take what they can
                  [ clients ................. ][ r   ]   none: a fifth of a core is theirs

Spark reads as fast as it is served, and then wants the cores too: on two of them a scan took 0.4 of
the speed of clients that kept nsqd busy, and takes 0.2 now.  Few bytes cost few nanoseconds, so the
small batches of a stream do not notice; and a fifth is more than publishers can fill.

What a byte costs is measured, once, with the first read: the time that a local socket takes for it.
Reading and sending a byte is some times as much, on any machine.

Rule 1: readers alone never wait: what they cost the loop is not held against them.
Rule 2: readers always get on, by their share at least.
"""

from __future__ import annotations

import socket

from penstock.clock import Clock

SHARE = 0.2  # of a core, while there is nothing to spare
# Of the time, the loop works or waits for a core: there is nothing to spare, and it is not readers
# who take it.
BUSY = 0.75
BUSY_FOR_OTHERS = 0.5
# What a byte that is read costs at most, in transfers over a local socket: nsqd in all (half of
# that where the kernel sends it), and its loop.
TRANSFERS = 5.0
LOOP_TRANSFERS = 3.5
# Of the measurement: 1 MiB at a time, and the best of a few, takes half a millisecond.
CHUNK_SIZE = 64 << 10
CHUNK_COUNT = 16
TRY_COUNT = 4
# The loop's time is looked at over so much of it; what is older says nothing of now.
LOOK_NS = 2_000_000
LOOK_NS_MAX = 200_000_000


def transfer_cost(clock: Clock) -> float:
    """Nanoseconds that this thread takes for a byte through a local socket."""
    chunk, buffer = bytes(CHUNK_SIZE), bytearray(CHUNK_SIZE)
    costs_ns = []
    sender, receiver = socket.socketpair()
    with sender, receiver:
        for _ in range(TRY_COUNT):
            start_ns = clock.thread_wanted_ns()
            for _ in range(CHUNK_COUNT):
                left_size = sender.send(chunk)
                while left_size:
                    left_size -= receiver.recv_into(buffer)
            costs_ns.append(clock.thread_wanted_ns() - start_ns)
    return min(costs_ns) / (CHUNK_SIZE * CHUNK_COUNT)


class Pace:
    """Tracks the bytes read and computes when the next read may start."""

    def __init__(self, clock: Clock, transfer_ns: float | None = None) -> None:
        """``transfer_ns``: of a byte; measured with the first read unless given."""
        self._clock = clock
        self._transfer_ns = transfer_ns
        self._busy = False
        self._since_ns = 0
        self._since_wanted_ns = 0
        self._size = 0
        self._next_ns = 0

    def read(self, size: int) -> None:
        """So many bytes were read; called by the loop's thread."""
        if self._transfer_ns is None:
            try:
                self._transfer_ns = transfer_cost(self._clock)
            except OSError:  # no descriptors left: with the next read
                return
        now_ns = self._clock.monotonic_ns()
        self._size += size
        if now_ns - self._since_ns >= LOOK_NS:
            self._look(now_ns, self._transfer_ns)
        if self._busy:
            wait_ns = int(size * self._transfer_ns * TRANSFERS / SHARE)
            self._next_ns = max(self._next_ns, now_ns) + wait_ns

    def wait_ns(self) -> int:
        """For how long the next read has to wait."""
        return max(0, self._next_ns - self._clock.monotonic_ns())

    def _look(self, now_ns: int, transfer_ns: float) -> None:
        passed_ns, wanted_ns = now_ns - self._since_ns, self._clock.thread_wanted_ns()
        worked_ns = wanted_ns - self._since_wanted_ns
        others_ns = worked_ns - self._size * transfer_ns * LOOP_TRANSFERS
        self._busy = (
            passed_ns <= LOOK_NS_MAX
            and worked_ns > BUSY * passed_ns
            and others_ns > BUSY_FOR_OTHERS * passed_ns
        )
        self._since_ns, self._since_wanted_ns, self._size = now_ns, wanted_ns, 0
