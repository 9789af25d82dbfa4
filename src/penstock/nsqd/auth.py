"""AUTH: requests to the auth servers, and what they allow a client to do.

    AUTH secret  ->  GET http://<auth-http-address>/auth?common_name=&remote_ip=&secret=&tls=
                     200 {"ttl": 3600, "identity": ..., "authorizations": [...]}

With several servers a random one is queried first, then the others in order, until one answers.

Rule 1: the loop never waits.  Only the commands of the client that authenticates wait.
Rule 2: publishing costs nothing extra.  Each client has a table of the topics that it may publish
        to; only topics not in it are checked.  When the TTL expires, the table is cleared and the
        next check queries the servers again.
Rule 3: the failure of a server is logged, not sent to the client.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from ssl import SSLContext
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, urlsplit, urlunsplit

from penstock.core.ticket import Ticket, settled
from penstock.errors import AuthError, HttpClientError, ProtocolError
from penstock.net.http_client import Answer, Timeouts, fetch
from penstock.net.tls import client_context
from penstock.record import record
from penstock.wire import gojson
from penstock.wire.address import join_address
from penstock.wire.authorization import Authorizations, read_reply
from penstock.wire.peer_answers import ACCEPT
from penstock.wire.quote import quote

if TYPE_CHECKING:
    from penstock.core.appender import Appender
    from penstock.engine.options import Options

# Requests at once; if a thousand clients reconnect together, some wait.
REQUEST_COUNT_MAX = 128
_JSON_HEADERS = {**ACCEPT, "Content-Type": "application/json"}


@record
class AuthRequest:
    """What a client authenticates with."""

    secret: bytes
    remote_ip: str
    tls: bool
    common_name: str

    def fields(self) -> dict[str, bytes]:
        """The parameters of the request, ordered by name."""
        return {
            "common_name": self.common_name.encode(),
            "remote_ip": self.remote_ip.encode(),
            "secret": self.secret,
            "tls": b"true" if self.tls else b"false",
        }


class AuthServers:
    """All auth servers of one nsqd."""

    def __init__(self, options: Options) -> None:
        self._urls = [url_of(address) for address in options.auth_http_addresses]
        self._post = options.auth_http_request_method == "post"
        self._timeouts = Timeouts.of(options)
        self._root_ca_file = options.tls_root_ca_file
        self._context: SSLContext | None = None
        self._slots = asyncio.Semaphore(REQUEST_COUNT_MAX)

    def permit(self, loop: asyncio.AbstractEventLoop) -> Permit:
        """The permit of a new client, which has not authenticated yet."""
        return Permit(self, loop)

    async def query(self, request: AuthRequest) -> Authorizations:
        """Return the first valid reply.  Raises AuthError with every server's failure."""
        first = random.randrange(len(self._urls))
        failures = []
        async with self._slots:
            for url in (*self._urls[first:], *self._urls[:first]):
                try:
                    return await self._query(url, request)
                except (AuthError, HttpClientError) as failure:
                    failures.append(str(failure))
        raise AuthError("; ".join(failures))

    async def _query(self, url: str, request: AuthRequest) -> Authorizations:
        answer = await self._send(url, request)
        if answer.status == 403 and not url.startswith("https"):
            # The server requires TLS and states the port.
            url = https_url(url, answer.body)
            answer = await self._send(url, request)
        if answer.status != 200:
            raise AuthError(f"{url}: status {answer.status}")
        return read_reply(answer.body)

    async def _send(self, url: str, request: AuthRequest) -> Answer:
        fields = request.fields()
        context = await self._tls() if url.startswith("https") else None
        if self._post:
            body = gojson.encode({k: [v.decode("utf-8", "replace")] for k, v in fields.items()})
            return await fetch(
                url, self._timeouts, method="POST", headers=_JSON_HEADERS, body=body, tls=context
            )
        query = "&".join(f"{key}={quote_plus(value)}" for key, value in fields.items())
        joint = "&" if "?" in url else "?"
        return await fetch(f"{url}{joint}{query}", self._timeouts, headers=ACCEPT, tls=context)

    async def _tls(self) -> SSLContext:
        # Reading the system's authorities takes 50 ms, so a thread does it.
        if self._context is None:
            self._context = await asyncio.to_thread(client_context, self._root_ca_file)
        return self._context


class Permit:
    """What one client may do, according to the last reply."""

    def __init__(self, servers: AuthServers, loop: asyncio.AbstractEventLoop) -> None:
        self.appenders: dict[bytes, Appender] = {}
        self.granted: Authorizations | None = None
        # Called when the TTL expires and the client's topics must be checked again.
        self.on_expired: Callable[[], None] = lambda: None
        self._servers = servers
        self._loop = loop
        self._request_sent: AuthRequest | None = None
        self._expired = True
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Authorizations] | None = None

    @property
    def authed(self) -> bool:
        return self.granted is not None and bool(self.granted.entries)

    @property
    def identity(self) -> str:
        return self.granted.identity if self.granted is not None else ""

    @property
    def identity_url(self) -> str:
        return self.granted.identity_url if self.granted is not None else ""

    def authenticate(self, secret: bytes, remote_ip: str, tls: bool, common_name: str) -> Ticket:
        """Query the servers with the client's secret."""
        self._request_sent = AuthRequest(secret, remote_ip, tls, common_name)
        return self._query()

    def _query(self) -> Ticket:
        assert self._request_sent is not None and self._task is None
        ticket = Ticket()
        self._task = self._loop.create_task(self._servers.query(self._request_sent))
        self._task.add_done_callback(lambda task: self._answered(task, ticket))
        return ticket

    def renew(self) -> Ticket:
        """Query the servers again if the TTL has expired."""
        return self._query() if self._expired else settled()

    def reply(self) -> bytes:
        """The reply to AUTH."""
        assert self.granted is not None
        return gojson.encode(
            {
                "identity": self.identity,
                "identity_url": self.identity_url,
                "permission_count": len(self.granted.entries),
            }
        )

    def judge(self, command: str, topic: str, channel: str = "") -> None:
        """Raise ProtocolError if the command is not allowed."""
        assert self.granted is not None
        if not self.granted.allows(topic, channel):
            names = f"{quote(topic.encode())} {quote(channel.encode())}"
            raise ProtocolError("E_UNAUTHORIZED", f"AUTH failed for {command} on {names}")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self.appenders.clear()

    def _answered(self, task: asyncio.Task[Authorizations], ticket: Ticket) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            ticket.settle(error if isinstance(error, Exception) else AuthError(str(error)))
            return
        self.granted = task.result()
        self._expired = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self.granted.ttl_s, self._expire)
        ticket.settle()

    def _expire(self) -> None:
        self._expired = True
        self.appenders.clear()
        self.on_expired()


def url_of(address: str) -> str:
    """``host:port`` means http and /auth; an address with a scheme is used as it is."""
    return address if "://" in address else f"http://{address}/auth"


def https_url(url: str, body: bytes) -> str:
    """The HTTPS address from a 403 to plain HTTP.  Raises AuthError."""
    try:
        port = gojson.typed(gojson.members(gojson.decode(body)).get("https_port"), int)
    except ValueError:
        raise AuthError(f"{url}: status 403") from None
    parts = urlsplit(url)
    authority = join_address(parts.hostname or "", int(port))
    return urlunsplit(("https", authority, parts.path, parts.query, ""))
