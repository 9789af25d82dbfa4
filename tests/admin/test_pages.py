"""Every page shows what the nsqds' own /stats say, in light and dark, without a complaint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.admin.browser import Browser, Tab
from tests.admin.cluster import Cluster
from tests.support.waits import wait_for

HOSTILE = '<script>document.title="taken"</script>"\'><img src=x onerror=alert(1)>'
NODE = "{node}"

PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "channel": "/topics/orders/email",
    "nodes": "/nodes",
    "node": f"/nodes/{NODE}",
    "lookup": "/lookup",
    "deferred": "/deferred",
    "pipelines": "/pipelines",
    "counter": "/counter",
    "peek": "/topics/orders/email/peek",
    "nothing": "/topics/unknown",
}
TWINS = [name for name in PAGES if name not in ("peek", "nothing")]


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with topics of every kind, and clients that hold messages."""
    cluster.create("orders", "email", "billing")
    cluster.create("clicks", "lake-free", on=(0,))
    cluster.create("trace#ephemeral", "tail#ephemeral", on=(2,))
    cluster.create("stopped", "all")
    for number in range(3):
        for _ in range(10 + number):
            cluster.publish("orders", b'{"order": 1}', number)
        cluster.publish("clicks", b"click", 0)
        cluster.publish("later", b"wait", number, "&defer=10800000")
        cluster.nsqds[number].post("/channel/pause?topic=orders&channel=billing")
        cluster.nsqds[number].post("/topic/pause?topic=stopped")
        cluster.publish("stopped", b"waits in the topic", number)
    cluster.lookupd.post("/topic/create?topic=leftover")
    cluster.lookupd.post("/channel/create?topic=leftover&channel=old")
    pull(cluster)
    with ExitStack() as stack:
        for number in range(3):
            raw = stack.enter_context(
                cluster.consumer(
                    "orders",
                    "email",
                    number,
                    ready=3,
                    client_id=HOSTILE,
                    topology_zone="z1",
                    topology_region="r1",
                    hostname="worker.example.org",
                    user_agent=f"{HOSTILE}/{number}",
                )
            )
            for _ in range(3):
                raw.message()
        wait_for(lambda: cluster.channels("orders", "email"), in_flight_everywhere)
        cluster.settled()
        yield cluster


def in_flight_everywhere(channels: list[Any]) -> bool:
    return [channel["in_flight_count"] for channel in channels] == [3, 3, 3]


def pull(cluster: Cluster) -> None:
    """A Spark query as nsqd sees it, with a report of its own."""
    nsqd = cluster.nsqds[0]
    made = nsqd.post("/channel/pull?topic=clicks&channel=lake&start=earliest").json
    report = {
        "name": "clicks to the lake",
        "batch": 17,
        "input_rate": 12.5,
        "processed_rate": "not a number",
        "batch_ms": 320,
        "rows": 400,
        "sink": HOSTILE,
        "error": f"boom {HOSTILE}",
        "at_ms": 1_700_000_000_000,
    }
    place = {"index": made["low"], "instance": made["instance"]}
    body = {"channel": "lake", "topics": {"clicks": place}, "progress": report}
    assert nsqd.post("/channel/commit", json.dumps(body).encode()).status == 200


def path_of(cluster: Cluster, name: str) -> str:
    return PAGES[name].replace(NODE, cluster.node(0))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_opens_and_is_well_formed(
    browser: Browser, filled: Cluster, scheme: str
) -> None:
    with browser.tab(filled.admin.url, color_scheme=scheme) as tab:
        for name in PAGES:
            response = tab.open(path_of(filled, name))
            status = 404 if name == "nothing" else 200
            assert response.status == status, name
            well_formed(tab, name)
            tab.screenshot(f"{name}-{scheme}")
            if status == 404:
                tab.wrong = [text for text in tab.wrong if "404" not in text]


def well_formed(tab: Tab, name: str) -> None:
    """What a screen reader needs, and nothing that the content policy would have to stop."""
    page = tab.page
    assert page.title().endswith("· Penstock"), name
    assert page.locator("h1").count() == 1, name
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("[style], script:not([src])").count() == 0, name
    assert page.locator("img").count() == 0, name
    for selector, wanted in (("table", "caption"), ("svg.plot", None)):
        for element in page.locator(selector).all():
            if wanted:
                assert element.locator(wanted).count() == 1, name
            else:
                assert element.get_attribute("aria-label"), name
    headings = page.locator("thead th")
    assert page.locator("thead th[scope=col]").count() == headings.count(), name
    unnamed = page.locator("input:not([type=hidden]), select, textarea").evaluate_all(
        "fields => fields.filter(field => field.labels.length === 0).map(field => field.id)"
    )
    assert unnamed == [], name
    ids = page.locator("[id]").evaluate_all("elements => elements.map(e => e.id)")
    assert len(ids) == len(set(ids)), name


