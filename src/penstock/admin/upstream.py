"""Requests to nsqlookupds and nsqds, many at once.

Rule 1: everything is limited: concurrent requests, time (by flags), the size of one response and of
        all together (``meter.py``), the cost of decoding one (``decoders.py``).
Rule 2: the failure of one daemon is an UpstreamError with a text for people; a request to many
        returns the responses *and* the failures.
Rule 3: after 403 with an ``https_port`` (nsqd with --tls-required=true) the request is retried
        there.
Rule 4: the token is sent to nsqds only, never to nsqlookupds or other addresses.  The callers
        decide which addresses are nsqds: ``addresses.py``, ``sampler.py``, ``cluster.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from penstock.admin.decoders import Decoding
from penstock.admin.meter import Meter, Metered
from penstock.admin.options import AdminOptions
from penstock.errors import HttpClientError, OptionError
from penstock.net.http_client import Answer, Timeouts, fetch
from penstock.net.tls import client_context
from penstock.wire.peer_answers import ACCEPT
from penstock.wire.quote import quote

T = TypeVar("T")

REQUEST_COUNT_MAX = 64
# /stats of 100,000 channels without clients has 35 MB.
BODY_SIZE_MAX = 64 << 20
# Of responses other than /stats: 1,000 nodes, 100,000 topics, 100 messages of 16 KiB, a few words.
SIZES_MAX = {
    "/nodes": 16 << 20,
    "/lookup": 16 << 20,
    "/topics": 16 << 20,
    "/channels": 16 << 20,
    "/deferred": 16 << 20,
    "/damage": 4 << 20,
    "/channel/peek": 4 << 20,
    "/policy": 64 << 10,
    "/info": 64 << 10,
}
POSTED_SIZE_MAX = 64 << 10
TOKEN_SIZE_MAX = 512
# Of a body that is shown in an error.
SHOWN_SIZE_MAX = 512
DETAIL_SIZE_MAX = 2048

# A daemon's answer to a request that it does not have.
UNKNOWN = {"message": "NOT_FOUND"}


class UpstreamError(HttpClientError):
    """A daemon did not respond, or with an error or an invalid response.

    ``text`` is NSQ's error text, with the URL; ``short`` is only the reason; ``done`` is what was
    done before it failed, for people.
    """

    def __init__(
        self, text: str, status: int = 0, short: str = "", body: bytes = b"", done: str = ""
    ) -> None:
        super().__init__(text, status)
        self.text = text
        self.short = short or text
        self.body = body
        self.done = done


class Upstream:
    """Sends the requests of one nsqadmin."""

    def __init__(self, options: AdminOptions) -> None:
        self._timeouts = Timeouts.of(options)
        self._tls = client_context(
            options.http_client_tls_root_ca_file,
            options.http_client_tls_cert,
            options.http_client_tls_key,
            insecure=options.http_client_tls_insecure_skip_verify,
            flags="http-client-tls",
        )
        self._nsqd_headers = dict(ACCEPT)
        if options.nsqd_auth_token_file:
            token = read_token(options.nsqd_auth_token_file)
            self._nsqd_headers["Authorization"] = f"Bearer {token}"
        self._turns = asyncio.Semaphore(REQUEST_COUNT_MAX)
        self._meter = Meter()
        self._decoding = Decoding()

    async def close(self) -> None:
        """Stop the decoder process."""
        await self._decoding.close()

    async def lookupd_get(self, address: str, path: str, **query: str) -> Any:
        return await self._get(address, path, query, ACCEPT)

    async def lookupd_post(self, address: str, path: str, **query: str) -> None:
        await self._post(address, path, query, ACCEPT)

    async def nsqd_get(self, address: str, path: str, **query: str) -> Any:
        return await self._get(address, path, query, self._nsqd_headers)

    async def nsqd_post(
        self, address: str, path: str, query: Mapping[str, str], body: bytes = b""
    ) -> None:
        await self._post(address, path, query, self._nsqd_headers, body)

    async def nsqd_ask(
        self, address: str, path: str, query: Mapping[str, str], body: bytes = b""
    ) -> Any:
        """Post a request whose response is JSON."""
        with Metered(self._meter, POSTED_SIZE_MAX) as incoming:
            headers = self._nsqd_headers
            answer = await self._request("POST", address, path, query, headers, incoming, body)
            try:
                return await self._decoding.decode(answer.body)
            except ValueError as error:
                raise failure("POST", f"http://{address}{path}", str(error)) from None

    async def nsqd_put(
        self, address: str, path: str, query: Mapping[str, str], body: bytes
    ) -> None:
        with Metered(self._meter, POSTED_SIZE_MAX) as incoming:
            await self._request("PUT", address, path, query, self._nsqd_headers, incoming, body)

    async def nsqd_delete(self, address: str, path: str) -> None:
        with Metered(self._meter, POSTED_SIZE_MAX) as incoming:
            await self._request("DELETE", address, path, {}, self._nsqd_headers, incoming)

    async def elsewhere(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        """Send a request to a server that is not an NSQ daemon; any status is a response."""
        async with self._turns:
            try:
                return await fetch(
                    *(url, self._timeouts), method=method, headers=headers, body=body, tls=self._tls
                )
            except HttpClientError as error:
                raise UpstreamError(str(error)) from None

    async def _get(
        self, address: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Any:
        size_max = min(SIZES_MAX.get(path, BODY_SIZE_MAX), BODY_SIZE_MAX)
        with Metered(self._meter, size_max) as incoming:
            answer = await self._request("GET", address, path, query, headers, incoming)
            try:
                return await self._decoding.decode(answer.body)
            except ValueError as error:
                raise failure("GET", f"http://{address}{path}", str(error)) from None

    async def _post(
        self,
        address: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes = b"",
    ) -> None:
        with Metered(self._meter, POSTED_SIZE_MAX) as incoming:
            await self._request("POST", address, path, query, headers, incoming, body)

    async def _request(
        self,
        method: str,
        address: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        incoming: Metered,
        body: bytes = b"",
    ) -> Answer:
        # A name from a request's path may have bytes that are not UTF-8.
        target = path + ("?" + urlencode(query, errors="surrogateescape") if query else "")
        async with self._turns:
            answer = await self._fetch(method, "http", address, target, headers, incoming, body)
            if answer.status == 403 and (port := https_port(answer.body)):
                host = address.rpartition(":")[0]
                again = incoming.again()
                answer = await self._fetch(
                    *(method, "https", f"{host}:{port}", target, headers, again, body)
                )
        if answer.status != 200:
            raise refusal(answer)
        return answer

    async def _fetch(
        self,
        method: str,
        scheme: str,
        address: str,
        target: str,
        headers: Mapping[str, str],
        incoming: Metered,
        body: bytes,
    ) -> Answer:
        if address.endswith(":0"):
            # In a URL, port 0 would mean port 80.
            raise failure(method, f"{scheme}://{address}{target}", "no HTTP port")
        try:
            return await fetch(
                f"{scheme}://{address}{target}",
                self._timeouts,
                method=method,
                headers=headers,
                body=body,
                tls=self._tls,
                incoming=incoming,
            )
        except HttpClientError as error:
            raise failure(method, f"{scheme}://{address}{target}", _reason(error)) from None


async def request_all(
    addresses: Iterable[str], request: Callable[[str], Coroutine[Any, Any, T]]
) -> tuple[dict[str, T], dict[str, UpstreamError]]:
    """Send all requests concurrently: the responses and the failures, by address."""
    unique = list(dict.fromkeys(addresses))
    results = await asyncio.gather(*map(request, unique), return_exceptions=True)
    answers: dict[str, T] = {}
    failures: dict[str, UpstreamError] = {}
    for address, result in zip(unique, results, strict=True):
        if isinstance(result, UpstreamError):
            failures[address] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[address] = result
    return answers, failures


def failure(method: str, url: str, reason: str) -> UpstreamError:
    """As Go's HTTP client formats it: ``Get "http://10.0.0.5:4151/stats": timed out``."""
    return UpstreamError(f'{method.title()} "{url}": {reason}', short=reason)


