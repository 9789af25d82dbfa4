"""Keeps garbage collections short.

A full collection walks all objects: with 10,000 channels it blocks the loop for 100 ms.  Topics,
channels and clients live long, so they are frozen (hidden from the collector) after many new ones.
When most of them are gone again, everything is unfrozen and collected.
"""

from __future__ import annotations

import asyncio
import gc

from penstock.engine.broker import Broker
from penstock.nsqd.clients import Clients

INTERVAL_S = 5.0
# New objects before the next freeze: a collection of this many takes about 5 ms.
GROWTH_COUNT = 500


class GarbageCollection:
    """Freezes long-lived objects from time to time."""

    def __init__(self, broker: Broker, clients: Clients, loop: asyncio.AbstractEventLoop) -> None:
        self._topics = broker.topics
        self._clients = clients.connected
        self._loop = loop
        self._frozen_count = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Freeze the recovered broker, and start the timer."""
        self._freeze(self._count())
        self._timer = self._loop.call_later(INTERVAL_S, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _count(self) -> int:
        topics = self._topics.values()
        channel_count = sum(len(topic.channels) for topic in topics)
        return len(topics) + channel_count + len(self._clients)

    def _check(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_S, self._check)
        count = self._count()
        if count > self._frozen_count + GROWTH_COUNT:
            self._freeze(count)
        elif self._frozen_count - count > max(GROWTH_COUNT, self._frozen_count // 2):
            gc.unfreeze()
            gc.collect()
            self._freeze(count)

    def _freeze(self, count: int) -> None:
        gc.freeze()
        self._frozen_count = count
