"""A client of an engine without sockets that shows in statistics as a connection does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.nsqd.client_stats import ClientStats
from penstock.wire import identify
from tests.support.engine import Client, Engine


class Worker(ClientStats, Client):
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
        self.settings = settings._replace(client_id="worker1", user_agent="ref/1.0")
        self.remote_address = "127.0.0.1:42552"
        self.connect_time = engine.broker.start_time
        scanner: Any = SimpleNamespace(state=3, command_count=0, pub_counts=pub_counts or {})
        self._scanner = scanner
        self._upgrade = self._permit = None
        Client.__init__(self, engine, topic, channel, ready_count)

    def abort(self) -> None:
        self.close()
