"""A small metadata file that is always rewritten: nsqd.dat, damage.json, patterns.json.

Rule 1: one write at a time; changes made meanwhile share the next one, so creating ten thousand
        channels does not write ten thousand files.
Rule 2: a failed write shows in health and is retried, until shutdown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.core.ticket import Ticket, settled
from penstock.engine.context import Context
from penstock.engine.disk import Disk
from penstock.engine.health import Health


class SavedFile:
    """Writes one such file.

    ``encode`` is called on the loop when a write begins, and returns the work for a disk thread.
    """

    def __init__(
        self,
        context: Context,
        health: Health,
        name: str,
        encode: Callable[[], Callable[[], None]],
        disk: Disk | None = None,
    ) -> None:
        self._context = context
        self._disk = disk or context.disk
        self._health = health
        self._name = name
        self._encode = encode
        self._next: Ticket | None = None  # of the next write
        self._last = settled()  # the newest write
        self._writing = False

    def save(self) -> Ticket:
        """Write the file; the ticket is settled when it has the current state."""
        if self._next is None:
            self._next = Ticket()
        ticket = self._next
        if not self._writing:
            self._write()
        return ticket

    def saved(self) -> Ticket:
        """A ticket settled when all earlier saves are on disk; retries if the last write failed."""
        if self._next is not None:
            return self._next
        return self.save() if self._last.error is not None else self._last

    def _again(self) -> None:
        if not self._writing and self._last.error is not None:
            self.save()

    def _write(self) -> None:
        assert self._next is not None
        self._last, self._next = self._next, None
        self._writing = True
        self._disk.submit(self._encode(), partial(self._written, self._last))

    def _written(self, ticket: Ticket, _: None, error: Exception | None) -> None:
        self._writing = False
        self._health.record_journal(self._name, error)
        if error is not None and not self._context.supervisor.exiting:
            self._context.retry(self._again)
        ticket.settle(error)
        if self._next is not None and not self._writing:
            self._write()
