"""The bytes of a topic's log that ``max_bytes`` bounds: what is not kept by retention alone (R20).

file                                          counts
with unfinished messages                      yes
the same, but so few that they would be       no: without retention they would be in a
in a side file, and retained                  side file, which counts
finished, with many buried messages           where publishes are refused: they keep it
                                              (R24), and dropping others would not help
finished                                      no: it is retained, or on its way out
"""

from __future__ import annotations

from penstock.clock import Clock
from penstock.engine.retention.retained import Retained, RetainingTopic
from penstock.engine.retention.stragglers import buried_size

# How often the files that buried messages keep are searched for: microseconds for each file.
BURIED_INTERVAL_NS = 1_000_000_000


class Unfinished:
    """What is unfinished of one topic's log."""

    def __init__(self, topic: RetainingTopic, retained: Retained, clock: Clock) -> None:
        self._topic = topic
        self._retained = retained
        self._clock = clock
        self._buried_size = 0
        self._buried_until_ns = 0

    @property
    def size(self) -> int:
        """Bytes of the files that count."""
        low, size = self._topic.low(), 0
        beside = self._retained.beside()
        for segment in reversed(self._topic.log.files):
            if segment.visible.end <= low:
                break
            if segment not in beside:
                size += segment.file_size
        return size

    @property
    def buried_size(self) -> int:
        """Bytes of finished files that many buried messages keep."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._buried_until_ns:
            self._buried_until_ns = now_ns + BURIED_INTERVAL_NS
            self._buried_size = buried_size(
                self._topic.windows(), self._topic.log, self._topic.low()
            )
        return self._buried_size
