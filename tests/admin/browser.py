"""A real browser for the tests: Chromium, driven by Playwright.

    tab = browser.tab(cluster.admin.url)       # a window of its own, nothing kept from others
    tab.open("/topics")
    tab.click("Pause…")

Rule 1: whatever a page writes to the console, every script error, every violation of the content
        policy and every request to somebody else is remembered, and fails the test at its end.
Rule 2: every wait is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser as PlaywrightBrowser
from playwright.sync_api import Page, Response, expect, sync_playwright

from tests.admin import chromium

REPOSITORY = Path(__file__).parents[2]
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
WAIT_MS_MAX = 10_000
WIDE = {"width": 1440, "height": 900}
NARROW = {"width": 375, "height": 700}

expect.set_options(timeout=WAIT_MS_MAX)

_WATCH_POLICY = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
});
"""


class Tab:
    """One window, and what went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(WAIT_MS_MAX)
        page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.add_init_script(_WATCH_POLICY)

    def open(self, path: str = "/") -> Response:
        response = self.page.goto(self.url + path)
        assert response is not None
        return response

    def updated(self) -> None:
        """Wait until the page has asked for itself, got a newer one, and shows it."""
        with self.page.expect_response(
            lambda answer: answer.request.resource_type == "fetch" and answer.status == 200
        ):
            pass
        self.page.wait_for_timeout(100)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def rows(self, table: str, count_max: int = 1000) -> list[list[str]]:
        """The cells of a table's body, as they are read; of rows out of view, as they are written.

        The browser has not laid out the latter, and has no other text of them.
        """
        rows: list[list[str]] = self.page.locator(f"#{table} tbody").evaluate(
            "(body, count) => [...body.rows].filter(row => !row.hidden).slice(0, count).map("
            "row => [...row.cells].map(cell => (cell.innerText || cell.textContent).trim()))",
            count_max,
        )
        return rows

    def headings(self, table: str) -> list[str]:
        return [text.strip() for text in self.page.locator(f"#{table} thead th").all_inner_texts()]

    def table(self, table: str) -> dict[str, dict[str, str]]:
        """The rows of a table by their first cell, each by its column's heading."""
        names = self.headings(table)
        return {row[0]: dict(zip(names, row, strict=False)) for row in self.rows(table)}

    def tiles(self) -> dict[str, str]:
        names = self.page.locator("#totals dt").all_inner_texts()
        values = self.page.locator("#totals dd").all_inner_texts()
        return dict(zip(names, values, strict=True))

    def click(self, name: str) -> None:
        """Click on the one button, summary or link that says so."""
        self.page.locator("button, summary, a.button").get_by_text(name, exact=True).click()

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def check(self) -> None:
        """Nothing went wrong, and nobody else was asked."""
        assert self.wrong == [], self.wrong
        foreign = [
            url for url in self.requests if not url.startswith((self.url, "data:", "about:"))
        ]
        assert foreign == [], foreign


class Browser:
    """One Chromium for all tests; each tab is a context of its own."""

    def __init__(self, browser: PlaywrightBrowser) -> None:
        self._browser = browser

    @contextmanager
    def tab(self, url: str, **context: Any) -> Iterator[Tab]:
        """A window; what went wrong in it fails the test."""
        window = self._browser.new_context(**{"viewport": WIDE, **context})
        try:
            tab = Tab(window.new_page(), url)
            yield tab
            tab.check()
        finally:
            window.close()


@contextmanager
def launched() -> Iterator[Browser]:
    """A running browser.  Without its sandbox, which root may not have; pages are ours alone."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.install(),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        try:
            yield Browser(browser)
        finally:
            browser.close()
