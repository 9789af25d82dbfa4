"""Shared by the tests of staging: bodies of parts, and queries that write to a broker."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from penstock.core.parts import measure
from penstock.engine.staging.publication import Outcome
from penstock.storage.staging import Key
from tests.support.bodies import several, sized
from tests.support.daemon import Nsqd, Reply
from tests.support.engine import Engine

ATTEMPT = "0123456789abcdef" * 2
DUE_MAX_NS = (1 << 63) - 1


def plain(*bodies: bytes) -> bytes:
    """A part, in the form of MPUB."""
    return several(*bodies)


def deferred(*rows: tuple[int, bytes]) -> bytes:
    """A part of rows with due times."""
    parts = [struct.pack(">I", len(rows))]
    parts += [struct.pack(">q", due_ns) + sized(body) for due_ns, body in rows]
    return b"".join(parts)


class Query:
    """A query that writes to an engine without sockets; every step waits for its result."""

    def __init__(self, engine: Engine, name: str = "q") -> None:
        self.engine = engine
        self.name = name

    def key(self, batch: int = 0, partition: int = 0, attempt: str = ATTEMPT) -> Key:
        return Key(self.name, batch, partition, attempt)

    def put(
        self, key: Key, part: int, topic: str, body: bytes, is_deferred: bool = False
    ) -> Exception | None:
        count, _ = measure(body, is_deferred, 1 << 20, DUE_MAX_NS)
        staging = self.engine.components.staging
        return self.engine.done(staging.put_part(key, part, topic, is_deferred, body, count))

    def seal(self, key: Key, part_count: int, count: int) -> Exception | None:
        return self.engine.done(self.engine.components.staging.seal(key, part_count, count))

    def stage(self, key: Key, topic: str, *parts: Sequence[bytes]) -> None:
        """Put and seal all parts."""
        for part, bodies in enumerate(parts):
            assert self.put(key, part, topic, plain(*bodies)) is None
        assert self.seal(key, len(parts), sum(map(len, parts))) is None

    def publish(self, batch: int, *winners: tuple[int, str]) -> tuple[Exception | None, Outcome]:
        ticket, outcome = self.engine.components.staging.publish(self.name, batch, list(winners))
        return self.engine.done(ticket), outcome


class HttpQuery:
    """A query that writes to a real nsqd."""

    def __init__(self, nsqd: Nsqd, name: str = "q") -> None:
        self.nsqd = nsqd
        self.name = name

    def target(self, what: str, batch: int, partition: int, attempt: str, **more: Any) -> str:
        fields = {"query": self.name, "batch": batch, "partition": partition, "attempt": attempt}
        query = "&".join(f"{name}={value}" for name, value in {**fields, **more}.items())
        return f"/staging/{what}?{query}"

    def put(
        self,
        part: int,
        topic: str,
        body: bytes,
        batch: int = 0,
        partition: int = 0,
        attempt: str = ATTEMPT,
        **more: Any,
    ) -> Reply:
        target = self.target("part", batch, partition, attempt, part=part, topic=topic, **more)
        return self.nsqd.http("PUT", target, body)

    def seal(
        self, parts: int, count: int, batch: int = 0, partition: int = 0, attempt: str = ATTEMPT
    ) -> Reply:
        target = self.target("seal", batch, partition, attempt, parts=parts, count=count)
        return self.nsqd.post(target)

    def post(self, what: str, **fields: Any) -> Reply:
        return self.nsqd.post(
            f"/staging/{what}", json.dumps({"query": self.name, **fields}).encode()
        )

    def publish(self, batch: int, *winners: tuple[int, str]) -> Reply:
        fields = [{"partition": partition, "attempt": attempt} for partition, attempt in winners]
        return self.post("publish", batch=batch, winners=fields)
