"""/debug: the routes of the pages in debug_pages.py.

Few daemons ever serve one, so they are imported at the first request and not at startup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.net.http_message import Pending, Request, Response
from penstock.net.http_router import Handler, Route, Router

if TYPE_CHECKING:
    from penstock.net.debug_pages import DebugPages

PAGES = {
    "": "index",
    "cmdline": "cmdline",
    "symbol": "symbol",
    "profile": "profile",
    "heap": "heap",
    "goroutine": "goroutine",
    "block": "block",
    "threadcreate": "threads",
}
# nsqd's router redirects to the path with the slash.
_INDEX = Response(301, b"", (("Location", "/debug/pprof/"),))


class Debug:
    """The routes."""

    def __init__(self) -> None:
        self._pages: DebugPages | None = None

    def add_routes(self, router: Router) -> None:
        """All routes of nsqd."""
        self.add_pages(router)
        block_rate, free_memory = self._page("set_block_rate"), self._page("free_memory")
        router.add("PUT", "/debug/setblockrate", Route(block_rate, logged=True))
        router.add("POST", "/debug/freememory", Route(free_memory, logged=True))

    def add_pages(self, router: Router) -> None:
        """The read-only pages, which every daemon has."""
        for path, name in PAGES.items():
            router.add("GET", f"/debug/pprof/{path}", Route(self._page(name)))
        router.add("GET", "/debug/pprof", Route(lambda request: _INDEX))
        router.add("POST", "/debug/pprof/symbol", Route(self._page("symbol")))

    def _page(self, name: str) -> Handler:
        def serve(request: Request) -> Response | Pending:
            if self._pages is None:
                from penstock.net.debug_pages import DebugPages

                self._pages = DebugPages()
            page: Handler = getattr(self._pages, name)
            return page(request)

        return serve
