"""The TCP port against peers that do not know the protocol, or know it too well.

Whatever they send, what they get is whole frames with nsqd's error codes; none of it crashes the
daemon, holds its loop, stays in its memory, or reaches other clients.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import cramjam
import pytest
from hypothesis import strategies as st

from penstock.wire import commands
from tests.conformance.fuzzing import (
    FUZZ_SECONDS,
    Step,
    conversations,
    converse,
    mutated,
    pick,
    undisturbed,
)
from tests.support.bodies import numbered
from tests.support.client import Client
from tests.support.daemon import ERROR, MESSAGE, RESPONSE, Nsqd

CODES_TEXT = """
    E_AUTH_DISABLED E_BAD_BODY E_BAD_CHANNEL E_BAD_MESSAGE E_BAD_PROTOCOL E_BAD_TOPIC E_DPUB_FAILED
    E_FIN_FAILED E_IDENTIFY_FAILED E_INVALID E_MPUB_FAILED E_PUB_FAILED E_REQ_FAILED E_SUB_FAILED
    E_TOUCH_FAILED
"""
CODES = set(CODES_TEXT.split())
FRAME_SIZE_MAX = (1 << 20) + 30  # of a message with the largest body
UPGRADES = ("tls_v1", "snappy", "deflate")

names = st.sampled_from(["t", "u", "t#ephemeral", "x" * 64, "x" * 65, "", "b@d", "\xff", "a b"])
small = st.binary(min_size=0, max_size=50)
ids = st.one_of(st.binary(min_size=16, max_size=16), st.just(b"0" * 16), st.binary(max_size=20))
numbers = st.one_of(
    st.integers(0, 10), st.sampled_from([-1, 2500, 2501, 1 << 31, 1 << 63, 1 << 70])
)
delays = st.one_of(st.integers(0, 20), st.sampled_from([-1, 1000, 3_600_000, 1 << 40, 1 << 64]))
values = st.one_of(
    st.none(), st.booleans(), numbers, st.text(max_size=10), st.lists(st.integers(), max_size=2)
)
fields = st.dictionaries(
    st.sampled_from(
        [
            *("client_id", "hostname", "user_agent", "feature_negotiation", "heartbeat_interval"),
            *("output_buffer_size", "output_buffer_timeout", "sample_rate", "msg_timeout"),
            *("tls_v1", "snappy", "deflate", "deflate_level", "topology_zone", "unknown"),
        ]
    ),
    values,
    max_size=5,
)

command = st.one_of(
    fields.map(lambda given: b"IDENTIFY\n" + commands.sized(json.dumps(given).encode())),
    st.builds(commands.sub, names, names),
    st.builds(commands.sub, st.just("t"), st.just("c")),
    st.builds(commands.pub, names, small),
    st.builds(commands.pub, st.just("t"), st.just(b"body")),
    st.builds(commands.mpub, names, st.lists(small, max_size=4)),
    st.builds(commands.dpub, names, delays, small),
    st.builds(commands.fin, ids),
    st.builds(commands.req, ids, delays),
    st.builds(commands.touch, ids),
    numbers.map(commands.rdy),
    small.map(commands.auth),
    st.sampled_from(
        [commands.CLS, commands.NOP, b"\n", b"NOPE\n", b"FIN\n", b"PUB\n", b"sub t c\n"]
    ),
)
streams = st.lists(command, min_size=1, max_size=12).map(b"".join)
greeted = st.builds(
    lambda magic, stream: magic + stream,
    st.sampled_from([commands.MAGIC_V2] * 12 + [b"", b"  V1", b" V2", b"  V3", b"GET / HTTP/1.1"]),
    st.one_of(streams, mutated(streams), mutated(streams)),
)
JUNK = [
    b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(160)),
    commands.MAGIC_V2 + b"A" * 200_000,
    commands.MAGIC_V2 + b"\n" * 50_000,
    commands.MAGIC_V2 + commands.NOP * 50_000,
    commands.MAGIC_V2 + b"PUB t\n\x7f\xff\xff\xff" + bytes(100_000),
    commands.MAGIC_V2 + b"PUB t\n\x00\x10\x00\x00" + bytes(500_000),
    commands.MAGIC_V2 + b"MPUB t\n\x00\x00\x00\x08\x7f\xff\xff\xff\x00\x00\x00\x00",
    commands.MAGIC_V2 + commands.mpub("t", [b"m"] * 20_000),
    commands.MAGIC_V2 + commands.identify({"client_id": "x" * 100_000}),
    commands.MAGIC_V2 + b"IDENTIFY\n" + commands.sized(b"[" * 100_000),
    commands.MAGIC_V2 + commands.sub("t", "c") + commands.rdy(2500) + commands.NOP * 1000,
]


def upgraded(kind: str, payload: bytes, repeat: int) -> bytes:
    """A stream that goes on compressed; with ``repeat`` it unpacks to much more than it is."""
    payload *= repeat
    head = commands.identify({"feature_negotiation": True, kind: True})
    if kind == "snappy":
        return commands.MAGIC_V2 + head + bytes(cramjam.snappy.compress(payload))
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return commands.MAGIC_V2 + head + packer.compress(payload) + packer.flush(zlib.Z_SYNC_FLUSH)


compressed = st.builds(
    upgraded, st.sampled_from(["snappy", "deflate"]), streams, st.sampled_from([1] * 8 + [2000])
)
junk = st.one_of(st.binary(max_size=3000), pick(JUNK))
parts = st.one_of(greeted, greeted, streams, compressed, mutated(compressed), junk)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("tcp-fuzz")) as daemon:
        yield daemon
        assert daemon.terminate() == 0
        assert "Traceback" not in daemon.log, daemon.log


def test_any_bytes_are_answered_with_whole_frames(nsqd: Nsqd) -> None:
    with undisturbed(nsqd) as watch, traffic(nsqd):
        watch.fuzz(conversations(parts), lambda steps: judge(nsqd, steps))
    assert watch.count > FUZZ_SECONDS * 5


def judge(nsqd: Nsqd, steps: list[Step]) -> None:
    heard = converse(nsqd.tcp_port, steps)
    for kind, data in frames(heard.received, whole=heard.ended):
        assert kind in (RESPONSE, ERROR, MESSAGE)
        if kind == ERROR:
            assert data.split(b" ")[0].decode() in CODES, data
        if kind == RESPONSE and data[:1] == b"{":
            agreed = json.loads(data)
            if any(agreed[name] for name in UPGRADES):
                return  # what follows is packed


def frames(received: bytes, *, whole: bool) -> Iterator[tuple[int, bytes]]:
    """The frames in ``received``; one that is cut is a mistake if all was read."""
    at = 0
    while at < len(received):
        if len(received) - at >= 8:
            size, kind = struct.unpack_from(">iI", received, at)
            assert 4 <= size <= FRAME_SIZE_MAX, (at, received[at : at + 100])
            if len(received) - at >= 4 + size:
                yield kind, received[at + 8 : at + 4 + size]
                at += 4 + size
                continue
        assert not whole, received[at : at + 100]
        return


@contextmanager
def traffic(nsqd: Nsqd) -> Iterator[None]:
    """An honest producer and consumer meanwhile: each message arrives once, with one attempt."""
    stopped = threading.Event()
    rounds: list[int] = []

    def exchange() -> None:
        with Client.of(nsqd).sub("honest", "c", ready=100) as client, Client.of(nsqd) as producer:
            while not stopped.wait(0.02):
                sent = numbered(10, 10 * len(rounds))
                producer.mpub("honest", sent)
                taken = client.finish_all(10)
                assert {message.body for message in taken} == set(sent)
                assert {message.attempts for message in taken} == {1}
                rounds.append(1)
            assert client.quiet(0.05)

    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(exchange)
        try:
            yield
        finally:
            stopped.set()
            outcome.result(20)
    assert len(rounds) > 10


def test_slow_and_silent_peers_hold_nobody_up(nsqd: Nsqd) -> None:
    """Silent before the magic, in it, in a command, in a body; a byte at a time; deaf consumers."""
    stream = commands.MAGIC_V2 + commands.pub("slow", b"0123456789") * 50
    with undisturbed(nsqd) as watch, traffic(nsqd), ExitStack() as stack:

        def peers(count: int, data: bytes) -> list[socket.socket]:
            address = ("127.0.0.1", nsqd.tcp_port)
            socks = [
                stack.enter_context(socket.create_connection(address, 5)) for _ in range(count)
            ]
            for sock in socks:
                sock.sendall(data)
            return socks

        for data in (b"", b"  ", commands.MAGIC_V2 + b"PU", stream[:20], stream[:-3]):
            peers(40, data)
        peers(20, commands.MAGIC_V2 + commands.sub("slow", "deaf") + commands.rdy(2500))
        byte_wise = peers(60, b"")
        with Client.of(nsqd) as producer:
            for at in range(10_000):
                if time.monotonic() > watch.deadline_s:
                    break
                for sock in byte_wise:
                    sock.sendall(stream[at % len(stream) :][:1] if at < len(stream) else b"")
                producer.mpub("slow", [bytes(1000)] * 20)
                time.sleep(0.01)
        assert nsqd.channel("slow", "deaf")["in_flight_count"] > 0
