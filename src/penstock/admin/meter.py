"""Limits the memory of all daemons' responses together.

A response may have 64 MiB, and 64 are fetched at once: that would be 4 GiB.  When together they
exceed SIZE_MAX, the largest is aborted: a cluster of ten nodes with 100,000 channels each fits, and
only a node that sends too much fails.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.net.http_client import AnswerReader

SIZE_MAX = 192 << 20


class Meter:
    """Counts the bytes of all responses in progress."""

    def __init__(self, size_max: int = SIZE_MAX) -> None:
        self.size = 0
        self._size_max = size_max
        self._taken: dict[Metered, int] = {}

    def take(self, one: Metered, size: int) -> None:
        """Add ``size`` bytes to ``one``.  Abort the largest while the total is too large."""
        self._taken[one] = self._taken.get(one, 0) + size
        self.size += size
        while self.size > self._size_max:
            largest = max(self._taken, key=self._taken.__getitem__)
            self.release(largest)
            largest.abort()

    def release(self, one: Metered) -> None:
        """Subtract a response that is no longer in memory."""
        self.size -= self._taken.pop(one, 0)


class Metered(AnswerReader):
    """A response that is being read; it counts until the end of its ``with``."""

    def __init__(self, meter: Meter, size_max: int) -> None:
        super().__init__(False, size_max)
        self._meter = meter
        self._size_max = size_max
        self._aborted = False
        self._replacement: Metered | None = None

    def again(self) -> Metered:
        """A reader for another response that replaces this one."""
        self._meter.release(self)
        self._replacement = Metered(self._meter, self._size_max)
        return self._replacement

    def abort(self) -> None:
        self._aborted = True
        self.forget_body()

    def on_body(self, data: bytes) -> None:
        if not self._aborted:
            self._meter.take(self, len(data))
        if self._aborted:
            raise ValueError("the response is too large beside the others")
        super().on_body(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (self, self._replacement):
            if one is not None:
                self._meter.release(one)
