"""The pages: from a view to HTML, and the same view as JSON.

    GET  /topics/orders              the page
    GET  /api/view/topics/orders     its JSON twin
    POST /action                     runs a form's action; responds with a redirect to a page
    GET  /static/<digest>/admin.css  styles, scripts, the icon

A page fetches itself again to stay current (static/live.js).  Its ETag is the number of the sample:
while there is no newer one the response is 304 and nothing is rendered.

Rule 1: pages decide what is shown; ``Posted`` checks again what may be done.
Rule 2: an error is also a page, with a link back.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.admin import answers, dead_letters, formats, page_charts, views
from penstock.admin.actions import Outcome
from penstock.admin.answers import PAGE_HEADERS
from penstock.admin.posted_actions import BODY_SIZE_MAX, form_fields
from penstock.admin.renderer import Assets, Templates
from penstock.admin.results import Result, Results, describe
from penstock.net.http_message import HTML, HttpError, Request, Response
from penstock.net.http_router import Route, Router
from penstock.version import NSQ_VERSION, VERSION

if TYPE_CHECKING:
    from penstock.admin.app import Admin

View = dict[str, Any]
Params = Mapping[str, str]

FOR_EVER = ("Cache-Control", "public, max-age=31536000, immutable")
# How long an action's response waits for a sample that includes its effect.
SAMPLE_WAIT_S = 2.0
SAMPLE_POLL_S = 0.05
# A node's page shows this many topics with all their channels.
NODE_TOPIC_COUNT_MAX = 200
KEPT_COUNT_MAX = 16
PEEK_COUNTS = ("10", "25", "100")

_BACK = re.compile(r"/(?!/)[A-Za-z0-9._~:@!$&'()*+,;=%\[\]/-]*(\?[A-Za-z0-9._~:%&=\[\]-]+)?")


@dataclass(frozen=True, slots=True)
class Page:
    """A template and the source of its view."""

    pattern: str
    template: str
    section: str  # of the navigation
    view: Callable[[Admin, Params], Awaitable[View]]
    title: Callable[[Params], str]
    charts: Callable[[View, str], object] = page_charts.none


PAGES = (
    Page(
        "/",
        "overview",
        "/",
        lambda admin, of: views.overview(admin),
        lambda of: "Overview",
        page_charts.cluster,
    ),
    Page(
        "/topics", "topics", "/topics", lambda admin, of: views.topics(admin), lambda of: "Topics"
    ),
    Page(
        "/topics/:topic",
        "topic",
        "/topics",
        lambda admin, of: views.topic(admin, of["topic"]),
        lambda of: of["topic"],
        page_charts.topic,
    ),
    Page(
        "/topics/:topic/:channel",
        "channel",
        "/topics",
        lambda admin, of: views.channel(admin, of["topic"], of["channel"]),
        lambda of: f"{of['topic']} / {of['channel']}",
        page_charts.channel,
    ),
    Page("/nodes", "nodes", "/nodes", lambda admin, of: views.nodes(admin), lambda of: "Nodes"),
    Page(
        "/nodes/:node",
        "node",
        "/nodes",
        lambda admin, of: views.node(admin, of["node"]),
        lambda of: of["node"],
        page_charts.cluster,
    ),
    Page(
        "/lookup", "lookup", "/lookup", lambda admin, of: views.lookup(admin), lambda of: "Lookup"
    ),
    Page(
        "/deferred",
        "deferred",
        "/deferred",
        lambda admin, of: views.deferred(admin),
        lambda of: "Deferred",
        page_charts.deferred,
    ),
    Page(
        "/pipelines",
        "pipelines",
        "/pipelines",
        lambda admin, of: views.pipelines(admin),
        lambda of: "Pipelines",
        page_charts.pipelines,
    ),
    Page(
        "/counter",
        "counter",
        "/counter",
        lambda admin, of: views.counter(admin),
        lambda of: "Counter",
        page_charts.counter,
    ),
)


# By error: title, text, path of a link, its name.
NOT_FOUND = {
    "TOPIC_NOT_FOUND": ("No such topic", "It may have been deleted.", "/topics", "All topics"),
    "CHANNEL_NOT_FOUND": ("No such channel", "It may have been deleted.", "/topics", "All topics"),
    "NODE_NOT_FOUND": (
        "No such node",
        "It has not been registered for some time, or has another address.",
        "/nodes",
        "All nodes",
    ),
}


class Pages:
    """All pages of one nsqadmin."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._assets = Assets(admin.options.dev_static_dir)
        self._results = Results()
        # Rendered pages: ten browsers on one page cost as much as one.
        self._kept: OrderedDict[tuple[int, str, str, bool], Response] = OrderedDict()
        # Samples are numbered from 1 after every start: the ETags of an earlier run must not match.
        self._run = secrets.token_hex(4)
        base = admin.url("/").rstrip("/")
        self._templates = Templates(
            {
                "base": base,
                "home": admin.url("/"),
                "static": f"{base}/static/{self._assets.digest}",
                "interval_ms": admin.options.sample_interval_ns // 1_000_000,
                "version": f"{NSQ_VERSION} (Penstock {VERSION})",
            }
        )

    def add_routes(self, router: Router) -> None:
        """Add the routes of all pages."""
        url, handler = self._admin.url, self._admin.tasks.handler
        for page in PAGES:
            router.add("GET", url(page.pattern), Route(handler(partial(self._show, page))))
            twin = "/api/view" + page.pattern.rstrip("/")
            router.add("GET", url(twin), Route(handler(partial(self._twin, page))))
        peek = url("/topics/:topic/:channel/peek")
        router.add("GET", peek, Route(handler(self._peek_form)))
        router.add("POST", peek, Route(handler(self._peek), logged=True))
        seek = url("/topics/:topic/:channel/seek")
        router.add("GET", seek, Route(handler(self._seek_form)))
        router.add("POST", seek, Route(handler(self._preview), logged=True))
        dead = "/topics/:topic/:channel/dead"
        router.add("GET", url(dead), Route(handler(self._dead)))
        router.add("GET", url(f"/api/view{dead}"), Route(handler(self._dead_twin)))
        action = Route(handler(self._act), body_size_max=BODY_SIZE_MAX, logged=True)
        router.add("POST", url("/action"), action)
        router.add("GET", url("/static/:digest/:asset"), Route(self._asset))

    # Reading

    async def _show(self, page: Page, request: Request) -> Response:
        user, gzip = self._admin.access.user(request), answers.takes_gzip(request)
        sample = await self._admin.sample()
        tag = f'"{self._run}-{sample.number}"'
        if request.headers.get(b"if-none-match", b"").decode("latin-1") == tag:
            return Response(304, b"", (*PAGE_HEADERS, ("ETag", tag)))
        key = (sample.number, request.target, user, gzip)
        kept = self._kept.get(key)
        if kept is None:
            try:
                kept = await self._rendered(page, request, tag)
            except HttpError as error:
                return self._error(request, error)
            self._kept[key] = kept
            while len(self._kept) > KEPT_COUNT_MAX:
                self._kept.popitem(last=False)
        return kept

    async def _rendered(self, page: Page, request: Request, tag: str) -> Response:
        view = await page.view(self._admin, request.params)
        span = "recent" if request.query.get("span") == "recent" else "hour"
        values = {
            "view": view,
            "charts": page.charts(view, span),
            "span": span,
            "result": self._results.find(request.query.get("done", "")),
            **_filtered(page, view, request),
        }
        here, title = _path(page.pattern, request.params), page.title(request.params)
        html = self._render(page.template, request, here, page.section, title, values)
        headers = (HTML, *PAGE_HEADERS, ("ETag", tag))
        return answers.packed(request, 200, html.encode("utf-8", "replace"), headers)

    async def _twin(self, page: Page, request: Request) -> Response:
        return answers.json_object(request, await page.view(self._admin, request.params))

    def _asset(self, request: Request) -> Response:
        found = self._assets.find(request.params["asset"])
        if found is None:
            raise HttpError(404, "NOT_FOUND")
        body, kind = found
        # An old page may request files of an older version, which no longer exist.
        current = request.params["digest"] == self._assets.digest
        cache = FOR_EVER if current else ("Cache-Control", "no-store")
        headers = (("Content-Type", kind), ("X-Content-Type-Options", "nosniff"), cache)
        return answers.packed(request, 200, body, headers)

    # Actions

    async def _act(self, request: Request) -> Response:
        fields = form_fields(request)
        back = fields.get("back", "/")
        if not _BACK.fullmatch(back):
            back = "/"
        try:
            result = describe(fields, await self._admin.posted.form(request))
        except HttpError as error:
            if error.status == 403:
                return self._error(request, error)
            result = Result(False, _refused(fields, error))
        else:
            await self._next_sample()
        done = f"{'&' if '?' in back else '?'}done={self._results.keep(result)}"
        return Response(303, b"", (("Location", self._admin.url(back) + done),))

    async def _next_sample(self) -> None:
        """Wait for a sample started after the action, so that the next page shows its effect."""
        number = self._admin.sampler.started
        for _ in range(int(SAMPLE_WAIT_S / SAMPLE_POLL_S)):
            if (await self._admin.sample()).number > number:
                return
            await asyncio.sleep(SAMPLE_POLL_S)

    async def _peek_form(self, request: Request) -> Response:
        return await self._peeked(request, {}, None)

    async def _peek(self, request: Request) -> Response:
        try:
            fields = form_fields(request)
            outcome = await self._admin.posted.form(request)
        except HttpError as error:
            return self._error(request, error)
        return await self._peeked(request, fields, outcome)

    async def _peeked(
        self, request: Request, fields: Mapping[str, str], outcome: Outcome | None
    ) -> Response:
        topic, channel = request.params["topic"], request.params["channel"]
        sample = await self._admin.sample()
        found = sample.topics.get(topic)
        known = found.channels.get(channel) if found is not None else None
        if known is None:
            return self._error(request, HttpError(404, "CHANNEL_NOT_FOUND"))
        failures = [r for r in outcome.results if r.error] if outcome is not None else []
        values = {
            "view": {"warnings": [f"{r.daemon}: {r.short or r.error}" for r in failures]},
            "topic": topic,
            "channel": channel,
            "nodes": [name for name in known.nodes if sample.nodes[name].own],
            "node": fields.get("node", ""),
            "count": fields.get("count", PEEK_COUNTS[0]),
            "counts": PEEK_COUNTS,
            "messages": None if outcome is None else outcome.messages,
            "live": False,
        }
        here = _path("/topics/:topic/:channel/peek", request.params)
        html = self._render("peek", request, here, "/topics", f"Peek {channel}", values)
        return answers.html(request, html)

    async def _seek_form(self, request: Request) -> Response:
        return await self._planned(request, {}, None)

    async def _preview(self, request: Request) -> Response:
        fields: Mapping[str, str] = {}
        try:
            fields = form_fields(request)
            outcome = await self._admin.posted.form(request)
        except HttpError as error:
            if error.text != "INVALID_PLACE":
                return self._error(request, error)
            wrong = Result(False, _refused(fields, error))
            return await self._planned(request, fields, None, wrong)
        failed = [r for r in outcome.results if r.error]
        failures = [f"{r.daemon}: {r.short or r.error}" for r in failed] + outcome.failures
        wrong = Result(False, "The preview failed on some nodes:", failures)
        return await self._planned(request, fields, outcome, wrong if failures else None)

    async def _planned(
        self,
        request: Request,
        fields: Mapping[str, str],
        outcome: Outcome | None,
        wrong: Result | None = None,
    ) -> Response:
        topic, channel = request.params["topic"], request.params["channel"]
        sample = await self._admin.sample()
        found = sample.topics.get(topic)
        known = found.channels.get(channel) if found is not None else None
        if known is None:
            return self._error(request, HttpError(404, "CHANNEL_NOT_FOUND"))
        plans = [] if outcome is None else outcome.plans
        values: View = {
            "view": {"warnings": []},
            "result": wrong,
            "topic": topic,
            "channel": channel,
            "nodes": [name for name in known.nodes if sample.nodes[name].own],
            "node": fields.get("node", ""),
            "to": fields.get("to", ""),
            "plans": plans,
            "missing": [plan["node"] for plan in plans if not plan["whole"]],
            "live": False,
        }
        here = _path("/topics/:topic/:channel/seek", request.params)
        html = self._render("seek", request, here, "/topics", f"Seek {channel}", values)
        return answers.html(request, html)

    async def _dead(self, request: Request) -> Response:
        try:
            view = await self._dead_view(request)
        except HttpError as error:
            return self._error(request, error)
        values = {
            "view": view,
            "reasons": dead_letters.REASONS,
            "doing": dead_letters.DOING,
            "result": self._results.find(request.query.get("done", "")),
            "live": False,
        }
        here = _path("/topics/:topic/:channel/dead", request.params)
        title = f"Dead letters of {view['channel']}"
        return answers.html(request, self._render("dead", request, here, "/topics", title, values))

    async def _dead_twin(self, request: Request) -> Response:
        return answers.json_object(request, await self._dead_view(request))

    async def _dead_view(self, request: Request) -> View:
        read = self._admin.access.is_admin(request)
        topic, channel = request.params["topic"], request.params["channel"]
        sample = await self._admin.sample()
        dead_letters.known_channel(sample, topic, channel)
        policy = await self._admin.details.policy(sample, topic, channel)
        return await dead_letters.view(
            self._admin.upstream, sample, policy, topic, channel, request.query, read=read
        )

    # Rendering

    def _error(self, request: Request, error: HttpError) -> Response:
        advice = (error.text, "", "/", "Overview")
        if error.status == 403:
            advice = (
                "Not permitted",
                "Only users named by --admin-user may make changes, from these pages. Reload a "
                "page that has been open for half a day.",
                "/",
                "Overview",
            )
        title, text, back, name = NOT_FOUND.get(error.text, advice)
        values = {
            "view": {"warnings": []},
            "text": text,
            "back": back,
            "back_name": name,
            "live": False,
        }
        html = self._render("error", request, "/", "", title, values)
        return answers.html(request, html, error.status)

    def _render(
        self,
        template: str,
        request: Request,
        here: str,
        section: str,
        title: str,
        values: Mapping[str, Any],
    ) -> str:
        access = self._admin.access
        admin = access.is_admin(request)
        common = {
            "live": True,
            "result": None,
            "here": here,
            "section": section,
            "title": title,
            "user": access.user(request),
            "admin": admin,
            "token": access.token(request) if admin else "",
            "now_s": time.time(),
        }
        return self._templates.render(template, common | dict(values))


def _path(pattern: str, params: Params) -> str:
    """A page's path under the base path, for links."""
    parts = pattern.split("/")
    return "/".join(formats.segment(params[p[1:]]) if p[:1] == ":" else p for p in parts)


def _filtered(page: Page, view: View, request: Request) -> View:
    """The rows that match a filter, for the two pages that have one.

    The page of topics has all of them, and the browser filters without a request.  A node's page
    also has all channels, and is limited instead.
    """
    if page.template not in ("topics", "node"):
        return {}
    query = request.query.get("q" if page.template == "topics" else "topic", "")
    words = query.lower().split()
    rows = [row for row in view["topics"] if all(word in row["topic"].lower() for word in words)]
    shown = rows if page.template == "topics" else rows[:NODE_TOPIC_COUNT_MAX]
    return {"topics": shown, "query": query, "left_out": len(rows) - len(shown)}


def _refused(fields: Mapping[str, str], error: HttpError) -> str:
    if error.text == "CONFIRM_NAME":
        name = fields.get("channel") or fields.get("topic") or fields.get("node")
        return f"Nothing was changed: the name typed is not {name}."
    if "detail" in error.more:
        return f"Nothing was changed: {error.more['detail']}."
    return f"Nothing was changed: {error.text}."
