"""Actions on topics and channels, on all nodes or on one, with a result for each daemon.

    create      nsqlookupds, then the topic's nodes (without nsqlookupds: all nodes)
    delete      nsqlookupds, then the topic's nodes
    pause, unpause, empty      the topic's nodes
    tombstone   nsqlookupds hide the node for the topic, then it is deleted there
    clear       the damage records of one node
    drain, undrain             one node: empty it, then end it; or cancel that
    forget      a pattern, on all nodes that have it
    policy      keys of a topic's or channel's policy, on the topic's nodes
    preview     what a seek of a channel would do;  seek: send it to another place
    kick, move, discard        a channel's buried messages, on the topic's nodes
    stop        one of these that runs in the background

With an ``address`` the action runs on that node only.  The address comes from ``addresses.py``,
never from a request.  An action that would remove messages before a pull channel's reader has read
them is refused unless ``force`` is set (``readers.py``).

Rule 1: the nodes are determined first.  If no daemon knows them, nothing is done
        (NothingKnownError).
Rule 2: a daemon that fails is a result with an error; the action continues on the others.
Rule 3: nsqlookupds first.  In the other order a consumer could find a node whose topic is already
        deleted, subscribe, and so create it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from penstock.admin import dead_letters, readers, seeks
from penstock.admin.addresses import Addresses
from penstock.admin.cluster import Cluster, Known, NothingKnownError, Producer
from penstock.admin.upstream import UpstreamError, request_all


@dataclass(frozen=True, slots=True)
class DaemonResult:
    """The result of an action on one daemon."""

    daemon: str
    error: str = ""
    short: str = ""
    text: str = ""  # what was done there, of actions that say so


@dataclass(slots=True)
class Outcome:
    """The results of an action; ``failures`` are errors while the nodes were determined."""

    results: list[DaemonResult] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)  # of a peek
    plans: list[dict[str, Any]] = field(default_factory=list)  # of a preview

    @property
    def warning(self) -> str:
        """NSQ's ``message``: empty if every daemon succeeded."""
        texts = [*self.failures, *(result.error for result in self.results if result.error)]
        return "WARNING: " + "\n".join(texts) if texts else ""


