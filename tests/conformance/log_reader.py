"""A reader of the log API with an identity, for tests."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from tests.support.daemon import Nsqd, Reply


class LogReader:
    """What a query does, call by call; ``told`` is the last answer of /channel/pull."""

    def __init__(
        self,
        nsqd: Nsqd,
        identity: str | None = "",
        *,
        topic: str = "t",
        channel: str = "q",
        name: str | None = None,
        token: str = "",
    ) -> None:
        self.nsqd = nsqd
        self.identity = uuid4().hex if identity == "" else identity
        self.topic = topic
        self.channel = channel
        self.name = name
        self.told: Any = None
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def _ask(self, method: str, target: str, body: object = None) -> Reply:
        data = None if body is None else json.dumps(body).encode()
        return self.nsqd.http(method, target, data, self._headers)

    def _query(self) -> str:
        who = "" if self.identity is None else f"&identity={self.identity}"
        return f"topic={self.topic}&channel={self.channel}{who}"

    def _body(self, **more: object) -> dict[str, object]:
        who = {} if self.identity is None else {"identity": self.identity}
        return {"channel": self.channel, **who, **more}

    def pull(self, start: object = "earliest", take_over: str | None = None) -> Reply:
        over = "" if take_over is None else f"&take_over={take_over}"
        reply = self._ask("POST", f"/channel/pull?{self._query()}&start={start}{over}")
        if reply.status == 200:
            self.told = reply.json
        return reply

    def ends(self, after: int = 0, wait_ms: int = 0) -> Reply:
        topics = {self.topic: {"after": after}}
        return self._ask("POST", "/log/ends", self._body(topics=topics, wait_ms=wait_ms))

    def read(self, start: int, end: int, *, instance: str = "") -> Reply:
        place = f"&instance={instance or self.told['instance']}&start={start}&end={end}"
        return self._ask("GET", f"/log/read?{self._query()}{place}")

    def commit(self, index: int, *, instance: str = "") -> Reply:
        place = {"instance": instance or self.told["instance"], "index": index}
        name = {} if self.name is None else {"reader": self.name}
        return self._ask("POST", "/channel/commit", self._body(topics={self.topic: place}, **name))

    def all_calls(self, told: Any) -> dict[str, Reply]:
        """Each of the four calls that name a channel, at a place of another reader."""
        at, instance = told["low"], told["instance"]
        return {
            "pull": self.pull(),
            "ends": self.ends(),
            "read": self.read(at, at, instance=instance),
            "commit": self.commit(at, instance=instance),
        }
