"""What one peer can make nsqlookupd keep, and for how long."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_lookupd_http import Peer
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import eventually

Connect = Callable[..., Peer]


@pytest.fixture
def peers() -> Iterator[Callable[[Nsqlookupd], Connect]]:
    with ExitStack() as stack:

        def of(lookupd: Nsqlookupd) -> Connect:
            def connect(host: str = "h", **fields: Any) -> Peer:
                return Peer(stack.enter_context(lookupd.connect()), host, **fields)

            return connect

        yield of


def topics(lookupd: Nsqlookupd) -> list[str]:
    found: list[str] = lookupd.get("/topics").json["topics"]
    return found


def test_long_texts_are_cut_and_a_long_address_is_refused(
    peers: Callable[[Nsqlookupd], Connect],
) -> None:
    with Nsqlookupd() as lookupd:
        connect = peers(lookupd)
        long = "\N{SNOWMAN}" * 3000
        connect("h" * 255, hostname=long, version=long, topology_zone=long, topology_region="r")
        (node,) = lookupd.get("/nodes").json["producers"]
        cut = "\N{SNOWMAN}" * 85
        assert node["broadcast_address"] == "h" * 255
        assert node["hostname"] == node["version"] == node["topology_zone"] == cut
        assert node["topology_region"] == "r"
        fields = {"broadcast_address": "h" * 256, "tcp_port": 1, "http_port": 1, "version": "1"}
        body = json.dumps(fields).encode()
        with lookupd.connect() as raw:
            raw.send(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
            (size,) = struct.unpack(">i", raw.exactly(4))
            wanted = b"E_BAD_BODY IDENTIFY broadcast_address longer than 255 bytes"
            assert raw.exactly(size) == wanted
            assert raw.closed()


def test_a_peer_registers_so_much_and_stays(peers: Callable[[Nsqlookupd], Connect]) -> None:
    with Nsqlookupd("--max-registrations=3") as lookupd:
        peer = peers(lookupd)()
        peer.register("t", "c")
        peer.register("u")
        assert peer.do(b"REGISTER v\n") == b"E_LIMIT REGISTER v"
        assert peer.do(b"REGISTER t d\n") == b"E_LIMIT REGISTER t d"
        assert peer.do(b"PING\n") == b"OK"
        peer.register("t", "c")
        assert topics(lookupd) == ["t", "u"]
        assert lookupd.metric("penstock_lookupd_names_refused_total") == 2
        lookupd.wait_for_log("no more are accepted .*--max-registrations")
        assert sum("no more are accepted" in line for line in lookupd.lines) == 1


def test_a_peer_is_so_many_nodes(peers: Callable[[Nsqlookupd], Connect]) -> None:
    with Nsqlookupd("--max-nodes-per-address=2") as lookupd:
        connect = peers(lookupd)
        first = connect("a")
        connect("b")
        with pytest.raises(EOFError):  # the error is its answer, and then the connection ends
            third = connect("c")
            third.do(b"PING\n")
        lookupd.wait_for_log("E_LIMIT IDENTIFY 2 nodes of this address")
        assert len(lookupd.get("/nodes").json["producers"]) == 2
        first.close()
        assert eventually(lambda: len(lookupd.get("/nodes").json["producers"]) == 1)
        connect("d")
        assert lookupd.metric("penstock_lookupd_nodes") == 2


def test_what_a_peer_left_is_forgotten(peers: Callable[[Nsqlookupd], Connect]) -> None:
    """Not at once: a new nsqd asks for the channels that others had."""
    with Nsqlookupd("--forget-after=2s") as lookupd:
        connect = peers(lookupd)
        hostile, honest = connect("x"), connect("y")
        honest.register("kept", "c")
        assert lookupd.post("/channel/create?topic=made&channel=c").status == 200
        count = 5000
        names = b"".join(b"REGISTER t%d c\n" % n for n in range(count))
        hostile.raw.send(names)
        assert hostile.raw.exactly(6 * count) == b"\x00\x00\x00\x02OK" * count
        hostile.close()
        assert eventually(lambda: lookupd.metric("penstock_lookupd_names_orphaned") == 2 * count)
        assert len(topics(lookupd)) == count + 2
        assert lookupd.get("/lookup?topic=t7").json == {"channels": ["c"], "producers": []}
        assert eventually(lambda: sorted(topics(lookupd)) == ["kept", "made"])
        assert lookupd.metric("penstock_lookupd_names_forgotten_total") == 2 * count
        assert lookupd.get("/channels?topic=made").json == {"channels": ["c"]}
        assert lookupd.get("/lookup?topic=t7").status == 404
        lookupd.wait_for_log(r"forgot \d+ names that no nsqd has")


def test_nsqd_goes_on_with_a_lookupd_that_takes_no_more_names(tmp_path: Path) -> None:
    """It neither connects again and again nor forgets what was taken."""
    with Nsqlookupd("--max-registrations=2") as lookupd:
        register = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with Nsqd(tmp_path, register, "--broadcast-address=127.0.0.1") as nsqd:
            for topic in ("a", "b", "c", "d"):
                assert nsqd.post(f"/topic/create?topic={topic}").status == 200
            nsqd.wait_for_log("accepts no more names: E_LIMIT REGISTER c")
            nsqd.post("/topic/delete?topic=a")
            nsqd.post("/topic/create?topic=e")
            assert eventually(lambda: "e" in topics(lookupd))
            connected = [line for line in lookupd.lines if line.endswith(": connected")]
            assert len(connected) == 1
            nsqd.restart()
            assert eventually(lambda: len(lookupd.get("/nodes").json["producers"]) == 1)
            assert eventually(
                lambda: len(lookupd.get("/nodes").json["producers"][0]["topics"]) == 2
            )


def test_creating_over_http_has_an_end() -> None:
    """Requests in a pipeline, for the sake of time."""
    with Nsqlookupd() as lookupd:
        with socket.create_connection(("127.0.0.1", lookupd.http_port), 30) as sock:
            answers = sock.makefile("rb")
            statuses: list[int] = []
            for first in range(0, 25_000, 50):
                numbers = range(first, first + 50)
                sock.sendall(
                    b"".join(b"POST %s HTTP/1.1\r\nHost: x\r\n\r\n" % target(n) for n in numbers)
                )
                for _ in numbers:
                    statuses.append(int(answers.readline().split()[1]))
                    while answers.readline() != b"\r\n":
                        pass
        assert set(statuses) == {200}
        refused = lookupd.post("/topic/create?topic=more")
        assert (refused.status, refused.json) == (503, {"message": "TOO_MANY_CREATED"})
        assert lookupd.post("/channel/create?topic=t1&channel=c").status == 200
        assert lookupd.post("/topic/delete?topic=t1").status == 200
        assert lookupd.post("/topic/create?topic=more").status == 200


def target(number: int) -> bytes:
    return b"/channel/create?topic=t%d&channel=c" % number
