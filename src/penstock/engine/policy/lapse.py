"""Deletes ordinary channels that had no client for their ``channel_lapse``.

The time without a client begins when the last one leaves, and anew with every start of nsqd: while
the node was down, nobody could subscribe.  Pull channels have a lapse of their own
(engine/pull/channel.py), ephemeral channels are deleted with their last client.
"""

from __future__ import annotations

import logging

from penstock.engine.context import Context
from penstock.engine.policy.subjects import RuledChannel

log = logging.getLogger(__name__)

# Channels checked, and deleted, once a second: a check is a microsecond, a deletion two syncs.
CHECK_COUNT_MAX = 1000
DELETE_COUNT_MAX = 16


class Lapses:
    """The channels that have a channel_lapse."""

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._supervisor = context.supervisor
        # By number; one that was checked goes to the end.
        self._channels: dict[int, RuledChannel] = {}
        self.count = 0

    def watch(self, channel: RuledChannel) -> None:
        """The channel's policy was applied."""
        if channel.policy.channel_lapse_ns and not channel.ephemeral and not channel.pulled:
            self._channels.setdefault(channel.number, channel)
        else:
            self._channels.pop(channel.number, None)

    def expire(self) -> None:
        """Delete channels without a client for too long; called once a second."""
        deleted_count = 0
        now_ns = self._clock.monotonic_ns()
        for _ in range(min(CHECK_COUNT_MAX, len(self._channels))):
            number = next(iter(self._channels))
            channel = self._channels.pop(number)
            if channel.closed or channel.topic.closed:
                continue
            lapse_ns = channel.policy.channel_lapse_ns
            idle_ns = 0 if channel.consumers else now_ns - channel.idle_from_ns
            if idle_ns < lapse_ns or deleted_count == DELETE_COUNT_MAX:
                self._channels[number] = channel
                continue
            deleted_count += 1
            self._supervisor.guard(channel.name, self._delete, channel, idle_ns)

    def _delete(self, channel: RuledChannel, idle_ns: int) -> None:
        topic = channel.topic
        if topic.channels.get(channel.name) is not channel:
            return
        self.count += 1
        log.warning(
            "topic=%s channel=%s: lapsed after %d s without a client, with %d messages queued,"
            " %d in flight, %d deferred, %d buried",
            *(topic.name, channel.name, idle_ns // 1_000_000_000, channel.depth),
            *(channel.in_flight_count, channel.deferred_count, channel.window.buried_count),
        )
        topic.delete_channel(channel.name)
