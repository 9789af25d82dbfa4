"""When readers of logs must wait for clients.

    loop's time   [ clients ..... ][ readers ][ idle ]   spare time: readers are not limited
                  [ clients ................. ][ r   ]   none: readers get a fifth of a core

Spark reads as fast as it is served, and needs CPU itself: on two cores a scan cost clients that
kept nsqd busy 0.4 of their speed; with this limit, 0.2.  Small reads wait only nanoseconds, so the
small batches of a stream are not delayed; and a fifth is more than publishers can fill.

The cost of a byte is measured once, with the first read, as the time of a transfer over a local
socket.  Reading and sending a byte costs a few times as much, on any machine.

Rule 1: readers alone never wait: their own cost does not count as load.
Rule 2: readers always progress, at least by their share.
"""

from __future__ import annotations

import socket

from penstock.clock import Clock

SHARE = 0.2  # of a core, while there is no spare time
# There is no spare time if the loop works, or waits for a core, for more than BUSY of the time, and
# for others than readers for more than BUSY_FOR_OTHERS.
BUSY = 0.75
BUSY_FOR_OTHERS = 0.5
# The maximum cost of reading a byte, in transfers over a local socket: for all of nsqd (half of
# that if the kernel sends it), and for its loop.
TRANSFERS = 5.0
LOOP_TRANSFERS = 3.5
# The measurement: the best of a few transfers of 1 MiB; half a millisecond.
CHUNK_SIZE = 64 << 10
CHUNK_COUNT = 16
TRY_COUNT = 4
# The load of the loop is measured over at least the first; one older than the second is stale.
MEASURE_NS = 2_000_000
MEASURE_NS_MAX = 200_000_000


def transfer_cost(clock: Clock) -> float:
    """Nanoseconds of this thread for one byte through a local socket."""
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
        """``transfer_ns``: per byte; measured with the first read if None."""
        self._clock = clock
        self._transfer_ns = transfer_ns
        self._busy = False
        self._since_ns = 0
        self._since_wanted_ns = 0
        self._size = 0
        self._next_ns = 0

    def read(self, size: int) -> None:
        """``size`` bytes were read; called on the loop's thread."""
        if self._transfer_ns is None:
            try:
                self._transfer_ns = transfer_cost(self._clock)
            except OSError:  # no descriptors left: measure with the next read
                return
        now_ns = self._clock.monotonic_ns()
        self._size += size
        if now_ns - self._since_ns >= MEASURE_NS:
            self._measure(now_ns, self._transfer_ns)
        if self._busy:
            wait_ns = int(size * self._transfer_ns * TRANSFERS / SHARE)
            self._next_ns = max(self._next_ns, now_ns) + wait_ns

    def wait_ns(self) -> int:
        """How long the next read must wait."""
        return max(0, self._next_ns - self._clock.monotonic_ns())

    def _measure(self, now_ns: int, transfer_ns: float) -> None:
        passed_ns, wanted_ns = now_ns - self._since_ns, self._clock.thread_wanted_ns()
        worked_ns = wanted_ns - self._since_wanted_ns
        others_ns = worked_ns - self._size * transfer_ns * LOOP_TRANSFERS
        self._busy = (
            passed_ns <= MEASURE_NS_MAX
            and worked_ns > BUSY * passed_ns
            and others_ns > BUSY_FOR_OTHERS * passed_ns
        )
        self._since_ns, self._since_wanted_ns, self._size = now_ns, wanted_ns, 0
