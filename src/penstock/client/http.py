"""One HTTP GET, for asking nsqlookupd.

Rule 1: a connection a request; polls are a minute apart.
Rule 2: time and size have limits.  Everything that goes wrong is a DiscoveryError.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from penstock.errors import DiscoveryError

BODY_SIZE_MAX = 16 << 20
READ_SIZE = 64 << 10


@dataclass(slots=True)
class Answer:
    """What httptools' callbacks gather."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    begun: bool = False  # all headers are here
    complete: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.begun = True

    def on_body(self, part: bytes) -> None:
        if len(self.body) + len(part) > BODY_SIZE_MAX:
            raise DiscoveryError(f"an answer of more than {BODY_SIZE_MAX} bytes")
        self.body += part

    def on_message_complete(self) -> None:
        self.complete = True


async def get(
    url: str, headers: dict[str, str], timeout_s: float, context: ssl.SSLContext | None = None
) -> Answer:
    """GET ``url``; any status is an answer."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _get(url, headers, context)
    except TimeoutError:
        raise DiscoveryError(f"{url} did not answer in {timeout_s:g} s") from None
    except (OSError, httptools.HttpParserError) as error:
        raise DiscoveryError(f"{url}: {error or type(error).__name__}") from None


async def _get(url: str, headers: dict[str, str], context: ssl.SSLContext | None) -> Answer:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    if parts.hostname is None:
        raise DiscoveryError(f"{url} is not an address")
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or (443 if secure else 80),
        ssl=(context or ssl.create_default_context()) if secure else None,
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Connection: close", "", ""]
        writer.write("\r\n".join(lines).encode("latin-1"))
        return await _read(reader, url)
    finally:
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader, url: str) -> Answer:
    answer = Answer()
    parser = httptools.HttpResponseParser(answer)
    while not answer.complete:
        data = await reader.read(READ_SIZE)
        if not data:
            # Without a length the body ends where the connection does.
            if not answer.begun or "content-length" in answer.headers:
                raise DiscoveryError(f"{url} closed in the middle of its answer")
            break
        parser.feed_data(data)
    answer.status = parser.get_status_code()
    return answer
