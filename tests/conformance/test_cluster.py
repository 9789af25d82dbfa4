"""Several daemons together: two nsqlookupds, two nsqds, and clients that find their way."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance import nodejs
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.timing import late_s
from tests.support.waits import wait_for

# nsqd tries a lost nsqlookupd again after 8 s at the latest.
WAIT_SECONDS_MAX = 40.0

_numbers = itertools.count(1)


@dataclass
class Cluster:
    lookupds: list[Nsqlookupd]
    nsqds: list[Nsqd]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        lookupds = [stack.enter_context(Nsqlookupd()) for _ in range(2)]
        nsqds = [
            stack.enter_context(nsqd_of(tmp_path_factory.mktemp("nsqd"), *lookupds))
            for _ in range(2)
        ]
        yield Cluster(lookupds, nsqds)


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """Everybody runs and everybody is connected."""
    for daemon in (*running.lookupds, *running.nsqds):
        if not daemon.running:
            daemon.start()
    for lookupd in running.lookupds:
        wait_for(lambda lookupd=lookupd: nodes(lookupd), ports(*running.nsqds))
    return running


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


def nsqd_of(path: Path, *lookupds: Nsqlookupd, options: tuple[str, ...] = ()) -> Nsqd:
    addresses = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in lookupds]
    return Nsqd(path, "--broadcast-address=127.0.0.1", *addresses, *options)


def ports(*nsqds: Nsqd) -> list[int]:
    return sorted(nsqd.tcp_port for nsqd in nsqds)


def nodes(lookupd: Nsqlookupd) -> list[int]:
    return sorted(node["tcp_port"] for node in lookupd.get("/nodes").json["producers"])


def found(lookupd: Nsqlookupd, topic: str) -> tuple[list[int], list[str]] | None:
    """(TCP ports, channels) of a topic; None: nobody knows it."""
    reply = lookupd.get(f"/lookup?topic={topic.replace('#', '%23')}")
    if reply.status == 404:
        return None
    producers = sorted(producer["tcp_port"] for producer in reply.json["producers"])
    return producers, sorted(reply.json["channels"])


def channels(nsqd: Nsqd, topic: str) -> dict[str, int]:
    """Depths by channel."""
    (stats,) = nsqd.stats(f"&topic={topic}")["topics"]
    return {channel["channel_name"]: channel["depth"] for channel in stats["channels"]}


# Registration


def test_topics_and_channels_are_registered_everywhere(cluster: Cluster, topic: str) -> None:
    first, second = cluster.nsqds
    first.post(f"/topic/create?topic={topic}")
    for lookupd in cluster.lookupds:
        wait_for(lambda lookupd=lookupd: found(lookupd, topic), (ports(first), []))
    second.post(f"/topic/create?topic={topic}")
    second.post(f"/channel/create?topic={topic}&channel=c")
    for lookupd in cluster.lookupds:
        wait_for(lambda lookupd=lookupd: found(lookupd, topic), (ports(first, second), ["c"]))


def test_deleting_unregisters_and_leaves_the_name(cluster: Cluster, topic: str) -> None:
    nsqd, lookupd = cluster.nsqds[0], cluster.lookupds[0]
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    wait_for(lambda: found(lookupd, topic), (ports(nsqd), ["c"]))
    nsqd.post(f"/channel/delete?topic={topic}&channel=c")
    wait_for(lambda: lookupd.get("/debug").json.get(f"channel:{topic}:c"), None)
    nsqd.post(f"/topic/delete?topic={topic}")
    wait_for(lambda: found(lookupd, topic), ([], ["c"]))


def test_ephemeral_names_go_with_their_clients(cluster: Cluster, topic: str) -> None:
    nsqd, lookupd = cluster.nsqds[0], cluster.lookupds[0]
    with nsqd.connect() as raw:
        assert raw.command(f"SUB {topic}#ephemeral c#ephemeral\n".encode())[1] == b"OK"
        name = f"{topic}#ephemeral"
        wait_for(lambda: found(lookupd, name), (ports(nsqd), ["c#ephemeral"]))
    wait_for(lambda: found(lookupd, name), None)
    assert lookupd.get(f"/channels?topic={topic}%23ephemeral").json == {"channels": []}


def test_deleting_a_topic_takes_the_names_of_its_ephemeral_channels(
    cluster: Cluster, topic: str
) -> None:
    nsqd, lookupd = cluster.nsqds[0], cluster.lookupds[0]
    with nsqd.connect() as raw:
        assert raw.command(f"SUB {topic} c#ephemeral\n".encode())[1] == b"OK"
        wait_for(lambda: found(lookupd, topic), (ports(nsqd), ["c#ephemeral"]))
        nsqd.post(f"/topic/delete?topic={topic}")
        wait_for(lambda: found(lookupd, topic), ([], []))


def test_a_tombstone_hides_one_nsqd(cluster: Cluster, topic: str) -> None:
    first, second = cluster.nsqds
    lookupd = cluster.lookupds[0]
    for nsqd in cluster.nsqds:
        nsqd.post(f"/topic/create?topic={topic}")
    wait_for(lambda: found(lookupd, topic), (ports(first, second), []))
    lookupd.post(f"/topic/tombstone?topic={topic}&node=127.0.0.1:{first.http_port}")
    assert found(lookupd, topic) == (ports(second), [])
    first.post(f"/topic/delete?topic={topic}")
    first.post(f"/topic/create?topic={topic}")
    wait_for(lambda: found(lookupd, topic), (ports(first, second), []))


# Ends and returns


def test_a_killed_nsqd_is_gone_at_once_and_back_after_its_start(
    cluster: Cluster, topic: str
) -> None:
    nsqd, lookupd = cluster.nsqds[1], cluster.lookupds[1]
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    wait_for(lambda: found(lookupd, topic), (ports(nsqd), ["c"]))
    nsqd.kill()
    wait_for(lambda: found(lookupd, topic), ([], ["c"]))
    nsqd.start()
    wait_for(lambda: found(lookupd, topic), (ports(nsqd), ["c"]))


def test_a_restarted_nsqlookupd_hears_everything_again(cluster: Cluster, topic: str) -> None:
    lookupd = cluster.lookupds[0]
    for nsqd in cluster.nsqds:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
    lookupd.kill()
    # What happens meanwhile is told too, and the other nsqlookupd hears of it at once.
    cluster.nsqds[0].post(f"/channel/create?topic={topic}&channel=d")
    cluster.nsqds[1].post(f"/channel/delete?topic={topic}&channel=c")
    wait_for(lambda: found(cluster.lookupds[1], topic), (ports(*cluster.nsqds), ["c", "d"]))
    lookupd.start()
    wait_for(lambda: found(lookupd, topic), (ports(*cluster.nsqds), ["c", "d"]))
    holders = lookupd.get("/debug").json[f"channel:{topic}:c"]
    assert [holder["tcp_port"] for holder in holders] == [cluster.nsqds[0].tcp_port]


def test_a_stopped_nsqd_leaves_before_its_process_does(cluster: Cluster) -> None:
    nsqd = cluster.nsqds[1]
    # An answer that takes its time holds the end up for a second.
    with socket.create_connection(("127.0.0.1", nsqd.http_port)) as slow:
        slow.sendall(b"GET /debug/pprof/profile?seconds=5 HTTP/1.1\r\nHost: x\r\n\r\n")
        # The second request is read after the first.
        assert nsqd.get("/ping").status == 200
        nsqd.signal(signal.SIGTERM)
        wait_for(lambda: nodes(cluster.lookupds[0]), ports(cluster.nsqds[0]))
        assert "NSQ: bye" not in nsqd.log
    assert nsqd.wait() == 0


# Channels that others know


def test_a_new_topic_has_the_channels_that_others_know(cluster: Cluster, topic: str) -> None:
    first, second = cluster.nsqds
    first.post(f"/topic/create?topic={topic}")
    for name in ("a", "b", "c%23ephemeral"):
        first.post(f"/channel/create?topic={topic}&channel={name}")
    lookupd = cluster.lookupds[0]
    wait_for(lambda: found(lookupd, topic), (ports(first), ["a", "b", "c#ephemeral"]))
    cluster.lookupds[1].post(f"/channel/create?topic={topic}&channel=only-there")
    assert second.post(f"/topic/create?topic={topic}").status == 200
    assert channels(second, topic) == {"a": 0, "b": 0, "only-there": 0}


def test_the_first_message_is_in_every_channel_that_others_know(
    cluster: Cluster, topic: str
) -> None:
    for name in ("a", "b"):
        cluster.lookupds[0].post(f"/channel/create?topic={topic}&channel={name}")
    nsqd = cluster.nsqds[1]
    assert nsqd.post(f"/pub?topic={topic}", b"first").body == b"OK"
    wait_for(lambda: channels(nsqd, topic), {"a": 1, "b": 1})


class StuckLookupd:
    """Takes part in the TCP protocol; its HTTP accepts and says nothing until it may."""

    def __init__(self, channels: list[str]) -> None:
        self.answer = threading.Event()
        self._channels = channels
        self._http = socket.create_server(("127.0.0.1", 0))
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._tcp.getsockname()[1]}"
        for serve in (self._serve_tcp, self._serve_http):
            threading.Thread(target=serve, daemon=True).start()

    def close(self) -> None:
        self.answer.set()
        self._http.close()
        self._tcp.close()

    def _serve_tcp(self) -> None:
        place = {
            "broadcast_address": "127.0.0.1",
            "http_port": self._http.getsockname()[1],
        }
        sock, _ = self._tcp.accept()
        sock.recv(65536)
        reply = json.dumps(place).encode()
        sock.sendall(len(reply).to_bytes(4, "big") + reply)
        while data := sock.recv(65536):
            sock.sendall(b"\0\0\0\2OK" * data.count(b"\n"))

    def _serve_http(self) -> None:
        sock, _ = self._http.accept()
        sock.recv(65536)
        self.answer.wait(WAIT_SECONDS_MAX)
        body = json.dumps({"channels": self._channels}).encode()
        with suppress(ConnectionError):  # nsqd may not want all of it
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        sock.close()


@pytest.fixture
def stuck() -> Iterator[StuckLookupd]:
    lookupd = StuckLookupd(["known", "bad name", "gone#ephemeral"])
    yield lookupd
    lookupd.close()


def test_messages_wait_for_the_channels_and_publishers_do_not(
    stuck: StuckLookupd, tmp_path: Path
) -> None:
    with Nsqd(tmp_path, f"--lookupd-tcp-address={stuck.address}") as nsqd:
        with nsqd.connect() as raw:
            assert raw.command(b"PUB t\n\0\0\0\1m")[1] == b"OK"
            assert raw.command(b"SUB t own\n")[1] == b"OK"
            raw.send(b"RDY 5\n")
            assert raw.silent(0.2)
            stuck.answer.set()
            assert raw.message().body == b"m"
        wait_for(lambda: set(channels(nsqd, "t")), {"own", "known"})
        assert channels(nsqd, "t")["known"] == 1


def test_a_killed_nsqd_asks_again_for_a_topic_that_still_waits(
    stuck: StuckLookupd, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.lookupds[0].post(f"/channel/create?topic={topic}&channel=known")
    nsqd = Nsqd(tmp_path, "--broadcast-address=127.0.0.1")
    with nsqd.start(f"--lookupd-tcp-address={stuck.address}"):
        assert nsqd.post(f"/pub?topic={topic}", b"m").body == b"OK"
        nsqd.post(f"/channel/create?topic={topic}&channel=own")
        assert channels(nsqd, topic) == {"own": 0}
        nsqd.kill()
        nsqd.start(f"--lookupd-tcp-address={cluster.lookupds[0].tcp_address}")
        wait_for(lambda: channels(nsqd, topic), {"own": 1, "known": 1})


def test_nobody_waits_longer_than_the_limits(stuck: StuckLookupd, tmp_path: Path) -> None:
    limits = ("--http-client-connect-timeout=100ms", "--http-client-request-timeout=300ms")
    with Nsqd(tmp_path, f"--lookupd-tcp-address={stuck.address}", *limits) as nsqd:
        started_s = time.monotonic()
        assert nsqd.post("/topic/create?topic=t").status == 200
        assert 0.2 < time.monotonic() - started_s < late_s(3)
        nsqd.post("/channel/create?topic=t&channel=c")
        nsqd.post("/pub?topic=t", b"m")
        wait_for(lambda: channels(nsqd, "t"), {"c": 1})


def test_an_nsqlookupd_that_is_down_delays_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with Nsqd(tmp_path, f"--lookupd-tcp-address={address}") as nsqd:
        started_s = time.monotonic()
        assert nsqd.post("/topic/create?topic=t").status == 200
        assert time.monotonic() - started_s < late_s(1.5)
        assert nsqd.get("/ping").body == b"OK"


# Addresses that change


def test_addresses_can_be_changed_while_it_runs(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    first, second = cluster.lookupds
    before = ports(*cluster.nsqds)
    path = "/config/nsqlookupd_tcp_addresses"
    with nsqd_of(tmp_path, first) as nsqd:
        both = sorted([*before, nsqd.tcp_port])
        nsqd.post(f"/topic/create?topic={topic}")
        wait_for(lambda: nodes(first), both)
        assert nsqd.get(path).json == [first.tcp_address]

        reply = nsqd.http("PUT", path, json.dumps([second.tcp_address]).encode())
        assert (reply.status, reply.json) == (200, [second.tcp_address])
        wait_for(lambda: nodes(first), before)
        wait_for(lambda: found(second, topic), ([nsqd.tcp_port], []))

        everyone = json.dumps([first.tcp_address, second.tcp_address]).encode()
        assert nsqd.http("PUT", path, everyone).json == json.loads(everyone)
        wait_for(lambda: nodes(first), both)
        assert nodes(second) == both

        assert nsqd.http("PUT", path, b"[]").json == []
        wait_for(lambda: (nodes(first), nodes(second)), (before, before))
        for wrong in (b"nonsense", b'"a:1"', b"[1]", b"{}"):
            assert nsqd.http("PUT", path, wrong).status == 400
        assert nsqd.get(path).json == []


def test_the_first_address_may_come_while_it_runs(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    first = cluster.lookupds[0]
    with nsqd_of(tmp_path) as nsqd:
        nsqd.post(f"/topic/create?topic={topic}")
        addresses = json.dumps([first.tcp_address]).encode()
        assert nsqd.http("PUT", "/config/nsqlookupd_tcp_addresses", addresses).status == 200
        wait_for(lambda: found(first, topic), ([nsqd.tcp_port], []))
        nsqd.post(f"/channel/create?topic={topic}&channel=late")
        wait_for(lambda: found(first, topic), ([nsqd.tcp_port], ["late"]))
    wait_for(lambda: found(first, topic)[0], [])


# Consumers that find their way


def python_finder(client: str) -> list[str]:
    return [sys.executable, "-m", "tests.conformance.clients.finders", client]


def nsqjs_finder(_client: str) -> list[str]:
    modules = nodejs.install() / "node_modules"
    script = str(nodejs.SOURCE / "nsqjs_finder.js")
    return ["env", f"NODE_PATH={modules}", "node", script]


FINDERS = {"pynsq": python_finder, "ansq": python_finder, "nsqjs": nsqjs_finder}


class Finder:
    """Somebody else's client that knows nsqlookupds only."""

    def __init__(self, client: str, topic: str, *lookupds: Nsqlookupd) -> None:
        addresses = [lookupd.http_address for lookupd in lookupds]
        self._process = subprocess.Popen(
            [*FINDERS[client](client), topic, "found", *addresses],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.bodies: set[str] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.bodies.add(line.strip())

    def close(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS_MAX)
        self._reader.join(WAIT_SECONDS_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.parametrize("client", FINDERS)
def test_a_consumer_finds_nodes_and_follows_them(cluster: Cluster, topic: str, client: str) -> None:
    first, second = cluster.nsqds
    first.post(f"/pub?topic={topic}", b"from the first")
    wait_for(
        lambda: [found(lookupd, topic) for lookupd in cluster.lookupds], [(ports(first), [])] * 2
    )
    finder = Finder(client, topic, *cluster.lookupds)
    try:
        wait_for(lambda: set(finder.bodies), {"from the first"})
        # A node that gets the topic later has the channel before its first message.
        second.post(f"/pub?topic={topic}", b"from the second")
        wait_for(lambda: set(finder.bodies), {"from the first", "from the second"})
    finally:
        finder.close()
