"""A link keeps one address connected.

    connect --ok--> use it until it is lost --> wait --> connect ...
            --no--------------------------------^
                    reconnect_delay x 2^failures, at most max_reconnect_delay, half of it random

The random half keeps a thousand clients from reconnecting at the same moment.  Who reconnects to a
channel that is gone does not start it in the past again, whatever the topic's policy says.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from penstock.client.config import Config
from penstock.client.connection import Connection
from penstock.errors import PenstockError
from penstock.settings.places import QUEUED

log = logging.getLogger("penstock.client")

STEADY_S = 1.0


def reconnect_delay_s(config: Config, failure_count: int, chance: float) -> float:
    """Time to wait after ``failure_count`` failures in a row; ``chance`` is in [0, 1)."""
    longest_s = config.reconnect_delay * 2.0 ** min(failure_count, 40)
    return min(longest_s, config.max_reconnect_delay) * (0.5 + 0.5 * chance)


class Link:
    """One address.  ``opened`` gets each new connection; ``wanted``: whether to reconnect."""

    def __init__(
        self,
        address: str,
        config: Config,
        opened: Callable[[Connection], None],
        wanted: Callable[[], bool] = lambda: True,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.address = address
        self.tried = asyncio.Event()  # the first attempt is over
        self._config = config
        self._opened = opened
        self._wanted = wanted
        self._failed = failed
        self._task = asyncio.get_running_loop().create_task(self._keep())

    @property
    def done(self) -> bool:
        return self._task.done()

    async def stop(self) -> None:
        """Stop reconnecting; a connection in use stays open."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _keep(self) -> None:
        failure_count = 0
        while True:
            try:
                connection = await Connection.open(self.address, self._config)
            except (PenstockError, OSError, ValueError) as error:  # ValueError: an odd host name
                log.warning("nsqd=%s: %s", self.address, error)
                self._failed(error)
                self.tried.set()
            else:
                log.info("nsqd=%s: connected", self.address)
                since_s = asyncio.get_running_loop().time()
                self._opened(connection)
                self.tried.set()
                await asyncio.shield(connection.closed)
                # A connection that nsqd closes right after setup counts as a failure.
                if asyncio.get_running_loop().time() - since_s > STEADY_S:
                    failure_count = 0
                    if self._config.start:
                        self._config = self._config.replace(start=QUEUED)
            if not self._wanted():
                return
            await asyncio.sleep(reconnect_delay_s(self._config, failure_count, random.random()))
            failure_count += 1
            if not self._wanted():
                return
