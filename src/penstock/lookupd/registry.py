"""The registrations in nsqlookupd: which nsqd has which topics and channels.

    client                  -> producers          every nsqd that is connected and identified
    topic    <topic>        -> producers          nsqds that have the topic
    channel  <topic> <name> -> producers          nsqds that have the channel

Rule 1: no I/O and no clock; ``now_ns`` is monotonic and passed in.
Rule 2: a producer is a connection.  Two with the same broadcast address are two producers.
Rule 3: a topic or channel stays when its last producer leaves, because a new nsqd asks for the
        channels of its topics; an ephemeral one is removed when its last producer unregisters it.
Rule 4: orphans, which no producer has, are forgotten in time (``expiry``), except names created
        over HTTP: those stay until they are deleted.
Rule 5: names are only compared: unlike NSQ, nothing here treats ``*`` as a pattern.
Rule 6: everything is bounded: see ``Limits``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.lookupd.expiry import OrphanQueue
from penstock.wire.lookup import Identity
from penstock.wire.names import is_ephemeral

NEVER_NS = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of Rule 6.  A registration is a topic or a channel of one nsqd."""

    registrations: int = 100_000  # of a connection
    nodes: int = 256  # of an IP address
    registrations_of_address: int = 500_000
    created: int = 50_000  # topics and channels created over HTTP
    orphans: int = 50_000  # topics and channels without a producer


class AddressUsage:
    """What the nsqds of one IP address use of the limits."""

    __slots__ = ("node_count", "registration_count")

    def __init__(self) -> None:
        self.node_count = 0
        self.registration_count = 0


class Producer:
    """One identified connection of an nsqd."""

    __slots__ = (
        *("address", "channels", "usage", "identity"),
        *("registration_count", "topics", "updated_ns"),
    )

    def __init__(self, address: str, identity: Identity, usage: AddressUsage, now_ns: int) -> None:
        self.address = address
        self.identity = identity
        self.usage = usage
        self.updated_ns = now_ns
        self.registration_count = 0
        self.topics: dict[str, int] = {}  # when it was tombstoned, or NEVER_NS
        self.channels: dict[str, set[str]] = {}  # by topic

    @property
    def node(self) -> str:
        """The name that tombstones use."""
        return f"{self.identity.broadcast_address}:{self.identity.http_port}"

    def has(self, topic: str, channel: str = "") -> bool:
        return channel in self.channels.get(topic, ()) if channel else topic in self.topics

    def count(self, change: int) -> None:
        self.registration_count += change
        self.usage.registration_count += change


class Name:
    """A topic or a channel."""

    __slots__ = ("created", "entry", "producers", "since_ns")

    def __init__(self, now_ns: int) -> None:
        self.since_ns = now_ns
        self.entry = 0
        self.created = False  # over HTTP
        # An ordered set, so that responses keep the order.
        self.producers: dict[Producer, None] = {}


