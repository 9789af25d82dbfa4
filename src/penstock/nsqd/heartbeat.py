"""Heartbeats of a client, and timeouts that disconnect it.

A client is disconnected when it completes no command for two heartbeat intervals (silent), or reads
none of its output for a while (stuck): for a heartbeat interval if its output is full, as in nsqd,
and for --client-write-timeout in any case, however little is unsent.

One timer per client does all of it.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, TimerHandle

from penstock.core.deadlines import NEVER_NS
from penstock.engine.components import Components
from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S
from penstock.nsqd.clients import Clients
from penstock.nsqd.session import Session
from penstock.wire import frames, identify

log = logging.getLogger(__name__)

# How long a connection may take to send the magic, and then its first command; nsqd waits forever
# for the first, and as long as heartbeats allow for the second.
FIRST_COMMAND_TIMEOUT_NS = int(FIRST_COMMAND_TIMEOUT_S * 1e9)


class Heartbeat(Session):
    """The part of a connection that checks whether its client is alive."""

    settings: identify.Settings

    def __init__(self, components: Components, clients: Clients, loop: AbstractEventLoop) -> None:
        self._broker = components.broker
        self._options = components.context.options
        self._clock = components.context.clock
        self._clients = clients
        self._loop = loop
        self._identified: identify.Settings | None = None  # by the first IDENTIFY
        self.remote_address = ""
        self._timer: TimerHandle | None = None
        self._beat_ns = 0
        # When the client last read some output; the unsent size at the last check, and the same
        # without the replies since.
        self._taken_ns = 0
        self._unsent_size = 0
        self._unsent_mark = 0
        self._write_timeout_ns = self._options.client_write_timeout_ns

    def abort(self) -> None:
        """End the connection at once."""
        raise NotImplementedError

    def _start_beating(self) -> None:
        """Send heartbeats from now on; the first IDENTIFY sets the interval."""
        first = self._identified or self.settings
        self._beat_ns = self._clock.monotonic_ns() + first.heartbeat_interval_ns
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is None:
            return
        now_ns = self._clock.monotonic_ns()
        # Often enough to notice whether the unsent size shrinks.
        unsent = self._blocked or self._unsent_size
        next_ns = now_ns + (self._patience_ns() // 4 if unsent else self._write_timeout_ns // 2)
        if not self._closed:
            next_ns = min(next_ns, self._deadline_ns())
            first = self._identified or self.settings
            if first.heartbeat_interval_ns:
                next_ns = min(next_ns, self._beat_ns)
        self._timer = self._loop.call_later(max(0, next_ns - now_ns) / 1e9, self._beat)

    def _deadline_ns(self) -> int:
        """When a client that completes no command is disconnected."""
        interval_ns = self.settings.heartbeat_interval_ns
        if not interval_ns or self._stopped or self._held or self._noted:
            # An incomplete body has its own timeout (body_budget.py).
            return NEVER_NS
        patience_ns = 2 * interval_ns
        if not self._scanner.command_count:
            patience_ns = FIRST_COMMAND_TIMEOUT_NS
        return self._waiting_since_ns + patience_ns

    def _patience_ns(self) -> int:
        """How long a client may read none of its output: as in nsqd, a heartbeat interval."""
        interval_ns = self.settings.heartbeat_interval_ns
        if interval_ns and self._blocked:
            return min(interval_ns, self._write_timeout_ns)
        return self._write_timeout_ns

    def _begin_blocked(self) -> None:
        """The output is full: from now on the client must read some of it."""
        self._blocked = True
        self._replied_size = 0
        self._unsent_size = self._unsent_mark = self._transport.get_write_buffer_size()
        self._taken_ns = self._clock.monotonic_ns()
        if self._greeted and not self._closed:
            self._arm()

    def _is_stuck(self, now_ns: int) -> bool:
        size = self._unsent_size = self._transport.get_write_buffer_size()
        before, self._unsent_mark = self._unsent_mark, size - self._replied_size
        # Only replies are added to a full output; otherwise messages are too.
        took = self._unsent_mark < before or (self._unsent_mark > before and not self._blocked)
        if took or not size:
            self._taken_ns = now_ns
        return now_ns - self._taken_ns >= self._patience_ns()

    def _beat(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._is_stuck(now_ns):
            self._clients.stuck_count += 1
            log.info("client=%s: gave up, it is stuck", self.remote_address)
            self.abort()
            return
        if not self._closed:
            if now_ns >= self._deadline_ns():
                log.info("client=%s: gave up, it is silent", self.remote_address)
                self.abort()
                return
            first = self._identified or self.settings
            if first.heartbeat_interval_ns and now_ns >= self._beat_ns:
                self._beat_ns += first.heartbeat_interval_ns
                if self._upgrade is None or not self._upgrade.handshaking:
                    self._write(frames.HEARTBEAT)
        self._arm()
