"""Who has which topics and channels: nsqlookupd's memory.

    client                  -> producers          every nsqd that is connected and identified
    topic    <topic>        -> producers          nsqds that have the topic
    channel  <topic> <name> -> producers          nsqds that have the channel

Rule 1: no I/O and no clock; ``now_ns`` is monotonic and comes in.
Rule 2: a producer is a connection.  Two with the same broadcast address are two producers.
Rule 3: a topic or channel stays when its last producer leaves, until somebody deletes it; but an
        ephemeral one goes when it is unregistered and nobody has it any more.
Rule 4: names are only compared: nothing here treats ``*`` as a pattern, as NSQ does.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.names import is_ephemeral
from penstock.wire.lookup import Identity

NEVER_NS = -1


class Producer:
    """One identified connection of an nsqd."""

    __slots__ = ("address", "channels", "identity", "topics", "updated_ns")

    def __init__(self, address: str, identity: Identity, now_ns: int) -> None:
        self.address = address
        self.identity = identity
        self.updated_ns = now_ns
        self.topics: dict[str, int] = {}  # when it was tombstoned there, NEVER_NS if it was not
        self.channels: dict[str, set[str]] = {}  # by topic

    @property
    def node(self) -> str:
        """What tombstones name it by."""
        return f"{self.identity.broadcast_address}:{self.identity.http_port}"


class Registry:
    """All registrations of one nsqlookupd."""

    def __init__(self, inactive_ns: int, tombstone_ns: int) -> None:
        self._inactive_ns = inactive_ns
        self._tombstone_ns = tombstone_ns
        # Sets that keep their order, so that answers do.
        self._clients: dict[Producer, None] = {}
        self._topics: dict[str, dict[Producer, None]] = {}
        self._channels: dict[str, dict[str, dict[Producer, None]]] = {}

    # ---- what connections do

    def identify(self, address: str, identity: Identity, now_ns: int) -> Producer:
        producer = Producer(address, identity, now_ns)
        self._clients[producer] = None
        return producer

    def ping(self, producer: Producer, now_ns: int) -> None:
        producer.updated_ns = now_ns

    def register(self, producer: Producer, topic: str, channel: str = "") -> None:
        """A repeated registration changes nothing, so a tombstone stays."""
        if channel:
            self._channel(topic, channel)[producer] = None
            producer.channels.setdefault(topic, set()).add(channel)
        self.create_topic(topic)
        self._topics[topic][producer] = None
        producer.topics.setdefault(topic, NEVER_NS)

    def unregister(self, producer: Producer, topic: str, channel: str = "") -> None:
        if channel:
            self._leave_channel(producer, topic, channel)
            if is_ephemeral(channel) and not self._channels.get(topic, {}).get(channel, ()):
                self._drop_channel(topic, channel)
            return
        for name in list(producer.channels.get(topic, ())):
            self._leave_channel(producer, topic, name)
        self._leave_topic(producer, topic)
        if is_ephemeral(topic) and not self._topics.get(topic, ()):
            self._topics.pop(topic, None)

    def remove(self, producer: Producer) -> None:
        """Its connection ended."""
        for topic, channels in list(producer.channels.items()):
            for channel in list(channels):
                self._leave_channel(producer, topic, channel)
        for topic in list(producer.topics):
            self._leave_topic(producer, topic)
        self._clients.pop(producer, None)

    # ---- what people and tools do

    def create_topic(self, topic: str) -> None:
        self._topics.setdefault(topic, {})

    def create_channel(self, topic: str, channel: str) -> None:
        self._channel(topic, channel)
        self.create_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its channels, until somebody registers them anew."""
        for producers in self._channels.pop(topic, {}).values():
            for producer in producers:
                producer.channels.pop(topic, None)
        for producer in self._topics.pop(topic, {}):
            del producer.topics[topic]

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Whether there was one."""
        producers = self._channels.get(topic, {}).get(channel)
        if producers is None:
            return False
        for producer in list(producers):
            self._leave_channel(producer, topic, channel)
        self._drop_channel(topic, channel)
        return True

    def tombstone(self, topic: str, node: str, now_ns: int) -> None:
        """Hide ``node`` (``broadcast_address:http_port``) from those who look for ``topic``."""
        for producer in self._topics.get(topic, ()):
            if producer.node == node:
                producer.topics[topic] = now_ns

    # ---- what is asked

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def topics(self) -> list[str]:
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        return list(self._channels.get(topic, ()))

    def producers(self, topic: str, now_ns: int) -> list[Producer]:
        """Those that consumers of ``topic`` should connect to."""
        return [
            producer
            for producer in self._active(self._topics.get(topic, ()), now_ns)
            if not self.tombstoned(producer, topic, now_ns)
        ]

    def nodes(self, now_ns: int) -> list[Producer]:
        return self._active(self._clients, now_ns)

    def tombstoned(self, producer: Producer, topic: str, now_ns: int) -> bool:
        at_ns = producer.topics.get(topic, NEVER_NS)
        return at_ns != NEVER_NS and now_ns - at_ns < self._tombstone_ns

    def entries(self) -> dict[tuple[str, str, str], list[Producer]]:
        """Every key that has producers: (category, topic, channel)."""
        found = {("client", "", ""): list(self._clients)}
        for topic, producers in self._topics.items():
            found["topic", topic, ""] = list(producers)
        for topic, channels in self._channels.items():
            for channel, producers in channels.items():
                found["channel", topic, channel] = list(producers)
        return {key: producers for key, producers in found.items() if producers}

    def check(self) -> None:
        """Both directions say the same; for tests."""
        for producer in self._clients:
            for topic in producer.topics:
                assert producer in self._topics[topic]
            for topic, channels in producer.channels.items():
                assert channels and all(producer in self._channels[topic][c] for c in channels)
        for (category, topic, channel), producers in self.entries().items():
            for producer in producers:
                assert producer in self._clients
                assert category != "topic" or topic in producer.topics
                assert category != "channel" or channel in producer.channels[topic]
        assert all(self._channels.values()), "a topic without channels is not kept here"

    # ---- inside

    def _active(self, producers: Iterable[Producer], now_ns: int) -> list[Producer]:
        return [p for p in producers if now_ns - p.updated_ns <= self._inactive_ns]

    def _channel(self, topic: str, channel: str) -> dict[Producer, None]:
        return self._channels.setdefault(topic, {}).setdefault(channel, {})

    def _leave_channel(self, producer: Producer, topic: str, channel: str) -> None:
        names = producer.channels.get(topic, set())
        names.discard(channel)
        if not names:
            producer.channels.pop(topic, None)
        self._channels.get(topic, {}).get(channel, {}).pop(producer, None)

    def _leave_topic(self, producer: Producer, topic: str) -> None:
        producer.topics.pop(topic, None)
        self._topics.get(topic, {}).pop(producer, None)

    def _drop_channel(self, topic: str, channel: str) -> None:
        channels = self._channels.get(topic, {})
        channels.pop(channel, None)
        if not channels:
            self._channels.pop(topic, None)
