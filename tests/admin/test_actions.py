"""Every action, done in the browser as an operator does it, and seen in the nsqds' /stats."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.admin.browser import Browser, Tab
from tests.admin.cluster import Cluster
from tests.conformance.log_reader import LogReader
from tests.support.waits import wait_for

BINARY = bytes(range(256))
READER = "pipeline lake on host7, pid 4711"


@pytest.fixture(scope="module", autouse=True)
def prepared(cluster: Cluster) -> Iterator[None]:
    """A topic for each test, so that a new sample is waited for once."""
    cluster.create("tested", "all")
    cluster.create("halted", "all")
    cluster.create("partly", "worker")
    cluster.create("full", "one", "two")
    cluster.create("backlog")
    cluster.create("goner", "a.b", "keep")
    cluster.create("moved", "all")
    cluster.create("letters", "post")
    cluster.create("halfway", "there")
    cluster.create("once", "all")
    for topic in ("read.here", "read.whole", "read.moved", "read.late"):
        cluster.create(topic, "plain")
        cluster.publish(topic, b"x", 0)
    for topic in ("read.here", "read.whole", "read.moved"):
        for nsqd in cluster.nsqds[:2]:
            reader = LogReader(nsqd, topic=topic, channel="tide", name=READER)
            assert reader.pull().status == 200
            assert reader.commit(reader.told["low"]).status == 200
    for number in range(3):
        cluster.publish("full", b"x", number)
    cluster.publish("backlog", b"x", 0)
    cluster.publish("letters", b'{"to":"you","n":[1,2.50]}', 0)
    cluster.publish("letters", BINARY, 1)
    cluster.publish("letters", "<b>bold</b> & grüße".encode(), 2)
    cluster.publish("letters", b"long " * 10_000, 2)
    cluster.settled()
    yield
    for topic in ("read.here", "read.whole", "read.moved", "read.late"):
        for nsqd in cluster.nsqds:
            nsqd.post(f"/topic/delete?topic={topic}&force=true")
        cluster.lookupd.post(f"/topic/delete?topic={topic}")
    cluster.settled()


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Tab]:
    with browser.tab(cluster.admin.url) as tab:
        yield tab


def expect_outcome(tab: Tab, text: str) -> None:
    """The page says what was done."""
    expect(tab.page.locator(".outcome")).to_contain_text(text)


def asked(tab: Tab, id: str) -> Locator:
    """Open a panel that asks first, and return its form."""
    tab.page.locator(f"details#{id} > summary").click()
    return tab.page.locator(f"details#{id} form")


def confirm(form: Locator, name: str) -> None:
    form.get_by_label("to confirm").fill(name)
    form.get_by_role("button").click()


def forced(field: Locator) -> None:
    """Submit a form although its field is wrong, as a browser would that knows no patterns."""
    field.evaluate("field => { field.removeAttribute('pattern'); field.form.requestSubmit(); }")


def paused(cluster: Cluster, topic: str) -> list[bool]:
    return [part["paused"] for part in cluster.topics()[topic]]


def depths(cluster: Cluster, topic: str, channel: str) -> list[int]:
    return [part["depth"] for part in cluster.channels(topic, channel)]


def test_create_a_topic_and_a_channel(tab: Tab, cluster: Cluster) -> None:
    tab.open("/lookup")
    tab.page.get_by_label("Topic", exact=True).fill("made.here")
    tab.page.get_by_label("Channel (optional)").fill("first")
    tab.click("Create")
    expect_outcome(tab, "Created channel first of topic made.here")
    expect(tab.page.locator("tr[data-key='made.here first']")).to_have_count(1)
    inactive = [row[0] for row in tab.rows("inactive")]
    assert inactive[inactive.index("made.here") + 1] == "first"
    assert "made.here" in cluster.lookupd.get("/topics").json["topics"]
    assert cluster.lookupd.get("/channels?topic=made.here").json["channels"] == ["first"]
    # Nobody has it, so only the nsqlookupds have to forget it.
    tab.page.locator("tr[data-key='made.here'] summary").click()
    confirm(tab.page.locator("tr[data-key='made.here'] form"), "made.here")
    expect_outcome(tab, "Deleted topic made.here")
    assert "made.here" not in cluster.lookupd.get("/topics").json["topics"]


def test_a_name_that_is_none_is_refused_by_the_form_and_by_the_server(
    tab: Tab, cluster: Cluster
) -> None:
    tab.open("/topics")
    field = tab.page.get_by_label("Topic", exact=True)
    field.fill("no spaces")
    tab.click("Create")
    assert field.evaluate("field => field.validity.patternMismatch")
    forced(field)
    expect_outcome(tab, "Nothing was changed: INVALID_TOPIC")
    assert "no spaces" not in cluster.lookupd.get("/topics").json["topics"]


def test_publish_a_test_message(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/tested")
    tab.click("Publish…")
    tab.page.get_by_label("Message", exact=True).fill('{"line": 1}\nzwei ü')
    tab.page.locator("#publish").get_by_label("To").select_option(cluster.node(1))
    tab.click("Publish")
    expect_outcome(tab, f"Published a message to topic tested on {cluster.node(1)}")
    assert sorted(depths(cluster, "tested", "all")) == [0, 0, 1]
    messages = cluster.nsqds[1].channel("tested", "all")["message_count"]
    assert messages == 1
    with cluster.consumer("tested", "all", 1) as raw:
        assert raw.message().body == '{"line": 1}\nzwei ü'.encode()
    tab.page.get_by_label("Message", exact=True).fill("later")
    tab.page.get_by_label("Delay in ms").fill("3600000")
    tab.page.locator("#publish").get_by_label("To").select_option(cluster.node(0))
    tab.click("Publish")
    expect_outcome(tab, "Published a message")
    wait_for(lambda: cluster.nsqds[0].channel("tested", "all")["deferred_count"], lambda n: n == 1)


def test_pause_and_unpause_a_topic_everywhere(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/halted")
    asked(tab, "pause").get_by_role("button").click()
    expect_outcome(tab, "Paused topic halted on 3 daemons.")
    assert paused(cluster, "halted") == [True, True, True]
    expect(tab.page.locator(".head .badge")).to_have_text("paused")
    asked(tab, "unpause").get_by_role("button").click()
    expect_outcome(tab, "Unpaused topic halted on 3 daemons.")
    assert paused(cluster, "halted") == [False, False, False]
    expect(tab.page.locator("details#pause")).to_have_count(1)


def test_pause_a_channel_on_one_node(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/partly/worker")
    form = asked(tab, "pause")
    form.get_by_label("On").select_option(cluster.node(2))
    form.get_by_role("button").click()
    expect_outcome(tab, f"Paused channel worker of topic partly on {cluster.node(2)}.")
    states = [nsqd.channel("partly", "worker")["paused"] for nsqd in cluster.nsqds]
    assert states == [False, False, True]
    form = asked(tab, "unpause")
    form.get_by_role("button").click()
    expect_outcome(tab, "Unpaused channel worker")
    assert not any(nsqd.channel("partly", "worker")["paused"] for nsqd in cluster.nsqds)


def test_emptying_a_channel_wants_its_name(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/full/one")
    form = asked(tab, "empty")
    confirm(form, "two")
    assert form.get_by_label("to confirm").evaluate("field => field.validity.patternMismatch")
    forced(form.get_by_label("to confirm"))
    expect_outcome(tab, "Nothing was changed: the name typed is not one.")
    assert depths(cluster, "full", "one") == [1, 1, 1]
    confirm(asked(tab, "empty"), "one")
    expect_outcome(tab, "Emptied channel one of topic full on 3 daemons.")
    assert depths(cluster, "full", "one") == [0, 0, 0]
    assert depths(cluster, "full", "two") == [1, 1, 1]


def test_emptying_a_topic_leaves_its_channels(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/backlog")
    assert tab.tiles()["Depth"] == "1"
    confirm(asked(tab, "empty"), "backlog")
    expect_outcome(tab, "Emptied topic backlog on 3 daemons.")
    assert [part["depth"] for part in cluster.topics()["backlog"]] == [0, 0, 0]
    expect(tab.page.locator("#totals .tile").first).to_contain_text("0")


def test_delete_a_channel_then_the_topic(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/goner/a.b")
    confirm(asked(tab, "delete"), "a.b")
    expect_outcome(tab, "Deleted channel a.b of topic goner")
    expect(tab.page.locator("h1")).to_have_text("goner")
    assert cluster.channels("goner", "a.b") == []
    expect(tab.page.locator("#channels tbody tr")).to_have_count(1)
    assert list(tab.table("channels")) == ["keep"]
    confirm(asked(tab, "delete"), "goner")
    expect_outcome(tab, "Deleted topic goner")
    expect(tab.page.locator("h1")).to_have_text("Topics")
    assert "goner" not in cluster.topics()
    expect(tab.page.locator("tr[data-key=goner]")).to_have_count(0)
    assert "goner" not in cluster.lookupd.get("/topics").json["topics"]


def test_emptying_a_pull_channel_names_its_reader_and_wants_a_tick(
    tab: Tab, cluster: Cluster
) -> None:
    """R45."""
    tab.open("/topics/read.here/tide")
    expect(tab.page.locator("span.reader").first).to_contain_text(READER)
    for action, done in (("empty", "Emptied"), ("delete", "Deleted")):
        form = asked(tab, action)
        expect(form.locator(".readers")).to_contain_text(f"tide, read by {READER} (since 20")
        box = form.get_by_label(f"{action.capitalize()} anyway")
        assert not box.is_checked()
        confirm(form, "tide")
        assert box.evaluate("box => box.validity.valueMissing"), "the browser does not send it"
        assert len(cluster.channels("read.here", "tide")) == 2
        box.check()
        form.get_by_role("button").click()
        expect_outcome(tab, f"{done} channel tide of topic read.here")
    assert cluster.channels("read.here", "tide") == []
    assert len(cluster.channels("read.here", "plain")) == 3


def test_deleting_a_topic_with_a_reader_names_it(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/read.whole")
    form = asked(tab, "delete")
    expect(form.locator(".readers")).to_contain_text(f"tide, read by {READER}")
    # A form that does not send the tick, as of a browser without these rules.
    form.locator("[name=force]").evaluate("box => box.removeAttribute('required')")
    confirm(form, "read.whole")
    expect_outcome(tab, "Nothing was changed: cannot delete topic read.whole without force")
    expect_outcome(tab, READER)
    assert "read.whole" in cluster.lookupd.get("/topics").json["topics"]
    assert len(cluster.topics()["read.whole"]) == 3
    tab.open("/topics/read.whole")
    form = asked(tab, "delete")
    form.get_by_label("Delete anyway").check()
    confirm(form, "read.whole")
    expect_outcome(tab, "Deleted topic read.whole")
    assert "read.whole" not in cluster.topics()


def test_a_page_that_is_being_left_asks_for_nothing(tab: Tab, cluster: Cluster) -> None:
    """The topic is gone before the answer to its deletion comes; the page need not find out."""
    cluster.create("leaving", "all")
    cluster.settled()
    tab.open("/topics/leaving")
    tab.updated()
    form = asked(tab, "delete")

    def answer_late(route: Route) -> None:
        answer = route.fetch(max_redirects=0)
        cluster.settled()
        time.sleep(2.5)  # the page asks every second
        route.fulfill(response=answer)

    tab.page.route("**/action", answer_late)
    confirm(form, "leaving")
    expect_outcome(tab, "Deleted topic leaving")


def test_a_tombstone_names_the_reader_of_that_node_only(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/read.moved")
    other = tab.page.locator(f"#nodes tr[data-key='{cluster.node(2)}']")
    assert other.locator(".readers").count() == 0
    tab.open(f"/nodes/{cluster.node(1)}")
    form = asked(tab, "tombstone")
    form.get_by_label("Topic", exact=True).fill("read.moved")
    confirm(form, "read.moved")
    expect_outcome(tab, "Nothing was changed: cannot tombstone topic read.moved without force")
    producers = cluster.lookupd.get("/lookup?topic=read.moved").json["producers"]
    assert len(producers) == 3, "nor at the nsqlookupds"
    tab.open("/topics/read.moved")
    row = tab.page.locator(f"#nodes tr[data-key='{cluster.node(1)}']")
    row.locator("summary").click()
    row.get_by_label("Tombstone anyway").check()
    confirm(row.locator("form"), "read.moved")
    expect_outcome(tab, "Tombstoned topic read.moved")
    assert len(cluster.topics()["read.moved"]) == 2


def test_a_reader_that_came_after_the_page_was_made_is_told_of(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/read.late/plain")
    form = asked(tab, "empty")
    assert form.locator(".readers").count() == 0
    tab.open("/topics/read.late")
    form = asked(tab, "empty")
    field = form.get_by_label("to confirm")
    token = form.locator("[name=token]").input_value()
    assert LogReader(cluster.nsqds[2], topic="read.late", channel="tide").pull().status == 200
    # The same form, posted as it was.
    posted = tab.page.request.post(
        f"{tab.url}/action",
        form={"token": token, "action": "empty", "topic": "read.late", "confirm": "read.late"},
        headers={"Origin": tab.url, "Sec-Fetch-Site": "same-origin"},
    )
    assert "Nothing was changed: cannot empty topic read.late without force" in posted.text()
    assert "tide, not bound to a reader yet" in posted.text()
    expect(form.locator(".readers")).to_contain_text("tide, not bound to a reader yet")
    assert field.is_visible(), "the panel stays open while the page keeps current"


def test_tombstone_a_topic_on_one_node(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/moved")
    row = tab.page.locator(f"#nodes tr[data-key='{cluster.node(1)}']")
    row.locator("summary").click()
    confirm(row.locator("form"), "moved")
    expect_outcome(tab, "Tombstoned topic moved")
    assert len(cluster.topics()["moved"]) == 2
    expect(tab.page.locator("#nodes tbody tr")).to_have_count(2)
    tab.open(f"/nodes/{cluster.node(0)}")
    form = asked(tab, "tombstone")
    form.get_by_label("Topic", exact=True).fill("moved")
    confirm(form, "moved")
    expect_outcome(tab, "Tombstoned topic moved")
    assert len(cluster.topics()["moved"]) == 1


def test_peek_shows_messages_and_consumes_none(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/letters/post")
    tab.click("Peek…")
    tab.click("Peek")
    expect(tab.page.locator("article.message")).to_have_count(4)
    bodies = tab.page.locator("article.message pre").all_inner_texts()
    assert '{\n  "to": "you",\n  "n": [\n    1,\n    2.50\n  ]\n}' in bodies
    assert "<b>bold</b> & grüße" in bodies
    dump = next(body for body in bodies if body.startswith("00000000"))
    shown = "".join(re.findall(r"^[0-9a-f]{8}  (.{48})", dump, re.M))
    assert bytes.fromhex(shown) == BINARY
    long = next(body for body in bodies if body.startswith("long"))
    assert len(long) == 16 * 1024
    expect(tab.page.locator("main")).to_contain_text("Truncated")
    assert depths(cluster, "letters", "post") == [1, 1, 2]
    attempts = tab.page.locator(".message-head").all_inner_texts()
    assert all("attempts 0" in text or "attempts 1" in text for text in attempts)
    tab.screenshot("peeked-light")
    tab.page.get_by_label("On").select_option(cluster.node(0))
    tab.click("Peek")
    expect(tab.page.locator("article.message")).to_have_count(1)


def test_an_action_that_fails_on_a_node_says_on_which(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/halfway/there")
    cluster.nsqds[1].post("/channel/delete?topic=halfway&channel=there")
    form = asked(tab, "pause")
    form.get_by_role("button").click()
    expect_outcome(tab, "but failed on others")
    expect_outcome(tab, cluster.node(1))
    assert [c["paused"] for c in cluster.channels("halfway", "there")] == [True, True]


def test_a_form_posts_once_and_reloading_repeats_nothing(tab: Tab, cluster: Cluster) -> None:
    tab.open("/topics/once")
    tab.page.get_by_label("Message", exact=True).fill("x")
    tab.page.locator("#publish").get_by_label("To").select_option(cluster.node(0))
    tab.click("Publish")
    expect_outcome(tab, "Published")
    # The page's script takes what was told out of its address, once it runs.
    expect(tab.page).to_have_url(f"{tab.url}/topics/once")
    tab.page.reload()
    expect(tab.page.locator(".outcome")).to_have_count(0)
    assert cluster.nsqds[0].channel("once", "all")["message_count"] == 1