class Registry:
    """All registrations of one nsqlookupd."""

    def __init__(
        self, inactive_ns: int, tombstone_ns: int, forget_ns: int = 0, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.refused_count = 0  # registrations beyond a limit
        self.forgotten_count = 0
        self.created_count = 0
        self._inactive_ns = inactive_ns
        self._tombstone_ns = tombstone_ns
        self._clients: dict[Producer, None] = {}
        self._addresses: dict[str, AddressUsage] = {}
        self._topics: dict[str, Name] = {}
        self._channels: dict[str, dict[str, Name]] = {}
        self._orphans = OrphanQueue(forget_ns, self.limits.orphans)

    # ---- connections

    def may_identify(self, address: str) -> bool:
        """Whether another nsqd of that address may identify."""
        usage = self._addresses.get(_host(address))
        return usage is None or usage.node_count < self.limits.nodes

    def identify(self, address: str, identity: Identity, now_ns: int) -> Producer:
        usage = self._addresses.setdefault(_host(address), AddressUsage())
        usage.node_count += 1
        producer = Producer(address, identity, usage, now_ns)
        self._clients[producer] = None
        return producer

    def ping(self, producer: Producer, now_ns: int) -> None:
        producer.updated_ns = now_ns

    def register(self, producer: Producer, topic: str, channel: str, now_ns: int) -> bool:
        """Register a topic, or a channel and its topic; False if a limit does not allow it.

        A repeated registration changes nothing, so a tombstone stays.
        """
        new = (not producer.has(topic)) + bool(channel and not producer.has(topic, channel))
        if new and not self._may_register(producer, new):
            self.refused_count += 1
            return False
        if channel:
            self._join(self._channel(topic, channel, now_ns), producer)
            producer.channels.setdefault(topic, set()).add(channel)
        self._join(self._topic(topic, now_ns), producer)
        producer.topics.setdefault(topic, NEVER_NS)
        producer.count(new)
        return True

    def unregister(self, producer: Producer, topic: str, channel: str, now_ns: int) -> None:
        if channel:
            self._leave_channel(producer, topic, channel, now_ns)
            name = self._channels.get(topic, {}).get(channel)
            if is_ephemeral(channel) and name is not None and not name.producers:
                self._drop_channel(topic, channel)
            return
        for each in list(producer.channels.get(topic, ())):
            self._leave_channel(producer, topic, each, now_ns)
        self._leave_topic(producer, topic, now_ns)
        name = self._topics.get(topic)
        if is_ephemeral(topic) and name is not None and not name.producers:
            self._drop(self._topics.pop(topic))

    def remove(self, producer: Producer, now_ns: int) -> None:
        """Remove a producer whose connection was closed."""
        for topic, channels in list(producer.channels.items()):
            for channel in list(channels):
                self._leave_channel(producer, topic, channel, now_ns)
        for topic in list(producer.topics):
            self._leave_topic(producer, topic, now_ns)
        self._clients.pop(producer, None)
        producer.usage.node_count -= 1
        if not producer.usage.node_count:
            self._addresses.pop(_host(producer.address), None)

    def forget(self, now_ns: int, count_max: int) -> int:
        """Forget up to ``count_max`` expired orphans; return how many."""
        names = self._orphans.pop_due(now_ns, count_max)
        for topic, channel in names:
            if channel:
                self._drop_channel(topic, channel)
            else:
                # Its channels expired before it: none is older than its topic.
                self._drop(self._topics.pop(topic))
        self.forgotten_count += len(names)
        return len(names)

    # ---- HTTP changes

    def create_topic(self, topic: str, now_ns: int) -> bool:
        """Create a topic; False if a limit does not allow it."""
        if not self._may_create(self._topics.get(topic)):
            return False
        self._create(self._topic(topic, now_ns))
        return True

    def create_channel(self, topic: str, channel: str, now_ns: int) -> bool:
        """Create a channel and its topic; False if a limit does not allow it."""
        known = self._channels.get(topic, {}).get(channel)
        if not self._may_create(self._topics.get(topic), known):
            return False
        self._create(self._topic(topic, now_ns))
        self._create(self._channel(topic, channel, now_ns))
        return True

    def delete_topic(self, topic: str) -> None:
        """Remove a topic and its channels, until an nsqd registers them again."""
        for channel in list(self._channels.get(topic, ())):
            self.delete_channel(topic, channel)
        name = self._topics.pop(topic, None)
        if name is not None:
            for producer in name.producers:
                del producer.topics[topic]
                producer.count(-1)
            self._drop(name)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove a channel; False if it does not exist."""
        name = self._channels.get(topic, {}).get(channel)
        if name is None:
            return False
        for producer in name.producers:
            self._remove_channel(producer, topic, channel)
        self._drop_channel(topic, channel)
        return True

    def tombstone(self, topic: str, node: str, now_ns: int) -> None:
        """Hide ``node`` (``broadcast_address:http_port``) from lookups of ``topic``."""
        for producer in self._producers(topic):
            if producer.node == node:
                producer.topics[topic] = now_ns

    # ---- queries

    @property
    def orphan_count(self) -> int:
        """Number of topics and channels that have no producer and will be forgotten."""
        return self._orphans.count

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def topics(self) -> list[str]:
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        return list(self._channels.get(topic, ()))

    def channel_count(self) -> int:
        return sum(map(len, self._channels.values()))

    def producers(self, topic: str, now_ns: int) -> list[Producer]:
        """The producers that consumers of ``topic`` should connect to."""
        return [
            producer
            for producer in self._active(self._producers(topic), now_ns)
            if not self.tombstoned(producer, topic, now_ns)
        ]

    def nodes(self, now_ns: int) -> list[Producer]:
        return self._active(self._clients, now_ns)

    def tombstoned(self, producer: Producer, topic: str, now_ns: int) -> bool:
        at_ns = producer.topics.get(topic, NEVER_NS)
        return at_ns != NEVER_NS and now_ns - at_ns < self._tombstone_ns

    def all_keys(self) -> list[tuple[str, str, str]]:
        """All keys as (category, topic, channel)."""
        return [
            ("client", "", ""),
            *(("topic", topic, "") for topic in self._topics),
            *(
                ("channel", topic, name)
                for topic, names in self._channels.items()
                for name in names
            ),
        ]

    def producers_of(self, category: str, topic: str, channel: str) -> list[Producer]:
        """The producers of a key; empty if the key no longer exists."""
        if category == "client":
            return list(self._clients)
        name = self._topics.get(topic)
        if category == "channel":
            name = self._channels.get(topic, {}).get(channel)
        return [] if name is None else list(name.producers)

    def entries(self) -> dict[tuple[str, str, str], list[Producer]]:
        """Every key that has producers."""
        return {key: producers for key in self.all_keys() if (producers := self.producers_of(*key))}

    def check(self) -> None:
        """Check that both directions agree and the counts are right; for tests."""
        for producer in self._clients:
            for topic in producer.topics:
                assert producer in self._topics[topic].producers
            for topic, channels in producer.channels.items():
                assert channels
                assert all(producer in self._channels[topic][c].producers for c in channels)
            channel_count = sum(map(len, producer.channels.values()))
            assert producer.registration_count == len(producer.topics) + channel_count
        for (category, topic, channel), producers in self.entries().items():
            for producer in producers:
                assert producer in self._clients
                assert category != "topic" or topic in producer.topics
                assert category != "channel" or channel in producer.channels[topic]
        assert all(self._channels.values()), "a topic without channels is not kept here"
        usages = {producer.usage for producer in self._clients}
        assert usages == set(self._addresses.values())
        for usage in usages:
            own = [producer for producer in self._clients if producer.usage is usage]
            assert usage.node_count == len(own)
            assert usage.registration_count == sum(p.registration_count for p in own)
        names = [*self._topics.values(), *(n for c in self._channels.values() for n in c.values())]
        assert self.created_count == sum(name.created for name in names)
        assert self.orphan_count == sum(bool(name.entry) for name in names)
        assert not any(name.entry and (name.created or name.producers) for name in names)

    # ---- inside

    def _may_register(self, producer: Producer, count: int) -> bool:
        limits = self.limits
        return (
            producer.registration_count + count <= limits.registrations
            and producer.usage.registration_count + count <= limits.registrations_of_address
        )

    def _may_create(self, *names: Name | None) -> bool:
        new = sum(name is None or not name.created for name in names)
        return self.created_count + new <= self.limits.created

    def _create(self, name: Name) -> None:
        if not name.created:
            name.created = True
            self.created_count += 1
            self._orphans.discard(name)

    def _active(self, producers: Iterable[Producer], now_ns: int) -> list[Producer]:
        return [p for p in producers if now_ns - p.updated_ns <= self._inactive_ns]

    def _producers(self, topic: str) -> Iterable[Producer]:
        name = self._topics.get(topic)
        return () if name is None else name.producers

    def _topic(self, topic: str, now_ns: int) -> Name:
        name = self._topics.get(topic)
        if name is None:
            name = self._topics[topic] = Name(now_ns)
        return name

    def _channel(self, topic: str, channel: str, now_ns: int) -> Name:
        channels = self._channels.setdefault(topic, {})
        name = channels.get(channel)
        if name is None:
            name = channels[channel] = Name(now_ns)
        return name

    def _join(self, name: Name, producer: Producer) -> None:
        name.producers[producer] = None
        self._orphans.discard(name)

    def _leave_channel(self, producer: Producer, topic: str, channel: str, now_ns: int) -> None:
        if producer.has(topic, channel):
            self._remove_channel(producer, topic, channel)
            self._leave(self._channels[topic][channel], producer, topic, channel, now_ns)

    def _leave_topic(self, producer: Producer, topic: str, now_ns: int) -> None:
        if producer.has(topic):
            del producer.topics[topic]
            producer.count(-1)
            self._leave(self._topics[topic], producer, topic, "", now_ns)

    def _leave(self, name: Name, producer: Producer, topic: str, channel: str, now_ns: int) -> None:
        del name.producers[producer]
        if not name.producers and not name.created:
            self._orphans.add(name, topic, channel, now_ns)

    def _remove_channel(self, producer: Producer, topic: str, channel: str) -> None:
        names = producer.channels[topic]
        names.remove(channel)
        if not names:
            del producer.channels[topic]
        producer.count(-1)

    def _drop_channel(self, topic: str, channel: str) -> None:
        channels = self._channels.get(topic, {})
        name = channels.pop(channel, None)
        if name is not None:
            self._drop(name)
        if not channels:
            self._channels.pop(topic, None)

    def _drop(self, name: Name) -> None:
        """Update the counts for a name that was removed."""
        self._orphans.discard(name)
        self.created_count -= name.created


def _host(address: str) -> str:
    """The IP address of ``host:port``; all unix sockets count as one address."""
    return address.rpartition(":")[0]
