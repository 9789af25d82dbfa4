"""Using the pages: by keyboard, on a telephone, without scripts, while they update."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.admin.browser import NARROW, Browser, Tab
from tests.admin.cluster import Cluster
from tests.support.waits import wait_for

NAMES = ("alpha", "beta", "gamma", "delta")


@pytest.fixture(scope="module")
def used(cluster: Cluster) -> Cluster:
    for count, name in enumerate(NAMES):
        cluster.create(f"use.{name}", "all", on=(0,))
        for _ in range(count):
            cluster.publish(f"use.{name}", b"x")
    cluster.settled()
    return cluster


@pytest.fixture
def tab(browser: Browser, used: Cluster) -> Iterator[Tab]:
    with browser.tab(used.admin.url) as tab:
        yield tab


def order(tab: Tab) -> list[str]:
    """The topics of this module, in the order shown."""
    return [row[0].removeprefix("use.") for row in tab.rows("topics") if row[0].startswith("use.")]


def focused(tab: Tab) -> str:
    return str(tab.page.evaluate("document.activeElement.textContent.trim()"))


def test_sorting_by_keyboard_outlasts_updates(tab: Tab, used: Cluster) -> None:
    tab.open("/topics")
    assert order(tab) == ["alpha", "beta", "delta", "gamma"]
    heading = tab.page.locator("#topics thead th").nth(1)
    heading.locator("button").focus()
    tab.page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert order(tab) == ["delta", "gamma", "beta", "alpha"]
    used.publish("use.alpha", b"x" * 3)
    for _ in range(9):
        used.publish("use.alpha", b"x")
    expect(tab.page.locator("tr[data-key='use.alpha'] td").first).to_have_text("10")
    assert order(tab) == ["alpha", "delta", "gamma", "beta"]
    assert focused(tab) == "Depth"
    tab.page.keyboard.press("Enter")
    assert order(tab) == ["beta", "gamma", "delta", "alpha"]
    tab.page.reload()
    assert order(tab) == ["beta", "gamma", "delta", "alpha"]


def test_filtering_hides_rows_and_keeps_the_cursor_where_it_is(tab: Tab, used: Cluster) -> None:
    tab.open("/topics")
    field = tab.page.get_by_label("Filter topics by name")
    field.press_sequentially("USE ta")
    assert order(tab) == ["beta", "delta"]
    expect(tab.page.locator("output[data-filtered]")).to_contain_text("2 of")
    tab.updated()
    assert order(tab) == ["beta", "delta"]
    assert tab.page.evaluate("document.activeElement.id") == "filter"
    field.press_sequentially("x")
    assert order(tab) == []
    field.fill("")
    assert len(order(tab)) == 4
    tab.open("/topics?q=use.gam")
    assert order(tab) == ["gamma"]
    field.fill("")
    expect(tab.page.locator("tr[data-key='use.beta']")).to_be_visible()


def test_an_update_leaves_panels_typing_scroll_and_focus_alone(tab: Tab, used: Cluster) -> None:
    tab.page.set_viewport_size({"width": 1000, "height": 300})
    tab.open("/topics/use.delta")
    tab.page.locator("details#empty > summary").click()
    field = tab.page.locator("#empty-confirm")
    expect(field).to_be_focused()
    field.press_sequentially("use.d")
    tab.page.get_by_label("Message", exact=True).evaluate("field => { field.value = 'draft'; }")
    tab.page.evaluate("window.scrollTo(0, 40)")
    row = tab.page.locator("#channels tbody tr").element_handle()
    used.publish("use.delta", b"x")
    tab.updated()
    wait_for(lambda: tab.table("channels")["all"]["Depth"], lambda depth: depth == "4")
    assert tab.page.locator("details#empty").get_attribute("open") is not None
    expect(field).to_be_focused()
    assert field.input_value() == "use.d"
    assert tab.page.get_by_label("Message", exact=True).input_value() == "draft"
    assert tab.page.evaluate("window.scrollY") == 40
    # The same element, not another one that looks like it: nothing flickered.
    assert row is not None and row.evaluate("row => row.isConnected")
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("details#empty").get_attribute("open") is None
    assert focused(tab) == "Empty…"


def test_what_comes_and_goes_above_leaves_the_rest_alone(tab: Tab, used: Cluster) -> None:
    tab.open("/topics/use.gamma")
    tab.page.locator("details#pause > summary").click()
    tab.page.locator("details#pause form button").click()
    expect(tab.page.locator(".outcome")).to_contain_text("Paused")
    field = tab.page.get_by_label("Message", exact=True)
    field.press_sequentially("half a thou")
    form = tab.page.locator("#publish form").element_handle()
    for _ in range(2):
        tab.updated()
    assert form is not None and form.evaluate("form => form.isConnected")
    expect(tab.page.locator(".outcome")).to_contain_text("Paused")
    expect(field).to_be_focused()
    # Unpaused by somebody else: a label goes, a button changes its name.
    used.nsqds[0].post("/topic/unpause?topic=use.gamma")
    expect(tab.page.locator("details#pause")).to_have_count(1)
    expect(tab.page.locator(".head .badge")).to_have_count(0)
    assert field.input_value() == "half a thou"
    assert form.evaluate("form => form.isConnected")


def test_updates_can_be_paused(tab: Tab, used: Cluster) -> None:
    tab.open("/topics/use.beta")
    tab.page.locator("#live-pause").click()
    expect(tab.page.locator("#live")).to_contain_text("Paused")
    before = tab.text("#totals")
    used.publish("use.beta", b"x")
    used.settled()
    assert tab.text("#totals") == before
    tab.page.get_by_role("button", name="Resume").click()
    expect(tab.page.locator("#totals")).not_to_have_text(before)
    expect(tab.page.locator("#live")).to_have_text("Live")


def test_the_keyboard_reaches_everything(tab: Tab) -> None:
    tab.open("/topics/use.gamma")
    tab.page.keyboard.press("Tab")
    assert focused(tab) == "Skip to content"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "content"
    reached = []
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        outlined = tab.page.evaluate(
            "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
            " || document.activeElement === document.body"
        )
        assert outlined, focused(tab)
        reached.append(focused(tab))
    for name in ("Publish…", "Pause…", "Empty…", "Delete…", "Depth", "all", "Create"):
        assert name in reached, name


def test_a_chart_is_read_by_keyboard(tab: Tab) -> None:
    tab.open("/")
    plot = tab.page.locator("svg.plot").first
    expect(plot).to_have_attribute("role", "slider")
    plot.focus()
    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowLeft")
    expect(plot).to_have_attribute("aria-valuenow", "-2")
    told = plot.get_attribute("aria-valuetext")
    step_s = float(tab.page.locator("figure").first.get_attribute("data-step") or 0)
    assert told is not None and f" UTC, {2 * step_s:.0f} s ago, Published " in told
    expect(tab.page.locator("figure .when").first).to_contain_text(f"UTC, {2 * step_s:.0f} s ago")
    tab.page.keyboard.press("Home")
    tab.updated()
    expect(plot).to_be_focused()
    expect(tab.page.locator("figure .when").first).to_contain_text("ago")
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("figure .when").first).to_have_text("")
    dashes = (
        tab.page.locator("figure")
        .first.locator("path.trace")
        .evaluate_all("lines => lines.map(line => line.getAttribute('stroke-dasharray'))")
    )
    assert len(set(dashes)) == len(dashes) == 2


def test_light_and_dark_can_be_chosen(browser: Browser, used: Cluster) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    with browser.tab(used.admin.url, color_scheme="dark") as tab:
        tab.open("/")
        dark = tab.page.evaluate(colour)
        button = tab.page.get_by_role("button", name="Theme")
        button.click()
        assert button.get_attribute("aria-label") == "Theme: light"
        light = tab.page.evaluate(colour)
        assert light != dark
        tab.open("/topics")
        assert tab.page.evaluate(colour) == light
        button.click()
        assert tab.page.evaluate(colour) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: Browser, used: Cluster, scheme: str) -> None:
    """WCAG's 4.5 to 1, for the words of every kind on their ground."""
    with browser.tab(used.admin.url, color_scheme=scheme) as tab:
        tab.open("/topics/use.delta")
        for selector in (
            ".note",
            "td.zero",
            "thead th",
            ".button.danger",
            ".tile dt",
            ".nav a",
            "a",
        ):
            ratio = tab.page.locator(f"main {selector}, .bar {selector}").first.evaluate(CONTRAST)
            assert ratio >= 4.5, (selector, ratio)


