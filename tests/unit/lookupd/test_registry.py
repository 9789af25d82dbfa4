"""The registry, as tables: what is done, and what is then seen."""

from __future__ import annotations

import pytest

from penstock.lookupd.registry import Limits, Producer, Registry
from penstock.wire.lookup import Identity

SECOND = 1_000_000_000
INACTIVE_NS = 300 * SECOND
TOMBSTONE_NS = 45 * SECOND


def identity(host: str = "h", http_port: int = 4151) -> Identity:
    return Identity(host, host, 4150, http_port, "1.3.0")


@pytest.fixture
def registry() -> Registry:
    return Registry(INACTIVE_NS, TOMBSTONE_NS)


@pytest.fixture
def a(registry: Registry) -> Producer:
    return registry.identify("10.0.0.1:1", identity("a"), 0)


@pytest.fixture
def b(registry: Registry) -> Producer:
    return registry.identify("10.0.0.2:1", identity("b"), 0)


def seen(registry: Registry) -> dict[str, object]:
    """Topics with their channels and the hosts that have them."""
    registry.check()
    entries = registry.entries()

    def hosts(*key: str) -> str:
        found = entries.get((key[0], key[1], key[2]), [])
        return "".join(sorted(producer.identity.broadcast_address for producer in found))

    # Channels may outlive an ephemeral topic's own key.
    names = ("t", "u", "t#ephemeral")
    topics = {*registry.topics(), *(name for name in names if registry.channels(name))}
    return {
        topic: (
            hosts("topic", topic, ""),
            {channel: hosts("channel", topic, channel) for channel in registry.channels(topic)},
        )
        for topic in topics
    }


# What a and b do, one word a step: +t registers a topic, +t/c a channel too, - unregisters, x is
# the end of the connection, ! is a deletion by HTTP, = a creation.
TABLE = [
    ("a+t", {"t": ("a", {})}),
    ("a+t/c", {"t": ("a", {"c": "a"})}),
    ("a+t/c a+t/c", {"t": ("a", {"c": "a"})}),
    ("a+t/c b+t/c b+t/d", {"t": ("ab", {"c": "ab", "d": "b"})}),
    # Keys outlive their producers.
    ("a+t/c a-t/c", {"t": ("a", {"c": ""})}),
    ("a+t/c a-t", {"t": ("", {"c": ""})}),
    ("a+t/c b+t/c a-t", {"t": ("b", {"c": "b"})}),
    ("a+t/c ax", {"t": ("", {"c": ""})}),
    ("a+t/c ax bx", {"t": ("", {"c": ""})}),
    ("a-t/c a-t", {}),
    # Ephemeral ones do not, when unregistered by the last.
    ("a+t/c#ephemeral a-t/c#ephemeral", {"t": ("a", {})}),
    ("a+t/c#ephemeral b+t/c#ephemeral a-t/c#ephemeral", {"t": ("ab", {"c#ephemeral": "b"})}),
    ("a+t#ephemeral a-t#ephemeral", {}),
    ("a+t#ephemeral b+t#ephemeral a-t#ephemeral", {"t#ephemeral": ("b", {})}),
    ("a+t/c#ephemeral b-t/c#ephemeral", {"t": ("a", {"c#ephemeral": "a"})}),
    # A dropped connection leaves even those behind, and so do the channels of a topic.
    ("a+t#ephemeral/c#ephemeral ax", {"t#ephemeral": ("", {"c#ephemeral": ""})}),
    ("a+t/c#ephemeral a-t", {"t": ("", {"c#ephemeral": ""})}),
    ("a+t#ephemeral/c a-t#ephemeral", {"t#ephemeral": ("", {"c": ""})}),
    ("=t#ephemeral a-t#ephemeral", {}),
    # Over HTTP.
    ("=t", {"t": ("", {})}),
    ("=t/c", {"t": ("", {"c": ""})}),
    ("a+t/c =t/c", {"t": ("a", {"c": "a"})}),
    ("a+t/c b+t/c !t", {}),
    ("a+t/c !t a-t/c a-t", {}),
    ("a+t/c !t a+t/c", {"t": ("a", {"c": "a"})}),
    ("a+t/c a+u/c !t", {"u": ("a", {"c": "a"})}),
    ("a+t/c a+t/d !t/c", {"t": ("a", {"d": "a"})}),
    ("a+t/c !t/c", {"t": ("a", {})}),
    ("a+t/c !*", {"t": ("a", {"c": "a"})}),
    ("a+t/c !t/*", {"t": ("a", {"c": "a"})}),
]


