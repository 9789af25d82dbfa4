"""The health of the disk: what fails, whether to accept publishes, when it recovers (R8).

Two things can fail.  For writes of messages, whose producers get the error, a probe checks when
writing works again.  Named sources retry by themselves and report when they work again.  /ping is
not OK while anything fails, and only then.

A reserve of disk space is held back.  When a journal write finds the disk full, the reserve is
freed so that finishing and emptying still work and make room; publishes are refused until the
reserve can be held again.

A read error is not damage: no message is given up.  The read is retried after 0.25 s, 0.5 s,
1 s ... 30 s, whether or not a client waits (``Retries``).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from penstock.engine.context import Context
from penstock.storage.reserve import Reserve

log = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)
LOGGED_COUNT_MAX = 100
PAUSE_FIRST_NS = 250_000_000
PAUSE_MAX_NS = 30_000_000_000


class Health:
    """The outcome of the most recent writes, the sources that fail, and the reserve."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.reserve = Reserve(context.files, context.data.reserve)
        self._write_error: Exception | None = None
        self._logged: set[str] = set()  # errors of writes since they last worked: each once
        self._failing: dict[str, str] = {}
        self._probing = False

    @property
    def problem(self) -> str | None:
        """What fails now; None if nothing does."""
        if self._write_error is not None:
            return str(self._write_error)
        return next(iter(self._failing.values()), None)

    @property
    def text(self) -> str:
        """The response of /ping, also shown by /stats."""
        problem = self.problem
        return "OK" if problem is None else f"NOK - {problem}"

    # Named sources

    def failing(self, source: str, error: Exception | str) -> None:
        """``source`` fails at the moment and retries by itself."""
        text = f"{source}: {error}"
        if self._failing.get(source) != text:
            log.error("storage: %s", text)
        self._failing[source] = text

    def working(self, source: str) -> None:
        """``source`` works again, or is gone."""
        if self._failing.pop(source, None) is not None:
            log.info("storage: %s: works again", source)

    def refuse(self, source: str, error: Exception) -> None:
        """As failing(), and refuse publishes, since they would not be kept."""
        self.failing(source, error)
        self.reserve.bar(source, error)

    def accept(self, source: str) -> None:
        """As working(); accept publishes once the reserve is held again."""
        self.working(source)
        self.reserve.unbar(source)

    # Writes

    def record(self, error: Exception | None) -> None:
        """Record the result of a log write."""
        if error is not None:
            self.failed(error)
        elif self._write_error is not None and self.reserve.held:
            self._recovered()

    def record_journal(self, source: str, error: Exception | None) -> None:
        """Record the result of a write of a journal or metadata; the writer retries failures."""
        if error is None:
            self.working(source)
            return
        self.failing(source, error)
        self.needs_room(error)

    def needs_room(self, error: Exception) -> None:
        """If the disk is full, free the reserve for journals and metadata."""
        if is_full(error) and self.reserve.allocated:
            self.reserve.held = self.reserve.allocated = False
            self._context.disk.submit(self.reserve.free, lambda _result, _error: None)

    def failed(self, error: Exception) -> None:
        text = str(error)
        if text not in self._logged and len(self._logged) < LOGGED_COUNT_MAX:
            self._logged.add(text)
            log.error("storage: %s", text)
        self._write_error = error

    def refusal(self) -> Exception | None:
        """Why publishes are refused right now, or None."""
        return None if self.reserve.held else refused_by(self.reserve)

    @property
    def missing_size(self) -> int:
        """Bytes that have to be free before publishes are accepted again, as ``_try`` sees it."""
        reserve = self.reserve
        return 0 if reserve.allocated else reserve.size + reserve.size // 2

    def probe(self) -> None:
        """While writes fail, probe whether they work again."""
        if self._probing or (self._write_error is None and self.reserve.held):
            return
        self._probing = True
        self._context.disk.submit(self._try, self._tried)

    def _try(self) -> bool:
        """Blocking: hold the reserve, check for free space beside it and write a small file."""
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
        self._probing = False
        if error is not None:
            self.failed(error)
        elif room and self._write_error is not None:
            self._recovered()

    def _recovered(self) -> None:
        log.info("storage: writing works again")
        self._write_error = None
        self._logged.clear()


class Retries:
    """Retries of failed reads, by source (a readable name)."""

    def __init__(self, context: Context, health: Health) -> None:
        self._turns = context.turns
        self._supervisor = context.supervisor
        self._health = health
        self._pauses_ns: dict[str, int] = {}

    def failed(self, source: str, error: Exception, again: Callable[[], None]) -> None:
        """``source`` could not read; call ``again`` after a pause."""
        pause_ns = self._pauses_ns.get(source, PAUSE_FIRST_NS)
        self._pauses_ns[source] = min(2 * pause_ns, PAUSE_MAX_NS)
        self._health.failing(source, error)

        def call() -> None:
            if not self._supervisor.exiting:
                self._supervisor.guard(source, again)

        self._turns.after(pause_ns, call)

    def worked(self, source: str) -> None:
        """``source`` could read, or has nothing left to read."""
        if self._pauses_ns.pop(source, None) is not None:
            self._health.working(source)


def refused_by(reserve: Reserve) -> Exception:
    """Why a publish is refused while the reserve is not held."""
    return reserve.barred or OSError(errno.ENOSPC, "disk full, waiting for room")


def is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in FULL
