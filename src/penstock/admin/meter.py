"""How much of daemons' answers is in memory, all of them together.

An answer may have 64 MiB and 64 are asked for at once: that would be 4 GiB.  When all of them have
more than SIZE_MAX, the largest is given up: an honest cluster of ten nodes with 100,000 channels
each fits, and who sends too much is the one that fails.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.net.http_client import AnswerReader

SIZE_MAX = 192 << 20


class Meter:
    """Knows all answers under way."""

    def __init__(self, size_max: int = SIZE_MAX) -> None:
        self.size = 0
        self._size_max = size_max
        self._taken: dict[Metered, int] = {}

    def take(self, one: Metered, size: int) -> None:
        """``one`` has ``size`` bytes more.  Gives up the largest while it is too much."""
        self._taken[one] = self._taken.get(one, 0) + size
        self.size += size
        while self.size > self._size_max:
            largest = max(self._taken, key=self._taken.__getitem__)
            self.give(largest)
            largest.give_up()

    def give(self, one: Metered) -> None:
        """Nothing of it is in memory any more."""
        self.size -= self._taken.pop(one, 0)


class Metered(AnswerReader):
    """An answer as it arrives, in memory until the end of its ``with``."""

    def __init__(self, meter: Meter, size_max: int) -> None:
        super().__init__(False, size_max)
        self._meter = meter
        self._size_max = size_max
        self._given_up = False
        self._follower: Metered | None = None

    def again(self) -> Metered:
        """For another answer in place of this one."""
        self._meter.give(self)
        self._follower = Metered(self._meter, self._size_max)
        return self._follower

    def give_up(self) -> None:
        self._given_up = True
        self.forget_body()

    def on_body(self, data: bytes) -> None:
        if not self._given_up:
            self._meter.take(self, len(data))
        if self._given_up:
            raise ValueError("its answer is too large beside the others")
        super().on_body(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (self, self._follower):
            if one is not None:
                self._meter.give(one)
