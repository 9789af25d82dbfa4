"""The health of the disk: what fails, whether to accept publishes, when it is over (R8).

Two things can fail: writes of messages, whose producers get the error, so that a probe tries when
it is over; and named sources, each of which tries by itself and reports when it works again.  /ping
is not OK while anything fails, and only then.

A reserve of disk space is held back.  When a journal finds the disk full the reserve is freed,
so that finishing and emptying go on and make room; publishes are refused until it can be held
again.

An error of a read is not damage: nothing is given up for it.  The read is tried again after 0.25 s,
0.5 s, 1 s ... 30 s, whether or not a client waits (``Retries``).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from penstock.engine.context import Context
from penstock.storage.reserve import Reserve

log = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)
PAUSE_FIRST_NS = 250_000_000
PAUSE_MAX_NS = 30_000_000_000


class Health:
    """The outcome of the most recent writes, the sources that fail, and the reserve."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.reserve = Reserve(context.files, context.data.reserve)
        self._write_error: Exception | None = None
        self._failing: dict[str, str] = {}
        self._looking = False

    @property
    def problem(self) -> str | None:
        """What fails at this moment; None while all works."""
        if self._write_error is not None:
            return str(self._write_error)
        return next(iter(self._failing.values()), None)

    @property
    def text(self) -> str:
        """The answer of /ping, and what /stats shows."""
        problem = self.problem
        return "OK" if problem is None else f"NOK - {problem}"

    # Named sources

    def failing(self, source: str, error: Exception | str) -> None:
        """``source`` cannot do its work at the moment, and tries again by itself."""
        text = f"{source}: {error}"
        if self._failing.get(source) != text:
            log.error("storage: %s", text)
        self._failing[source] = text

    def working(self, source: str) -> None:
        """``source`` works again, or is gone."""
        if self._failing.pop(source, None) is not None:
            log.info("storage: %s: works again", source)

    def refuse(self, source: str, error: Exception) -> None:
        """As failing(); and nothing that is published now would be kept, so it is refused."""
        self.failing(source, error)
        self.reserve.bar(error)

    def accept(self, source: str) -> None:
        """As working(); publishes are accepted once the reserve is held again."""
        self.working(source)
        self.reserve.unbar()

    # Writes

    def heard(self, error: Exception | None) -> None:
        """A write of a log ended so."""
        if error is not None:
            self.failed(error)
        elif self._write_error is not None and self.reserve.held:
            self._recovered()

    def heard_journal(self, source: str, error: Exception | None) -> None:
        """A write of a journal or of metadata ended so; whoever wrote tries a failed one again."""
        if error is None:
            self.working(source)
            return
        self.failing(source, error)
        self.needs_room(error)

    def needs_room(self, error: Exception) -> None:
        """If the disk is full, free the reserve for journals and metadata."""
        if is_full(error) and self.reserve.held:
            self.reserve.held = False
            self._context.disk.submit(self.reserve.free, lambda _result, _error: None)

    def failed(self, error: Exception) -> None:
        if self._write_error is None or str(self._write_error) != str(error):
            log.error("storage: %s", error)
        self._write_error = error

    def refusal(self) -> Exception | None:
        """Why publishes are refused right now, or None."""
        return None if self.reserve.held else refused_by(self.reserve)

    def look(self) -> None:
        """While writes fail, try whether they still do."""
        if self._looking or (self._write_error is None and self.reserve.held):
            return
        self._looking = True
        self._context.disk.submit(self._try, self._tried)

    def _try(self) -> bool:
        """Blocking: take the reserve, look for room beside it and write a small file."""
        if not self.reserve.hold():
            return False
        files, folder = self._context.files, self._context.data.own
        room_size = files.free_size(folder)
        error = self._write_error
        if error is not None and is_full(error) and room_size < self.reserve.size // 4:
            return False
        files.write_new(f"{folder}/probe", b"penstock\n")
        files.unlink(f"{folder}/probe")
        return True

    def _tried(self, room: bool | None, error: Exception | None) -> None:
        self._looking = False
        if error is not None:
            self.failed(error)
        elif room and self._write_error is not None:
            self._recovered()

    def _recovered(self) -> None:
        log.info("storage: writing works again")
        self._write_error = None


class Retries:
    """Reads that failed and are tried again, by source: a name for people."""

    def __init__(self, context: Context, health: Health) -> None:
        self._turns = context.turns
        self._supervisor = context.supervisor
        self._health = health
        self._pauses_ns: dict[str, int] = {}

    def failed(self, source: str, error: Exception, again: Callable[[], None]) -> None:
        """``source`` could not read; ``again`` is called after a pause."""
        pause_ns = self._pauses_ns.get(source, PAUSE_FIRST_NS)
        self._pauses_ns[source] = min(2 * pause_ns, PAUSE_MAX_NS)
        self._health.failing(source, error)

        def call() -> None:
            if not self._supervisor.exiting:
                self._supervisor.guard(source, again)

        self._turns.after(pause_ns, call)

    def worked(self, source: str) -> None:
        """``source`` could read, or has nothing to read any more."""
        if self._pauses_ns.pop(source, None) is not None:
            self._health.working(source)


def refused_by(reserve: Reserve) -> Exception:
    """Why a publish is refused while the reserve is not held."""
    return reserve.barred or OSError(errno.ENOSPC, "disk full, waiting for room")


def is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in FULL
