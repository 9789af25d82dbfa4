"""Figures: what was published, what each page says of it, and what the charts add up to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.admin.browser import Browser
from tests.admin.cluster import Cluster
from tests.support.waits import wait_for

LATER = "&defer=7200000"
ATTEMPT_COUNT_MAX = 3
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own: its totals are compared, and a node of it stops."""
    with Cluster(tmp_path_factory.mktemp("figures")) as cluster:
        cluster.settled()
        yield cluster


def mpub(cluster: Cluster, topic: str, count: int, number: int) -> None:
    reply = cluster.nsqds[number].post(f"/mpub?topic={topic}", b"\n".join([b"m"] * count))
    assert reply.status == 200


def charted(cluster: Cluster, path: str, *series: str) -> list[float]:
    """What the chart of the last minutes adds up to."""
    recent = cluster.admin.view(path)["chart"]["recent"]
    step_s = recent["step_ms"] / 1000
    return [sum(value or 0 for value in recent["series"][name]) * step_s for name in series]


def test_what_is_published_before_a_topics_first_sample_is_in_rates_and_charts(
    own: Cluster,
) -> None:
    published = 0
    for round in range(4):
        for number in range(3):
            # A new topic each time, with all it will ever get at once.
            mpub(own, f"burst-{round}", 1000, number)
            published += 1000
        time.sleep(0.7)
    own.settled()
    own.settled()
    totals = own.admin.view()["totals"]
    assert totals["message_count"] == published
    # A rate is measured over the time between two samples, a step of the chart is even.
    [sum_all] = charted(own, "", "in_rate")
    assert sum_all == pytest.approx(published, rel=0.15)
    by_topic = [charted(own, f"/topics/burst-{round}", "in_rate")[0] for round in range(4)]
    assert sum(by_topic) == pytest.approx(sum_all, rel=0.01)
    by_node = [charted(own, f"/nodes/{own.node(n)}", "in_rate")[0] for n in range(3)]
    assert sum(by_node) == pytest.approx(sum_all, rel=0.01)


def test_what_actions_make_come_early_does_not_lose_what_was_counted(own: Cluster) -> None:
    """An action hurries the next sample: two in one step of the chart.

    A busy machine takes samples late, and an even step then holds more or less than a sample.  What
    is lost would be lost each time.
    """
    for attempt in range(ATTEMPT_COUNT_MAX):
        topic = f"hurried-{attempt}"
        before = charted(own, "", "in_rate")[0]
        for number in range(12):
            mpub(own, topic, 500, number % 3)
            body = json.dumps({"action": "unpause", "topic": topic}).encode()
            own.admin.http("POST", "/api/action", body, {"Content-Type": "application/json"})
            time.sleep(0.25)
        own.settled()
        own.settled()
        [total] = charted(own, "", "in_rate")
        sums = (charted(own, f"/topics/{topic}", "in_rate")[0], total - before)
        if sums == pytest.approx((6000, 6000), rel=0.2):
            return
    raise AssertionError(sums)


def test_depth_and_deferred_mean_the_same_on_every_page(browser: Browser, own: Cluster) -> None:
    channels = ("a", "b", "c", "d")
    own.create("fanned", *channels)
    for number in range(3):
        mpub(own, "fanned", 100 + number, number)
        for _ in range(5):
            own.publish("fanned", b"later", number, LATER)
            own.publish("unread", b"later", number, LATER)
    # One channel is ahead of the others on one node; another has requeued messages.
    with own.consumer("fanned", "a", 0, ready=1) as ahead, own.consumer("fanned", "b", 1) as back:
        for _ in range(40):
            message = ahead.message()
            ahead.send(b"FIN " + message.id + b"\n")
        message = back.message()
        back.send(b"REQ " + message.id + b" 3600000\n")
        back.send(b"RDY 0\n")
        wait_for(lambda: own.channels("fanned", "b")[1]["deferred_count"], lambda n: n == 6)
        ahead.send(b"RDY 0\n")
        wait_for(
            lambda: sum(c["in_flight_count"] for n in "ab" for c in own.channels("fanned", n)),
            lambda n: n <= 2,
        )
        own.settled()
        compare(browser, own)


def compare(browser: Browser, own: Cluster) -> None:
    expected = 100 + 101 + 102
    overview, topics = own.admin.view(), own.admin.view("/topics")["topics"]
    rows = {row["topic"]: row for row in topics}
    fanned = own.admin.view("/topics/fanned")
    assert fanned["topic"]["depth"] == rows["fanned"]["depth"] == expected
    assert fanned["topic"]["depth"] <= fanned["topic"]["message_count"]
    assert fanned["topic"]["deferred"] == rows["fanned"]["deferred"] == 15 + 1
    assert rows["unread"]["deferred"] == 15
    by_channel = {row["channel"]: row for row in fanned["channels"]}
    assert by_channel["c"]["depth"] == expected
    assert (by_channel["c"]["deferred"], by_channel["b"]["deferred"]) == (15, 16)
    nodes = overview["nodes"]
    for name in ("depth", "deferred", "in_flight", "message_count"):
        total = overview["totals"][name]
        assert total == sum(row[name] for row in topics) == sum(n[name] for n in nodes), name
        assert total == sum(
            own.admin.view(f"/nodes/{own.node(n)}")["node"][name] for n in range(3)
        ), name
    deferred = own.admin.view("/deferred")
    assert deferred["deferred"] == overview["totals"]["deferred"] == 31
    assert deferred["total"] == 30
    assert {row["topic"]: row["deferred"] for row in deferred["topics"]} == {
        "fanned": 16,
        "unread": 15,
    }
    with browser.tab(own.admin.url) as tab:
        tab.open("/")
        shown = {tab.tiles()["Deferred"]}
        tab.open("/deferred")
        shown.add(tab.text("#deferred-total").split()[0])
        rows_shown = tab.table("topics")
        shown.add(str(sum(int(row["Deferred"]) for row in rows_shown.values())))
        tab.open("/topics")
        shown.add(str(sum(int(row["Deferred"]) for row in tab.table("topics").values())))
        tab.open("/nodes")
        tab.open("/topics/fanned")
        assert tab.tiles()["Deferred"] == "16"
        assert tab.tiles()["Depth"] == str(expected)
        assert shown == {"31"}


def test_a_node_that_stops_does_not_lower_the_lag(own: Cluster) -> None:
    own.create("lagging", "slow")
    own.publish("lagging", b"old", 2)
    for number in (0, 1):
        own.publish("lagging", b"x", number)

    def lag() -> dict[str, Any]:
        found: dict[str, Any] = own.admin.view("/topics/lagging/slow")["channel"]
        return found

    own.settled()
    wait_for(lambda: lag()["lag_s"], lambda s: s >= 3)
    # The others are done; only node 2 is behind.
    for number in (0, 1):
        own.nsqds[number].post("/channel/empty?topic=lagging&channel=slow")
    own.settled()
    before_s = lag()["lag_s"]
    assert before_s >= 3 and lag()["depth"] == 1
    own.nsqds[2].kill()
    gone = own.node(2)
    wait_for(lambda: own.admin.view("/nodes")["warnings"], lambda w: any(gone in t for t in w))
    assert lag()["depth"] == 0
    assert lag()["lag_s"] >= before_s
    # It is as old as before once its node is back, which counts from zero.
    own.nsqds[2].start()
    wait_for(lambda: own.admin.view("/nodes")["warnings"], lambda w: not w)
    assert lag()["depth"] == 1 and lag()["lag_s"] >= before_s
