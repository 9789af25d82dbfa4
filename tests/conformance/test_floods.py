"""Many topics or channels at once, in a real nsqd: what they cost, and what others notice.

Costs are compared as CPU time of the daemon, which other processes hardly change; times that a
client waits have generous limits.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.cli.usage import usage
from tests.conformance.test_cluster import StuckLookupd, channels
from tests.support.daemon import REPLY_SECONDS_MAX, RESPONSE, Message, Nsqd, Nsqlookupd, Raw
from tests.support.timing import late_s
from tests.support.waits import wait_for


def post_all(port: int, targets: Iterable[str]) -> None:
    """Send all requests over one connection at once; every one must be answered with 200."""
    requests = [f"POST {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for target in targets]
    left = len(requests)
    with socket.create_connection(("127.0.0.1", port), REPLY_SECONDS_MAX) as sock:
        for at in range(0, len(requests), 100):
            sock.sendall(b"".join(requests[at : at + 100]))
            wanted = min(left, 100)
            left -= wanted
            answers = b""
            while answers.count(b"\r\n\r\n") < wanted:
                piece = sock.recv(65536)
                assert piece, answers
                answers += piece
            assert answers.count(b"HTTP/1.1 200 OK") == wanted, answers


def cpu_s(nsqd: Nsqd, targets: Iterable[str]) -> float:
    before = usage(nsqd.pid).cpu_us
    post_all(nsqd.http_port, targets)
    return (usage(nsqd.pid).cpu_us - before) / 1e6


# New topics


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">I", len(body)) + body


class Steady:
    """One client publishes to an old topic, another finishes what lies in a second one."""

    def __init__(self, nsqd: Nsqd) -> None:
        bodies = b"\n".join(b"%d" % number for number in range(50_000))
        for topic in ("old", "backlog"):
            assert nsqd.post(f"/topic/create?topic={topic}").status == 200
            assert nsqd.post(f"/channel/create?topic={topic}&channel=c").status == 200
        assert nsqd.post("/mpub?topic=backlog", bodies).body == b"OK"
        self._nsqd = nsqd
        self._stop = threading.Event()
        self.waits_s: list[float] = []  # from PUB to OK
        self.finished_s: dict[bytes, float] = {}  # when, by body
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._publish, self._finish)
        ]

    def __enter__(self) -> Steady:
        for thread in self._threads:
            thread.start()
        wait_for(lambda: len(self.waits_s) > 20 and len(self.finished_s) > 20, True)
        self.waits_s.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(REPLY_SECONDS_MAX)
            assert not thread.is_alive()

    def _publish(self) -> None:
        with suppress(EOFError, ConnectionError), self._nsqd.connect() as raw:
            while not self._stop.wait(0.002):
                started_s = time.monotonic()
                assert raw.command(pub("old", b"m")) == (RESPONSE, b"OK")
                self.waits_s.append(time.monotonic() - started_s)

    def _finish(self) -> None:
        with suppress(EOFError, ConnectionError), self._nsqd.connect() as raw:
            assert raw.command(b"SUB backlog c\n") == (RESPONSE, b"OK")
            raw.send(b"RDY 1\n")
            while not self._stop.wait(0.002):
                message = raw.message()
                raw.send(b"FIN ", message.id, b"\n")
                self.finished_s[message.body] = time.monotonic()


@contextmanager
def flood(nsqd: Nsqd, count: int) -> Iterator[Raw]:
    """A client that publishes to ``count`` new topics at once; its OKs are the caller's to read."""
    with nsqd.connect() as raw:
        raw.sock.settimeout(4 * REPLY_SECONDS_MAX)
        data = b"".join(pub(f"new{number}", b"first") for number in range(count))
        sender = threading.Thread(target=raw.sock.sendall, args=(data,), daemon=True)
        sender.start()
        yield raw
        sender.join(REPLY_SECONDS_MAX)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [("--sync-every=1",), ()], ids=["synced", "plain"])
