"""Monitoring of a running nsqd: /metrics, /debug and statsd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.components import Components
from penstock.engine.stats.memory import Memory
from penstock.net.admission import Quota
from penstock.net.debug import Debug
from penstock.net.http_router import Route
from penstock.net.http_server import HttpServer
from penstock.nsqd.clients import Clients
from penstock.nsqd.http_api import NsqdApi
from penstock.nsqd.loop_lag import LoopLag
from penstock.nsqd.metrics import Metrics, Traffic
from penstock.nsqd.registration import Registration

if TYPE_CHECKING:
    from penstock.nsqd.statsd import Statsd


class Monitoring:
    """Adds its routes to ``api``; measures from ``start()`` to ``stop()``."""

    def __init__(
        self,
        components: Components,
        clients: Clients,
        memory: Memory,
        api: NsqdApi,
        http: HttpServer,
        tcp_quota: Quota,
        registration: Registration,
    ) -> None:
        self._registration = registration
        self._http = http
        self._tcp_quota = tcp_quota
        self._memory = memory
        self._lag = LoopLag()
        self._statsd: Statsd | None = None
        if components.context.options.statsd_address:
            # Loaded only if used: every module makes a start slower.
            from penstock.nsqd.statsd import Statsd

            self._statsd = Statsd(components, memory, api.statsd_prefix)
        metrics = Metrics(components, clients, memory, self._lag, self._traffic)
        api.router.add("GET", "/metrics", Route(metrics.serve))
        Debug().add_routes(api.router)

    def start(self) -> None:
        self._memory.start()
        self._lag.start()
        if self._statsd is not None:
            self._statsd.start()

    def stop(self) -> None:
        if self._statsd is not None:
            self._statsd.stop()
        self._lag.stop()
        self._memory.stop()

    def _traffic(self) -> Traffic:
        http = self._http
        return Traffic(
            self._tcp_quota.admitted_count,
            len(http.connections),
            http.request_counts,
            http.admission.count_max,
            http.admission.quotas,
            http.bodies,
            self._registration.unmade_channel_count,
        )
