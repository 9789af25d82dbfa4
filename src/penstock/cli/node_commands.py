"""Commands for all nodes of a cluster, or for some: their flags, and requests to every node.

Rule 1: every node is asked, whatever the others answer.  Each failure is one line on standard
        error, and makes the exit status 1.
Rule 2: the token is sent to nsqds only.
Rule 3: after 403 with an ``https_port`` (nsqd with --tls-required=true) the request is sent there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from penstock.admin.upstream import https_port, read_token
from penstock.cli.tool import ToolError, log_level, repeated
from penstock.errors import HttpClientError, OptionError
from penstock.net.http_client import Answer, AnswerReader, Timeouts, fetch
from penstock.net.peer_client import fetch_json, lookup
from penstock.net.tls import client_context
from penstock.settings.table import boolean, duration, string
from penstock.wire.peer_answers import ACCEPT, addresses_in, decode
from penstock.wire.url import lookupd_url

NODES_AT_ONCE = 32
# As nsqadmin's: /stats of 100,000 channels without clients has 35 MB.
BODY_SIZE_MAX = 64 << 20
ERROR_SIZE_MAX = 1000
# The answer to a request that a daemon does not have.
UNKNOWN = "NOT_FOUND"

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+):[0-9]{1,5}")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeOptions:
    """The flags of every such command."""

    nsqd_http_address: tuple[str, ...] = repeated(
        "Nodes", "HTTP address of an nsqd, host:port", own=True
    )
    lookupd_http_address: tuple[str, ...] = repeated(
        "Nodes", "HTTP address of an nsqlookupd, host:port, for all nodes that it lists", own=True
    )
    nsqd_auth_token_file: str = string(
        "Nodes", "", "file with the token for nsqds that require one", own=True
    )
    http_client_connect_timeout_ns: int = duration(
        "Nodes", "2s", "timeout for connecting", minimum="1ms", own=True
    )
    http_client_request_timeout_ns: int = duration(
        "Nodes", "5s", "timeout for a request", minimum="1ms", own=True
    )
    http_client_tls_insecure_skip_verify: bool = boolean(
        "Nodes", False, "skip certificate verification", own=True
    )
    http_client_tls_root_ca_file: str = string(
        "Nodes", "", "CA certificates to verify nodes with (PEM file)", own=True
    )
    http_client_tls_cert: str = string(
        "Nodes", "", "client certificate for nodes (PEM file)", own=True
    )
    http_client_tls_key: str = string(
        "Nodes", "", "private key of -http-client-tls-cert (PEM file)", own=True
    )
    log_level: str = log_level()


def check_nodes(options: NodeOptions) -> None:
    """Raise OptionError unless the nodes are given in one way."""
    if not options.nsqd_http_address and not options.lookupd_http_address:
        raise OptionError("--nsqd-http-address or --lookupd-http-address required")
    if options.nsqd_http_address and options.lookupd_http_address:
        raise OptionError("use --nsqd-http-address or --lookupd-http-address, not both")
    for address in (*options.nsqd_http_address, *options.lookupd_http_address):
        if "://" not in address and not _ADDRESS.fullmatch(address):
            raise OptionError(f'"{address}" is not the address of a node: host:port')
    if bool(options.http_client_tls_cert) != bool(options.http_client_tls_key):
        raise OptionError("--http-client-tls-cert and --http-client-tls-key go together")


class NodeAnswer(NamedTuple):
    """What one node answered: its JSON, or why it failed.  ``status`` 0: no answer."""

    node: str
    status: int
    body: Any
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


class NodeSet:
    """The nodes that a command is for."""

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._timeouts = Timeouts.of(options)
        self._tls = client_context(
            options.http_client_tls_root_ca_file,
            options.http_client_tls_cert,
            options.http_client_tls_key,
            insecure=options.http_client_tls_insecure_skip_verify,
            flags="http-client-tls",
        )
        self._headers = dict(ACCEPT)
        if options.nsqd_auth_token_file:
            self._headers["Authorization"] = f"Bearer {read_token(options.nsqd_auth_token_file)}"
        self._turns = asyncio.Semaphore(NODES_AT_ONCE)
        self.lookupd_failures: list[NodeAnswer] = []

    async def addresses(self, topic: str = "") -> list[str]:
        """The given nsqds; or those that an nsqlookupd lists, with ``topic`` those that have it.

        Raises ToolError if there is none.
        """
        if self._options.nsqd_http_address:
            return list(dict.fromkeys(self._options.nsqd_http_address))
        found: set[str] = set()
        answers = await asyncio.gather(
            *(self._listed(address, topic) for address in self._options.lookupd_http_address)
        )
        for answer in answers:
            if answer.ok:
                found.update(answer.body)
            else:
                self.lookupd_failures.append(answer)
        if not found:
            for line in failure_lines(self.lookupd_failures):
                print(line, file=sys.stderr)
            what = f"has topic {topic}" if topic else "is registered"
            raise ToolError(f"no nsqd {what}, as far as nsqlookupd knows")
        return sorted(found)

    async def _listed(self, lookupd: str, topic: str) -> NodeAnswer:
        try:
            if topic:
                found = await lookup(lookupd, topic, "http_port", self._timeouts, tls=self._tls)
            else:
                url = lookupd_url(lookupd, "/nodes")
                answer: Any = await fetch_json(url, self._timeouts, tls=self._tls)
                found = addresses_in(answer, "http_port")
        except (HttpClientError, ValueError) as error:
            return NodeAnswer(f"nsqlookupd {lookupd}", 0, None, str(error))
        return NodeAnswer(lookupd, 200, found)

    async def ask_all(
        self,
        nodes: Iterable[str],
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object = None,
    ) -> list[NodeAnswer]:
        """Send one request to every node; the answers in the order of ``nodes``."""
        return await asyncio.gather(*(self.ask(node, method, path, query, body) for node in nodes))

    async def ask(
        self,
        node: str,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object = None,
    ) -> NodeAnswer:
        """Send one request to one node.  ``body`` is sent as JSON, unless it is None."""
        target = path + (f"?{urlencode(query)}" if query else "")
        data = b"" if body is None else json.dumps(body).encode()
        url = node if "://" in node else f"http://{node}"
        try:
            async with self._turns:
                answer = await self._fetch(method, f"{url.rstrip('/')}{target}", data)
                if answer.status == 403 and (port := https_port(answer.body)):
                    host = node.rpartition("://")[2].rpartition(":")[0]
                    answer = await self._fetch(method, f"https://{host}:{port}{target}", data)
        except HttpClientError as error:
            return NodeAnswer(node, 0, None, str(error))
        return _read(node, answer)

    async def _fetch(self, method: str, url: str, body: bytes) -> Answer:
        return await fetch(
            url,
            self._timeouts,
            method=method,
            headers=self._headers,
            body=body,
            tls=self._tls,
            incoming=AnswerReader(False, BODY_SIZE_MAX),
        )


def _read(node: str, answer: Answer) -> NodeAnswer:
    """An answer as JSON; an empty one is None."""
    try:
        body = decode(answer.body) if answer.body else None
    except ValueError as error:
        return NodeAnswer(node, answer.status, None, f"answered {answer.status}: {error}")
    if answer.status == 200:
        return NodeAnswer(node, 200, body)
    texts = [f"answered {answer.status}"]
    if answer.status == 404 and isinstance(body, dict) and body.get("message") == UNKNOWN:
        texts = ["cannot do this: it is NSQ's own nsqd, or an earlier version"]
    elif isinstance(body, dict) and body.get("message"):
        texts = [str(body[key]) for key in ("message", "detail") if body.get(key)]
    return NodeAnswer(node, answer.status, body, ": ".join(texts)[:ERROR_SIZE_MAX])


def failure_lines(answers: Iterable[NodeAnswer]) -> list[str]:
    """A line for each node that failed."""
    return [f"{answer.node}: {answer.error}" for answer in answers if answer.error]


def report_failures(nodes: NodeSet, answers: Sequence[NodeAnswer]) -> int:
    """Print the failures to standard error; return the exit status."""
    lines = failure_lines([*nodes.lookupd_failures, *answers])
    for line in lines:
        print(line, file=sys.stderr)
    return int(bool(lines))
