"""2,000 topics on one page: it opens in under a second and updates without a jolt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.admin.browser import Browser, Tab
from tests.admin.cluster import Nsqadmin
from tests.support.daemon import Nsqd
from tests.support.waits import wait_for

TOPIC_COUNT = 2000
CHANNELS = ("archive", "email", "search")
# Other tests may run beside this one: the best of a few tries tells what the page costs.
TRIES = 5
OPEN_MS_MAX = 1000
# The longest that one update may keep the browser from answering the user.
BUSY_MS_MAX = 400

LOADED = """() => performance.getEntriesByType("navigation")[0].loadEventEnd"""
WATCH_BUSY = """() => {
  window.busy = [];
  const note = (list) => list.getEntries().forEach((entry) => window.busy.push(entry.duration));
  new PerformanceObserver(note).observe({ type: "longtask" });
}"""
# Where an element is on the screen, once the browser has laid out what is around it: rows out of
# view have a height that is guessed until then, and the browser scrolls so that none moves.
PLACE = """(element) => new Promise((done) => {
  const look = (last, same) => requestAnimationFrame(() => {
    const top = element.getBoundingClientRect().top;
    if (same === 5) done(top);
    else look(top, top === last ? same + 1 : 0);
  });
  look(NaN, 0);
})"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nsqd, Nsqadmin]]:
    folder = tmp_path_factory.mktemp("large")
    channels = [{"name": name, "paused": False} for name in CHANNELS]
    topics = [
        {"name": f"service.{number:04}", "paused": False, "channels": channels}
        for number in range(TOPIC_COUNT)
    ]
    Path(folder / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))
    with (
        Nsqd(folder, "--broadcast-address=127.0.0.1") as nsqd,
        Nsqadmin(f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}") as admin,
    ):
        wait_for(lambda: len(admin.view("/topics")["topics"]), lambda count: count == TOPIC_COUNT)
        yield nsqd, admin


def opened_ms(tab: Tab) -> float:
    tab.open("/topics")
    return float(wait_for(lambda: tab.page.evaluate(LOADED), lambda ms: ms > 0))


def test_2000_topics_open_in_under_a_second(browser: Browser, large: tuple[Nsqd, Nsqadmin]) -> None:
    with browser.tab(large[1].url) as tab:
        times = []
        while len(times) < TRIES and min(times, default=OPEN_MS_MAX) >= OPEN_MS_MAX:
            times.append(opened_ms(tab))
        assert min(times) < OPEN_MS_MAX, times
        assert tab.page.locator("#topics tbody tr").count() == TOPIC_COUNT


def test_2000_topics_are_updated_sorted_and_filtered_in_place(
    browser: Browser, large: tuple[Nsqd, Nsqadmin]
) -> None:
    nsqd, admin = large
    with browser.tab(admin.url) as tab:
        tab.open("/topics")
        last = tab.page.locator("tr[data-key='service.1999']")
        last.scroll_into_view_if_needed()
        assert tab.page.evaluate("window.scrollY") > 10_000
        row = last.element_handle()
        assert row is not None
        place = row.evaluate(PLACE)
        tab.page.evaluate(WATCH_BUSY)
        for _ in range(3):
            nsqd.post("/pub?topic=service.1999", b"x")
        expect(last.locator("td").first).to_have_text("3")
        assert row.evaluate("row => row.isConnected")
        assert row.evaluate(PLACE) == place
        assert min(tab.page.evaluate("window.busy"), default=0) < BUSY_MS_MAX
        tab.page.get_by_role("button", name="Depth").click()
        assert tab.rows("topics", 1)[0][:2] == ["service.1999", "3"]
        tab.page.get_by_label("Filter topics by name").fill("150")
        expect(tab.page.locator("output[data-filtered]")).to_have_text("12 of 2,000")
        assert [row[0] for row in tab.rows("topics", 2)] == ["service.0150", "service.1150"]


def test_a_node_with_2000_topics_shows_some_and_says_so(
    browser: Browser, large: tuple[Nsqd, Nsqadmin]
) -> None:
    nsqd, admin = large
    with browser.tab(admin.url) as tab:
        tab.open(f"/nodes/127.0.0.1:{nsqd.http_port}")
        assert tab.page.locator("#topics tr.group").count() == 200
        expect(tab.page.locator("main")).to_contain_text("1,800 not shown")
        tab.page.get_by_label("Filter topics by name").fill("1999")
        tab.page.get_by_role("button", name="Filter").click()
        expect(tab.page.locator("#topics tr.group")).to_have_count(1)
        tab.updated()
        expect(tab.page.locator("#topics tr.group")).to_have_count(1)
