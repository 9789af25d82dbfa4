"""Reading the pages: all of it in sight on a telephone, an order that can be sent, clock times."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.admin.browser import Browser, Tab
from tests.admin.cluster import Cluster
from tests.support.waits import wait_for

PATHS = ("/", "/topics", "/topics/read.beta", "/topics/read.beta/all", "/nodes", "/lookup")
PATHS += ("/deferred", "/pipelines", "/counter")


@pytest.fixture(scope="module")
def read(cluster: Cluster) -> Cluster:
    for count, name in enumerate(("alpha", "beta", "gamma")):
        cluster.create(f"read.{name}", "all", on=(0,))
        for _ in range(3 * (count % 2) + count):
            cluster.publish(f"read.{name}", b"x")
    for hour in range(0, 46, 2):
        cluster.publish("read.later", b"x", 0, f"&defer={hour * 3_600_000 + 600_000}")
    cluster.settled()
    return cluster


def boxes(tab: Tab, selector: str) -> list[dict[str, Any]]:
    """Where the visible elements are."""
    found: list[dict[str, Any]] = tab.page.locator(selector).evaluate_all(
        "all => all.map(one => [one.textContent, one.getBoundingClientRect()])"
        ".filter(([_, box]) => box.width > 0)"
        ".map(([text, box]) => ({text, left: box.left, right: box.right, top: box.top,"
        " bottom: box.bottom}))"
    )
    return found


def overlaps(one: dict[str, Any], other: dict[str, Any]) -> bool:
    across = one["left"] < other["right"] and other["left"] < one["right"]
    return across and one["top"] < other["bottom"] and other["top"] < one["bottom"]


@pytest.mark.parametrize("width", [320, 375, 640])
def test_on_a_telephone_all_tabs_are_in_sight_and_no_label_is_on_another(
    browser: Browser, read: Cluster, width: int
) -> None:
    with browser.tab(read.admin.url, viewport={"width": width, "height": 700}) as tab:
        for path in PATHS:
            tab.open(path)
            tabs = boxes(tab, "nav.nav a")
            assert len(tabs) == 7, path
            for one in tabs:
                assert one["left"] >= 0 and one["right"] <= width, (path, one)
            for labels in (tabs, *axes(tab), boxes(tab, ".tile dt"), boxes(tab, ".head > *")):
                for at, one in enumerate(labels):
                    for other in labels[:at]:
                        assert not overlaps(one, other), (path, one, other)
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, path
        tab.open("/deferred")
        tab.screenshot(f"deferred-{width}-light")


def axes(tab: Tab) -> list[list[dict[str, Any]]]:
    count = tab.page.locator("figure.chart").count()
    names = ("axis-x", "axis-y")
    return [
        boxes(tab, f"figure.chart >> nth={at} >> .{name} text")
        for at in range(count)
        for name in names
    ]


def order(tab: Tab) -> list[str]:
    names = [row[0].split()[0] for row in tab.rows("topics")]
    return [name.removeprefix("read.") for name in names if name.startswith("read.")]


def test_the_order_stands_in_the_address_and_can_be_sent(browser: Browser, read: Cluster) -> None:
    with browser.tab(read.admin.url) as tab:
        tab.open("/topics")
        tab.page.get_by_role("button", name="Depth").click()
        assert tab.page.url.endswith("/topics?sort=topics.depth.descending")
        assert order(tab) == ["beta", "gamma", "alpha", "later"]
        tab.page.get_by_role("button", name="Depth").click()
        link = tab.page.url
        assert link.endswith("?sort=topics.depth.ascending")
        field = tab.page.get_by_label("Filter topics by name")
        field.press_sequentially("read")
        expect(tab.page).to_have_url(re.compile(r"sort=topics\.depth\.ascending.*q=read$"))
        tab.updated()
        assert order(tab)[-1] == "beta"
    # Somebody else's window, which remembers nothing.
    with browser.tab(read.admin.url) as tab:
        tab.page.goto(link)
        assert order(tab)[-2:] == ["gamma", "beta"]
        heading = tab.page.locator("#topics th[aria-sort]")
        expect(heading).to_have_attribute("aria-sort", "ascending")
        for nonsense in ("topics.nothing.ascending", "topics.depth.up", "other.depth", "..", ""):
            tab.open(f"/topics?sort={nonsense}")
            assert len(order(tab)) == 4


def test_each_table_has_its_own_order_and_other_spans_keep_it(
    browser: Browser, read: Cluster
) -> None:
    with browser.tab(read.admin.url) as tab:
        tab.open("/topics/read.beta")
        for table, name in (("channels", "In flight"), ("nodes", "Messages")):
            tab.page.locator(f"#{table}").get_by_role("button", name=name).click()
        asked = ["sort=channels.in-flight.descending", "sort=nodes.messages.descending"]
        assert all(text in tab.page.url for text in asked)
        tab.page.get_by_role("link", name="10 minutes").click()
        expect(tab.page.locator(".spans [aria-current]")).to_have_text("10 minutes")
        assert all(text in tab.page.url for text in (*asked, "span=recent"))
        expect(tab.page.locator("#nodes th[aria-sort]")).to_contain_text("Messages")


def test_pointing_at_a_chart_says_the_clock_time(browser: Browser, read: Cluster) -> None:
    with browser.tab(read.admin.url) as tab:
        tab.open("/topics/read.beta?span=recent")
        plot = tab.page.locator("figure.chart svg.plot").first
        when = tab.page.locator("figure.chart .when").first

        def pointed(share: float) -> str:
            # The page is live: its layout may move between two looks.
            box = plot.bounding_box()
            assert box is not None
            tab.page.mouse.move(box["x"] + 1 + share * (box["width"] - 2), box["y"] + 20)
            return when.inner_text()

        wait_for(lambda: pointed(1.0), re.compile(r"\d\d:\d\d:\d\d UTC, now").fullmatch)
        now = datetime.datetime.now(datetime.UTC)
        shown = datetime.datetime.strptime(when.inner_text()[:8], "%H:%M:%S")
        apart_s = abs((now.hour - shown.hour) * 3600 + (now.minute - shown.minute) * 60)
        assert min(apart_s, 86_400 - apart_s) <= 120
        pointed(0.0)
        expect(when).to_have_text(re.compile(r"^\d\d:\d\d:\d\d UTC, .*ago$"))
        assert "UTC" in (plot.get_attribute("aria-valuetext") or "")
        tab.page.locator("figure.chart details.more > summary").first.click()
        cells = tab.page.locator("figure.chart details.more tbody th").all_inner_texts()
        assert re.fullmatch(r"\d\d:\d\d:\d\d UTC, now", cells[0])
