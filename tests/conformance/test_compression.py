"""Snappy and deflate by negotiation, alone and over TLS."""

from __future__ import annotations

import contextlib
import random
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import snappy

from penstock.wire import commands
from tests.support.bodies import numbered
from tests.support.certificates import Pki
from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.secure_client import PackedSocket, SecureClient
from tests.support.timing import late_s
from tests.support.waits import eventually

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("packed"), *pki.options()) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.mark.parametrize("over_tls", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("packing", ["snappy", "deflate"])
def test_messages_go_through(nsqd: Nsqd, pki: Pki, packing: str, over_tls: bool) -> None:
    topic = f"{packing}-{over_tls}"
    context = pki.client_context() if over_tls else None
    noise = random.Random(1).randbytes(700_000)
    with SecureClient.of(nsqd, context, **{packing: True}) as client:
        assert client.negotiated[packing] is True
        client.mpub(topic, numbered(2000))
        client.pub(topic, noise, b"same " * 200_000)
        client.sub(topic, "c", ready=500)
        shown = nsqd.channel(topic, "c")["clients"][0]
        for name in ("snappy", "deflate"):
            assert shown[name] is (name == packing)
        assert shown["tls"] is over_tls
        bodies = {message.body for message in client.finish_all(2002)}
        assert bodies == {*numbered(2000), noise, b"same " * 200_000}
        client.settle()


@pytest.mark.parametrize("packing", ["snappy", "deflate"])
def test_the_first_ok_is_packed(nsqd: Nsqd, packing: str) -> None:
    with nsqd.connect() as raw:
        raw.command(commands.identify({"feature_negotiation": True, packing: True}))
        if packing == "snappy":
            # Byte by byte what nsqd sends.
            expected = bytes.fromhex("ff060000734e61507059 01 0e0000 26982bcf") + OK
            assert raw.exactly(len(expected)) == expected
            raw.send(snappy.StreamCompressor().compress(b"PUB first\n\x00\x00\x00\x01m"))
            assert raw.exactly(8)[0] == 1
            assert raw.exactly(10) == OK
        else:
            packed = raw.sock.recv(100)
            assert packed.endswith(b"\x00\x00\xff\xff")
            assert zlib.decompressobj(-15).decompress(packed) == OK


@pytest.mark.parametrize(
    ("asked", "level"), [(None, 6), (0, 6), (-3, 6), (1, 1), (6, 6), (9, 6), (100, 6)]
)
def test_the_level_is_negotiated(nsqd: Nsqd, asked: int | None, level: int) -> None:
    fields = {} if asked is None else {"deflate_level": asked}
    with SecureClient.of(nsqd, deflate=True, **fields) as client:
        assert client.negotiated["deflate_level"] == level
        assert client.negotiated["max_deflate_level"] == 6
        client.pub("level", b"m")


def test_options_bound_what_is_negotiated(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "a", "--max-deflate-level=9", "--snappy=false") as nsqd:
        with SecureClient.of(nsqd, deflate=True, deflate_level=9) as client:
            assert client.negotiated["deflate_level"] == 9
        # With snappy off, asking for both is asking for deflate.
        with SecureClient.of(nsqd, deflate=True, snappy=True) as client:
            assert (client.negotiated["deflate"], client.negotiated["snappy"]) == (True, False)
        with SecureClient.of(nsqd, snappy=True) as client:
            assert client.negotiated["snappy"] is False
            client.pub("clear", b"m")
    with (
        Nsqd(tmp_path / "b", "--deflate=false") as nsqd,
        SecureClient.of(nsqd, deflate=True, deflate_level=3) as client,
    ):
        assert (client.negotiated["deflate"], client.negotiated["deflate_level"]) == (False, 6)
        client.pub("clear", b"m")


def test_without_feature_negotiation_nothing_is_packed(nsqd: Nsqd) -> None:
    with nsqd.connect() as raw:
        assert raw.command(commands.identify({"snappy": True})) == (0, b"OK")
        assert raw.command(commands.pub("unpacked", b"m")) == (0, b"OK")


@pytest.mark.parametrize("packing", ["snappy", "deflate"])
def test_commands_behind_identify_belong_to_the_new_stream(nsqd: Nsqd, packing: str) -> None:
    """nsqd would lose them."""
    ask = commands.identify({"feature_negotiation": True, packing: True})
    topic = f"early-{packing}"
    pub = commands.pub(topic, b"m")
    if packing == "snappy":
        packed = snappy.StreamCompressor().compress(pub)
    else:
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(pub) + packer.flush(zlib.Z_SYNC_FLUSH)
    for pieces in ([ask + packed], [bytes([byte]) for byte in ask + packed]):
        with nsqd.connect() as raw:
            for piece in pieces:
                raw.send(piece)
            raw.frame()
            received = b""
            while len(received) < 12:
                received += raw.sock.recv(4096)
    assert eventually(lambda: nsqd.stats(f"&topic={topic}")["topics"][0]["message_count"] == 2)


@pytest.mark.parametrize("packing", ["snappy", "deflate"])
def test_nonsense_ends_the_connection_and_nothing_else(nsqd: Nsqd, packing: str) -> None:
    with SecureClient.of(nsqd, **{packing: True}) as client:
        assert isinstance(client.sock, PackedSocket)
        client.sock.sock.sendall(b"\xff" * 200)
        client.wait_closed()
    with SecureClient.of(nsqd, **{packing: True}) as client:
        client.pub("sense", b"m")


@pytest.mark.parametrize("packing", ["snappy", "deflate"])
def test_a_bomb_does_not_hold_the_others(nsqd: Nsqd, packing: str) -> None:
    """A gigabyte of NOPs in a megabyte, or a little of it: each turn unpacks a bounded part."""
    nops = commands.NOP * 250_000
    with SecureClient.of(nsqd, **{packing: True}) as bomber, Client.of(nsqd) as other:
        assert isinstance(bomber.sock, PackedSocket)
        packed = b"".join(bomber.sock.packing.pack(nops) for _ in range(40))
        bomber.sock.sock.setblocking(False)
        sent = 0
        slowest_s = 0.0
        give_up_s = time.monotonic() + late_s(20)
        while sent < len(packed) and time.monotonic() < give_up_s:
            with contextlib.suppress(BlockingIOError):
                sent += bomber.sock.sock.send(packed[sent : sent + 65536])
            began_s = time.monotonic()
            other.pub("others", b"m")
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert sent == len(packed)
        assert slowest_s < late_s(0.5)
        bomber.sock.sock.setblocking(True)
        bomber.pub("others", b"the bomber is still there")


@pytest.mark.parametrize("packing", ["snappy", "deflate"])
def test_what_is_packed_small_is_executed_to_its_end(nsqd: Nsqd, packing: str) -> None:
    """More publishes than one may unpack at once, then half a close: all are stored, answered."""
    topic = f"end-{packing}"
    publishes = b"".join(commands.pub(topic, b"m" * 200) for _ in range(20_000))
    with SecureClient.of(nsqd, **{packing: True}) as client:
        client.send(publishes)
        client.sock.shutdown(1)
        for _ in range(20_000):
            assert client.reply().text == b"OK"
        client.wait_closed()
    assert nsqd.stats(f"&topic={topic}")["topics"][0]["message_count"] == 20_000


def test_a_deflate_stream_may_end(nsqd: Nsqd) -> None:
    with SecureClient.of(nsqd, deflate=True) as client:
        assert isinstance(client.sock, PackedSocket)
        client.pub("last", b"m")
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        client.sock.sock.sendall(packer.compress(b"NOP\n") + packer.flush())
        client.wait_closed()
    assert nsqd.get("/ping").text == "OK"


def test_heartbeats_are_packed(nsqd: Nsqd, pki: Pki) -> None:
    with SecureClient.of(nsqd, pki.client_context(), deflate=True, heartbeat_interval=1000) as one:
        one.heartbeat()
        one.heartbeat()
        one.pub("alive", b"m")
