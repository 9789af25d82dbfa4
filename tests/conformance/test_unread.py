"""Clients that do not read what is sent to them: bounded memory, then the end of the connection."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.conformance.test_connections import UnixNsqd
from tests.support.certificates import Pki
from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.secure_client import SecureClient
from tests.support.timing import late_s
from tests.support.waits import eventually

MB = 1 << 20
# What the kernel may keep on both ends, and more than what nsqd does.
FLOOD_SIZE_MAX = 64 * MB
GROWTH_SIZE_MAX = 24 * MB
WRITE_TIMEOUT_S = 1.0
OPTIONS = (f"--client-write-timeout={WRITE_TIMEOUT_S}s", "--max-heartbeat-interval=10m")


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("unread"), *OPTIONS, *pki.options()) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def memory_size(nsqd: Nsqd) -> int:
    """What nsqd uses now; ``memory_growth`` is measured from here on."""
    Path(f"/proc/{nsqd.pid}/clear_refs").write_text("5")
    return resident_size(nsqd, "VmRSS")


def memory_growth(nsqd: Nsqd, before: int) -> int:
    """By how much nsqd used more than ``before``, at its worst."""
    return resident_size(nsqd, "VmHWM") - before


def resident_size(nsqd: Nsqd, what: str) -> int:
    status = Path(f"/proc/{nsqd.pid}/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def stuck_count(nsqd: Nsqd) -> int:
    found = re.search(r"^penstock_tcp_stuck_clients_total (\d+)", nsqd.get("/metrics").text, re.M)
    assert found is not None
    return int(found[1])


def flood(client: Client, packet: bytes) -> int:
    """Send and never read, until nsqd does not read either; how many bytes that were.

    A machine that is busy may stop reading for a moment too: the end is the one of the connection.
    """
    size = 0
    client.sock.settimeout(late_s(10 * WRITE_TIMEOUT_S))
    with contextlib.suppress(ssl.SSLError, BrokenPipeError, ConnectionResetError):
        while size < FLOOD_SIZE_MAX:
            client.sock.sendall(packet)
            size += len(packet)
    return size


def packet_of(name: str) -> bytes:
    """Many commands whose replies nobody will read; their ids do not compress."""
    chance = random.Random(1)

    def some_id() -> bytes:
        return b"%016x" % chance.getrandbits(64)

    commands_of: dict[str, Callable[[], bytes]] = {
        "FIN": lambda: commands.fin(some_id()),
        "REQ": lambda: commands.req(some_id(), 0),
        "TOUCH": lambda: commands.touch(some_id()),
        "PUB": lambda: commands.pub("unread", b"x"),
        "MPUB": lambda: commands.mpub("unread", [b"x"]),
        "DPUB": lambda: commands.dpub("unread#ephemeral", 60_000, b"x"),
        "IDENTIFY": lambda: commands.identify({"feature_negotiation": True}),
    }
    return b"".join(commands_of[name]() for _ in range(2000))


def begin(client: Client, name: str) -> Client:
    """Be in a state that allows ``name``; without heartbeats if that may be."""
    if name in ("FIN", "REQ", "TOUCH"):
        client.identify(heartbeat_interval=600_000)
        return client.sub("unread-sub", "c", ready=1)
    client.identify(heartbeat_interval=-1)
    return client


def check_flood(nsqd: Nsqd, client: Client, name: str) -> None:
    """The flood ends, memory stays, others are served, and the client is cut off and counted."""
    before, memory_before = stuck_count(nsqd), memory_size(nsqd)
    packet = packet_of(name)
    assert flood(client, packet) < FLOOD_SIZE_MAX
    assert eventually(lambda: stuck_count(nsqd) == before + 1, late_s(10 * WRITE_TIMEOUT_S))
    nsqd.wait_for_log(r"client=\S*: gave up, it is stuck")
    assert memory_growth(nsqd, memory_before) < GROWTH_SIZE_MAX
    assert nsqd.post("/pub?topic=unread-other", b"served").status == 200


@pytest.fixture(scope="module")
def unix_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnixNsqd]:
    with UnixNsqd(tmp_path_factory.mktemp("unread-unix"), *OPTIONS) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.mark.parametrize("name", ["FIN", "PUB"])
def test_replies_that_nobody_reads_are_bounded(nsqd: Nsqd, name: str) -> None:
    with Client.of(nsqd) as client:
        check_flood(nsqd, begin(client, name), name)


@pytest.mark.parametrize("name", ["FIN", "REQ", "TOUCH", "PUB", "MPUB", "DPUB", "IDENTIFY"])
def test_also_on_a_unix_socket(unix_nsqd: UnixNsqd, name: str) -> None:
    """Whose kernel buffers are smaller, so that it takes less to fill them."""
    with Client(unix_nsqd.socket_path) as client:
        check_flood(unix_nsqd, begin(client, name), name)


@pytest.mark.parametrize(
    ("tls", "packing"),
    [(True, ""), (False, "snappy"), (False, "deflate"), (True, "snappy")],
    ids=["tls", "snappy", "deflate", "tls-snappy"],
)
def test_also_through_tls_and_compression(nsqd: Nsqd, pki: Pki, tls: bool, packing: str) -> None:
    context = pki.client_context() if tls else None
    fields = {packing: True} if packing else {}
    with SecureClient.of(nsqd, context, heartbeat_interval=600_000, **fields) as client:
        client.sub("unread-sub", "c", ready=1)
        check_flood(nsqd, client, "FIN")


def fill(nsqd: Nsqd, client: Client, topic: str) -> None:
    """100 MB of messages for whoever subscribes to ``topic``."""
    for _ in range(25):
        client.mpub(topic, [bytes(MB - 64)] * 4)
    assert nsqd.post(f"/channel/create?topic={topic}&channel=c").status == 200


def test_a_consumer_that_never_reads_gets_a_bounded_part(nsqd: Nsqd) -> None:
    with Client.of(nsqd) as producer:
        fill(nsqd, producer, "unread-large")
    before, memory_before = stuck_count(nsqd), memory_size(nsqd)
    with Client.of(nsqd, heartbeat_interval=600_000) as client:
        client.send(commands.sub("unread-large", "c"), commands.rdy(2500))
        assert eventually(lambda: stuck_count(nsqd) == before + 1, late_s(10 * WRITE_TIMEOUT_S))
        assert memory_growth(nsqd, memory_before) < GROWTH_SIZE_MAX


def test_a_consumer_whose_output_is_full_before_it_subscribes_gets_nothing(tmp_path: Path) -> None:
    """On a unix socket, whose kernel buffers are small and do not grow.

    One of these counts of replies fills the output and does not yet stop the reading.
    """
    with UnixNsqd(tmp_path, "--max-heartbeat-interval=10m") as nsqd:
        with Client(nsqd.socket_path) as producer:
            fill(nsqd, producer, "unread-full")
        memory_before = memory_size(nsqd)
        asked = commands.identify({"feature_negotiation": True, "heartbeat_interval": 600_000})
        for count in range(3000, 8000, 120):  # replies of 300 bytes
            with Client(nsqd.socket_path) as client:
                client.sock.settimeout(late_s(1.0))
                try:
                    client.send(asked * count)
                    client.send(commands.sub("unread-full", "c"), commands.rdy(2500))
                    executed = eventually(lambda: is_consumed(nsqd, "unread-full"), late_s(1.0))
                except TimeoutError:
                    executed = False
                time.sleep(0.05)  # what is sent in error would be so in the same turn
                assert memory_growth(nsqd, memory_before) < 2 * GROWTH_SIZE_MAX
                if not executed:
                    break  # past the bound nsqd does not read any more
        assert count > 3000, "the first count is too large already"


def is_consumed(nsqd: Nsqd, topic: str) -> bool:
    return any(client["ready_count"] for client in nsqd.channel(topic, "c")["clients"])


def test_a_consumer_that_is_slow_to_read_may_finish(nsqd: Nsqd) -> None:
    """Its FINs have no replies: they are executed though its output is full."""
    topic = "unread-slow"
    with Client.of(nsqd) as producer:
        fill(nsqd, producer, topic)
    with nsqd.connect() as raw:
        raw.command(commands.identify({"heartbeat_interval": 600_000}))
        raw.command(commands.sub(topic, "c"))
        raw.send(commands.rdy(200))
        message = raw.message()
        in_flight = nsqd.channel(topic, "c")["in_flight_count"]
        assert 0 < in_flight < 100, "the output is full"
        raw.send(commands.fin(message.id))
        assert eventually(lambda: nsqd.channel(topic, "c")["clients"][0]["finish_count"] == 1)


def test_a_client_that_reads_slowly_is_not_cut_off(nsqd: Nsqd) -> None:
    """It takes something within each timeout, though its output stays full all the time."""
    topic = "unread-trickle"
    with Client.of(nsqd) as producer:
        fill(nsqd, producer, topic)
    with Client.of(nsqd, heartbeat_interval=600_000) as client:
        client.send(commands.sub(topic, "c"), commands.rdy(100))
        port = client.sock.getsockname()[1]
        size, start_s = 0, time.monotonic()
        while time.monotonic() - start_s < 4 * WRITE_TIMEOUT_S:
            data = client.sock.recv(32 << 10)
            assert data
            size += len(data)
            time.sleep(WRITE_TIMEOUT_S / 50)
    assert size > MB
    # Others, of tests before, may be cut off only now.
    assert not [line for line in nsqd.lines if f":{port}: gave up" in line]


def test_what_was_sent_before_a_half_close_does_not_wait_for_ever(nsqd: Nsqd) -> None:
    before = stuck_count(nsqd)
    with Client.of(nsqd, heartbeat_interval=-1) as client:
        client.send(commands.identify({"feature_negotiation": True}) * 20_000)
        client.sock.shutdown(socket.SHUT_WR)
        assert eventually(lambda: stuck_count(nsqd) == before + 1, late_s(10 * WRITE_TIMEOUT_S))


def test_a_client_that_ends_inside_a_body_and_does_not_read_is_disconnected(nsqd: Nsqd) -> None:
    """It gets an error after output that it does not read: nsqd does not wait for that forever."""
    before = stuck_count(nsqd)
    with Client.of(nsqd, heartbeat_interval=600_000) as client:
        client.sub("ends-inside", "c", ready=2000)
        for _ in range(20):
            # Of the last one delivered the kernel takes some, not nearly all.
            nsqd.post("/pub?topic=ends-inside", bytes(950_000))
        eventually(lambda: nsqd.channel("ends-inside", "c")["in_flight_count"] > 1)
        client.send(b"PUB ends-inside\n\0\0\0\5ab")
        client.sock.shutdown(socket.SHUT_WR)
        assert eventually(lambda: stuck_count(nsqd) == before + 1, late_s(10 * WRITE_TIMEOUT_S))
