"""The requests of a handover to another nsqd (engine/drain/handover.py).

With --http-auth-token-file the first token of role publish is presented, or one of role admin, so
both nodes need it.  The certificate of an https:// address is verified with --tls-root-ca-file.
"""

from __future__ import annotations

import asyncio
import json
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

from penstock.errors import HttpClientError
from penstock.net.http_client import HttpClient, Timeouts
from penstock.net.http_tokens import PUBLISH
from penstock.net.tls import client_context
from penstock.nsqd.security import Security

if TYPE_CHECKING:
    from penstock.engine.context import Context
    from penstock.engine.drain.handover import Answered


class HandoverRequests:
    """Sends one request after the other on a kept connection."""

    def __init__(self, context: Context, security: Security) -> None:
        self._context = context
        self._security = security
        self._tls: SSLContext | None = None
        timeouts = Timeouts.of(context.options)
        self._client = HttpClient(timeouts, lambda: self._tls, idle_count_max=1)
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, method: str, address: str, target: str, body: bytes, answered: Answered) -> None:
        work = self._send(method, address, target, body, answered)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(
        self, method: str, address: str, target: str, body: bytes, answered: Answered
    ) -> None:
        status, fields = await self._answer(method, address, target, body)
        self._context.supervisor.guard("handover", answered, status, fields)

    async def _answer(
        self, method: str, address: str, target: str, body: bytes
    ) -> tuple[int, dict[str, Any]]:
        try:
            if address.startswith("https:") and self._tls is None:
                # Reading the system's authorities takes 50 ms, so a thread does it.
                root = self._context.options.tls_root_ca_file
                self._tls = await asyncio.to_thread(client_context, root)
            answer = await self._client.fetch(
                f"{address}{target}", method=method, headers=self._headers(), body=body
            )
        except (HttpClientError, OSError) as error:
            return 0, {"message": str(error)}
        try:
            fields = json.loads(answer.body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            fields = {"message": repr(answer.body[:80])}
            return (answer.status if answer.status != 200 else 0), fields
        return answer.status, fields

    def _headers(self) -> dict[str, str]:
        tokens = self._security.tokens
        token = tokens.of(PUBLISH) if tokens is not None else ""
        return {"Authorization": f"Bearer {token}"} if token else {}
