"""Asks nsqlookupd which nsqds have a topic.

    first at once, then after a random part of the interval, then every interval; all lookupds each
    time, and the union counts.  go-nsq asks one a round: a node known to another one only is then
    found minutes later.

Rule 1: a lookupd that fails is reported and the others count; if all fail, what was known stays.
Rule 2: a node that is no longer listed is not disconnected; it is only not connected again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from penstock.client.config import Config, make_context
from penstock.client.http import get
from penstock.errors import DiscoveryError, OptionError

log = logging.getLogger("penstock.client")

ACCEPT = "application/vnd.nsq; version=1.0"
V1 = "nsq; version=1.0"


def lookup_url(address: str, topic: str) -> str:
    """The address of a lookupd as people write it, made into the URL to ask."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.hostname is None or (port is None and parts.scheme != "https"):
        raise OptionError(f"nsqlookupd address {address!r}: missing port")
    path = parts.path if parts.path not in ("", "/") else "/lookup"
    query = f"{parts.query}&" if parts.query else ""
    return urlunsplit((parts.scheme, parts.netloc, path, f"{query}topic={quote(topic)}", ""))


def addresses_in(body: bytes, *, plain: bool) -> list[str]:
    """The nsqds of an answer; before version 1 it stood under ``data``."""
    try:
        answer: Any = json.loads(body)
        if not plain and "producers" not in answer:
            answer = answer["data"]
        return [
            join_address(str(node["broadcast_address"]), int(node["tcp_port"]))
            for node in answer["producers"] or ()
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DiscoveryError(f"an answer that makes no sense: {body[:80]!r}") from None


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def look_up(address: str, topic: str, config: Config) -> list[str]:
    """Ask one lookupd.  A topic it does not know (404) has no nsqds yet."""
    headers = {"Accept": ACCEPT, "User-Agent": config.user_agent}
    if config.auth_secret and config.lookupd_authorization:
        headers["Authorization"] = f"Bearer {config.auth_secret}"
    url = lookup_url(address, topic)
    context = make_context(config) if url.startswith("https:") else None
    answer = await get(url, headers, config.lookupd_poll_timeout, context)
    if answer.status == 404:
        return []
    if answer.status != 200:
        raise DiscoveryError(f"{url} answered {answer.status}")
    plain = answer.headers.get("x-nsq-content-type") == V1
    return addresses_in(bytes(answer.body), plain=plain)


class Discovery:
    """Polls until stopped; ``found`` is called with the union after every round that worked."""

    def __init__(
        self,
        lookupd_addresses: Sequence[str],
        topic: str,
        config: Config,
        found: Callable[[set[str]], None],
    ) -> None:
        self.asked = asyncio.Event()  # the first round is over
        self._lookupd_addresses = lookupd_addresses
        self._topic = topic
        self._config = config
        self._found = found
        self._hurry = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._poll())

    def hurry(self) -> None:
        """Ask again now: a connection was lost."""
        self._hurry.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _poll(self) -> None:
        config = self._config
        wait_s = random.random() * config.lookupd_poll_jitter * config.lookupd_poll_interval
        while True:
            self._hurry.clear()
            await self._ask()
            self.asked.set()
            try:
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()
                # Connections that fall one by one must not make a poll each.
                await asyncio.sleep(min(0.1, config.lookupd_poll_interval))
            except TimeoutError:
                wait_s = config.lookupd_poll_interval

    async def _ask(self) -> None:
        answers = await asyncio.gather(
            *(look_up(address, self._topic, self._config) for address in self._lookupd_addresses),
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
