"""Crowds at the doors of a real nsqlookupd: silent ones leave, nsqds stay, it can be asked.

With 306 descriptors it has places for 250 connections: 62 are kept for HTTP and 125 for TCP.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S
from tests.conformance.test_admission import crowd, open_count
from tests.conformance.test_lookupd_http import Peer
from tests.support.certificates import Pki
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import eventually

LIMIT = 306
CROWD = 320
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303")


def door_metric(lookupd: Nsqlookupd, name: str, door: str = "TCP") -> float:
    return lookupd.metric(f'penstock_connections_{name}_total{{door="{door}"}}')


@pytest.mark.parametrize(
    "data",
    [b"", b"  V", b"  V1", b"  V1IDENTIFY\n\x00\x00\x01\x00{", b"  V1PING\n", CLIENT_HELLO],
    ids=["silent", "half-magic", "magic", "half-identify", "ping", "half-tls"],
)
def test_a_crowd_that_never_identifies_itself_shuts_nobody_out(
    data: bytes, tmp_path: Path, pki: Pki
) -> None:
    """nsqds register, consumers ask, and who came before stays."""
    tls = (*pki.options(), "--https-address=127.0.0.1:0") if data == CLIENT_HELLO else ()
    with Nsqlookupd(*tls, open_files=LIMIT) as lookupd, ExitStack() as stack:
        early = Peer(stack.enter_context(lookupd.connect()), "early")
        early.register("t", "c")
        with crowd(lookupd.tcp_port, data, CROWD), crowd(lookupd.http_port, b"GET", CROWD):
            started_s = time.monotonic()
            late = Peer(stack.enter_context(lookupd.connect()), "late")
            late.register("t")
            assert len(lookupd.get("/lookup?topic=t").json["producers"]) == 2
            assert time.monotonic() - started_s < FIRST_COMMAND_TIMEOUT_S / 2
            assert early.do(b"PING\n") == b"OK"
            assert door_metric(lookupd, "evicted") + door_metric(lookupd, "refused") > 0
            register = f"--lookupd-tcp-address={lookupd.tcp_address}"
            with Nsqd(tmp_path, register, "--broadcast-address=127.0.0.1"):
                assert eventually(lambda: len(lookupd.get("/nodes").json["producers"]) == 3)
        assert "Too many open files" not in lookupd.log
        assert "Traceback" not in lookupd.log
        assert lookupd.terminate() == 0


def test_whoever_sends_no_command_is_closed_in_time() -> None:
    with (
        Nsqlookupd() as lookupd,
        crowd(lookupd.tcp_port, b"  V1", 5) as silent,
        crowd(lookupd.tcp_port, b"  V1PING\n", 3) as pinging,
    ):
        started_s = time.monotonic()
        while open_count(silent):
            assert time.monotonic() - started_s < 2 * FIRST_COMMAND_TIMEOUT_S + 5
            time.sleep(0.1)
        assert time.monotonic() - started_s > FIRST_COMMAND_TIMEOUT_S - 2
        assert open_count(pinging) == 3, "they have sent a command, and there is room"


def test_nsqds_are_never_evicted_and_who_is_refused_is_told_of() -> None:
    with Nsqlookupd("--max-nodes-per-address=1000", open_files=128) as lookupd:
        with ExitStack() as stack:
            nodes = []
            refused = False
            for number in range(128):
                sock = stack.enter_context(
                    socket.create_connection(("127.0.0.1", lookupd.tcp_port), 10)
                )
                sock.sendall(b"  V1" + identify(number))
                try:
                    if not sock.recv(1):
                        raise ConnectionResetError
                except ConnectionError:
                    refused = True
                    break
                nodes.append(sock)
            assert refused and len(nodes) >= 40
            found = lookupd.get("/nodes").json["producers"]
            assert len(found) == len(nodes)
            assert door_metric(lookupd, "refused") >= 1
            assert door_metric(lookupd, "evicted") == 0
            lookupd.wait_for_log(r"TCP: \d+ connections? refused, \d+ are open and in use")
        assert eventually(lambda: lookupd.get("/nodes").json["producers"] == [])
        with lookupd.connect() as raw:
            assert Peer(raw, "again").do(b"PING\n") == b"OK"


def identify(number: int) -> bytes:
    fields = {"broadcast_address": f"h{number}", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}
    body = json.dumps(fields).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def test_one_peer_that_registers_much_does_not_hold_up_the_others() -> None:
    """Commands of one packet take turns with everybody else's."""
    with Nsqlookupd() as lookupd, ExitStack() as stack:
        busy = Peer(stack.enter_context(lookupd.connect()), "busy")
        other = Peer(stack.enter_context(lookupd.connect()), "other")
        count = 60_000
        commands = b"".join(b"REGISTER t%d\n" % n for n in range(count))
        busy.raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(commands))
        worst_s, asked = 0.0, 0
        busy.raw.sock.setblocking(False)
        sent = 0
        received = 0
        give_up_s = time.monotonic() + 60
        while received < 6 * count:
            assert time.monotonic() < give_up_s
            with suppress(BlockingIOError):
                sent += busy.raw.sock.send(commands[sent:]) if sent < len(commands) else 0
            with suppress(BlockingIOError):
                received += len(busy.raw.sock.recv(1 << 20))
            since_s = time.monotonic()
            assert other.do(b"PING\n") == b"OK"
            worst_s = max(worst_s, time.monotonic() - since_s)
            asked += 1
        assert asked > 20
        assert worst_s < 0.5, worst_s
        assert lookupd.metric("penstock_lookupd_topics") == count
        # The longest answer there is, made in slices as well.
        worst_s = 0.0
        with socket.create_connection(("127.0.0.1", lookupd.http_port), 30) as asking:
            asking.sendall(b"GET /debug HTTP/1.0\r\n\r\n")
            asking.setblocking(False)
            data = bytearray()
            while not data.endswith(b"]}"):
                assert time.monotonic() < give_up_s
                with suppress(BlockingIOError):
                    data += asking.recv(1 << 20)
                since_s = time.monotonic()
                assert other.do(b"PING\n") == b"OK"
                worst_s = max(worst_s, time.monotonic() - since_s)
        assert len(json.loads(data.partition(b"\r\n\r\n")[2])) == count + 1
        assert worst_s < 0.5, worst_s


def test_commands_before_the_end_of_a_stream_are_done() -> None:
    """However many: the peer may close behind them."""
    with Nsqlookupd() as lookupd, lookupd.connect() as raw:
        count = 5000
        raw.send(identify(1), b"".join(b"REGISTER t%d\n" % n for n in range(count)))
        raw.sock.shutdown(socket.SHUT_WR)
        data = bytearray()
        while block := raw.sock.recv(1 << 16):
            data += block
        assert data.count(b"\x00\x00\x00\x02OK") == count
        assert len(lookupd.get("/topics").json["topics"]) == count
