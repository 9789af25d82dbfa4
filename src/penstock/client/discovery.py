"""Polls nsqlookupd for the nsqds that have a topic.

The first poll is immediate, the second after a random part of the interval, then one per interval.
Each polls all lookupds and uses the union of their lists.  go-nsq polls one per round, and finds
a node that only another lookupd lists minutes later.

Rule 1: a lookupd that fails is logged and the others are used; if all fail, the last list stays.
Rule 2: a node that is no longer listed is not disconnected; it is only not reconnected.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from penstock.client.config import Config, make_context
from penstock.errors import DiscoveryError, HttpClientError
from penstock.net.http_client import Timeouts
from penstock.net.peer_client import lookup
from penstock.wire.peer_answers import ACCEPT

log = logging.getLogger("penstock.client")

# Enough for a topic with more than a thousand nodes.
BODY_SIZE_MAX = 16 << 20


async def find_nodes(address: str, topic: str, config: Config) -> list[str]:
    """Query one lookupd for the TCP addresses of a topic's nodes."""
    headers = {**ACCEPT, "User-Agent": config.user_agent}
    if config.auth_secret and config.lookupd_authorization:
        headers["Authorization"] = f"Bearer {config.auth_secret}"
    tls = make_context(config) if address.startswith("https:") else None
    timeout_s = config.lookupd_poll_timeout
    limits = {"headers": headers, "tls": tls, "body_size_max": BODY_SIZE_MAX}
    try:
        return await lookup(address, topic, "tcp_port", Timeouts(timeout_s, timeout_s), **limits)
    except (HttpClientError, ValueError) as error:
        raise DiscoveryError(str(error)) from None


class Discovery:
    """Polls until stopped; ``found`` is called with the union after each successful round."""

    def __init__(
        self,
        lookupd_addresses: Sequence[str],
        topic: str,
        config: Config,
        found: Callable[[set[str]], None],
    ) -> None:
        self.polled = asyncio.Event()  # the first round is over
        self._lookupd_addresses = lookupd_addresses
        self._topic = topic
        self._config = config
        self._found = found
        self._poll_wanted = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._poll())

    def poll_now(self) -> None:
        """Poll again now, because a connection was lost."""
        self._poll_wanted.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _poll(self) -> None:
        config = self._config
        wait_s = random.random() * config.lookupd_poll_jitter * config.lookupd_poll_interval
        while True:
            self._poll_wanted.clear()
            await self._poll_once()
            self.polled.set()
            try:
                async with asyncio.timeout(wait_s):
                    await self._poll_wanted.wait()
                # Connections lost one after the other must not cause a poll each.
                await asyncio.sleep(min(0.1, config.lookupd_poll_interval))
            except TimeoutError:
                wait_s = config.lookupd_poll_interval

    async def _poll_once(self) -> None:
        answers = await asyncio.gather(
            *(
                find_nodes(address, self._topic, self._config)
                for address in self._lookupd_addresses
            ),
            return_exceptions=True,
        )
        union: set[str] = set()
        answered = False
        for address, answer in zip(self._lookupd_addresses, answers, strict=True):
            if isinstance(answer, list):
                answered = True
                union.update(answer)
            elif isinstance(answer, Exception):
                log.warning("lookupd=%s topic=%s: %s", address, self._topic, answer)
            else:
                raise answer
        if answered:
            self._found(union)