CONTRAST = """element => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const ink = light(rgb(getComputedStyle(element).color));
  let ground = element;
  const clear = (e) => rgb(getComputedStyle(e).backgroundColor)[3] === 0;
  while (clear(ground)) ground = ground.parentElement;
  const paper = light(rgb(getComputedStyle(ground).backgroundColor));
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""


def test_nothing_needs_a_wide_screen(browser: Browser, used: Cluster) -> None:
    with browser.tab(used.admin.url, viewport=NARROW) as tab:
        for path in (
            "/",
            "/topics",
            "/topics/use.delta",
            "/topics/use.delta/all",
            "/nodes",
            "/lookup",
        ):
            tab.open(path)
            width = tab.page.evaluate("document.documentElement.scrollWidth")
            assert width <= NARROW["width"], path
        tab.open("/topics/use.delta")
        tab.page.locator("details#delete > summary").click()
        box = tab.page.locator("details#delete form").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= NARROW["width"]
        tab.screenshot("topic-narrow-light")


def test_without_scripts_pages_are_whole_and_forms_work(browser: Browser, used: Cluster) -> None:
    with browser.tab(used.admin.url, java_script_enabled=False) as tab:
        tab.open("/topics")
        tab.page.get_by_label("Filter topics by name").fill("use.de")
        tab.page.get_by_label("Filter topics by name").press("Enter")
        expect(tab.page.locator("#topics tbody tr")).to_have_count(1)
        tab.page.get_by_role("link", name="use.delta").click()
        expect(tab.page.locator("path.trace").nth(3)).to_be_attached()
        tab.page.locator("details#pause > summary").click()
        tab.page.locator("details#pause form button").click()
        expect(tab.page.locator(".outcome")).to_contain_text("Paused topic use.delta")
        expect(tab.page.locator(".head .badge")).to_have_text("paused")
        tab.page.locator("details#unpause > summary").click()
        tab.page.locator("details#unpause form button").click()
        expect(tab.page.locator(".outcome")).to_contain_text("Unpaused")


def test_a_topic_that_is_deleted_elsewhere_says_so_on_its_open_page(
    tab: Tab, used: Cluster
) -> None:
    used.create("use.short", on=(0,))
    used.settled()
    tab.open("/topics/use.short")
    used.nsqds[0].post("/topic/delete?topic=use.short")
    used.lookupd.post("/topic/delete?topic=use.short")
    expect(tab.page.locator("h1")).to_have_text("No such topic")
    tab.wrong = [text for text in tab.wrong if "404" not in text]
