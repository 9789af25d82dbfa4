"""GET /metrics of nsqlookupd: what it knows, what it refused and forgot."""

from __future__ import annotations

import platform

from penstock.engine.clock import Clock
from penstock.lookupd.registry import Registry
from penstock.server.exposition import CONTENT_TYPE, COUNTER, GAUGE, family, labels, single
from penstock.server.http_message import Request, Response
from penstock.version import NSQ_VERSION, VERSION

PREFIX = "penstock_lookupd"


class Metrics:
    """The page of one nsqlookupd."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    def serve(self, request: Request) -> Response:
        return Response(200, b"".join(self._parts()), (CONTENT_TYPE,))

    def _parts(self) -> list[bytes]:
        registry = self._registry
        build = labels(
            {"version": VERSION, "nsq_version": NSQ_VERSION, "python": platform.python_version()}
        )
        rows = (
            ("nodes", GAUGE, "nsqds that can be found.", self._node_count()),
            ("topics", GAUGE, "Topics.", len(registry.topics())),
            ("channels", GAUGE, "Channels.", registry.channel_count()),
            ("names_created", GAUGE, "Topics and channels made over HTTP.", registry.created_count),
            ("names_orphaned", GAUGE, "Of which no nsqd has any more.", registry.orphan_count),
            ("names_forgotten_total", COUNTER, "Forgotten for that.", registry.forgotten_count),
            ("names_refused_total", COUNTER, "Beyond a limit.", registry.refused_count),
        )
        return [
            *family("penstock_build_info", GAUGE, "Always 1.", [(build, 1)]),
            *(single(f"{PREFIX}_{name}", kind, text, value) for name, kind, text, value in rows),
        ]

    def _node_count(self) -> int:
        return len(self._registry.nodes(self._clock.monotonic_ns()))
