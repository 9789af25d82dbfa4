"""The policy of a topic and a channel: shown with its origins, changed in the browser."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.admin.browser import Browser, Tab
from tests.admin.cluster import Cluster, Nsqadmin
from tests.support.daemon import Nsqd
from tests.support.waits import wait_for

KEYS = "#policy-keys"


@pytest.fixture(scope="module", autouse=True)
def prepared(cluster: Cluster) -> Iterator[None]:
    cluster.create("ruled", "mail")
    cluster.create("apart", "mail", on=(0, 1))
    cluster.settled()
    yield
    for topic in ("ruled", "apart"):
        for nsqd in cluster.nsqds:
            nsqd.post(f"/topic/delete?topic={topic}")
    cluster.settled()


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Tab]:
    with browser.tab(cluster.admin.url) as tab:
        yield tab


def policy(nsqd: Nsqd, place: str, key: str) -> Any:
    return nsqd.get(f"/policy?{place}").json["policy"][key]


def cells(tab: Tab, key: str) -> list[str]:
    row = tab.page.locator(f"{KEYS} tr[data-key='{key}']")
    return [" ".join(text.split()) for text in row.locator("td").all_inner_texts()]


def test_a_policy_is_shown_changed_and_unset(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/ruled/mail")
    assert cells(tab, "max_attempts")[:2] == ["0", "default"]
    tab.click("Change the policy…")
    tab.page.get_by_label("max_attempts", exact=True).fill("5")
    tab.page.get_by_label("on_max_attempts").select_option("topic")
    tab.page.locator("#policy-change").get_by_role("button").click()
    outcome = tab.page.locator(".outcome")
    expect(outcome).to_contain_text("Changed the policy of channel mail of topic ruled on 3 daem")
    assert cells(tab, "max_attempts")[:2] == ["5", "set"]
    place = "topic=ruled&channel=mail"
    for nsqd in cluster.nsqds:
        assert policy(nsqd, place, "max_attempts") == {"value": 5, "origin": "set"}
        assert policy(nsqd, place, "on_max_attempts")["value"] == "topic"
        assert policy(nsqd, place, "msg_ttl")["origin"] == "default"
    tab.click("Change the policy…")
    tab.page.get_by_label("max_attempts", exact=True).fill("")
    tab.page.get_by_label("on_max_attempts").select_option("")
    tab.page.locator("#policy-change").get_by_role("button").click()
    expect(outcome).to_contain_text("Changed the policy")
    assert cells(tab, "max_attempts")[:2] == ["0", "default"]
    assert policy(cluster.nsqds[2], place, "max_attempts")["origin"] == "default"
    tab.check()


def test_what_a_node_refuses_is_told(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/ruled")
    tab.click("Change the policy…")
    tab.page.get_by_label("retain", exact=True).fill("a week")
    tab.page.locator("#policy-change").get_by_role("button").click()
    outcome = tab.page.locator(".outcome")
    expect(outcome).to_contain_text("Nothing was changed: topic ruled.")
    expect(outcome).to_contain_text("retain must be a duration such as")
    expect(outcome.locator("li")).to_have_count(3)
    tab.click("Change the policy…")
    tab.page.locator("#policy-change").get_by_role("button").click()
    expect(outcome).to_contain_text("no key was changed")
    assert policy(cluster.nsqds[0], "topic=ruled", "retain")["origin"] == "default"


def test_differences_between_nodes_are_shown_and_kept(tab: Tab, cluster: Cluster) -> None:
    first, second = cluster.nsqds[:2]
    first.http("PUT", "/policy?topic=apart", json.dumps({"retain": "1h", "max_bytes": 7}).encode())
    second.http("PUT", "/policy?topic=apart", json.dumps({"max_bytes": 7}).encode())
    cluster.settled()
    tab.open("/topics/apart")
    values, origins = cells(tab, "retain")[:2]
    assert values.split() in (["1h", "0"], ["0", "1h"])
    assert f"set on {cluster.node(0)}" in origins and f"default on {cluster.node(1)}" in origins
    tab.click("Change the policy…")
    # What is typed stays, and so does what it is compared with.
    field = tab.page.get_by_label("max_messages")
    field.fill("1000")
    tab.updated()
    expect(field).to_have_value("1000")
    tab.page.locator("#policy-change").get_by_role("button").click()
    expect(tab.page.locator(".outcome")).to_contain_text("Changed the policy of topic apart")
    assert policy(first, "topic=apart", "retain") == {"value": "1h", "origin": "set"}
    for nsqd in (first, second):
        assert policy(nsqd, "topic=apart", "max_messages")["value"] == 1000
        assert policy(nsqd, "topic=apart", "max_bytes")["value"] == "7"
    tab.click("Change the policy…")
    tab.page.get_by_label("unset on all nodes").check()
    tab.page.locator("#policy-change").get_by_role("button").click()
    expect(tab.page.locator(".outcome")).to_contain_text("Changed the policy of topic apart")
    assert policy(first, "topic=apart", "retain")["origin"] == "default"
    assert cells(tab, "retain")[:2] == ["0", "default"]


def test_a_change_may_be_for_one_node(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/ruled")
    tab.click("Change the policy…")
    tab.page.get_by_label("overflow").select_option("drop-oldest")
    tab.page.locator("#policy-node").select_option(cluster.node(2))
    tab.page.locator("#policy-change").get_by_role("button").click()
    expect(tab.page.locator(".outcome")).to_contain_text(f"on {cluster.node(2)}")
    origins = [policy(nsqd, "topic=ruled", "overflow")["origin"] for nsqd in cluster.nsqds]
    assert origins == ["default", "default", "set"]


def test_scripts_change_a_policy_and_read_it(cluster: Cluster) -> None:
    admin = cluster.admin
    fields = {"action": "policy", "topic": "ruled", "set.retain": "2h", "set.max_bytes": "1GB"}
    headers = {"Content-Type": "application/json"}

    def act(fields: dict[str, str]) -> Any:
        return admin.http("POST", "/api/action", json.dumps(fields).encode(), headers)

    reply = act(fields)
    assert reply.status == 200 and len(reply.json["results"]) == 3, reply.text
    assert not any(result["error"] for result in reply.json["results"])
    cluster.settled()
    view = admin.view("/topics/ruled")
    [retain] = [key for key in view["policy"]["keys"] if key["key"] == "retain"]
    assert retain["own"] == "2h" and retain["values"][0]["origin"] == "set"
    assert len(retain["values"][0]["nodes"]) == view["policy"]["nodes"] == 3
    reply = act({"action": "policy", "topic": "ruled", "unset.retain": "true"})
    assert reply.status == 200
    assert act({"action": "policy", "topic": "ruled"}).status == 400
    assert policy(cluster.nsqds[0], "topic=ruled", "retain")["origin"] == "default"


def test_a_policy_file_is_named_as_the_origin_and_only_admins_see_the_form(
    browser: Browser, tmp_path: Path
) -> None:
    rules = tmp_path / "p.toml"
    rules.write_text('[[policy]]\non_max_attempts = "topic"\n')
    with Nsqd(tmp_path / "nsqd", f"--policy-file={rules}") as nsqd:
        nsqd.post("/topic/create?topic=mail.dead")
        nsqd.post("/channel/create?topic=mail.dead&channel=c")
        address = f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}"
        with Nsqadmin(address, "--admin-user=root") as admin, browser.tab(admin.url) as tab:
            wait_for(lambda: admin.view("/topics")["topics"], bool)
            tab.open("/topics/mail.dead/c")
            value, origin = cells(tab, "on_max_attempts")[:2]
            assert value == "bury"
            assert origin == f"file: {rules}:2 not topic: this is a topic of dead letters"
            expect(tab.page.locator("#policy-change")).to_have_count(0)
            rules.write_text("")
            nsqd.signal(signal.SIGHUP)
            expect(tab.page.locator(f"{KEYS} tr[data-key='on_max_attempts']")).to_contain_text(
                "default", timeout=30_000
            )


def test_bounds_are_bars_and_the_last_hour_is_counted(tab: Tab, cluster: Cluster) -> None:
    nsqd = cluster.nsqds[0]
    cluster.create("bounded", "mail", on=(0,))
    nsqd.http("PUT", "/policy?topic=bounded", b'{"max_messages":4}')
    for _ in range(4):
        cluster.publish("bounded", b"x")
    cluster.settled()
    for _ in range(3):
        assert nsqd.post("/pub?topic=bounded", b"x").status == 507
    cluster.settled()
    tab.open("/topics/bounded")
    bar = tab.page.locator("#bounds meter")
    expect(bar).to_have_count(1)
    assert [bar.get_attribute(name) for name in ("value", "max")] == ["4", "4"]
    expect(tab.page.locator("#bounds")).to_contain_text("4 of 4 messages")
    expect(tab.page.locator("#policy .note").first).to_contain_text("in the last hour: 3 refused")
    view = cluster.admin.view("/topics/bounded")
    assert view["bounds"] == [
        {
            "name": "max_messages",
            "used": 4,
            "limit": 4,
            "unit": "messages",
            "set": "4",
            "node": cluster.node(0),
        },
    ]
    assert view["hour"] == [{"count": 3, "what": "refused"}]
    nsqd.post("/topic/delete?topic=bounded")
    cluster.lookupd.post("/topic/delete?topic=bounded")
    tab.check()