@pytest.mark.parametrize("name", TWINS)
def test_every_page_has_a_json_twin(filled: Cluster, name: str) -> None:
    view = filled.admin.view(path_of(filled, name).rstrip("/"))
    assert view["page"] == name
    assert view["sample"]["interval_ms"] == 1000
    assert view["warnings"] == []


def depth(topic: Any) -> int:
    """What waits in a topic on a node: its own, and what its slowest channel has."""
    return int(topic["depth"] + max((c["depth"] for c in topic["channels"]), default=0))


def test_the_overview_adds_up_all_nodes(browser: Browser, filled: Cluster) -> None:
    topics = filled.topics()
    channels = [c for parts in topics.values() for t in parts for c in t["channels"]]
    everything = [part for parts in topics.values() for part in parts]
    with browser.tab(filled.admin.url) as tab:
        tab.open("/")
        tiles = tab.tiles()
        assert int(tiles["Depth"]) == sum(map(depth, everything))
        assert int(tiles["In flight"]) == sum(c["in_flight_count"] for c in channels) == 9
        assert int(tiles["Deferred"]) == sum(t.get("deferred_count", 0) for t in everything)
        assert int(tiles["Clients"]) == sum(c["client_count"] for c in channels) == 3
        assert tab.text(".head .lead").startswith("3 of 3 nodes up")
        nodes = tab.table("nodes")
        assert {key.split()[0] for key in nodes} == {filled.node(n) for n in range(3)}
        assert {row["State"] for row in nodes.values()} == {"ok"}
        assert "orders / email" in tab.table("slowest")
        assert len(tab.page.locator("figure.chart").all()) == 3


def test_topics_and_their_channels_are_sums_of_stats(browser: Browser, filled: Cluster) -> None:
    topics = filled.topics()
    with browser.tab(filled.admin.url) as tab:
        tab.open("/topics")
        shown = {name.split()[0]: row for name, row in tab.table("topics").items()}
        assert set(shown) == set(topics)
        for name, parts in topics.items():
            row, channels = shown[name], [c for t in parts for c in t["channels"]]
            assert row["Messages"] == str(sum(t["message_count"] for t in parts))
            assert row["Nodes"] == str(len(parts))
            assert row["Channels"] == str(len({c["channel_name"] for c in channels}))
            assert row["In flight"] == str(sum(c["in_flight_count"] for c in channels))
            assert row["Depth"] == str(sum(map(depth, parts)))
        assert "paused" in tab.text("tr[data-key=stopped]")
        assert "ephemeral" in tab.text("tr[data-key='trace#ephemeral']")


def test_a_topic_is_shown_by_channel_and_by_node(browser: Browser, filled: Cluster) -> None:
    parts = filled.topics()["orders"]
    with browser.tab(filled.admin.url) as tab:
        tab.open("/topics/orders")
        for channel, row in tab.table("channels").items():
            own = filled.channels("orders", channel.split()[0])
            assert row["Depth"] == str(sum(c["depth"] for c in own))
            assert row["Messages"] == str(sum(c["message_count"] for c in own)) == "33"
        assert "paused" in tab.text("#channels tr[data-key=billing]")
        nodes = {key.split()[0]: row for key, row in tab.table("nodes").items()}
        assert {row["Messages"] for row in nodes.values()} == {"10", "11", "12"}
        assert len(nodes) == len(parts) == 3
        assert tab.tiles()["Messages"] == "33"


