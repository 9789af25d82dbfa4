"""Seeking a channel on its page, and creating one in the past, in a browser (R22, R23)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.admin.browser import Browser, Tab
from tests.admin.cluster import Cluster
from tests.support.waits import eventually


@pytest.fixture(scope="module", autouse=True)
def prepared(cluster: Cluster) -> Iterator[None]:
    """Three messages on each node, which the channel has skipped."""
    cluster.create("replayed", "keeper")
    for number in range(3):
        for _ in range(3):
            cluster.publish("replayed", b"m", number)
    cluster.create("replayed", "mail")
    cluster.settled()
    yield
    for nsqd in cluster.nsqds:
        nsqd.post("/topic/delete?topic=replayed")
    cluster.settled()


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Tab]:
    with browser.tab(cluster.admin.url) as tab:
        yield tab


def depths(cluster: Cluster, channel: str = "mail") -> list[int]:
    return [nsqd.channel("replayed", channel)["depth"] for nsqd in cluster.nsqds]


def preview(tab: Tab, to: str, node: str = "") -> None:
    tab.page.get_by_label("To", exact=True).fill(to)
    if node:
        tab.page.get_by_label("On").select_option(node)
    tab.page.get_by_role("button", name="Preview").click()


def test_a_seek_is_previewed_confirmed_and_done(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/replayed/mail")
    tab.page.get_by_role("link", name="Seek…").click()
    preview(tab, "-1h")
    expect(tab.page.locator("#plan tbody tr")).to_have_count(3)
    expect(tab.page.locator("#plan")).to_contain_text("9 messages would be queued")
    assert depths(cluster) == [0, 0, 0]
    field = tab.page.get_by_label("Type mail to confirm")
    field.fill("male")
    tab.page.get_by_role("button", name="Seek", exact=True).click()
    assert tab.page.url.endswith("/seek") and depths(cluster) == [0, 0, 0]
    field.fill("mail")
    tab.page.get_by_role("button", name="Seek", exact=True).click()
    expect(tab.page.locator(".outcome")).to_contain_text(
        "Moved the position of channel mail of topic replayed on 3 daemons"
    )
    assert depths(cluster) == [3, 3, 3]
    tab.check()


def test_a_seek_may_be_for_one_node(tab: Tab, cluster: Cluster) -> None:
    for nsqd in cluster.nsqds:
        nsqd.post("/channel/seek?topic=replayed&channel=mail&to=earliest")
    tab.open("/topics/replayed/mail/seek")
    preview(tab, "latest", cluster.node(1))
    expect(tab.page.locator("#plan tbody tr")).to_have_count(1)
    tab.page.get_by_label("Type mail to confirm").fill("mail")
    tab.page.get_by_role("button", name="Seek", exact=True).click()
    expect(tab.page.locator(".outcome")).to_contain_text("Moved the position of channel mail")
    assert depths(cluster) == [3, 0, 3]


def test_a_wrong_place_is_told(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/replayed/mail/seek")
    preview(tab, "yesterday")
    assert "the place must be earliest, latest, -1h" in tab.text(".outcome")
    expect(tab.page.get_by_text("did not respond")).to_have_count(0)
    expect(tab.page.locator("#confirm")).to_have_count(0)
    preview(tab, "index:1")
    assert "an index belongs to one node: choose it" in tab.text(".outcome")
    expect(tab.page.locator("#confirm")).to_have_count(0)
    preview(tab, "index:1", cluster.node(1))
    expect(tab.page.locator("#plan tbody tr")).to_have_count(1)


def test_a_channel_is_created_in_the_past(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/replayed")
    tab.page.get_by_label("Channel", exact=True).fill("audit")
    tab.page.get_by_label("Starts at").fill("earliest")
    tab.page.get_by_role("button", name="Create", exact=True).click()
    expect(tab.page.locator(".outcome")).to_contain_text("Created channel audit")
    assert eventually(lambda: depths(cluster, "audit") == [3, 3, 3])


def test_scripts_seek_too_with_the_name_confirmed(cluster: Cluster) -> None:
    def act(**fields: str) -> tuple[int, Any]:
        body = json.dumps({"topic": "replayed", "channel": "mail", **fields}).encode()
        headers = {"Content-Type": "application/json"}
        reply = cluster.admin.http("POST", "/api/action", body, headers)
        return reply.status, reply.json

    status, answer = act(action="preview", to="-1h")
    assert status == 200 and [plan["messages"] for plan in answer["plans"]] == [3, 3, 3]
    assert act(action="seek", to="-1h") == (400, {"message": "CONFIRM_NAME"})
    assert act(action="seek", to="-1h", confirm="mail", channel="")[0] == 400
    for place in ("queued", "index:1"):
        assert act(action="seek", to=place, confirm="mail")[1]["message"] == "INVALID_PLACE"
    refused = act(action="create", channel="new", start="index:1")
    assert refused[1]["message"] == "INVALID_PLACE"
    status, answer = act(action="seek", to="latest", confirm="mail")
    assert (status, answer["message"]) == (200, "")
    assert depths(cluster) == [0, 0, 0]
