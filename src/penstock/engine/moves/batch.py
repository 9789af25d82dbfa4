"""One batch of a job: picked, read, appended to the other topic, finished."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from penstock.core.ticket import Ticket, after
from penstock.engine.channel import NOT_MOVING
from penstock.engine.context import Context
from penstock.engine.moves.messages import Message, Reading, read_messages
from penstock.engine.moves.move import Move, same_high_bits
from penstock.engine.moves.tasks import BATCH_SIZE_MAX, Job, Mover, Owed, Task
from penstock.engine.topic import Topic
from penstock.errors import MoveError

log = logging.getLogger(__name__)

PAUSE_FIRST_NS = 1_000_000_000
PAUSE_MAX_NS = 60_000_000_000


class Batch:
    """``target()`` returns the topic to move to, created if missing, or raises MoveError."""

    def __init__(
        self,
        context: Context,
        mover: Mover,
        job: Job,
        target: Callable[[], tuple[Topic, Ticket]],
    ) -> None:
        self._context = context
        self._mover = mover
        self._channel = mover.channel
        self._channel_id = mover.channel.id
        self._job = job
        self._target = target
        self._picked: list[int] = []
        self._moves: list[Move] = []
        self._ticket = Ticket()

    def begin(self, picked: list[int]) -> Ticket:
        """Move these; the ticket is settled when that is done, or has failed."""
        self._picked = picked
        channel = self._channel
        channel.moving = frozenset(picked)
        read = partial(read_messages, channel.topic, picked, BATCH_SIZE_MAX)
        self._context.disk.submit(read, self._have_read)
        return self._ticket

    def _have_read(self, read: Reading | None, error: Exception | None) -> None:
        if read is None:
            self._end(error or OSError("not read"))
            return
        unread = self._picked[read.index_count :]
        self._picked = self._picked[: read.index_count]
        self._channel.moving = frozenset(self._picked)
        self._job.unread(unread)
        if not read.messages and isinstance(self._job, Owed):
            self._end(read.error)  # None: damage took them
            return
        if read.error is not None:
            self._job.unreadable(read.unreadable, read.error)
        if not read.messages:
            self._end(None)
            return
        try:
            to, created = self._target()
        except MoveError as refusal:
            self._end(refusal)
            return
        created.add(partial(self._append, to, read.messages))

    def _append(self, to: Topic, messages: list[Message], created: Ticket) -> None:
        if created.error is not None:
            self._end(created.error)
            return
        channel = self._channel
        buried = channel.window.buried
        if channel.closed or channel.id != self._channel_id or buried is None:
            self._end(None)  # deleted, or sought
            return
        messages = [message for message in messages if message[0] in buried]
        self._moves = [Move(channel, to, some) for some in same_high_bits(messages)]
        after(*[move.begin() for move in self._moves]).add(lambda moved: self._end(moved.error))

    def _end(self, error: Exception | None) -> None:
        channel, mover, job = self._channel, self._mover, self._job
        channel.moving = NOT_MOVING
        now_ns = self._context.clock.monotonic_ns()
        job.moved(sum(move.moved_count for move in self._moves), now_ns)
        if error is not None:
            channel.move_failure_count += 1
            self._failed(error, now_ns)
        elif mover.pause_ns and job.owed:
            mover.pause_ns = 0
            log.info("%s: failed messages are moved again", self._name)
        self._ticket.settle()

    def _failed(self, error: Exception, now_ns: int) -> None:
        mover, job = self._mover, self._job
        if isinstance(job, Task):
            if job in mover.tasks:
                log.warning("%s: a move to %s ended: %s", self._name, job.to, error)
                mover.tasks.remove(job)
                job.ticket.settle(error)
            return
        if not mover.pause_ns:
            log.warning("%s: failed messages stay buried: %s", self._name, error)
        job.unread(self._picked)
        mover.pause_ns = min(PAUSE_MAX_NS, 2 * mover.pause_ns or PAUSE_FIRST_NS)
        job.not_before_ns = now_ns + mover.pause_ns

    @property
    def _name(self) -> str:
        return f"topic={self._channel.topic.name} channel={self._channel.name}"
