"""The parts of one nsqadmin.

To write a page:

    view = await views.topics(admin)                the values that a page shows
    admin.url("/topics")                            a path under --base-path
    admin.access.is_admin(request)                  whether to show buttons
    admin.access.token(request)                     for the hidden field "token" of every form
    outcome = await admin.posted.form(request)      check and run a posted form's action;
                                                    HttpError if it is refused
    Route(admin.tasks.handler(page))                a route whose handler is a coroutine function
    answers.html(request, text)                     a response, compressed if the browser accepts it

A form posts, as application/x-www-form-urlencoded, the fields:

    token      from admin.access
    action     create, pause, unpause, empty, delete, tombstone, publish, peek, clear, policy,
               preview or seek
    topic      and channel, for an action on a channel
    node       "host:port", or empty for all nodes
    to         for preview and seek: the place;  partial: "true" where messages are missing
    start      for create: where the channel starts
    confirm    for empty, delete, tombstone and seek: the channel's name, else the topic's, typed
               by the user
    body       for publish: the message;  defer_ms: its delay
    count      for peek: the number of messages
    set.<key>  for policy: the value of a key, and unset.<key>: "true" to unset it

Scripts post the same fields, without a token, as a JSON object (Content-Type: application/json) to
/api/action and get {"message": "", "results": [{"node": .., "error": ""}], "messages": [..]};
``peek.py`` describes a message.
"""

from __future__ import annotations

from penstock.admin.access import Access
from penstock.admin.actions import Actions
from penstock.admin.addresses import Addresses
from penstock.admin.answers import Tasks
from penstock.admin.cluster import Cluster
from penstock.admin.details import Details
from penstock.admin.effects import Effects
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
        self.effects = Effects()
        self.sampler = Sampler(self.cluster, self.history, interval_s, effects=self.effects)
        self.details = Details(self.upstream)
        self.notifier = Notifier(options.notification_http_endpoint, self.upstream)
        addresses = Addresses(self.cluster, self.sampler)
        self.actions = Actions(self.cluster, addresses)
        self.posted = Posted(self.actions, addresses, self.access, self.notifier, self.sampler)

    async def sample(self) -> Sample:
        """The newest sample of the cluster; right after start, wait for the first one."""
        return await self.sampler.first()

    def url(self, path: str) -> str:
        """A path under --base-path; ``path`` begins with a slash."""
        base = self.options.base_path.rstrip("/")
        return (base + path).rstrip("/") or "/"
