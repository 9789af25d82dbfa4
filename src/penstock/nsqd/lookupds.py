"""All nsqlookupds of one nsqd: registers topics and channels, and queries channels of new topics.

    topic or channel created, deleted -> REGISTER, UNREGISTER to each
    topic created                     -> GET /channels?topic= of each; their channels are created
                                         here before its first message is delivered
    addresses changed                 -> connections are added and removed

Queries are limited by the HTTP client's timeouts, counted from the topic's creation: a topic never
waits longer than that, even if an nsqlookupd is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from ssl import SSLContext

from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.options import Options
from penstock.errors import HttpClientError
from penstock.net.http_client import Timeouts
from penstock.net.peer_client import fetch_json
from penstock.nsqd.lookup_peer import LookupPeer
from penstock.wire import gojson
from penstock.wire.lookup import Identity, encode_command
from penstock.wire.names import is_ephemeral, is_valid_name
from penstock.wire.peer_answers import names_in
from penstock.wire.url import lookupd_url

log = logging.getLogger(__name__)

# How often the options are checked for changed addresses.
FOLLOW_INTERVAL_S = 0.2
# Further addresses are ignored: each is a connection.
ADDRESS_COUNT_MAX = 100
# Requests to nsqlookupds at once; those of ten thousand new topics wait.
REQUEST_COUNT_MAX = 16
# The maximum size of a response: twice as many names of 64 bytes as are accepted.
ANSWER_SIZE_MIN = 64 << 10
NAME_SIZE = 2 * 67
# A response has one list in one or two objects; names have no brackets.  Parsing a megabyte of
# brackets would block the loop for a tenth of a second.
BRACKET_COUNT_MAX = 64


class Lookupds:
    """The peers, by address; ``options`` returns the current options."""

    def __init__(
        self,
        components: Components,
        options: Callable[[], Options],
        identity: Callable[[], Identity],
        tls: Callable[[], SSLContext | None] = lambda: None,
    ) -> None:
        self._topics = components.broker.topics
        self._hooks = components.shared.hooks
        self._options = options
        self.unmade_channel_count = 0  # listed by nsqlookupds: too many, or invalid names
        self._identity = identity
        self._tls = tls
        self._peers: dict[str, LookupPeer] = {}
        self._addresses: tuple[str, ...] = ()
        self._started = False
        self._timer: asyncio.TimerHandle | None = None
        self._queries: set[asyncio.Task[None]] = set()
        self._requests = asyncio.Semaphore(REQUEST_COUNT_MAX)

    def attach(self) -> None:
        """Track changes from now on; nothing is sent before ``start``."""
        self._hooks.on_change = self._changed
        self._hooks.query_channels = self._query_channels
        self._take_addresses()

    def start(self) -> None:
        """Connect; called when the ports to announce are known."""
        self._started = True
        for peer in self._peers.values():
            peer.start()
        self._follow()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for peer in self._peers.values():
            peer.close()
        for task in self._queries:
            task.cancel()

    # ---- addresses

    def _follow(self) -> None:
        self._take_addresses()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FOLLOW_INTERVAL_S, self._follow)

    def _take_addresses(self) -> None:
        if self._options().nsqlookupd_tcp_addresses == self._addresses:
            return
        self._addresses = self._options().nsqlookupd_tcp_addresses
        wanted = dict.fromkeys(self._addresses[:ADDRESS_COUNT_MAX])
        for address in [known for known in self._peers if known not in wanted]:
            log.info("lookupd=%s: removed", address)
            self._peers.pop(address).close()
        for address in wanted:
            if address not in self._peers:
                size_max = self._options().max_body_size
                peer = LookupPeer(address, self._identity, self._snapshot, size_max, self._tls)
                self._peers[address] = peer
                log.info("lookupd=%s: added", address)
                if self._started:
                    peer.start()

    # ---- registering

    def _snapshot(self) -> Iterator[bytes]:
        """REGISTER of everything; changes meanwhile are sent afterwards."""
        for topic in list(self._topics.values()):
            if topic.closed:
                continue
            for channel in list(topic.channels) or [""]:
                yield encode_command("REGISTER", topic.name, channel)

    def _changed(self, what: BaseTopic | Channel, exists: bool) -> None:
        if not self._peers:
            return
        for command in _commands(what, exists):
            for peer in self._peers.values():
                peer.change(command)

    # ---- querying

    def _query_channels(self, topic: BaseTopic) -> bool:
        if not self._peers:
            return False
        task = asyncio.get_running_loop().create_task(self._find(topic))
        self._queries.add(task)
        task.add_done_callback(self._queries.discard)
        return True

    async def _find(self, topic: BaseTopic) -> None:
        timeouts = Timeouts.of(self._options())
        found: dict[str, None] = {}
        try:
            async with (
                asyncio.timeout(timeouts.connect_s + timeouts.request_s),
                asyncio.TaskGroup() as group,
            ):
                for peer in self._peers.values():
                    group.create_task(self._find_at(peer, topic.name, timeouts, found))
        except TimeoutError:
            log.warning("topic=%s: not all nsqlookupds returned its channels in time", topic.name)
        topic.know_channels(found)

    async def _find_at(
        self, peer: LookupPeer, topic: str, timeouts: Timeouts, found: dict[str, None]
    ) -> None:
        await peer.tried.wait()
        if not peer.http_url:
            log.warning("topic=%s: lookupd=%s was not queried for channels", topic, peer.address)
            return
        url = lookupd_url(peer.http_url, "/channels", topic=topic)
        try:
            async with self._requests:
                size_max = ANSWER_SIZE_MIN + NAME_SIZE * self._options().max_lookupd_channels
                names = await fetch_json(
                    url,
                    timeouts,
                    headers={},
                    tls=self._tls(),
                    body_size_max=size_max,
                    read=decode_channels,
                )
            found.update(dict.fromkeys(self._accepted(names, peer, topic)))
        except (HttpClientError, ValueError) as error:
            log.warning("topic=%s: cannot query channels: %s", topic, error)

    def _accepted(self, names: list[str], peer: LookupPeer, topic: str) -> list[str]:
        """The channels to create of those that an nsqlookupd lists."""
        limit = self._options().max_lookupd_channels
        durable = [name for name in names if not is_ephemeral(name)]
        accepted: list[str] = []
        invalid_count = 0
        for name in durable:
            if len(accepted) == limit:
                break
            if is_valid_name(name):
                accepted.append(name)
            else:
                invalid_count += 1
        unmade_count = len(durable) - len(accepted)
        if unmade_count:
            self.unmade_channel_count += unmade_count
            log.warning(
                "topic=%s: lookupd=%s lists %d channels: %d with invalid names and %d beyond"
                " --max-lookupd-channels=%d are not created",
                topic,
                peer.address,
                len(durable),
                invalid_count,
                unmade_count - invalid_count,
                limit,
            )
        return accepted


def decode_channels(body: bytes) -> list[str]:
    """The names in nsqlookupd's response to /channels; raises ValueError if it is invalid."""
    if body.count(b"[") + body.count(b"{") > BRACKET_COUNT_MAX:
        raise ValueError("a response with too many lists")
    return names_in({"channels": [], **gojson.members(gojson.decode(body))}, "channels")


def _commands(what: BaseTopic | Channel, exists: bool) -> Iterator[bytes]:
    verb = "REGISTER" if exists else "UNREGISTER"
    if isinstance(what, Channel):
        yield encode_command(verb, what.topic.name, what.name)
        return
    if not exists:
        # Without this its ephemeral channels would stay registered.
        for channel in what.channels:
            yield encode_command(verb, what.name, channel)
    yield encode_command(verb, what.name)
