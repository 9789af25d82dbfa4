"""The page of dead letters: real poison messages, listed, kicked, moved and discarded."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.admin.browser import NARROW, Browser, Tab
from tests.admin.cluster import Cluster, Nsqadmin
from tests.support.client import Client
from tests.support.waits import eventually, wait_for

BODIES = (b'{"order": 7, "items": ["a", "b"]}', b"plain <b>text</b>", bytes(range(64)))


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Tab]:
    with browser.tab(cluster.admin.url) as tab:
        yield tab


def poison(
    cluster: Cluster, topic: str, *bodies: bytes, on: int = 0, max_attempts: int = 1
) -> None:
    """Messages whose every delivery fails, until the server buries them."""
    nsqd = cluster.nsqds[on]
    cluster.create(topic, "c", on=(on,))
    keys = b'{"max_attempts": %d}' % max_attempts
    assert nsqd.http("PUT", f"/policy?topic={topic}&channel=c", keys).status == 200
    for body in bodies:
        cluster.publish(topic, body, on)
    with Client.of(nsqd).sub(topic, "c", ready=100) as client:
        for _ in range(max_attempts * len(bodies)):
            client.req(client.message())
        eventually(lambda: buried(cluster, topic, on) == len(bodies))


def buried_by_hand(cluster: Cluster, topic: str, client_id: str, reason: str) -> None:
    """A message that a client of ours buries."""
    cluster.publish(topic, b"by hand")
    asked = {"bury": True, "feature_negotiation": True}
    with cluster.consumer(topic, "c", client_id=client_id, **asked) as client:
        client.send(f"BURY {client.receive().id.decode()} {reason}\n".encode())
        assert eventually(lambda: b"by hand" in dead_bodies(cluster, topic))


def dead_bodies(cluster: Cluster, topic: str) -> list[bytes]:
    answer = cluster.nsqds[0].get(f"/channel/dead?topic={topic}&channel=c")
    return [base64.b64decode(message["body"]) for message in answer.json["messages"]]


def buried(cluster: Cluster, topic: str, on: int = 0) -> int:
    answer = cluster.nsqds[on].get(f"/channel/dead?topic={topic}&channel=c&count=1")
    return int(answer.json["count"])


def opened(tab: Tab, cluster: Cluster, topic: str) -> None:
    cluster.settled()
    tab.open(f"/topics/{topic}/c")
    tab.page.get_by_role("link", name="Dead letters…").click()
    expect(tab.page.get_by_role("heading", name="Dead letters")).to_be_visible()


def result(tab: Tab) -> str:
    banner = tab.page.locator(".banner.outcome")
    expect(banner).to_be_visible()
    return banner.inner_text()


def test_a_page_that_is_not_live_stays_as_it_is(tab: Tab, cluster: Cluster) -> None:
    """A live page fetches itself again a second after an action; here this was a script error."""
    poison(cluster, "dead.still", *BODIES)
    opened(tab, cluster, "dead.still")
    tab.page.get_by_label("all", exact=True).check()
    tab.click("Kick")
    assert "3 kicked" in result(tab)
    tab.page.wait_for_timeout(1500)
    tab.check()


def test_buried_messages_are_shown_with_their_bodies(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.shown", *BODIES)
    poison(cluster, "dead.shown", b"on another node", on=1)
    cluster.settled()
    tab.open("/topics/dead.shown/c")
    expect(tab.page.get_by_role("link", name="Dead letters…")).to_have_text("Dead letters… 4")
    opened(tab, cluster, "dead.shown")
    assert tab.table("dead-nodes")[cluster.node(0)]["Buried"] == "3"
    assert tab.table("dead-nodes")[cluster.node(1)]["Buried"] == "1"
    messages = tab.page.locator("article.message")
    assert messages.count() == 4
    text = "\n".join(messages.all_inner_texts())
    for part in ('"order": 7', "plain <b>text</b>", "failed too often", "attempts 1", "last at"):
        assert part in text, part
    tab.page.get_by_label("On", exact=True).select_option(cluster.node(1))
    tab.page.get_by_role("button", name="Show").click()
    expect(messages).to_have_count(1)
    twin = cluster.admin.view("/topics/dead.shown/c/dead")
    assert twin["total"] == 4 and len(twin["messages"]) == 4


def test_selected_messages_are_kicked_and_the_rest_stay(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.kicked", b"first", b"second", b"third")
    opened(tab, cluster, "dead.kicked")
    article = tab.page.locator("article.message").filter(has_text="second")
    article.get_by_role("checkbox").check()
    tab.click("Kick")
    assert "1 kicked, 2 left" in result(tab)
    with Client.of(cluster.nsqds[0]).sub("dead.kicked", "c", ready=1) as client:
        message = client.message()
        assert (message.body, message.attempts) == (b"second", 1)
        client.fin(message)
    assert tab.page.locator("article.message").count() == 2


def test_nothing_happens_when_nothing_is_selected(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.none", b"x")
    opened(tab, cluster, "dead.none")
    tab.click("Kick")
    assert "no message was selected" in result(tab)
    assert buried(cluster, "dead.none") == 1


def test_a_page_that_is_not_live_does_not_fetch_itself_again(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.still", b"x")
    opened(tab, cluster, "dead.still")
    tab.click("Kick")
    assert "no message was selected" in result(tab)
    tab.page.wait_for_timeout(1500)  # a live page does so a second after an action
    tab.check()


def test_enter_in_a_field_does_nothing(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.enter", b"x")
    opened(tab, cluster, "dead.enter")
    tab.page.locator("article.message").get_by_role("checkbox").check()
    tab.page.get_by_label("Topic", exact=True).press("Enter")
    tab.click("Discard…")
    tab.page.get_by_label("to confirm").fill("c")
    tab.page.get_by_label("to confirm").press("Enter")
    tab.page.wait_for_timeout(300)
    assert tab.page.locator(".banner.outcome").count() == 0
    assert buried(cluster, "dead.enter") == 1
    tab.page.get_by_role("button", name="Discard", exact=True).press("Enter")
    assert "1 discarded, 0 left" in result(tab)


def test_messages_are_moved_to_a_topic(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.moved", *[b"%d" % i for i in range(5)])
    opened(tab, cluster, "dead.moved")
    assert tab.page.get_by_label("Topic", exact=True).input_value() == "dead.moved.c.dead"
    tab.page.get_by_label("the oldest").check()
    tab.page.get_by_label("How many on each node").fill("2")
    tab.click("Move")
    assert "2 moved, 3 left" in result(tab)
    tab.page.get_by_label("all", exact=True).check()
    tab.click("Move")
    assert "3 moved, 0 left" in result(tab)
    expect(tab.page.get_by_text("No buried messages")).to_be_visible()
    with Client.of(cluster.nsqds[0]).sub("dead.moved.c.dead", "again", ready=9) as client:
        assert [m.body for m in client.finish_all(5)] == [b"%d" % i for i in range(5)]


def test_a_move_that_fails_tells_what_was_moved_before(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.part", *[b"x"] * 1100)
    cluster.create("dead.full", "again", on=(0,))
    cluster.nsqds[0].http("PUT", "/policy?topic=dead.full", b'{"max_messages": 1}')
    opened(tab, cluster, "dead.part")
    tab.page.get_by_label("all", exact=True).check()
    tab.page.get_by_label("Topic", exact=True).fill("dead.full")
    tab.click("Move")
    assert "but not all" in result(tab)
    assert f"{cluster.node(0)}: 1024 moved, then topic is full (max_messages)" in result(tab)
    assert buried(cluster, "dead.part") == 76


def test_an_action_keeps_the_choice_of_node_and_reason(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.choice", b"x", b"y", on=0)
    poison(cluster, "dead.choice", b"z", on=1)
    opened(tab, cluster, "dead.choice")
    tab.page.get_by_label("On", exact=True).select_option(cluster.node(0))
    tab.page.get_by_label("Reason").select_option("attempts")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.locator("article.message").first.get_by_role("checkbox").check()
    tab.click("Kick")
    assert "1 kicked, 1 left" in result(tab)
    assert tab.page.get_by_label("On", exact=True).input_value() == cluster.node(0)
    assert tab.page.get_by_label("Reason").input_value() == "attempts"
    tab.page.locator("input[name=which][value=all]").check()
    tab.click("Kick")
    assert "1 kicked, 0 left" in result(tab)
    assert buried(cluster, "dead.choice", on=1) == 1


def test_discarding_needs_the_name_of_the_channel(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.lost", b"x", b"y")
    opened(tab, cluster, "dead.lost")
    tab.page.get_by_label("all", exact=True).check()
    tab.click("Discard…")
    tab.page.get_by_role("button", name="Discard", exact=True).click()
    assert "the name typed is not c" in result(tab)
    assert buried(cluster, "dead.lost") == 2
    tab.page.get_by_label("all", exact=True).check()
    tab.click("Discard…")
    tab.page.get_by_label("to confirm").fill("c")
    tab.page.get_by_role("button", name="Discard", exact=True).click()
    assert "2 discarded, 0 left" in result(tab)
    assert buried(cluster, "dead.lost") == 0


def test_what_runs_at_a_rate_is_shown_and_stopped(tab: Tab, cluster: Cluster) -> None:
    poison(cluster, "dead.slow", *[b"%d" % i for i in range(40)])
    opened(tab, cluster, "dead.slow")
    expect(tab.page.locator("#running")).to_have_count(0)
    rate = tab.page.get_by_label("Messages a second")
    rate.fill("1")
    tab.click("Kick")
    assert "selected messages take no rate" in result(tab)
    for act, doing, done in (("Kick", "kicking", "kicked"), ("Move", "moving", "moved")):
        tab.page.get_by_label("all", exact=True).check()
        rate.fill("1")
        tab.click(act)
        assert f"{doing} " in result(tab) and "at 1 a second" in result(tab)
        expect(tab.page.locator("#running tbody tr")).to_have_count(1)
        expect(tab.page.locator("#running")).to_contain_text(doing)
        (running,) = cluster.admin.view("/topics/dead.slow/c/dead")["running"]
        assert (running["node"], running["act"]) == (cluster.node(0), act.lower())
        tab.screenshot("dead-running")
        tab.click("Stop")
        assert f" {done}, " in result(tab)
        wait_for(lambda: cluster.admin.view("/topics/dead.slow/c/dead")["running"], [])
        tab.click("Reload")
        expect(tab.page.locator("#running")).to_have_count(0)
    assert 20 < buried(cluster, "dead.slow") < 40


def test_a_limit_above_that_of_the_clients_is_warned_of(tab: Tab, cluster: Cluster) -> None:
    cluster.create("dead.limit", "c", on=(0,))
    for value, warned in ((6, True), (5, False)):
        keys = b'{"max_attempts": %d}' % value
        cluster.nsqds[0].http("PUT", "/policy?topic=dead.limit&channel=c", keys)
        cluster.settled()
        for page in ("", "/dead"):
            tab.open(f"/topics/dead.limit/c{page}")
            banner = tab.page.get_by_text("max_attempts is 6")
            expect(banner).to_be_visible() if warned else expect(banner).to_have_count(0)


def test_the_page_is_usable_in_the_dark_and_on_a_telephone(
    browser: Browser, cluster: Cluster
) -> None:
    poison(cluster, "dead.looks", *BODIES, b"long " * 200)
    buried_by_hand(cluster, "dead.looks", "w" * 200, "x" * 200)
    cluster.settled()
    for name, context in {
        "dead-wide": {},
        "dead-dark": {"color_scheme": "dark"},
        "dead-narrow": {"viewport": NARROW},
    }.items():
        with browser.tab(cluster.admin.url, **context) as tab:
            tab.open("/topics/dead.looks/c/dead")
            tab.screenshot(name)
            width = tab.page.evaluate("document.documentElement.scrollWidth")
            assert width <= tab.page.evaluate("window.innerWidth"), name


def test_who_is_no_admin_reads_counts_only(browser: Browser, cluster: Cluster) -> None:
    poison(cluster, "dead.reader", b"secret")
    address = f"--nsqd-http-address={cluster.node(0)}"
    with Nsqadmin(address, "--admin-user=root") as admin, browser.tab(admin.url) as tab:
        wait_for(lambda: admin.view("/topics")["topics"], bool)
        tab.open("/topics/dead.reader/c/dead")
        assert tab.table("dead-nodes")[cluster.node(0)]["Buried"] == "1"
        expect(tab.page.locator("main")).to_contain_text("may read and change messages")
        assert tab.page.locator("main form[method=post]").count() == 0
        assert "secret" not in tab.page.content()
        assert admin.view("/topics/dead.reader/c/dead")["messages"] is None
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        body = b"action=kick&topic=dead.reader&channel=c&which=all"
        assert admin.http("POST", "/action", body, form).status == 403
    assert buried(cluster, "dead.reader") == 1
