"""The V1 codec does not see packets; the registry agrees with a naive one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lookupd.registry import Producer, Registry
from penstock.wire.lookup import MAGIC, CommandReader, Identity, ReplyReader, encode_identify

NODE = Identity("a", "h", 1, 2, "1.3.0")

parts = st.sampled_from(
    [
        encode_identify(NODE),
        b"PING\n",
        b"REGISTER t c\r\n",
        b"REGISTER t\n",
        b"UNREGISTER t c\n",
        b"IDENTIFY\n\xff\xff\xff\xff",
        b"IDENTIFY\n\x00\x00\x00\x02{}",
        b"IDENTIFY\n\x00\x00",
        b"REGISTER\n",
        b"\n",
        b"x" * 1100,
    ]
)
streams = st.one_of(
    st.lists(parts, max_size=8).map(lambda given: MAGIC + b"".join(given)),
    st.lists(parts, max_size=6).map(lambda given: MAGIC + encode_identify(NODE) + b"".join(given)),
    st.binary(max_size=64),
    st.binary(max_size=64).map(lambda raw: MAGIC + raw),
)
cuts = st.lists(st.integers(0, 400), max_size=12)


def split(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[start:end] for start, end in pairwise(edges)]


def read(pieces: list[bytes]) -> list[str]:
    reader = CommandReader()
    items = [repr(item) for piece in pieces for item in reader.feed(piece)]
    return [*items, repr(reader.eof())]


@settings(max_examples=400, deadline=None)
@given(streams, cuts)
def test_commands_do_not_depend_on_packets(stream: bytes, places: list[int]) -> None:
    assert read(split(stream, places)) == read([stream])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), cuts)
def test_replies_do_not_depend_on_packets(stream: bytes, places: list[int]) -> None:
    def replies(pieces: list[bytes]) -> list[str]:
        reader, found = ReplyReader(1 << 20), []
        try:
            for piece in pieces:
                found += [repr(reply) for reply in reader.feed(piece)]
        except Exception as error:
            return ["failed", type(error).__name__]
        return found

    assert replies(split(stream, places)) == replies([stream])


TOPICS = ("t", "u", "e#ephemeral")
CHANNELS = ("", "c", "d", "f#ephemeral")
steps = st.lists(
    st.tuples(
        st.sampled_from(["register", "unregister", "remove", "create", "delete"]),
        st.integers(0, 2),
        st.sampled_from(TOPICS),
        st.sampled_from(CHANNELS),
    ),
    max_size=40,
)


class Naive:
    """NSQ's way: one flat table of keys."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], set[int]] = {}

    def register(self, who: int, topic: str, channel: str) -> None:
        for key in {(topic, ""), (topic, channel)}:
            self.keys.setdefault(key, set()).add(who)

    def unregister(self, who: int, topic: str, channel: str) -> None:
        for key, producers in list(self.keys.items()):
            if key == (topic, channel) or (not channel and key[0] == topic):
                producers.discard(who)
        name = channel or topic
        if name.endswith("#ephemeral") and not self.keys.get((topic, channel)):
            self.keys.pop((topic, channel), None)

    def remove(self, who: int) -> None:
        for producers in self.keys.values():
            producers.discard(who)

    def create(self, topic: str, channel: str) -> None:
        for key in {(topic, ""), (topic, channel)}:
            self.keys.setdefault(key, set())

    def delete(self, topic: str, channel: str) -> None:
        for key in list(self.keys):
            if key == (topic, channel) or (not channel and key[0] == topic):
                del self.keys[key]


def keys_of(registry: Registry, who: dict[Producer, int]) -> dict[tuple[str, str], set[int]]:
    found: dict[tuple[str, str], set[int]] = {(topic, ""): set() for topic in registry.topics()}
    found |= {(topic, name): set() for topic in TOPICS for name in registry.channels(topic)}
    for (category, topic, channel), producers in registry.entries().items():
        if category != "client":
            found[topic, channel] = {who[producer] for producer in producers}
    return found


@settings(max_examples=300, deadline=None)
@given(steps)
def test_the_registry_is_a_table_of_keys(taken: list[tuple[str, int, str, str]]) -> None:
    registry, naive = Registry(10, 10), Naive()
    producers = [registry.identify(str(n), NODE, 0) for n in range(3)]
    who = {producer: n for n, producer in enumerate(producers)}
    for verb, n, topic, channel in taken:
        if verb == "remove":
            registry.remove(producers[n], 0)
            naive.remove(n)
            producers[n] = registry.identify(str(n), NODE, 0)
            who[producers[n]] = n
        elif verb == "create":
            if channel:
                assert registry.create_channel(topic, channel, 0)
            else:
                assert registry.create_topic(topic, 0)
            naive.create(topic, channel)
        elif verb == "delete":
            registry.delete_channel(topic, channel) if channel else registry.delete_topic(topic)
            naive.delete(topic, channel)
        else:
            getattr(registry, verb)(producers[n], topic, channel, 0)
            getattr(naive, verb)(n, topic, channel)
        registry.check()
        assert keys_of(registry, who) == naive.keys