def refusal(answer: Answer) -> UpstreamError:
    """NSQ's text, because tools match on it."""
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = ""
    shown = quote(answer.body[:SHOWN_SIZE_MAX])
    text = f"got response {answer.status} {phrase} {shown}"
    return UpstreamError(text, answer.status, _detail(answer.body), answer.body[:DETAIL_SIZE_MAX])


def _detail(body: bytes) -> str:
    """What a Penstock says of its refusal, for people; "" if it says nothing."""
    if len(body) > DETAIL_SIZE_MAX:
        return ""
    try:
        answer = json.loads(body)
        if answer == UNKNOWN:
            return "cannot do this: it is NSQ's own nsqd, or an earlier version"
        detail = answer["detail"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return detail.encode("utf-8", "replace").decode() if isinstance(detail, str) else ""


def https_port(body: bytes) -> int:
    """The HTTPS port named in a response to plain HTTP; 0 if there is none."""
    if len(body) > SHOWN_SIZE_MAX:
        return 0
    try:
        port = json.loads(body)["https_port"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return 0
    return port if isinstance(port, int) and 0 < port < 65536 else 0


def _reason(error: HttpClientError) -> str:
    """A short reason: "connection refused"."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {cause.reason or cause}"
    if isinstance(cause, OSError) and cause.strerror:
        # asyncio has its own text; take the errno's.
        return _os_text(cause)
    if cause is None:
        return "timed out"
    # The parser wraps the errors of our own limits.
    inner = cause.__context__
    cause = inner if isinstance(inner, ValueError) else cause
    return str(cause) or type(cause).__name__


def _os_text(error: OSError) -> str:
    number = error.errno or 0
    return os.strerror(number).lower() if number > 0 else str(error.strerror)


def read_token(path: str) -> str:
    """The token in a file, alone or after a role as in nsqd's own token file."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(TOKEN_SIZE_MAX + 64)
    except OSError as error:
        raise OptionError(f"--nsqd-auth-token-file {path}: {error.strerror}") from None
    lines = [line.split() for line in text.splitlines() if line.strip()]
    words = next((line for line in lines if not line[0].startswith(b"#")), [])
    if not 1 <= len(words) <= 2 or len(words[-1]) > TOKEN_SIZE_MAX or not words[-1].isascii():
        raise OptionError(f"--nsqd-auth-token-file {path}: must contain one token")
    return words[-1].decode("ascii")