class Actions:
    """Runs actions."""

    def __init__(self, cluster: Cluster, addresses: Addresses) -> None:
        self._cluster = cluster
        self._addresses = addresses
        self.upstream = cluster.upstream

    async def create(
        self,
        topic: str,
        channel: str = "",
        address: str = "",
        start: str = "",
        foreign: AbstractSet[str] = frozenset(),
    ) -> Outcome:
        """``start``: where the channel starts; empty as its topic's policy says.

        ``foreign``: the addresses of NSQ's own nsqds, which create the channel and ignore it.
        """
        outcome = Outcome()
        where = {"start": start} if start else {}
        lookupds = self._cluster.lookupds()
        if address or not lookupds:
            nodes = [address] if address else list(self._cluster.nsqds())
            made = await self._on_nsqds(outcome, nodes, "/topic/create", topic=topic)
            if channel:
                names = {"topic": topic, "channel": channel, **where}
                made = await self._on_nsqds(outcome, made, "/channel/create", **names)
                outcome.failures += _unstarted(made, start, foreign)
            return outcome
        await self._on_lookupds(outcome, "/topic/create", topic=topic)
        if channel:
            names = {"topic": topic, "channel": channel}
            await self._on_lookupds(outcome, "/channel/create", **names)
            producers = await self._producers(outcome, topic)
            made = await self._on_nsqds(outcome, producers, "/channel/create", **names, **where)
            outcome.failures += _unstarted(made, start, foreign)
        return outcome

    async def delete(
        self, topic: str, channel: str = "", address: str = "", *, force: bool = False
    ) -> Outcome:
        """Raise HttpError 409 if a pull channel has a reader, like ``change`` and ``tombstone``."""
        outcome = Outcome()
        path, names = _target("delete", topic, channel)
        nodes = [address] if address else await self._producers(outcome, topic)
        forced = await self._forced(nodes, "delete", topic, channel, force)
        if not address:
            await self._on_lookupds(outcome, path, **names)
        await self._on_nsqds(outcome, nodes, path, **names, **forced)
        return outcome

    async def change(
        self,
        action: str,
        topic: str,
        channel: str = "",
        address: str = "",
        *,
        force: bool = False,
    ) -> Outcome:
        """Pause, unpause or empty."""
        outcome = Outcome()
        path, names = _target(action, topic, channel)
        nodes = [address] if address else await self._producers(outcome, topic)
        if action == "empty":
            names |= await self._forced(nodes, action, topic, channel, force)
        await self._on_nsqds(outcome, nodes, path, **names)
        return outcome

    async def tombstone(self, topic: str, node: str, *, force: bool = False) -> Outcome:
        """Hide a node for a topic and delete the topic there.

        A consumer that finds a node whose topic was only deleted subscribes and creates it again.
        """
        outcome = Outcome()
        address = await self._addresses.of(node)
        forced = await self._forced([address], "tombstone", topic, "", force)
        await self._on_lookupds(outcome, "/topic/tombstone", topic=topic, node=node)
        try:
            await self._cluster.node(address)
        except UpstreamError as error:
            raise NothingKnownError(f"failed to query any nsqd: {error.text}") from None
        await self._on_nsqds(outcome, [address], "/topic/delete", topic=topic, **forced)
        return outcome

    async def clear(self, address: str) -> Outcome:
        """Delete a node's damage records, once somebody has read them."""
        outcome = Outcome()
        await self._on_nsqds(outcome, [address], "/damage/clear")
        return outcome

    async def drain(self, address: str, to: str) -> Outcome:
        """Have a node deliver what it has, and exit; deferred messages go to the node ``to``."""
        outcome = Outcome()
        query = {"to": to} if to else {}
        await self._on_nsqds(outcome, [address], "/drain", **query)
        return outcome

    async def undrain(self, address: str) -> Outcome:
        """Cancel the drain of a node."""

        async def delete(at: str) -> None:
            await self.upstream.nsqd_delete(at, "/drain")

        outcome = Outcome()
        await _do(outcome, [address], delete)
        return outcome

    async def forget(self, channel: str, addresses: Iterable[str]) -> Outcome:
        """Delete a pattern: topics created from now on do not get the channel."""
        outcome = Outcome()
        await self._on_nsqds(outcome, addresses, "/channel/pattern/delete", channel=channel)
        return outcome

    async def policy(
        self, topic: str, channel: str, changes: Mapping[str, str | None], address: str = ""
    ) -> Outcome:
        """Set and unset keys of a policy on the topic's nodes."""
        outcome = Outcome()
        query = {"topic": topic} | ({"channel": channel} if channel else {})
        body = json.dumps(changes).encode()

        async def put(to: str) -> None:
            await self.upstream.nsqd_put(to, "/policy", query, body)

        nodes = [address] if address else await self._producers(outcome, topic)
        await _do(outcome, nodes, put)
        return outcome

    async def preview(self, topic: str, channel: str, to: str, address: str = "") -> Outcome:
        """Ask the topic's nodes what a seek would do."""
        outcome = Outcome()
        nodes = [address] if address else await self._producers(outcome, topic)
        query = {"topic": topic, "channel": channel, "to": to}
        outcome.plans, failures = await seeks.plan(self.upstream, nodes, query)
        outcome.results = [
            DaemonResult(each, error.text, error.short) for each, error in failures.items()
        ]
        return outcome

    async def seek(
        self, topic: str, channel: str, to: str, address: str = "", *, partial: bool = False
    ) -> Outcome:
        """Send a channel to another place on the topic's nodes."""
        outcome = Outcome()
        nodes = [address] if address else await self._producers(outcome, topic)
        query = {"topic": topic, "channel": channel, "to": to}
        query |= {"partial": "true"} if partial else {}
        await self._on_nsqds(outcome, nodes, "/channel/seek", **query)
        return outcome

    async def dead(
        self, topic: str, channel: str, what: dead_letters.Wanted, address: str = ""
    ) -> Outcome:
        """Kick, move or discard buried messages."""

        async def act(to: str) -> str:
            return await dead_letters.act(self.upstream, to, topic, channel, what)

        return await self._dead(topic, address, act)

    async def stop(self, topic: str, channel: str, what: str, address: str = "") -> Outcome:
        """End a kick, move or discard that runs in the background."""

        async def stop(to: str) -> str:
            return await dead_letters.stop(self.upstream, to, topic, channel, what)

        return await self._dead(topic, address, stop)

    async def _dead(
        self, topic: str, address: str, act: Callable[[str], Coroutine[Any, Any, str]]
    ) -> Outcome:
        outcome = Outcome()
        nodes = [address] if address else await self._producers(outcome, topic)
        answers, failures = await request_all(nodes, act)
        outcome.results += [DaemonResult(to, text=text) for to, text in answers.items()]
        outcome.results += [
            DaemonResult(to, error.text, error.short, error.done)
            for to, error in failures.items()
            if error.status != 404 or not answers  # it does not have the channel
        ]
        return outcome

    async def publish(self, topic: str, body: bytes, defer_ms: int, address: str) -> Outcome:
        """Publish one message to one node."""
        query = {"topic": topic}
        if defer_ms:
            query["defer"] = str(defer_ms)

        async def post(to: str) -> None:
            await self.upstream.nsqd_post(to, "/pub", query, body)

        outcome = Outcome()
        await _do(outcome, [address], post)
        return outcome

    # Steps

    async def _forced(
        self, nodes: list[str], action: str, topic: str, channel: str, force: bool
    ) -> dict[str, str]:
        """The query argument that overrides nsqd's check; without ``force``, check for readers."""
        if force:
            return {"force": "true"}
        await readers.check(self.upstream, nodes, action, topic, channel)
        return {}

    async def _producers(self, outcome: Outcome, topic: str) -> list[str]:
        known: Known[list[Producer]] = await self._cluster.topic_producers(topic)
        outcome.failures += known.warnings
        return [producer.address for producer in known.data]

    async def _on_lookupds(self, outcome: Outcome, path: str, **query: str) -> None:
        async def post(address: str) -> None:
            await self.upstream.lookupd_post(address, path, **query)

        await _do(outcome, self._cluster.lookupds(), post)

    async def _on_nsqds(
        self, outcome: Outcome, addresses: Iterable[str], path: str, **query: str
    ) -> list[str]:
        async def post(address: str) -> None:
            await self.upstream.nsqd_post(address, path, query)

        return await _do(outcome, addresses, post)


async def _do(
    outcome: Outcome, addresses: Iterable[str], post: Callable[[str], Coroutine[Any, Any, None]]
) -> list[str]:
    """Post to all addresses; return those that succeeded."""
    answers, failures = await request_all(addresses, post)
    outcome.results += [DaemonResult(address) for address in answers]
    outcome.results += [
        DaemonResult(address, error.text, error.short) for address, error in failures.items()
    ]
    return list(answers)


def _unstarted(made: Iterable[str], start: str, foreign: AbstractSet[str]) -> list[str]:
    why = (
        "the channel begins with the next message there: it is NSQ's own nsqd, or an earlier"
        " version"
    )
    return [f"{address}: {why}" for address in made if start and address in foreign]


def _target(action: str, topic: str, channel: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"/channel/{action}", {"topic": topic, "channel": channel}
    return f"/topic/{action}", {"topic": topic}
