"""GET and PUT /config/:opt, for addresses in --allow-config-from-cidr.

nsqlookupd_http_addresses, log_level      can be changed; the change lasts until the process ends
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from penstock.admin.hosts import is_address
from penstock.net import live_options, log
from penstock.net.http_message import (
    HttpError,
    Request,
    Response,
    json_response,
    text_response,
)
from penstock.net.http_router import Route, Router
from penstock.settings.table import config_values

if TYPE_CHECKING:
    from penstock.admin.app import Admin

BODY_SIZE_MAX = 1 << 20
LIVE = ("log_level", "nsqlookupd_http_addresses")


class ConfigApi:
    """Options of the running process."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def add_routes(self, router: Router) -> None:
        path = self._admin.url("/config/:opt")
        router.add("GET", path, Route(self.get))
        put = Route(self.put, body_size_max=BODY_SIZE_MAX, judges_size=True, logged=True)
        router.add("PUT", path, put)

    def get(self, request: Request) -> Response:
        self._admin.access.check_config(request)
        return self._shown(request.params["opt"])

    def put(self, request: Request) -> Response:
        self._admin.access.check_config(request)
        # Behind a proxy on the same machine every request comes from a permitted address.
        self._admin.access.check_change(request)
        if request.oversize or not request.body:
            raise HttpError(413, "INVALID_VALUE")
        option = request.params["opt"]
        if option not in LIVE:
            raise HttpError(400, "INVALID_OPTION")
        try:
            value: Any = live_options.parse(option, request.body)
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        if option != "log_level" and not all(map(is_address, value)):
            raise HttpError(400, "INVALID_VALUE")
        self._admin.options = dataclasses.replace(self._admin.options, **{option: value})
        if option == "log_level":
            log.set_level(value)
        return self._shown(option)

    def _shown(self, option: str) -> Response:
        values = config_values(self._admin.options)
        if option not in values:
            raise HttpError(400, "INVALID_OPTION")
        value = values[option]
        return text_response(value) if isinstance(value, str) else json_response(value)
