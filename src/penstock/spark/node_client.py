"""Blocking HTTP client of one node, for drivers and tasks, with cached connections.

Python workers of Spark live longer than their tasks and run one at a time, so this module caches
connections, one per thread and node; a task of the next micro-batch reuses them.

Rule 1: every request here is idempotent, so one that failed is retried, with growing waits, until
        ``retryTimeout`` is over.  A query survives the restart of a node.
Rule 2: an error response (4xx) is final and becomes a NodeError with its code.
Rule 3: every wait has a timeout.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from penstock.errors import NodeError, OptionError
from penstock.net.tls import client_context
from penstock.spark.options import Options
from penstock.version import VERSION
from penstock.wire.peer_answers import stats_query
from penstock.wire.url import parse_url

T = TypeVar("T")

log = logging.getLogger("penstock.spark")

# Errors that may be temporary: the node starts, stops, is too busy, or its disk is full.
TRANSIENT = frozenset({429, 500, 502, 503, 504, 507})
WAIT_FIRST_S = 0.05
WAIT_MAX_S = 1.0
# Request timeout where a node that is down must not delay the others.
BRIEF_S = 2.0
NS = 1e9

NOT_OURS = "is this an nsqd of Penstock?  A Go nsqd can be read with mode=channel"
ADVICE = {
    "UNAUTHORIZED": "set a token in the option httpToken or httpTokenFile",
    "FORBIDDEN": "the token's role does not allow it: reading needs read, writing needs publish",
    "TLS_REQUIRED": "use https:// addresses, or tls=true with the HTTPS port",
    "METHOD_NOT_ALLOWED": NOT_OURS,
    "NOT_FOUND": NOT_OURS,
}
HAS_READER = "CHANNEL_HAS_READER"
TAKE_OVER_REFUSED = "TAKE_OVER_REFUSED"


@dataclass(frozen=True, slots=True)
class Access:
    """The options that a connection to a node needs."""

    tls: bool = False
    root_ca_file: str = ""
    cert: str = ""
    key: str = ""
    insecure: bool = False
    token: str = ""
    request_timeout_s: float = 30.0
    retry_timeout_s: float = 60.0

    @classmethod
    def of(cls, options: Options) -> Access:
        """Called on the driver: reads httpTokenFile."""
        return cls(
            options.tls,
            options.tls_root_ca_file,
            options.tls_cert,
            options.tls_key,
            options.tls_insecure_skip_verify,
            options.http_token or _token_in(options.http_token_file),
            options.request_timeout_ns / NS,
            options.retry_timeout_ns / NS,
        )


def _token_in(path: str) -> str:
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise OptionError(f"option httpTokenFile {path}: {error}") from None
    if not token:
        raise OptionError(f"option httpTokenFile {path}: the file is empty")
    return token


class Response(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Request(NamedTuple):
    """A request that can be sent again."""

    method: str
    target: str
    body: bytes | None


Key = tuple[str, Access]


class ConnectionCache(threading.local):
    """The connections of one thread."""

    def __init__(self) -> None:
        self.connections: dict[Key, http.client.HTTPConnection] = {}


_cache = ConnectionCache()


def node_request(
    method: str, path: str, parameters: Mapping[str, object] | None = None, body: object = None
) -> Request:
    """Return a request; a body that is not bytes is encoded as JSON."""
    target = path
    if parameters:
        target += "?" + urlencode({name: str(value) for name, value in parameters.items()})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return Request(method, target, body)


def host_and_port(address: str) -> tuple[str, int]:
    """Return (host, port) of ``host:port`` or a URL with a port; raises OptionError."""
    try:
        url = parse_url(address if "://" in address else f"http://{address}")
    except ValueError:
        url = None
    if url is None or url.target != "/" or not url.authority.endswith(f":{url.port}"):
        raise OptionError(f"address {address!r} must be host:port or https://host:port")
    return url.host, url.port


@lru_cache(maxsize=16)
def tls_context(access: Access) -> ssl.SSLContext:
    return client_context(access.root_ca_file, access.cert, access.key, insecure=access.insecure)


def connect(
    address: str, access: Access, timeout_s: float | None = None
) -> http.client.HTTPConnection:
    """Return a new connection, not cached; it connects with the first request."""
    host, port = host_and_port(address)
    timeout_s = timeout_s or access.request_timeout_s
    if address.startswith("https://") or (access.tls and not address.startswith("http://")):
        context = tls_context(access)
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


class Node:
    """One nsqd, or nsqlookupd, at ``address``."""

    def __init__(self, address: str, access: Access, kind: str = "nsqd") -> None:
        self.address = address
        self.access = access
        self.kind = kind
        self._headers = {"User-Agent": f"penstock-spark/{VERSION}"}
        if access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"

    def __repr__(self) -> str:
        return f"{self.kind} {self.address}"

    def brief(self) -> Node:
        """The same node with a short request timeout."""
        timeout_s = min(BRIEF_S, self.access.request_timeout_s)
        return Node(self.address, replace(self.access, request_timeout_s=timeout_s), self.kind)

    def get(self, path: str, **parameters: object) -> Any:
        """Send a GET; return the JSON of the response."""
        return self.json(node_request("GET", path, parameters))

    def post(self, path: str, body: object = None, **parameters: object) -> Any:
        """Send a POST; return the JSON of the response."""
        return self.json(node_request("POST", path, parameters, body if body is not None else b""))

    def json(self, request: Request, retry_s: float | None = None) -> Any:
        return self.decoded(self.call(request, retry_s))

    def decoded(self, answer: Response) -> Any:
        try:
            return json.loads(answer.body)
        except ValueError:
            raise NodeError(f"{self}: response is not JSON: {answer.body[:80]!r}") from None

    def read(self, reader: Callable[[Any], T], answer: Any) -> T:
        """Decode a response with a function of `penstock.wire.peer_answers`."""
        try:
            return reader(answer)
        except ValueError as error:
            raise NodeError(f"{self} returned {error}") from None

    def stats(self) -> Any:
        """The response to /stats, without clients."""
        return self.get("/stats", **stats_query())

    def call(self, request: Request, retry_s: float | None = None) -> Response:
        """Send a request, with retries; ``retry_s`` overrides retryTimeout."""
        if retry_s is None:
            retry_s = self.access.retry_timeout_s
        give_up_s = time.monotonic() + retry_s
        wait_s = WAIT_FIRST_S
        while True:
            try:
                return self.try_once(request)
            except NodeError as error:
                if error.status and error.status not in TRANSIENT:
                    raise
                left_s = give_up_s - time.monotonic()
                if left_s <= 0 or isinstance(error.__cause__, ssl.SSLCertVerificationError):
                    raise
                log.warning("%s; retrying for %.0f s", error, left_s)
            time.sleep(min(wait_s, max(0.0, give_up_s - time.monotonic())) * random.uniform(0.5, 1))
            wait_s = min(2 * wait_s, WAIT_MAX_S)

    def try_once(self, request: Request) -> Response:
        """Send a request once; reconnect if the node has closed the cached connection."""
        kept = _cache.connections.pop((self.address, self.access), None)
        if kept is not None:
            try:
                return self._exchange(kept, request)
            except (OSError, http.client.HTTPException):
                kept.close()
        connection = connect(self.address, self.access)
        try:
            return self._exchange(connection, request)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self.unreachable(error) from error

    def _exchange(self, connection: http.client.HTTPConnection, request: Request) -> Response:
        self.send(connection, request)
        return self.check(request, self.keep(connection))

    def begin(self, request: Request) -> PendingRequest:
        """Send a request without waiting for the response: the node works meanwhile."""
        connection = _cache.connections.pop((self.address, self.access), None)
        if connection is None:
            connection = connect(self.address, self.access)
        try:
            self.send(connection, request)
        except (OSError, http.client.HTTPException):
            connection.close()
            return PendingRequest(self, request, None)
        return PendingRequest(self, request, connection)

    def keep(self, connection: http.client.HTTPConnection) -> Response:
        """Receive a response and cache the connection for the next request."""
        answer = self.receive(connection)
        _cache.connections[self.address, self.access] = connection
        return answer

    def send(self, connection: http.client.HTTPConnection, request: Request) -> None:
        connection.request(request.method, request.target, request.body, self._headers)

    def receive(self, connection: http.client.HTTPConnection) -> Response:
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read())

    def check(self, request: Request, answer: Response) -> Response:
        """Return a response with status 200; raise any other as a NodeError."""
        if answer.status == 200:
            return answer
        code, detail, fields = _error_fields(answer.body)
        path = request.target.partition("?")[0]
        text = f"{self} answers {answer.status} {code} to {request.method} {path}"
        if detail:
            text += f": {detail}"
        advice = (
            _reader_advice(fields) if code in (HAS_READER, TAKE_OVER_REFUSED) else ADVICE.get(code)
        )
        if advice:
            text += f" ({advice})"
        raise NodeError(text, answer.status, code)

    def unreachable(self, error: BaseException) -> NodeError:
        return NodeError(f"{self} does not answer: {error or type(error).__name__}")


class PendingRequest:
    """A request that was sent and has no response yet."""

    def __init__(
        self, node: Node, request: Request, connection: http.client.HTTPConnection | None
    ) -> None:
        self._node = node
        self._request = request
        self._connection = connection

    def answer(self) -> Response:
        """Wait for the response; retry the request if it fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                return self._node.check(self._request, self._node.keep(connection))
            except (OSError, http.client.HTTPException):
                connection.close()
            except NodeError as error:
                if error.status not in TRANSIENT:
                    raise
        return self._node.call(self._request)

    def drop(self) -> None:
        """Discard the request and its connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _reader_advice(fields: Mapping[str, Any]) -> str:
    identity = fields.get("identity")
    if not identity:
        return "the channel has no reader: start without the option takeOver"
    return (
        "a pull channel has one reader: stop the other query, use another channel for this one, or "
        f"take the channel over from the other one with the option takeOver={identity}"
    )


def _error_fields(body: bytes) -> tuple[str, str, Mapping[str, Any]]:
    """The code, the detail and all fields of an error response."""
    try:
        fields = json.loads(body)
        return str(fields["message"]), str(fields.get("detail", "")), fields
    except (ValueError, KeyError, TypeError, AttributeError):
        return body[:80].decode("latin-1"), "", {}
