"""Many topics or channels at once, in a real nsqd: what they cost, and what others notice.

Costs are compared as CPU time of the daemon, which other processes hardly change; times that a
client waits have generous limits.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.cli.usage import usage
from tests.conformance.test_cluster import StuckLookupd, channels, eventually
from tests.daemon import REPLY_SECONDS_MAX, Nsqd, Nsqlookupd


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
            worst_s = float(metric(nsqd, "penstock_loop_lag_max_seconds"))
            assert worst_s < 1.0


def test_an_nsqlookupd_may_name_a_thousand_channels_of_a_topic(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        post_all(lookupd.http_port, [f"/channel/create?topic=t&channel=c{n}" for n in range(1200)])
        with Nsqd(tmp_path, f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd:
            assert nsqd.post("/topic/create?topic=t").status == 200
            assert len(channels(nsqd, "t")) == 1000
            nsqd.wait_for_log(
                r"WARNING: topic=t: lookupd=\S+ names 1200 channels: 0 with invalid names and 200"
                r" beyond --max-lookupd-channels=1000 are not made"
            )
            assert metric(nsqd, "penstock_lookupd_channels_unmade_total") == "200"


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
            eventually(lambda: channels(nsqd, "t"), made)
            nsqd.wait_for_log(r"WARNING: topic=t: (lookupd=\S+ names|channels are not known)")
            assert nsqd.post("/pub?topic=t", json.dumps(made).encode()).body == b"OK"
    finally:
        lookupd.close()


def metric(nsqd: Nsqd, name: str) -> str:
    """The value of a metric without labels, as it is written."""
    lines = nsqd.get("/metrics").text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return value