@pytest.mark.parametrize(("steps", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_registrations(
    registry: Registry, a: Producer, b: Producer, steps: str, expected: dict[str, object]
) -> None:
    for step in steps.split():
        who, verb = ({"a": a, "b": b}.get(step[0]), step.lstrip("ab")[0])
        topic, _, channel = step[step.index(verb) + 1 :].partition("/")
        if verb == "=":
            if channel:
                assert registry.create_channel(topic, channel, 0)
            else:
                assert registry.create_topic(topic, 0)
        elif verb == "!":
            registry.delete_channel(topic, channel) if channel else registry.delete_topic(topic)
        else:
            assert who is not None
            if verb == "x":
                registry.remove(who, 0)
            elif verb == "+":
                assert registry.register(who, topic, channel, 0)
            else:
                registry.unregister(who, topic, channel, 0)
        registry.check()
    assert seen(registry) == expected


def test_two_connections_of_one_node_are_two_producers(registry: Registry) -> None:
    first = registry.identify("10.0.0.1:1", identity(), 0)
    second = registry.identify("10.0.0.1:2", identity(), 0)
    registry.register(first, "t", "", 0)
    registry.register(second, "t", "", 0)
    assert registry.producers("t", 0) == registry.nodes(0) == [first, second]
    registry.remove(first, 0)
    assert registry.producers("t", 0) == [second]


def test_deleting_a_channel_says_whether_there_was_one(registry: Registry, a: Producer) -> None:
    registry.register(a, "t", "c", 0)
    assert registry.delete_channel("t", "c")
    assert not registry.delete_channel("t", "c")
    assert not registry.delete_channel("u", "c")


def test_only_a_ping_keeps_a_producer_active(registry: Registry, a: Producer) -> None:
    registry.register(a, "t", "", 0)
    late_ns = INACTIVE_NS + 1
    assert registry.nodes(INACTIVE_NS) == registry.producers("t", INACTIVE_NS) == [a]
    registry.register(a, "t", "c", 0)
    assert registry.nodes(late_ns) == registry.producers("t", late_ns) == []
    assert registry.has_topic("t") and registry.entries()[("topic", "t", "")] == [a]
    registry.ping(a, late_ns)
    assert registry.nodes(late_ns) == registry.producers("t", late_ns) == [a]


def test_a_tombstone_hides_a_node_from_one_topic_for_its_lifetime(
    registry: Registry, a: Producer, b: Producer
) -> None:
    for topic in ("t", "u"):
        registry.register(a, topic, "", 0)
        registry.register(b, topic, "", 0)
    registry.tombstone("t", "a:4151", 5)
    assert registry.producers("t", 5) == [b]
    assert registry.producers("u", 5) == [a, b]
    assert registry.nodes(5) == [a, b]
    assert registry.tombstoned(a, "t", 5) and not registry.tombstoned(b, "t", 5)
    assert registry.producers("t", 4 + TOMBSTONE_NS) == [b]
    assert registry.producers("t", 5 + TOMBSTONE_NS) == [a, b]


@pytest.mark.parametrize("node", ["a", "a:4150", "a:4151 ", "*", "10.0.0.1:1"])
def test_a_tombstone_names_a_node_exactly(registry: Registry, a: Producer, node: str) -> None:
    registry.register(a, "t", "", 0)
    registry.tombstone("t", node, 0)
    assert registry.producers("t", 0) == [a]


def test_only_registering_anew_clears_a_tombstone(registry: Registry, a: Producer) -> None:
    registry.register(a, "t", "", 0)
    registry.tombstone("t", "a:4151", 0)
    registry.register(a, "t", "c", 0)
    assert registry.producers("t", 1) == []
    registry.unregister(a, "t", "", 0)
    registry.register(a, "t", "", 0)
    assert registry.producers("t", 1) == [a]


def test_a_tombstone_of_a_topic_nobody_has_changes_nothing(registry: Registry) -> None:
    registry.tombstone("t", "a:4151", 0)
    assert registry.topics() == []


def test_an_nsqd_registers_so_many_names_and_goes_on_with_those() -> None:
    registry = Registry(INACTIVE_NS, TOMBSTONE_NS, 0, Limits(registrations=4))
    a = registry.identify("10.0.0.1:1", identity(), 0)
    assert registry.register(a, "t", "c", 0)
    assert registry.register(a, "u", "", 0)
    assert not registry.register(a, "v", "c", 0), "that would be two"
    assert registry.register(a, "v", "", 0)
    assert not registry.register(a, "t", "d", 0)
    assert registry.register(a, "t", "c", 0), "again is no more"
    registry.unregister(a, "t", "c", 0)
    assert registry.register(a, "t", "d", 0)
    assert registry.refused_count == 2
    assert registry.topics() == ["t", "u", "v"]
    registry.check()


def test_the_nsqds_of_an_address_share_a_number_of_names_and_nodes() -> None:
    limits = Limits(registrations=10, registrations_of_address=5, nodes=2)
    registry = Registry(INACTIVE_NS, TOMBSTONE_NS, 0, limits)
    first = registry.identify("10.0.0.1:1", identity(), 0)
    assert registry.may_identify("10.0.0.1:2")
    second = registry.identify("10.0.0.1:2", identity(), 0)
    assert not registry.may_identify("10.0.0.1:3")
    assert registry.may_identify("10.0.0.2:3")
    other = registry.identify("10.0.0.2:3", identity(), 0)
    for n in range(3):
        assert registry.register(first, f"t{n}", "", 0)
    assert registry.register(second, "t0", "c", 0)
    assert not registry.register(second, "t1", "", 0)
    assert registry.register(other, "t1", "c", 0)
    registry.remove(first, 0)
    assert registry.may_identify("10.0.0.1:4")
    assert registry.register(second, "t1", "", 0)
    registry.check()


def test_so_many_names_are_created_over_http() -> None:
    registry = Registry(INACTIVE_NS, TOMBSTONE_NS, 0, Limits(created=3))
    a = registry.identify("10.0.0.1:1", identity(), 0)
    assert registry.create_topic("t", 0)
    assert registry.create_topic("t", 0)
    assert registry.create_channel("u", "c", 0)
    assert not registry.create_channel("t", "c", 0)
    assert not registry.create_topic("v", 0)
    assert registry.topics() == ["t", "u"]
    assert registry.register(a, "v", "c", 0), "nsqds go on"
    assert not registry.create_topic("v", 0)
    registry.delete_topic("u")
    assert registry.create_channel("t", "c", 0)
    registry.check()
