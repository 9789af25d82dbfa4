"""Queries nsqlookupds and nsqds on the loop, for nsqd, consumers and tools.

nsqadmin has limits of its own and uses its ``upstream.py``; Spark's workers have no loop.  Both
parse the answers as here, with ``wire/peer_answers.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ssl import SSLContext
from typing import Any, TypeVar

from penstock.errors import HttpClientError
from penstock.net.http_client import BODY_SIZE_MAX, AnswerReader, Timeouts, fetch, origin_of
from penstock.wire.peer_answers import ACCEPT, addresses_in, decode
from penstock.wire.url import lookupd_url

T = TypeVar("T")


async def fetch_json(
    url: str,
    timeouts: Timeouts,
    *,
    headers: Mapping[str, str] = ACCEPT,
    tls: SSLContext | None = None,
    body_size_max: int = BODY_SIZE_MAX,
    read: Callable[[bytes], T] = decode,
) -> T:
    """The answer of nsqlookupd or nsqd, parsed by ``read``.

    Raises HttpClientError, with its status if there was an answer, and what ``read`` raises.
    """
    incoming = AnswerReader(False, body_size_max)
    answer = await fetch(url, timeouts, headers=headers, tls=tls, incoming=incoming)
    if answer.status != 200:
        raise HttpClientError(f"{origin_of(url)} answered {answer.status}", answer.status)
    return read(answer.body)


async def lookup(
    address: str, topic: str, port: str, timeouts: Timeouts, **limits: Any
) -> list[str]:
    """The nodes of a topic, by their ``tcp_port`` or ``http_port``; ``limits`` of `fetch_json`.

    A topic that nsqlookupd does not know (404) has no nodes yet.
    """
    url = lookupd_url(address, "/lookup", topic=topic)
    try:
        return addresses_in(await fetch_json(url, timeouts, **limits), port)
    except HttpClientError as error:
        if error.status != 404:
            raise
        return []
