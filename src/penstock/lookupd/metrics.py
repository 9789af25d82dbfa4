"""GET /metrics of nsqlookupd."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from penstock.clock import Clock
from penstock.lookupd.registry import Registry
from penstock.net.admission import Admission
from penstock.net.exposition import CONTENT_TYPE, COUNTER, GAUGE, family, labels, single
from penstock.net.http_message import Request, Response
from penstock.version import NSQ_VERSION, VERSION

PREFIX = "penstock_lookupd"


class Metrics:
    """The page of one nsqlookupd."""

    def __init__(self, registry: Registry, clock: Clock, admission: Admission) -> None:
        self._registry = registry
        self._clock = clock
        self._admission = admission

    def serve(self, request: Request) -> Response:
        return Response(200, b"".join(self._parts()), (CONTENT_TYPE,))

    def _parts(self) -> list[bytes]:
        registry = self._registry
        build = labels(
            {
                "version": VERSION,
                "nsq_version": NSQ_VERSION,
                "python": sys.version.partition(" ")[0],
            }
        )
        rows = (
            ("nodes", GAUGE, "nsqds listed in /nodes.", self._node_count()),
            ("topics", GAUGE, "Topics.", len(registry.topics())),
            ("channels", GAUGE, "Channels.", registry.channel_count()),
            ("names_created", GAUGE, "Names created over HTTP.", registry.created_count),
            ("names_orphaned", GAUGE, "Names that no nsqd has.", registry.orphan_count),
            ("names_forgotten_total", COUNTER, "Orphans forgotten.", registry.forgotten_count),
            ("names_refused_total", COUNTER, "Refused by a limit.", registry.refused_count),
        )
        return [
            *family("penstock_build_info", GAUGE, "Always 1.", [(build, 1)]),
            *(single(f"{PREFIX}_{name}", kind, text, value) for name, kind, text, value in rows),
            *self._connections(),
        ]

    def _connections(self) -> Iterator[bytes]:
        """The refused and evicted counters have the same names as nsqd's."""
        quotas = [(labels({"door": quota.name}), quota) for quota in self._admission.quotas]
        count = [(where, quota.count) for where, quota in quotas]
        refused = [(where, quota.refused_count) for where, quota in quotas]
        evicted = [(where, quota.evicted_count) for where, quota in quotas]
        yield from family(f"{PREFIX}_connections", GAUGE, "Connections open.", count)
        name = "penstock_connections"
        yield from family(f"{name}_refused_total", COUNTER, "Refused, no free slot.", refused)
        yield from family(f"{name}_evicted_total", COUNTER, "Closed to make room.", evicted)

    def _node_count(self) -> int:
        return len(self._registry.nodes(self._clock.monotonic_ns()))
