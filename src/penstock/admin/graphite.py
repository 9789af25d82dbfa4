"""Graphite behind nsqadmin: a rate, in the form that NSQ's pages request, and proxied images."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from penstock.admin import answers
from penstock.admin.formats import NUMBER_MAX
from penstock.admin.upstream import UpstreamError
from penstock.net.http_message import HttpError, Request, Response
from penstock.net.http_router import Route, Router

if TYPE_CHECKING:
    from penstock.admin.app import Admin

log = logging.getLogger(__name__)

SECOND_NS = 1_000_000_000
# Only images: a browser would treat a page served here as one of nsqadmin's own.
IMAGES = ("image/png", "image/svg+xml", "image/gif", "image/jpeg")


class Graphite:
    """/api/graphite, and /render with --proxy-graphite."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._url = admin.options.graphite_url.rstrip("/")

    def add_routes(self, router: Router) -> None:
        tasks, url = self._admin.tasks, self._admin.url
        router.add("GET", url("/api/graphite"), Route(tasks.handler(self.rate)))
        if self._admin.options.proxy_graphite:
            router.add("GET", url("/render"), Route(tasks.handler(self.render)))

    async def rate(self, request: Request) -> Response:
        """Messages per second of a target in the last complete statsd interval."""
        query = request.query
        if query.get("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        if "target" not in query:
            raise HttpError(400, "INVALID_ARG_TARGET")
        interval_s = self._admin.options.statsd_interval_ns // SECOND_NS
        wanted = {
            "format": "json",
            "from": f"-{2 * interval_s}sec",
            "target": query["target"],
            "until": f"-{interval_s}sec",
        }
        url = f"{self._url}/render?{urlencode(wanted)}"
        log.info("GRAPHITE: %s", url)
        try:
            answer = await self._admin.upstream.elsewhere("GET", url, {})
            if answer.status != 200:
                raise UpstreamError(f"got response {answer.status}")
            number = _first_point(answer.body)
        except (UpstreamError, ValueError) as error:
            log.error("GRAPHITE: request failed - %s", error)
            raise HttpError(500, "INTERNAL_ERROR") from None
        shown = "N/A" if number is None or number < 0 else f"{number / interval_s:.2f}"
        return answers.json_object(request, {"rate": shown})

    async def render(self, request: Request) -> Response:
        """Proxy an image from Graphite."""
        url = f"{self._url}/render?{request.raw_query.decode('latin-1')}"
        try:
            answer = await self._admin.upstream.elsewhere("GET", url, {})
        except UpstreamError as error:
            log.error("GRAPHITE: request failed - %s", error)
            raise HttpError(502, "UPSTREAM_ERROR") from None
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in IMAGES:
            kind = "text/plain; charset=utf-8"
        status = answer.status if answer.status in (200, 400, 404) else 502
        sandbox = ("Content-Security-Policy", "default-src 'none'; sandbox")
        headers = (("Content-Type", kind), sandbox, *answers.DATA_HEADERS)
        return Response(status, answer.body, headers)


def _first_point(body: bytes) -> float | None:
    """The first number of the first series; raises ValueError if there is none."""
    try:
        series: Any = json.loads(body)
        value = series[0]["datapoints"][0][0]
    except (RecursionError, LookupError, TypeError):
        raise ValueError("no datapoints") from None
    if value is None:
        return None
    if type(value) not in (int, float) or not abs(value) < NUMBER_MAX:
        raise ValueError("a datapoint is not a number")
    return float(value)
