"""A small real auth server, like those people write for NSQ.

    with AuthServer(grants={"s3cret": reply(entry("^ok"))}) as server:
        Nsqd(path, f"--auth-http-address={server.address}")
        ...
        assert fields_of(server.requests[0])["secret"] == "s3cret"

The response to an unknown secret is 403.  ``override`` replaces every response.
"""

from __future__ import annotations

import json
import time
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs

from tests.support.endpoint import Answer, Endpoint, HttpRequest


def fields_of(request: HttpRequest) -> dict[str, str]:
    """nsqd's description of the client, by GET or POST."""
    if request.method == "POST":
        return {key: values[0] for key, values in json.loads(request.body).items()}
    found = parse_qs(request.query, keep_blank_values=True)
    return {key: values[0] for key, values in found.items()}


def entry(
    topic: str = ".*",
    channels: tuple[str, ...] = (".*",),
    permissions: tuple[str, ...] = ("subscribe", "publish"),
) -> dict[str, Any]:
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def reply(*entries: dict[str, Any], ttl: int = 3600, identity: str = "bob") -> dict[str, Any]:
    return {
        "ttl": ttl,
        "identity": identity,
        "identity_url": f"http://x/{identity}",
        "authorizations": list(entries),
    }


class AuthServer(Endpoint):
    """Listens on a port of 127.0.0.1 while entered."""

    def __init__(
        self, grants: dict[str, dict[str, Any]] | None = None, tls: SSLContext | None = None
    ) -> None:
        super().__init__(tls=tls)
        self.grants = grants or {}
        self.override: tuple[int, bytes] | None = None
        self.delay_s = 0.0

    @property
    def address(self) -> str:
        """The value for --auth-http-address."""
        if self.url.startswith("https:"):
            return f"{self.url}/auth"
        return f"127.0.0.1:{self.port}"

    def respond(self, request: HttpRequest) -> Answer:
        time.sleep(self.delay_s)
        if self.override is not None:
            return (*self.override, "application/json")
        granted = self.grants.get(fields_of(request)["secret"])
        if granted is None:
            return 403, b'{"message":"FORBIDDEN"}', "application/json"
        return 200, json.dumps(granted).encode(), "application/json"
