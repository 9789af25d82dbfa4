"""The health of the disk: what fails, whether to accept publishes, when it is over (R8).

Two things can fail: writes of messages, whose producers get the error, so that a probe tries when
it is over; and named sources, each of which tries by itself and reports when it works again.  /ping
is not OK while anything fails, and only then.

A reserve of disk space is held back.  When a journal finds the disk full the reserve is freed,
so that finishing and emptying go on and make room; publishes are refused until it can be held
again.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from penstock.storage.reserve import Reserve

if TYPE_CHECKING:
    from penstock.engine.broker import Broker

log = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)


class Health:
    """The outcome of the most recent writes, the sources that fail, and the reserve."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.reserve = Reserve(broker.files, broker.data.reserve)
        self._write_error: BaseException | None = None
        self._failing: dict[str, str] = {}
        self._looking = False

    @property
    def problem(self) -> str | None:
        """What fails at this moment; None while all works."""
        if self._write_error is not None:
            return str(self._write_error)
        return next(iter(self._failing.values()), None)

    # Named sources

    def failing(self, source: str, error: BaseException | str) -> None:
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

    def heard(self, error: BaseException | None) -> None:
        """A write of a log ended so."""
        if error is not None:
            self.failed(error)
        elif self._write_error is not None and self.reserve.held:
            self._recovered()

    def heard_journal(self, source: str, error: BaseException | None) -> None:
        """A write of a journal or of metadata ended so; whoever wrote tries a failed one again."""
        if error is None:
            self.working(source)
            return
        self.failing(source, error)
        self.needs_room(error)

    def needs_room(self, error: BaseException) -> None:
        """If the disk is full, free the reserve for journals and metadata."""
        if is_full(error) and self.reserve.held:
            self.reserve.held = False
            self._broker.disk.submit(self.reserve.free, lambda _result, _error: None)

    def failed(self, error: BaseException) -> None:
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
        self._broker.disk.submit(self._try, self._tried)

    def _try(self) -> bool:
        """Blocking: take the reserve, look for room beside it and write a small file."""
        if not self.reserve.hold():
            return False
        room_size = self._broker.files.free_size(self._broker.data.own)
        error = self._write_error
        if error is not None and is_full(error) and room_size < self.reserve.size // 4:
            return False
        probe = f"{self._broker.data.own}/probe"
        self._broker.files.write_new(probe, b"penstock\n")
        self._broker.files.unlink(probe)
        return True

    def _tried(self, room: bool | None, error: BaseException | None) -> None:
        self._looking = False
        if error is not None:
            self.failed(error)
        elif room and self._write_error is not None:
            self._recovered()

    def _recovered(self) -> None:
        log.info("storage: writing works again")
        self._write_error = None


def refused_by(reserve: Reserve) -> Exception:
    """Why a publish is refused while the reserve is not held."""
    return reserve.barred or OSError(errno.ENOSPC, "disk full, waiting for room")


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in FULL
