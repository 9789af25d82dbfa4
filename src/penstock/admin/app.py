"""The parts of one nsqadmin, put together.

For whoever writes pages:

    view = await views.topics(admin)                what a page shows
    admin.url("/topics")                            a path under --base-path
    admin.access.is_admin(request)                  whether to show buttons
    admin.access.token(request)                     for the hidden field "token" of every form
    outcome = await admin.actions.form(request)     what a posted form asks for, judged and done;
                                                    HttpError if it may not be
    Route(admin.tasks.handler(page))                a route whose handler is a coroutine function
    answers.html(request, text)                     an answer, compressed if the browser likes

A form posts, as application/x-www-form-urlencoded, the fields:

    token      of access
    action     create, pause, unpause, empty, delete, tombstone, publish, peek or clear
    topic      and channel, if it is about a channel
    node       "host:port", or empty for all nodes
    confirm    empty, delete and tombstone: the name of what it is about, typed by the user:
               the channel's, else the topic's
    body       publish: the message;  defer_ms: publish: its delay
    count      peek: how many messages

Scripts post the same fields, without a token, as a JSON object (Content-Type: application/json) to
/api/action and get {"message": "", "results": [{"node": .., "error": ""}], "messages": [..]};
``peeking`` says what a message holds.
"""

from __future__ import annotations

from penstock.admin.access import Access
from penstock.admin.actions import Actions
from penstock.admin.addresses import Addresses
from penstock.admin.answers import Tasks
from penstock.admin.cluster import Cluster
from penstock.admin.details import Details
from penstock.admin.history import History
from penstock.admin.notifications import Notifier
from penstock.admin.options import AdminOptions
from penstock.admin.posted_actions import Posted
from penstock.admin.sample import Sample
from penstock.admin.sampler import Sampler
from penstock.admin.upstream import Upstream


class Admin:
    """One nsqadmin, without its listener."""

    def __init__(self, options: AdminOptions) -> None:
        self.options = options  # /config may change two of them
        self.tasks = Tasks()
        self.access = Access(options)
        self.upstream = Upstream(options)
        self.cluster = Cluster(
            self.upstream,
            lambda: self.options.nsqlookupd_http_addresses,
            lambda: self.options.nsqd_http_addresses,
        )
        interval_s = options.sample_interval_ns / 1e9
        self.history = History(interval_s)
        self.sampler = Sampler(self.cluster, self.history, interval_s)
        self.details = Details(self.upstream)
        self.notifier = Notifier(options.notification_http_endpoint, self.upstream)
        addresses = Addresses(self.cluster, self.sampler)
        self.deeds = Actions(self.cluster, addresses)
        self.actions = Posted(self.deeds, addresses, self.access, self.notifier, self.sampler)

    async def sample(self) -> Sample:
        """The newest look at the cluster; right after the start it is waited for."""
        return await self.sampler.first()

    def url(self, path: str) -> str:
        """A path under --base-path; it begins with a slash."""
        base = self.options.base_path.rstrip("/")
        return (base + path).rstrip("/") or "/"
