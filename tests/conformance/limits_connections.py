"""Trials of the limits of nsqd's connections and requests."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from penstock.wire import commands
from tests.support.certificates import Pki
from tests.support.client import Client
from tests.support.daemon import LimitedNsqd, Nsqd
from tests.support.limits import Daemons, exchange, status, trial, tried_by
from tests.support.waits import eventually

MAGIC = commands.MAGIC_V2


def closed_after(port: int, data: bytes) -> float:
    """Seconds until the daemon closes a connection on which only ``data`` is sent."""
    begin_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 120) as sock:
        sock.sendall(data)
        try:
            while sock.recv(65536):
                pass
        except ConnectionError:
            pass
    return time.monotonic() - begin_s


@trial("Connections", "the limit of open files, less what files need")
def _(daemons: Daemons) -> None:
    with LimitedNsqd(daemons.folder("places"), 128, 128) as nsqd, ExitStack() as stack:
        places = nsqd.metric("penstock_connections_max")
        assert 32 <= places < 128 - 32
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", nsqd.tcp_port), 10))
            for _ in range(200)
        ]
        assert silent[0].recv(1) == b""
        clients = []
        while len(clients) <= places:
            client = stack.enter_context(Client.of(nsqd))
            try:
                client.pub("t", b"m")
            except (AssertionError, ConnectionError, EOFError):
                break
            clients.append(client)
        assert places / 2 <= len(clients) < places
        clients[0].pub("t", b"m")
        refused = nsqd.metric('penstock_connections_refused_total{door="TCP"}')
        assert refused >= 1


@trial("HTTP connections", "4,096, and half of all places")
def _(daemons: Daemons) -> None:
    with LimitedNsqd(daemons.folder("http-places"), 128, 128) as nsqd, ExitStack() as stack:
        pub = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nm"
        places = nsqd.metric("penstock_connections_max")
        statuses = []
        for _ in range(int(places)):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", nsqd.http_port), 10))
            try:
                sock.sendall(pub)
                statuses.append(sock.recv(12)[9:])
            except ConnectionError:
                statuses.append(b"503")
        assert set(statuses) == {b"200", b"503"}
        assert abs(statuses.count(b"200") - places / 2) <= 2


@trial("First request, the magic, a first command", "10 s each")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    assert 8 < closed_after(nsqd.tcp_port, MAGIC + b"NO") < 20


@trial("A TLS handshake", "5 s over TCP, 10 s over HTTPS")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd(*Pki(daemons.folder("pki")).options())
    identify = commands.identify({"tls_v1": True, "feature_negotiation": True})
    assert 4 < closed_after(nsqd.tcp_port, MAGIC + identify) < 9
    assert 8 < closed_after(nsqd.https_port, b"\x16\x03\x01") < 20


@trial("Request headers", "64 KiB, 100 headers, 8 KiB of target")
def _(daemons: Daemons) -> None:
    port = daemons.nsqd().http_port
    line, end = b"GET /ping HTTP/1.1\r\nHost: h\r\n", b"\r\n"
    assert status(port, line + b"X: " + b"x" * 60_000 + b"\r\n" + end) == 200
    assert status(port, line + b"X: " + b"x" * 70_000 + b"\r\n" + end) == 431
    assert status(port, line + b"X: x\r\n" * 99 + end) == 200
    assert status(port, line + b"X: x\r\n" * 100 + end) == 431
    assert status(port, b"GET /ping?" + b"x" * 8000 + b" HTTP/1.1\r\nHost: h\r\n\r\n") == 200
    assert status(port, b"GET /ping?" + b"x" * 8192 + b" HTTP/1.1\r\nHost: h\r\n\r\n") == 414


@trial("A body on an endpoint that ignores bodies", "256 KiB")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    assert nsqd.post("/topic/create?topic=ignored", bytes(256 << 10)).status == 200
    assert nsqd.post("/topic/create?topic=ignored", bytes((256 << 10) + 1)).status == 413


@trial("Concurrent requests of one connection", "64, with 8 MiB of bodies")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    assert nsqd.post("/topic/create?topic=polled").status == 200
    body = b'{"topics":{"polled":{"after":9007199254740991}},"wait_ms":30000}'
    poll = b"POST /log/ends HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", nsqd.http_port), 10) as sock:
        sock.sendall(poll * 70)

        def waiting() -> float:
            return nsqd.metric("penstock_log_polls")

        assert eventually(lambda: waiting() >= 64)
        assert waiting() == 64


@trial("A message", "1 MiB")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    assert nsqd.post("/pub?topic=large", bytes(1 << 20)).status == 200
    assert nsqd.post("/pub?topic=large", bytes((1 << 20) + 1)).text == '{"message":"MSG_TOO_BIG"}'
    with Client.of(nsqd) as client:
        client.pub("large", bytes(1 << 20))
        client.send(b"PUB large\n", ((1 << 20) + 1).to_bytes(4, "big"))
        assert client.error() == "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"


@trial("A body with several messages", "5 MiB")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    large = b"\n".join([bytes(1 << 20)] * 5)
    assert nsqd.post("/mpub?topic=large", large[: 5 << 20]).status == 200
    assert nsqd.post("/mpub?topic=large", large + bytes(8)).text == '{"message":"BODY_TOO_BIG"}'
    with Client.of(nsqd) as client:
        client.send(b"MPUB large\n", ((5 << 20) + 1).to_bytes(4, "big"))
        assert client.error() == "E_BAD_BODY MPUB body too big 5242881 > 5242880"


@trial("A command line", "16 KiB")
def _(daemons: Daemons) -> None:
    port = daemons.nsqd().tcp_port
    assert b"E_INVALID" in exchange(port, MAGIC + b"x" * 16_000 + b"\n")
    assert exchange(port, MAGIC + b"x" * 16_384 + b"\n") == b""


@trial("The name of a topic or a channel", "64 characters")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    assert nsqd.post("/topic/create?topic=" + "t" * 64).status == 200
    assert nsqd.post("/topic/create?topic=" + "t" * 65).status == 400


tried_by(
    "Partly received bodies, over all connections",
    "64 MiB",
    "tests.conformance.test_bodies:test_halves_of_bodies_take_little_memory",
)


@trial("Time to receive a body", "60 s, and 1 s more for each 16 KiB received", patient=True)
def _(daemons: Daemons) -> None:
    with Nsqd(daemons.folder("slow-bodies")) as nsqd, ThreadPoolExecutor(2) as pool:
        head = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n"
        pub = MAGIC + commands.identify({"heartbeat_interval": -1}) + b"PUB t\n\0\1\0\0"
        http = pool.submit(closed_after, nsqd.http_port, head + bytes(32 << 10))
        tcp = pool.submit(closed_after, nsqd.tcp_port, pub + bytes(32 << 10))
        assert 60 < http.result() < 75
        assert 60 < tcp.result() < 75


@trial("An HTTP connection between two requests", "75 s", patient=True)
def _(daemons: Daemons) -> None:
    with Nsqd(daemons.folder("idle")) as nsqd:
        ping = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
        assert 73 < closed_after(nsqd.http_port, ping) < 90
