"""What every part of the broker works with: options, files, disk, loop and clock.

A part gets the context and the few other parts it uses, never the broker.  The context is frozen:
its options are those nsqd started with.  What may change while nsqd runs (the log level, the
addresses of nsqlookupds) is read by nsqd alone and kept there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, Protocol

from penstock.clock import Clock
from penstock.engine.disk import Disk
from penstock.engine.options import Options
from penstock.record import record
from penstock.storage.datapath import DataPath
from penstock.storage.files import Files

log = logging.getLogger(__name__)

P = ParamSpec("P")

# What failed is tried again after this time.
RETRY_NS = 1_000_000_000


class Timer(Protocol):
    def cancel(self) -> None: ...


class Turns(Protocol):
    """The event loop as the engine sees it."""

    def soon(self, call: Callable[[], None]) -> object:
        """Call in this turn of the loop, after what was received is handled."""

    def after(self, delay_ns: int, call: Callable[[], None]) -> Timer:
        """Call once, ``delay_ns`` from now or a little later."""


class Supervisor:
    """Keeps a defect in one topic or part from stopping the others; knows whether nsqd exits."""

    exiting = False

    def guard(self, what: str, call: Callable[P, object], *args: P.args, **named: P.kwargs) -> None:
        """Call; an exception that nobody expected is logged."""
        try:
            call(*args, **named)
        except Exception:
            self.defect(what)

    def defect(self, what: str) -> None:
        """An exception that nobody expected is being handled."""
        log.exception("%s: unexpected", what)


@record
class Context:
    """The same for all parts of one broker."""

    options: Options
    data: DataPath
    files: Files
    disk: Disk
    turns: Turns
    clock: Clock
    supervisor: Supervisor

    def retry(self, call: Callable[[], None]) -> None:
        """Try something again that failed, in a while."""
        self.turns.after(RETRY_NS, call)
