"""A server with nsqlookupd's /lookup only, for tests of discovery."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

from tests.support.endpoint import Answer, Endpoint, HttpRequest


class Lookup(Endpoint):
    """Responds with ``addresses`` for every topic, and with ``status``."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.addresses = list(addresses)
        self.status = 200
        self.address = f"127.0.0.1:{self.port}"

    @property
    def topics(self) -> list[str]:
        """Those asked for, in order."""
        return [topic for asked in self.requests for topic in parse_qs(asked.query)["topic"]]

    def respond(self, request: HttpRequest) -> Answer:
        nodes = [address.rsplit(":", 1) for address in self.addresses]
        producers = [{"broadcast_address": h, "tcp_port": int(p)} for h, p in nodes]
        body = json.dumps({"channels": [], "producers": producers}).encode()
        return self.status if request.path == "/lookup" else 404, body, "application/json"
