"""A connection that consumes: its messages in flight, and their answers.

    SUB, RDY n  ->  messages  ->  FIN, REQ, TOUCH        ...        CLS  ->  CLOSE_WAIT  ->  close

Rule 1: ``share.in_flight`` counts messages received and not answered.  It is decremented once per
        message, before the answer is written.
Rule 2: an answer may come from any thread.  Answers of other threads wait in a deque for the loop,
        which is woken once for many.
Rule 3: after the connection is lost, answers are dropped: nsqd delivers those messages again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING

from penstock.client.connection import NON_FATAL, Connection, refusal
from penstock.client.message import RESPONDED, Message, requeue_delay_s
from penstock.client.ready_counts import Share
from penstock.core.frames import Reply
from penstock.errors import ClientError, RefusedError
from penstock.wire import commands

if TYPE_CHECKING:
    from penstock.client.consumer import Consumer

log = logging.getLogger("penstock.client")

# How long nsqd may take to answer CLS, so that a hung nsqd does not block the end of a program.
CLS_SECONDS_MAX = 2.0
# Ten years; nsqd accepts any 64-bit number.
REQUEUE_MS_MAX = 315_360_000_000


# nsqd keeps up to 255 bytes of a reason.
BURY_TEXT_MAX = 255


class Subscription:
    """One connection of a consumer."""

    def __init__(self, consumer: Consumer, connection: Connection) -> None:
        self.consumer = consumer
        self.connection = connection
        self.address = connection.address
        self.share = Share(connection.rdy_max)
        self.error: RefusedError | None = None
        self.closing = False  # CLS was sent
        self.closed = False
        self.over = asyncio.Event()  # no more messages will be received and none is in flight
        self._close_wait = False
        self._loop_thread = get_ident()
        self._posted: deque[Callable[[], None]] = deque()
        self._waking = False
        self._open: set[Message] | None = None
        self._touching: asyncio.TimerHandle | None = None
        self._waiting: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.connection.use(self)
        self.connection.send(commands.sub(self.consumer.topic, self.consumer.channel))
        if self.consumer.config.auto_touch:
            self._open = set()
            self._touch_open()

    def set_ready(self, count: int) -> None:
        self.connection.send(commands.rdy(count))

    # Frames

    def received(self, messages: list[Message], replies: list[Reply]) -> None:
        if messages:
            self.share.in_flight += len(messages)
            if self._open is not None:
                self._open.update(messages)
            self.consumer.received(self, messages)
        for reply in replies:
            if reply.error:
                self._refused(reply.text)
            elif reply.text == b"CLOSE_WAIT":
                self._close_wait = True
                self._check_over()
        self.connection.flush()

    def _refused(self, text: bytes) -> None:
        error = refusal(text)
        if text.startswith(NON_FATAL):
            # The message timed out and was requeued; nothing is lost.
            self.consumer.stats.refused += 1
            log.info("nsqd=%s: %s", self.address, error)
        else:
            self.error = error
            log.error(
                "topic=%s channel=%s nsqd=%s: %s",
                *(self.consumer.topic, self.consumer.channel, self.address, error),
            )

    def lost(self, error: Exception | None) -> None:
        self.closed = True
        for timer in (self._touching, self._waiting):
            if timer is not None:
                timer.cancel()
        if self._open is not None:
            self._open.clear()
        self.over.set()
        self.consumer.lost(self, error or self.error)

    # Answers

    def finish(self, message: Message) -> None:
        if get_ident() != self._loop_thread:
            self._post(lambda: self.finish(message))
            return
        if message.state == RESPONDED:
            return
        message.state = RESPONDED
        if not self.closed:
            self._answered(message)
            self.consumer.finished(1)
            self.connection.send(commands.fin(message.id))

    def finish_all(self, messages: Sequence[Message]) -> None:
        """Finish many at once.  All must be of this connection, and none answered."""
        if self.closed or not messages:
            return
        self.share.in_flight -= len(messages)
        if self._open is not None:
            self._open.difference_update(messages)
        self.consumer.finished(len(messages))
        ids = b"\nFIN ".join([message.id for message in messages])
        self.connection.send(b"FIN " + ids + b"\n")
        if self.closing:
            self._check_over()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Requeue a message; ``backoff``: count it as a failure of the handler."""
        if get_ident() != self._loop_thread:
            self._post(lambda: self.requeue(message, delay, backoff))
            return
        if message.state == RESPONDED:
            return
        message.state = RESPONDED
        if self.closed:
            return
        if delay is None or delay < 0:
            config = self.consumer.config
            delay = requeue_delay_s(
                message.attempts, config.default_requeue_delay, config.max_requeue_delay
            )
        self._answered(message)
        self.consumer.requeued(backoff)
        delay_ms = min(round(delay * 1000), REQUEUE_MS_MAX)
        self.connection.send(commands.req(message.id, delay_ms))

    def bury(self, message: Message, text: str) -> None:
        if self.connection.negotiated.get("bury") is not True:
            raise ClientError(f"{self.address} does not offer BURY")
        if get_ident() != self._loop_thread:
            self._post(lambda: self.bury(message, text))
            return
        if message.state == RESPONDED:
            return
        message.state = RESPONDED
        if not self.closed:
            self._answered(message)
            self.consumer.buried()
            self.connection.send(commands.bury(message.id, text[:BURY_TEXT_MAX]))

    def touch(self, message: Message) -> None:
        if get_ident() != self._loop_thread:
            self._post(lambda: self.touch(message))
        elif message.state != RESPONDED and not self.closed:
            self.connection.send(commands.touch(message.id))

    def _answered(self, message: Message) -> None:
        self.share.in_flight -= 1
        if self._open is not None:
            self._open.discard(message)
        if self.closing:
            self._check_over()

    def _touch_open(self) -> None:
        assert self._open is not None
        for message in self._open:
            self.connection.send(commands.touch(message.id))
        self._touching = self.connection.loop.call_later(
            self.connection.msg_timeout_s / 2, self._touch_open
        )

    def _post(self, answer: Callable[[], None]) -> None:
        """Run ``answer`` on the loop's thread."""
        self._posted.append(answer)
        if not self._waking:
            self._waking = True
            try:
                self.connection.loop.call_soon_threadsafe(self._run_posted)
            except RuntimeError:  # the loop is closed, and so is the connection
                self._posted.clear()

    def _run_posted(self) -> None:
        # Clear the flag first: an answer posted after the loop below wakes us again.
        self._waking = False
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    # Stopping

    def begin_close(self) -> None:
        """Send CLS; `over` is set when all received messages are answered."""
        self.closing = True
        if not self.closed:
            self.connection.send(commands.CLS)
            self._waiting = self.connection.loop.call_later(CLS_SECONDS_MAX, self._not_answered)

    def _not_answered(self) -> None:
        """CLS was not answered: close anyway; nsqd delivers later messages again."""
        if not self._close_wait:
            log.warning("nsqd=%s: no answer to CLS in %g s", self.address, CLS_SECONDS_MAX)
            self._close_wait = True
            self._check_over()

    def _check_over(self) -> None:
        if self._close_wait and self.share.in_flight == 0:
            self.over.set()