def test_a_flood_of_new_topics_does_not_hold_up_other_publishers(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The median publish took 0.8 s in a flood of 2,000 topics with --sync-every=1."""
    count = 1500
    with Nsqd(tmp_path, *options) as nsqd:
        with Steady(nsqd) as steady, flood(nsqd, count) as raw:
            for _ in range(count):
                assert raw.frame() == (RESPONSE, b"OK")
            waits_s = list(steady.waits_s)
        assert len(waits_s) >= 20
        assert statistics.median(waits_s) < late_s(0.1), sorted(waits_s)
        assert len(nsqd.stats("&include_clients=false")["topics"]) == count + 2


@pytest.mark.timeout(180)
def test_finishes_are_journaled_while_topics_are_made(tmp_path: Path) -> None:
    """What was finished half a second before a kill -9 does not come back: it was seconds."""
    count = 3000
    with Nsqd(tmp_path, "--sync-every=1") as nsqd:
        with Steady(nsqd) as steady, flood(nsqd, count) as raw:
            for _ in range(count // 2):
                assert raw.frame() == (RESPONSE, b"OK")
            killed_s = time.monotonic()
            nsqd.kill()
        nsqd.start()
        finished_s = steady.finished_s
        back = {message.body for message in deliver(nsqd, len(finished_s))}
        ages_s = [killed_s - finished_s[body] for body in back & finished_s.keys()]
        assert max(ages_s, default=0.0) < late_s(0.5), sorted(ages_s)
        assert not [line for line in nsqd.lines if "WARNING" in line or "ERROR" in line]


def deliver(nsqd: Nsqd, count: int) -> list[Message]:
    """The next messages of the backlog, and all that are delivered again."""
    with nsqd.connect() as raw:
        assert raw.command(b"SUB backlog c\n") == (RESPONSE, b"OK")
        raw.send(b"RDY 2500\n")
        return [raw.message() for _ in range(min(2500, count))]


# Channels of one topic


def test_the_cost_of_a_channel_does_not_grow_with_the_channels_of_its_topic(tmp_path: Path) -> None:
    """Creating, pausing and deleting: four times as many cost about four times as much."""
    few, many = 500, 2000
    costs: dict[str, list[float]] = {}
    with Nsqd(tmp_path) as nsqd:
        for count in (few, many):
            topic = f"t{count}"
            nsqd.post(f"/topic/create?topic={topic}")
            for action in ("create", "pause", "empty", "delete"):
                targets = [f"/channel/{action}?topic={topic}&channel=c{n}" for n in range(count)]
                costs.setdefault(action, []).append(cpu_s(nsqd, targets))
    for action, (cost, more) in costs.items():
        assert more < 2 * (many / few) * cost + 0.1, (action, costs)


@pytest.mark.timeout(120)
def test_channels_that_an_nsqlookupd_names_hold_nobody_up(tmp_path: Path) -> None:
    count = 4000
    with Nsqlookupd() as lookupd:
        post_all(lookupd.http_port, [f"/channel/create?topic=t&channel=c{n}" for n in range(count)])
        options = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--max-lookupd-channels=10000")
        with Nsqd(tmp_path, *options) as nsqd:
            before = usage(nsqd.pid).cpu_us
            assert nsqd.post("/pub?topic=t", b"m").body == b"OK"
            assert nsqd.post("/topic/create?topic=t").status == 200
            spent_s = (usage(nsqd.pid).cpu_us - before) / 1e6
            found = channels(nsqd, "t")
            assert len(found) == count and set(found.values()) == {1}
            assert spent_s < 2.0  # 13 s when each was noted with all the others
            worst_s = nsqd.metric("penstock_loop_lag_max_seconds")
            assert worst_s < 1.0


def test_an_nsqlookupd_may_name_a_thousand_channels_of_a_topic(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        post_all(lookupd.http_port, [f"/channel/create?topic=t&channel=c{n}" for n in range(1200)])
        with Nsqd(tmp_path, f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd:
            assert nsqd.post("/topic/create?topic=t").status == 200
            assert len(channels(nsqd, "t")) == 1000
            nsqd.wait_for_log(
                r"WARNING: topic=t: lookupd=\S+ lists 1200 channels: 0 with invalid names and 200"
                r" beyond --max-lookupd-channels=1000 are not created"
            )
            assert nsqd.metric("penstock_lookupd_channels_unmade_total") == 200


@pytest.mark.parametrize(
    ("named", "made"),
    [
        (["good", "bad name", "x" * 65, "a/b", "", "gone#ephemeral"], {"good": 0}),
        (["c" * 64] * 100_000, {}),
        ([[]] * 100_000, {}),
        ([[[[]]], "good"], {}),
    ],
    ids=["invalid names", "too long", "lists", "not names"],
)
def test_a_strange_answer_of_an_nsqlookupd_is_told_and_bounded(
    tmp_path: Path, named: list[str], made: dict[str, int]
) -> None:
    lookupd = StuckLookupd(named)
    lookupd.answer.set()
    try:
        with Nsqd(tmp_path, f"--lookupd-tcp-address={lookupd.address}") as nsqd:
            assert nsqd.post("/topic/create?topic=t").status == 200
            wait_for(lambda: channels(nsqd, "t"), made)
            nsqd.wait_for_log(r"WARNING: topic=t: (lookupd=\S+ lists|cannot query channels)")
            assert nsqd.post("/pub?topic=t", json.dumps(made).encode()).body == b"OK"
    finally:
        lookupd.close()
