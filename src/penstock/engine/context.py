"""What every component of the broker uses: options, files, disk, loop and clock.

A component gets the context and the few other components it uses, never the broker.  The context is
frozen: its options are those nsqd started with.  Options that can change at runtime (log level,
addresses of nsqlookupds) are read and kept by nsqd only.
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

# Delay before a retry.
RETRY_NS = 1_000_000_000


class Timer(Protocol):
    def cancel(self) -> None: ...


class Turns(Protocol):
    """The event loop as the engine sees it."""

    def soon(self, call: Callable[[], None]) -> object:
        """Call in this turn of the loop, after received data is handled."""

    def after(self, delay_ns: int, call: Callable[[], None]) -> Timer:
        """Call once, ``delay_ns`` from now or a little later."""


class Supervisor:
    """Keeps a defect in one topic or component from stopping others; knows if nsqd is exiting."""

    exiting = False

    def guard(self, what: str, call: Callable[P, object], *args: P.args, **named: P.kwargs) -> None:
        """Call, and log an unexpected exception."""
        try:
            call(*args, **named)
        except Exception:
            self.defect(what)

    def defect(self, what: str) -> None:
        """Log the unexpected exception that is being handled."""
        log.exception("%s: unexpected", what)


@record
class Context:
    """The same for all components of one broker."""

    options: Options
    data: DataPath
    files: Files
    disk: Disk
    turns: Turns
    clock: Clock
    supervisor: Supervisor

    def retry(self, call: Callable[[], None]) -> None:
        """Retry ``call`` after RETRY_NS."""
        self.turns.after(RETRY_NS, call)
