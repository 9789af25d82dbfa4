"""`nsq_to_http`: sends each message to one HTTP server, or to all of several.

A message is finished when a server accepts it (POST: any 2xx, GET: 200); otherwise it is requeued
and the consumer backs off, as after any failure.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote_plus, urljoin

from penstock.cli.consumer_tools import (
    check_source,
    consumer_config,
    lookupd_addresses,
    make_consumer,
    max_in_flight,
    nsqd_addresses,
    running,
    since,
)
from penstock.cli.flags import FlagTable
from penstock.cli.host_pool import make_pool
from penstock.cli.timings import Timing
from penstock.cli.tool import (
    Signals,
    client_options,
    log_level,
    repeated,
    start_tool,
    status_every,
    tool_table,
)
from penstock.client import Message
from penstock.errors import HttpClientError, OptionError
from penstock.net.http_client import Answer, HttpClient, Timeouts
from penstock.net.tls import client_context
from penstock.settings.kinds import Float
from penstock.settings.table import duration, integer, row, string
from penstock.version import NSQ_VERSION
from penstock.wire.url import parse_url

log = logging.getLogger("penstock.cli")

PROGRAM = "nsq_to_http"
MODES = ("round-robin", "hostpool", "epsilon-greedy")
CONTENT_TYPE = "application/octet-stream"
REDIRECTS_MAX = 10
REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class ToHttpOptions:
    topic: str = string("Messages", "", "topic to send")
    channel: str = string("Messages", "nsq_to_http", "channel to consume from")
    sample: float = row(
        Float(0.0, 1.0, checked=False), "Messages", 1.0, "fraction of the messages to send"
    )
    post: tuple[str, ...] = repeated("Requests", "address to POST messages to")
    get: tuple[str, ...] = repeated("Requests", "address to GET, with %s for the message")
    content_type: str = string("Requests", CONTENT_TYPE, "Content-Type of a POST")
    header: tuple[str, ...] = repeated("Requests", 'header to add to every request, "Name: value"')
    mode: str = string(
        "Requests", "hostpool", "round-robin, hostpool or epsilon-greedy; others: to all addresses"
    )
    n: int = integer("Requests", 100, "concurrent requests", minimum=1)
    http_client_connect_timeout_ns: int = duration(
        "Requests", "2s", "timeout for connecting", minimum="1ms"
    )
    http_client_request_timeout_ns: int = duration(
        "Requests", "20s", "timeout for a request", minimum="1ms"
    )
    max_in_flight: int = max_in_flight()
    since: str = since()
    nsqd_tcp_address: tuple[str, ...] = nsqd_addresses()
    lookupd_http_address: tuple[str, ...] = lookupd_addresses()
    consumer_opt: tuple[tuple[str, Any], ...] = client_options("consumer")
    status_every: int = status_every("requests")
    log_level: str = log_level()


def flag_table() -> FlagTable[ToHttpOptions]:
    return tool_table(PROGRAM, ToHttpOptions, "Sends the messages of a topic to HTTP servers.")


def checked(options: ToHttpOptions) -> ToHttpOptions:
    if not options.topic or not options.channel:
        raise OptionError("--topic and --channel are required")
    if options.content_type != CONTENT_TYPE and not options.post:
        raise OptionError("--content-type only used with --post")
    check_source(options)
    if not options.get and not options.post:
        raise OptionError("--get or --post required")
    if options.get and options.post:
        raise OptionError("use --get or --post not both")
    for address in options.get:
        if address.count("%s") != 1:
            raise OptionError("invalid GET address - must be a printf string")
    for address in (*options.get, *options.post):
        try:
            parse_url(address)
        except ValueError:
            raise OptionError(f"{address!r} is not an http or https address") from None
    if not 0.0 <= options.sample <= 1.0:
        raise OptionError("ERROR: --sample must be between 0.0 and 1.0")
    headers_of(options)
    return options


def headers_of(options: ToHttpOptions) -> dict[str, str]:
    headers = {"User-Agent": f"{PROGRAM} v{NSQ_VERSION}"}
    if options.post:
        headers["Content-Type"] = options.content_type
    for text in options.header:
        name, colon, value = text.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not name or not (name + value).isprintable() or " " in name:
            raise OptionError(f"invalid --header {text!r}, it must be Name: value")
        for known in [known for known in headers if known.lower() == name.lower()]:
            del headers[known]
        headers[name] = value
    return headers


def main(argv: Sequence[str] | None = None) -> int:
    """Send until stopped; return the exit status."""
    return start_tool(flag_table(), argv, run, checked)


async def run(options: ToHttpOptions, signals: Signals) -> int:
    config = consumer_config(PROGRAM, options, {}, concurrency=options.n)
    sender = Sender(options)
    consumers = [make_consumer(options, options.topic, sender.handle, config)]
    try:
        async with running(consumers, options, signals.stop):
            await signals.stop.wait()
    finally:
        await sender.close()
    return 0


class Sender:
    """Sends messages to servers."""

    def __init__(self, options: ToHttpOptions) -> None:
        self._addresses = options.post or options.get
        self._method = "POST" if options.post else "GET"
        self._headers = headers_of(options)
        self._sample = options.sample
        self._http = HttpClient(Timeouts.of(options), cache(client_context), options.n)
        self._pool = make_pool(options.mode, self._addresses) if options.mode in MODES else None
        self._timing = Timing(options.status_every)

    async def close(self) -> None:
        await self._http.close()

    async def handle(self, message: Message) -> bool:
        """Send a message; False requeues it."""
        if self._sample < 1.0 and random.random() > self._sample:
            return True
        if self._pool is None:
            for address in self._addresses:
                if not await self._send(address, message.body):
                    return False
            return True
        loop = asyncio.get_running_loop()
        address = self._pool.take()
        since_s = loop.time()
        ok = await self._send(address, message.body)
        self._pool.report(address, loop.time() - since_s, ok)
        return ok

    async def _send(self, address: str, body: bytes) -> bool:
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        try:
            answer = await self._request(address, body)
        except HttpClientError as error:
            log.error("%s failed: %s", self._method, error)
            return False
        finally:
            self._timing.add(address, loop.time() - since_s)
        good = 200 <= answer.status < 300 if self._method == "POST" else answer.status == 200
        if not good:
            log.error("%s %s: responded %d", self._method, address, answer.status)
        return good

    async def _request(self, address: str, body: bytes) -> Answer:
        """Send a request and follow redirects; 307 and 308 keep the method and the body."""
        method, url = self._method, address
        if method == "GET":
            url, body = address.replace("%s", quote_plus(body)), b""
        headers = self._headers
        for _ in range(REDIRECTS_MAX):
            answer = await self._http.fetch(url, method=method, headers=headers, body=body)
            place = answer.headers.get("location")
            if answer.status not in REDIRECTS or not place:
                return answer
            url = urljoin(url, place)
            if answer.status < 307 and method == "POST":
                method, body = "GET", b""
                headers = {k: v for k, v in headers.items() if k.lower() != "content-type"}
        raise HttpClientError(f"{address}: stopped after {REDIRECTS_MAX} redirects")
