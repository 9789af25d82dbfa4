"""Part of the cluster does not answer: the pages say who, and show the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.admin.browser import Browser
from tests.admin.cluster import Cluster, Nsqadmin
from tests.support.daemon import Nsqd

PAGES = (
    *("/", "/topics", "/topics/lasting", "/topics/lasting/all", "/topics/lasting/all/dead"),
    *("/nodes", "/lookup", "/counter"),
)


@pytest.fixture(scope="module")
def wounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own, because a node of it falls."""
    with Cluster(tmp_path_factory.mktemp("wounded")) as cluster:
        cluster.create("lasting", "all")
        for number in range(3):
            cluster.publish("lasting", b"x", number)
        cluster.settled()
        yield cluster


def test_a_node_that_stops_is_named_and_the_others_are_shown(
    browser: Browser, wounded: Cluster
) -> None:
    gone = wounded.node(2)
    with browser.tab(wounded.admin.url) as tab:
        tab.open("/")
        assert tab.tiles()["Depth"] == "3"
        expect(tab.page.locator(".banner.warn")).to_have_count(0)
        wounded.nsqds[2].kill()
        # Without a reload: the open page finds out by itself.
        expect(tab.page.locator(".banner.warn li")).to_contain_text(gone)
        row = tab.page.locator(f"#nodes tr[data-key='{gone}']")
        expect(row).to_contain_text("no response")
        expect(tab.page.locator(".head .lead")).to_contain_text("2 of 3 nodes up")
        assert tab.tiles()["Depth"] == "2"
        for path in PAGES:
            assert tab.open(path).status == 200
            expect(tab.page.locator(".banner.warn li")).to_contain_text(gone)
            if path == "/":
                tab.screenshot("overview-partial-light")
        tab.open("/topics/lasting")
        assert len(tab.rows("nodes")) == 2
        assert tab.table("channels")["all"]["Depth"] == "2"
        tab.open(f"/nodes/{gone}")
        expect(tab.page.locator("main")).to_contain_text("This node does not respond")
        action_spares_the_fallen(wounded, tab.page)
        wounded.nsqds[2].start()
        tab.open("/")
        expect(tab.page.locator(".banner.warn")).to_have_count(0)
        expect(tab.page.locator(".head .lead")).to_contain_text("3 of 3 nodes up")
        expect(tab.page.locator("#totals .tile").first).to_contain_text("3")


def action_spares_the_fallen(cluster: Cluster, page) -> None:  # type: ignore[no-untyped-def]
    """What can be done is done where there is somebody."""
    page.goto(f"{cluster.admin.url}/topics/lasting/all")
    page.locator("details#pause > summary").click()
    page.locator("details#pause form button").click()
    expect(page.locator(".outcome")).to_contain_text("Paused channel all of topic lasting")
    assert [c["paused"] for c in cluster.channels("lasting", "all")] == [True, True]


def test_a_page_survives_its_nsqadmin_and_recovers(browser: Browser, wounded: Cluster) -> None:
    with browser.tab(wounded.admin.url) as tab:
        tab.open("/topics")
        expect(tab.page.locator("#live")).to_have_attribute("data-state", "live")
        wounded.admin.kill()
        expect(tab.page.locator("#lost")).to_be_visible()
        expect(tab.page.locator("#live")).to_contain_text("No response")
        assert "lasting" in tab.table("topics")
        wounded.admin.start()
        expect(tab.page.locator("#lost")).to_be_hidden()
        expect(tab.page.locator("#live")).to_have_text("Live")
        # What the browser itself writes when nobody answers.
        tab.wrong = [text for text in tab.wrong if "ERR_CONNECTION_REFUSED" not in text]


def test_without_anything_the_pages_say_what_to_do_next(browser: Browser, tmp_path: Path) -> None:
    with (
        Nsqd(tmp_path / "lonely", "--broadcast-address=127.0.0.1") as nsqd,
        Nsqadmin(f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}") as admin,
        browser.tab(admin.url) as tab,
    ):
        for path, words in (
            ("/", "A topic is created by its first message"),
            ("/topics", "No topics"),
            ("/lookup", "queries nsqds directly"),
            ("/deferred", "No deferred messages"),
            ("/pipelines", "No Spark queries"),
            (f"/nodes/127.0.0.1:{nsqd.http_port}", "No topics on this node"),
        ):
            tab.open(path)
            expect(tab.page.locator("main")).to_contain_text(words)
        tab.open("/topics")
        tab.screenshot("topics-empty-light")
        tab.page.get_by_label("Topic", exact=True).fill("first")
        tab.click("Create")
        expect(tab.page.locator(".outcome")).to_contain_text("Created topic first")
        tab.page.get_by_role("link", name="first", exact=True).click()
        expect(tab.page.locator("main")).to_contain_text("No channels")
        tab.page.get_by_label("Channel", exact=True).fill("mine")
        tab.click("Create")
        tab.page.get_by_role("link", name="mine", exact=True).click()
        expect(tab.page.locator("main")).to_contain_text("No consumers")
        assert nsqd.channel("first", "mine")["depth"] == 0


def test_nobody_at_all(browser: Browser) -> None:
    with (
        Nsqadmin("--lookupd-http-address=127.0.0.1:9") as admin,
        browser.tab(admin.url) as tab,
    ):
        tab.open("/")
        expect(tab.page.locator(".banner.warn li")).to_contain_text("127.0.0.1:9")
        expect(tab.page.locator("main")).to_contain_text("No nsqds found")
