"""A client of an engine without sockets that shows in statistics as a connection does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.nsqd.client_stats import client_stats
from penstock.wire import identify
from tests.support.engine import Client, Engine


class Worker(Client):
    """A consumer of ``topic`` and ``channel`` that has published ``pub_counts``."""

    def __init__(
        self,
        engine: Engine,
        topic: str,
        channel: str,
        *,
        ready_count: int = 0,
        pub_counts: dict[str, int] | None = None,
        hostname: str = "worker1.example.com",
    ) -> None:
        settings = identify.initial(engine.options, hostname)
        settings = settings._replace(client_id="worker1", user_agent="ref/1.0")
        self.commands = SimpleNamespace(settings=settings, permit=None)
        self.remote_address = "127.0.0.1:42552"
        self.connect_time = engine.broker.start_time
        self.scanner = SimpleNamespace(state=3)
        self.upgrade = None
        self.command_count = 0
        self.pub_counts = pub_counts or {}
        super().__init__(engine, topic, channel, ready_count)

    def stats(self, topic: str) -> dict[str, Any]:
        client: Any = self
        return client_stats(client, topic)

    def abort(self) -> None:
        self.close()
