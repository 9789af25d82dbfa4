"""What nobody has is forgotten: when, in which order, and what is not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lookupd.expiry import REMEMBERED_MIN_NS, VOID_COUNT_MAX
from penstock.lookupd.registry import Limits, Producer, Registry
from penstock.wire.lookup import Identity

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
MANY = 1_000_000


def node(registry: Registry, address: str = "10.0.0.1:1", now_ns: int = 0) -> Producer:
    return registry.identify(address, Identity("h", "h", 1, 2, "1.3.0"), now_ns)


def names(registry: Registry) -> set[str]:
    """Topics, and channels as topic/channel."""
    registry.check()
    topics = registry.topics()
    return {*topics, *(f"{t}/{c}" for t in topics for c in registry.channels(t))}


def test_a_name_is_remembered_for_as_long_as_it_was_there() -> None:
    registry = Registry(DAY, DAY, DAY)
    a = node(registry)
    registry.register(a, "long", "c", 0)
    registry.register(a, "short", "c", 2 * HOUR)
    registry.register(a, "long", "late", 2 * HOUR)
    gone_ns = 3 * HOUR
    registry.remove(a, gone_ns)
    everything = {"long", "long/c", "long/late", "short", "short/c"}
    assert registry.forget(gone_ns + HOUR - 1, MANY) == 0
    assert names(registry) == everything
    assert registry.forget(gone_ns + HOUR, MANY) == 3
    assert names(registry) == {"long", "long/c"}
    assert registry.forget(gone_ns + 3 * HOUR - 1, MANY) == 0
    assert registry.forget(gone_ns + 3 * HOUR, MANY) == 2
    assert names(registry) == set()
    assert registry.forgotten_count == 5


def test_a_minute_at_least_and_the_longest_time_at_most() -> None:
    registry = Registry(DAY, DAY, DAY)
    a = node(registry)
    registry.register(a, "for a year", "", 0)
    at_ns = 365 * DAY
    registry.register(a, "for a moment", "", at_ns)
    registry.remove(a, at_ns)
    registry.forget(at_ns + REMEMBERED_MIN_NS - 1, MANY)
    assert len(names(registry)) == 2
    registry.forget(at_ns + REMEMBERED_MIN_NS, MANY)
    assert names(registry) == {"for a year"}
    registry.forget(at_ns + DAY - 1, MANY)
    assert names(registry) == {"for a year"}
    registry.forget(at_ns + DAY, MANY)
    assert names(registry) == set()


def test_a_peer_that_comes_for_seconds_leaves_its_names_for_a_minute() -> None:
    registry = Registry(DAY, DAY, DAY)
    a = node(registry)
    for n in range(40_000):
        registry.register(a, f"t{n}", "", 0)
    registry.remove(a, 5 * SECOND)
    assert len(names(registry)) == 40_000
    turns = 0
    while registry.forget(70 * SECOND, 1000):
        turns += 1
    assert (turns, names(registry)) == (40, set())


def test_what_somebody_has_or_made_over_http_stays() -> None:
    registry = Registry(DAY, DAY, HOUR)
    a, b = node(registry), node(registry, "10.0.0.2:1")
    for each in (a, b):
        registry.register(each, "shared", "c", 0)
    registry.register(a, "shared", "only-a", 0)
    registry.register(a, "made", "c", 0)
    registry.create_channel("made", "c", 0)
    registry.create_topic("empty", 0)
    registry.remove(a, 1)
    registry.forget(DAY, MANY)
    assert names(registry) == {"shared", "shared/c", "made", "made/c", "empty"}
    registry.unregister(b, "shared", "", DAY)
    registry.forget(2 * DAY, MANY)
    assert names(registry) == {"made", "made/c", "empty"}


def test_what_comes_back_is_not_forgotten() -> None:
    """And its time counts from when it was first there."""
    registry = Registry(DAY, DAY, DAY)
    a = node(registry)
    registry.register(a, "t", "c", 0)
    registry.remove(a, HOUR)
    b = node(registry, now_ns=HOUR + 1)
    registry.register(b, "t", "", HOUR + 1)
    registry.create_channel("u", "c", HOUR)
    registry.forget(2 * HOUR, MANY)
    assert names(registry) == {"t", "u", "u/c"}
    registry.remove(b, 2 * HOUR)
    registry.forget(4 * HOUR - 1, MANY)
    assert "t" in names(registry)
    registry.forget(4 * HOUR, MANY)
    assert names(registry) == {"u", "u/c"}


def test_of_too_many_those_go_first_that_were_there_for_the_shortest_time() -> None:
    registry = Registry(DAY, DAY, DAY, Limits(orphans=10))
    a = node(registry)
    for n in range(8):
        registry.register(a, f"old{n}", "", 0)
    registry.remove(a, 10 * HOUR)
    b = node(registry, now_ns=10 * HOUR)
    for n in range(1000):
        registry.register(b, f"new{n}", "", 10 * HOUR)
    registry.remove(b, 10 * HOUR + SECOND)
    registry.forget(10 * HOUR + SECOND, MANY)
    left = names(registry)
    assert len(left) == 10
    assert {f"old{n}" for n in range(8)} <= left


def test_nothing_is_forgotten_if_that_is_wanted() -> None:
    registry = Registry(DAY, DAY, 0)
    a = node(registry)
    registry.register(a, "t", "c", 0)
    registry.remove(a, 1)
    assert registry.forget(1000 * DAY, MANY) == 0
    assert names(registry) == {"t", "t/c"}


def test_a_name_that_comes_and_goes_costs_no_memory() -> None:
    registry = Registry(DAY, DAY, DAY)
    a = node(registry)
    for now_ns in range(20_000):
        registry.register(a, "t", "c", now_ns)
        registry.unregister(a, "t", "", now_ns)
    assert len(registry._orphans._heap) <= VOID_COUNT_MAX + 10
    registry.check()


steps = st.lists(
    st.tuples(
        st.sampled_from(["+", "-", "x", "=", "!", "wait"]),
        st.integers(0, 1),
        st.sampled_from(["t", "u", "e#ephemeral"]),
        st.sampled_from(["", "c", "f#ephemeral"]),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_what_has_a_producer_is_never_forgotten(taken: list[tuple[str, int, str, str]]) -> None:
    registry = Registry(DAY, DAY, 2 * REMEMBERED_MIN_NS, Limits(orphans=2))
    nodes = [node(registry), node(registry)]
    now_ns = 0
    for verb, n, topic, channel in taken:
        if verb == "+":
            registry.register(nodes[n], topic, channel, now_ns)
        elif verb == "-":
            registry.unregister(nodes[n], topic, channel, now_ns)
        elif verb == "x":
            registry.remove(nodes[n], now_ns)
            nodes[n] = node(registry)
        elif verb == "=":
            if channel:
                registry.create_channel(topic, channel, now_ns)
            else:
                registry.create_topic(topic, now_ns)
        elif verb == "!":
            if channel:
                registry.delete_channel(topic, channel)
            else:
                registry.delete_topic(topic)
        else:
            now_ns += REMEMBERED_MIN_NS
        before = registry.entries()
        registry.forget(now_ns, MANY)
        registry.check()
        assert registry.entries() == before
        assert registry.orphan_count <= 2
