"""Notifies of every action with a POST of JSON to --notification-http-endpoint, as in NSQ.

Rule 1: nothing waits for a notification or depends on it.  If the endpoint is down, the error is
        logged; if it is slow, notifications above QUEUE_COUNT_MAX are dropped, counted and logged.
Rule 2: they are sent in the order of the actions, one at a time, without a retry.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from penstock.admin.upstream import Upstream, UpstreamError
from penstock.net.http_message import Request
from penstock.settings.daemon import hostname
from penstock.wire import gojson

log = logging.getLogger(__name__)

QUEUE_COUNT_MAX = 1000


class Notifier:
    """The queue of notifications; without an endpoint it stays empty."""

    def __init__(
        self, endpoint: str, upstream: Upstream, now_s: Callable[[], float] = time.time
    ) -> None:
        self.dropped_count = 0
        self._endpoint = endpoint
        self._upstream = upstream
        self._now_s = now_s
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(QUEUE_COUNT_MAX)

    def notify(
        self, action: str, request: Request, topic: str, channel: str = "", node: str = ""
    ) -> None:
        """Queue a notification."""
        if not self._endpoint:
            return
        notice = notification(action, request, topic, channel, node, int(self._now_s()))
        try:
            self._queue.put_nowait(notice)
        except asyncio.QueueFull:
            self.dropped_count += 1
            log.warning("NOTIFY: %s dropped: %d are queued", action, QUEUE_COUNT_MAX)

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._send(await self._queue.get())

    async def drain(self, seconds_max: float) -> None:
        """Send the queued notifications, for ``seconds_max`` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while not self._queue.empty():
                    await self._send(self._queue.get_nowait())

    async def _send(self, notice: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json"}
        try:
            answer = await self._upstream.elsewhere(
                "POST", self._endpoint, headers, gojson.encode(notice)
            )
        except UpstreamError as error:
            log.error("NOTIFY: %s not sent: %s", notice["action"], error)
            return
        if answer.status >= 300:
            log.error("NOTIFY: %s: the endpoint responded %d", notice["action"], answer.status)


def notification(
    action: str, request: Request, topic: str, channel: str, node: str, now_s: int
) -> dict[str, Any]:
    """NSQ's fields in NSQ's order; channel, node and user are omitted if empty."""
    headers = request.headers
    scheme = "https" if headers.get(b"x-scheme") == b"https" else "http"
    host = headers.get(b"host", b"").decode("latin-1")
    named = {"channel": channel, "node": node}
    user = basic_user(headers.get(b"authorization", b""))
    return {
        "action": action,
        "topic": topic,
        **{name: value for name, value in named.items() if value},
        "timestamp": now_s,
        **({"user": user} if user else {}),
        "remote_ip": request.remote_address,
        "user_agent": headers.get(b"user-agent", b"").decode("utf-8", "replace"),
        "url": f"{scheme}://{host}{request.target}",
        "via": hostname(),
    }


def basic_user(header: bytes) -> str:
    """The user of HTTP basic authentication."""
    scheme, _, encoded = header.partition(b" ")
    if scheme != b"Basic":
        return ""
    try:
        name, colon, _ = base64.b64decode(encoded, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return ""
    return name.decode("utf-8", "replace") if colon else ""