def test_a_channel_shows_its_clients(browser: Browser, filled: Cluster) -> None:
    with browser.tab(filled.admin.url) as tab:
        tab.open("/topics/orders/email")
        rows = list(tab.table("clients").values())
        assert len(rows) == 3
        assert {row["User agent"] for row in rows} == {f"{HOSTILE}/{n}" for n in range(3)}
        assert {row["Node"] for row in rows} == {filled.node(n) for n in range(3)}
        assert {(row["RDY"], row["In flight"], row["Finished"]) for row in rows} == {
            ("3", "3", "0")
        }
        stats = {
            client["remote_address"]
            for channel in filled.channels("orders", "email")
            for client in channel["clients"]
        }
        assert {row["Client"].splitlines()[0] for row in rows} == stats
        assert all(HOSTILE in row["Client"] for row in rows)
        assert all("r1 / z1" in row["Attributes"] for row in rows)
        nodes = {key.split()[0]: row for key, row in tab.table("nodes").items()}
        for number in range(3):
            stat = filled.nsqds[number].channel("orders", "email")
            row = nodes[filled.node(number)]
            assert row["Depth"] == str(stat["depth"])
            assert row["In flight"] == str(stat["in_flight_count"])


def test_nodes_and_node_show_versions_and_topics(browser: Browser, filled: Cluster) -> None:
    with browser.tab(filled.admin.url) as tab:
        tab.open("/nodes")
        nodes = tab.table("nodes")
        assert set(nodes) == {filled.node(n) for n in range(3)}
        for number in range(3):
            row = nodes[filled.node(number)]
            assert row["TCP"] == str(filled.nsqds[number].tcp_port)
            assert row["Lookupds"] == "1 of 1"
            assert row["Topics"] == str(len(filled.nsqds[number].stats()["topics"]))
        tab.page.get_by_role("link", name=filled.node(2)).click()
        expect(tab.page.locator("h1")).to_have_text(filled.node(2))
        shown = {row[0].split()[0] for row in tab.rows("topics")}
        assert {"orders", "email", "trace#ephemeral", "tail#ephemeral"} <= shown
        assert "clicks" not in shown
        assert len(tab.rows("clients")) == 1
        tab.page.get_by_label("Filter topics by name").fill("ORD")
        tab.page.get_by_label("Filter topics by name").press("Enter")
        expect(tab.page.locator("#topics tr.group")).to_have_count(1)


def test_lookup_shows_what_no_node_has(browser: Browser, filled: Cluster) -> None:
    with browser.tab(filled.admin.url) as tab:
        tab.open("/lookup")
        assert [row[0] for row in tab.rows("inactive")] == ["leftover", "old"]
        lookupd = tab.table("lookupds")[filled.lookupd.http_address]
        assert (lookupd["State"], lookupd["Nodes"]) == ("ok", "3")
        tab.page.get_by_role("link", name="leftover").click()
        expect(tab.page.locator("main")).to_contain_text("No node has this topic")


def test_the_counter_counts(browser: Browser, filled: Cluster) -> None:
    channels = [c for parts in filled.topics().values() for t in parts for c in t["channels"]]
    total = sum(channel["message_count"] for channel in channels)
    with browser.tab(filled.admin.url) as tab:
        tab.open("/counter")
        expect(tab.page.locator(".counter output")).to_have_text(f"{total:,}")


def test_deferred_messages_are_shown_by_due_time(browser: Browser, filled: Cluster) -> None:
    with browser.tab(filled.admin.url) as tab:
        tab.open("/deferred")
        row = tab.table("topics")["later"]
        assert row["Deferred"] == row["Published with a delay"] == row["in 1 to 6 hours"] == "3"
        total = int(tab.text(".head .lead").split()[0])
        bars = tab.page.locator("table.bars tbody tr").all_inner_texts()
        assert sum(int(bar.strip().split()[-1]) for bar in bars) == total >= 3
        assert tab.page.locator("rect.bar-fill").count() == 48


def test_a_pipeline_shows_its_report_and_its_error(browser: Browser, filled: Cluster) -> None:
    with browser.tab(filled.admin.url) as tab:
        tab.open("/pipelines")
        section = tab.text(".pipeline")
        for part in ("clicks to the lake", "failed", "clicks / lake", "320 ms", "12.5", HOSTILE):
            assert part in section, part
        assert f"boom {HOSTILE}" in tab.text(".pipeline .banner")


def test_what_strangers_write_is_text_everywhere(browser: Browser, filled: Cluster) -> None:
    with browser.tab(filled.admin.url) as tab:
        for name in ("channel", "node", "pipelines"):
            tab.open(path_of(filled, name))
            assert HOSTILE in tab.text("main"), name
            assert "taken" not in tab.page.title()
            assert tab.page.locator("main img, main script").count() == 0
        tab.updated()  # an update must not wake it either
        assert HOSTILE in tab.text("main")
        assert "taken" not in tab.page.title()
