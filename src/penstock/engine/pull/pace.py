"""When readers of logs have to wait for clients.

    loop's time   [ clients ..... ][ readers ][ idle ]   time to spare: readers take what they can
                  [ clients ................. ][ r   ]   none: a fifth of a core is theirs

Spark reads as fast as it is served, and then wants the cores too: on two of them a scan took 0.4 of
the speed of clients that kept nsqd busy, and takes 0.2 now.  Few bytes cost few nanoseconds, so the
small batches of a stream do not notice; and a fifth is more than publishers can fill.

Rule 1: readers alone never wait: what they cost the loop is not held against them.
Rule 2: readers always get on, by their share at least.
"""

from __future__ import annotations

from penstock.clock import Clock

SHARE = 0.2  # of a core, while there is nothing to spare
# Of the time, the loop works or waits for a core: there is nothing to spare, and it is not readers
# who take it.
BUSY = 0.75
BUSY_FOR_OTHERS = 0.5
# What a byte costs at most: nsqd in all (0.14 us for a message of 230 bytes, half of that where the
# kernel sends it), and its loop.
NS_PER_BYTE = 0.6
LOOP_NS_PER_BYTE = 0.4
# The loop's time is looked at over so much of it; what is older says nothing of now.
LOOK_NS = 2_000_000
LOOK_NS_MAX = 200_000_000


class Pace:
    """Hears what was read, and says from when on there may be more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._busy = False
        self._since_ns = 0
        self._since_wanted_ns = 0
        self._size = 0
        self._next_ns = 0

    def read(self, size: int) -> None:
        """So many bytes were read; called by the loop's thread."""
        now_ns = self._clock.monotonic_ns()
        self._size += size
        if now_ns - self._since_ns >= LOOK_NS:
            self._look(now_ns)
        if self._busy:
            wait_ns = int(size * NS_PER_BYTE / SHARE)
            self._next_ns = max(self._next_ns, now_ns) + wait_ns

    def wait_ns(self) -> int:
        """For how long the next read has to wait."""
        return max(0, self._next_ns - self._clock.monotonic_ns())

    def _look(self, now_ns: int) -> None:
        passed_ns, wanted_ns = now_ns - self._since_ns, self._clock.thread_wanted_ns()
        worked_ns = wanted_ns - self._since_wanted_ns
        others_ns = worked_ns - self._size * LOOP_NS_PER_BYTE
        self._busy = (
            passed_ns <= LOOK_NS_MAX
            and worked_ns > BUSY * passed_ns
            and others_ns > BUSY_FOR_OTHERS * passed_ns
        )
        self._since_ns, self._since_wanted_ns, self._size = now_ns, wanted_ns, 0
