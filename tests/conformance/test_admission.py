"""Crowds at the doors of a real nsqd: silent ones leave, clients stay, the node can be operated.

With 256 descriptors nsqd has places for 133 connections: 33 are kept for HTTP and 66 for TCP.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S
from penstock.wire import commands
from tests.support.certificates import Pki
from tests.support.client import Client
from tests.support.daemon import RESPONSE, LimitedNsqd, Nsqd, Raw
from tests.support.waits import eventually

LIMIT = 256
PLACES = 133
TCP_MAX = PLACES - 33
HTTP_MAX = PLACES - 66
CROWD = 200
MAGIC = commands.MAGIC_V2


@contextmanager
def crowd(port: int, data: bytes = b"", count: int = CROWD) -> Iterator[list[socket.socket]]:
    """Peers that send ``data`` and nothing more."""
    with ExitStack() as stack:
        socks = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            # Who was refused already finds its connection reset.
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
            socks.append(sock)
        yield socks


def open_count(socks: list[socket.socket]) -> int:
    """How many of them the daemon has not closed."""
    count = 0
    for sock in socks:
        sock.setblocking(False)
        try:
            while sock.recv(65536):
                pass
        except BlockingIOError:
            count += 1
        except ConnectionError:
            pass
    return count


def refused(nsqd: Nsqd, door: str) -> float:
    return nsqd.metric(f'penstock_connections_refused_total{{door="{door}"}}')


def evicted(nsqd: Nsqd, door: str) -> float:
    return nsqd.metric(f'penstock_connections_evicted_total{{door="{door}"}}')


def works(nsqd: Nsqd, name: str) -> None:
    """HTTP and TCP serve newcomers, and files can be opened."""
    assert nsqd.get("/ping").text == "OK"
    assert nsqd.post(f"/pub?topic={name}-http", b"m").text == "OK"
    with Client.of(nsqd).sub(f"{name}-tcp", "c", ready=1) as consumer, Client.of(nsqd) as producer:
        producer.pub(f"{name}-tcp", b"m")
        assert consumer.finish_all(1)[0].body == b"m"


def test_silent_crowds_shut_nobody_out(tmp_path: Path) -> None:
    half_head = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Le"
    with LimitedNsqd(tmp_path, LIMIT, LIMIT) as nsqd:
        assert nsqd.metric("penstock_connections_max") == PLACES
        with Client.of(nsqd) as early:
            early.identify(client_id="early")
            for number, (port, data) in enumerate(
                [
                    (nsqd.http_port, b""),
                    (nsqd.http_port, half_head),
                    (nsqd.tcp_port, b""),
                    (nsqd.tcp_port, b"  "),
                    (nsqd.tcp_port, MAGIC),
                    (nsqd.tcp_port, MAGIC + b"PUB t\n\0\0\0\x10half"),
                ]
            ):
                with crowd(port, data) as socks:
                    works(nsqd, f"w{number}")
                    assert open_count(socks) < PLACES
            early.pub("early", b"still here")
        assert evicted(nsqd, "TCP") > CROWD and evicted(nsqd, "HTTP") > CROWD
        assert refused(nsqd, "TCP") == refused(nsqd, "HTTP") == 0
        assert nsqd.terminate() == 0
        assert "Traceback" not in nsqd.log


def test_clients_stay_and_newcomers_are_refused_told_and_counted(tmp_path: Path) -> None:
    """Producers and subscribers take all places of TCP; the node can still be looked at."""
    with LimitedNsqd(tmp_path, LIMIT, LIMIT) as nsqd, ExitStack() as stack:
        clients = []
        for number in range(TCP_MAX):
            client = stack.enter_context(Client.of(nsqd))
            if number % 2:
                client.pub(f"topic-{number % 40}", b"m")
            else:
                client.sub("busy", f"c{number % 7}", ready=1)
            clients.append(client)
        with crowd(nsqd.tcp_port, MAGIC) as socks:
            assert eventually(lambda: open_count(socks) == 0)
        assert refused(nsqd, "TCP") == CROWD
        assert nsqd.get("/ping").text == "OK"
        nsqd.wait_for_log(rf"WARNING: TCP: \d+ connections? refused, {TCP_MAX} are open and in use")
        assert len([line for line in nsqd.lines if "refused" in line]) <= 2
        for number, client in enumerate(clients):
            if number % 2:
                client.pub(f"topic-{number % 40}", b"again")
        assert len(nsqd.stats()["topics"]) == 21
        clients[0].close()
        assert eventually(lambda: serves(nsqd))


def serves(nsqd: Nsqd) -> bool:
    """Whether a TCP client is let in."""
    with nsqd.connect() as raw, contextlib.suppress(EOFError, ConnectionError):
        return raw.command(commands.pub("late", b"m")) == (RESPONSE, b"OK")
    return False


def test_idle_http_connections_leave_for_others(tmp_path: Path) -> None:
    """All but those that have published."""
    ping = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
    pub = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nm"
    with (
        LimitedNsqd(tmp_path, LIMIT, LIMIT) as nsqd,
        crowd(nsqd.http_port, pub, 20) as producers,
        crowd(nsqd.http_port, ping, HTTP_MAX - 20) as idle,
    ):
        for sock in (*producers, *idle):
            assert sock.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 200"
        # Until then nobody is idle for long enough.
        assert eventually(lambda: accepts(nsqd.http_port, ping))
        for _ in range(30):
            assert nsqd.get("/ping").text == "OK"
        assert open_count(producers) == 20
        assert open_count(idle) < HTTP_MAX - 20
        for sock in producers:
            sock.setblocking(True)
            sock.sendall(pub)
            assert sock.recv(12) == b"HTTP/1.1 200"


def accepts(port: int, request: bytes) -> bool:
    address = ("127.0.0.1", port)
    with socket.create_connection(address, 10) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(request)
        return sock.recv(12) == b"HTTP/1.1 200"
    return False


def test_the_first_command_has_ten_seconds(tmp_path: Path) -> None:
    """Whoever has sent one may be as idle as its heartbeats allow."""
    with Nsqd(tmp_path) as nsqd, ExitStack() as stack:

        def peer(port: int, data: bytes) -> socket.socket:
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            sock.sendall(data)
            return sock

        half = b"GET /ping HTTP/1.1\r\nHo"
        silent = [peer(nsqd.tcp_port, data) for data in (b"", b"  V", MAGIC, MAGIC + b"PU")]
        silent += [peer(nsqd.http_port, data) for data in (b"", half)]
        heard = [peer(nsqd.tcp_port, MAGIC + commands.NOP)]
        heard += [peer(nsqd.tcp_port, MAGIC + commands.pub("t", b"m"))]
        heard += [peer(nsqd.http_port, half + b"st: h\r\n\r\n")]
        begin_s = time.monotonic()
        for sock in silent:
            while sock.recv(1000):
                pass
        took_s = time.monotonic() - begin_s
        assert FIRST_COMMAND_TIMEOUT_S - 2 < took_s < FIRST_COMMAND_TIMEOUT_S + 5
        assert open_count(heard) == 3


def test_half_handshakes_count_and_leave_for_others(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    with LimitedNsqd(tmp_path / "data", LIMIT, LIMIT, *pki.options()) as nsqd:
        hello = half_hello()
        for data in (b"", hello[:50], hello):
            with crowd(nsqd.https_port, data) as socks:
                assert nsqd.http("GET", "/ping", tls=pki.client_context()).text == "OK"
                assert nsqd.get("/ping").text == "OK"
                assert open_count(socks) < PLACES
        assert evicted(nsqd, "HTTP") > CROWD
        assert nsqd.terminate() == 0
        assert "Traceback" not in nsqd.log


def half_hello() -> bytes:
    """What a TLS client says first."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="h")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_without_a_descriptor_accepting_pauses_and_resumes(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        soft, hard = resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE)
        with Client.of(nsqd) as producer:
            producer.pub("t", b"m")
            resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, (10, hard))
            with socket.create_connection(("127.0.0.1", nsqd.tcp_port), 10) as sock:
                nsqd.wait_for_log("WARNING: TCP: cannot accept connections: .*Too many open files")
                before_s = cpu_s(nsqd)
                time.sleep(1)
                assert cpu_s(nsqd) - before_s < 0.3
                producer.pub("t", b"m")
                resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, (soft, hard))
                raw = Raw(sock)
                assert raw.command(MAGIC, commands.pub("t", b"m")) == (RESPONSE, b"OK")
        assert len([line for line in nsqd.lines if "cannot accept" in line]) == 1


def cpu_s(nsqd: Nsqd) -> float:
    fields = Path(f"/proc/{nsqd.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
