"""How the engine asks the event loop for its turn, without knowing which loop it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Turns(Protocol):
    """The loop as the engine sees it."""

    def soon(self, call: Callable[[], None]) -> object:
        """Call in this turn of the loop, after what was received is handled."""

    def after(self, delay_ns: int, call: Callable[[], None]) -> Timer:
        """Call once, ``delay_ns`` from now or a little later."""
