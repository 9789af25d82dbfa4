"""Strangers: other sites, users without rights, and what they write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.admin.browser import Browser
from tests.admin.cluster import Cluster, Nsqadmin

HOSTILE = b'</pre><script>document.title="taken"</script><img src=x onerror=alert(1)>{{7*7}}'
ANN = {"X-Forwarded-User": "ann"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[Nsqadmin]:
    """Another nsqadmin before the same cluster, behind a path, on which only ann may act."""
    cluster.create("guarded", "all")
    cluster.publish("guarded", HOSTILE)
    with Nsqadmin(
        f"--lookupd-http-address={cluster.lookupd.http_address}",
        "--admin-user=ann",
        "--base-path=/nsq",
    ) as admin:
        yield admin


def paused(cluster: Cluster) -> list[bool]:
    return [part["paused"] for part in cluster.topics()["guarded"]]


def test_the_content_policy_allows_nothing_inline_and_nobody_else(cluster: Cluster) -> None:
    reply = cluster.admin.get("/")
    policy = dict(
        part.strip().split(" ", 1) for part in reply.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Referrer-Policy"] == "same-origin"
    assert not re.search(r"<style|style=|<script>|javascript:| on\w+=|https?://(?!127)", reply.text)


def test_a_post_from_another_site_is_refused(browser: Browser, cluster: Cluster) -> None:
    cluster.create("guarded", "all")
    fields = {"action": "pause", "topic": "guarded", "node": "", "token": "", "back": "/"}
    inputs = "".join(f'<input name="{name}" value="{text}">' for name, text in fields.items())
    target = f"{cluster.admin.url}/action"
    lure = f'<form method="post" action="{target}">{inputs}<button>win</button></form>'
    with browser.tab(cluster.admin.url) as tab:
        tab.page.context.route(
            "http://evil.example/", lambda route: route.fulfill(content_type="text/html", body=lure)
        )
        tab.page.goto("http://evil.example/")
        with tab.page.expect_navigation() as moved:
            tab.page.get_by_text("win").click()
        assert moved.value is not None and moved.value.status == 403
        expect(tab.page.locator("h1")).to_have_text("Not permitted")
        tab.requests.remove("http://evil.example/")
        tab.wrong = [text for text in tab.wrong if "403" not in text]
    assert not any(paused(cluster))
    assert "refused" in cluster.admin.log


def test_a_form_without_its_token_is_refused(cluster: Cluster) -> None:
    cluster.create("guarded", "all")
    for token in ("", "0" * 64):
        fields = {"action": "pause", "topic": "guarded", "token": token}
        reply = cluster.admin.http("POST", "/action", urlencode(fields).encode(), FORM)
        assert reply.status == 403
    assert not any(paused(cluster))


def test_nothing_is_done_by_looking(cluster: Cluster) -> None:
    reply = cluster.admin.get("/action?action=pause&topic=guarded")
    assert reply.status == 405


def token_of(admin: Nsqadmin, path: str, headers: dict[str, str]) -> str:
    page = admin.http("GET", path, headers=headers).text
    token = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert token is not None
    return token[1]


def test_a_redirect_leads_to_our_own_pages_only(cluster: Cluster) -> None:
    token = token_of(cluster.admin, "/topics", {})
    for back, led in (
        ("/topics", "/topics"),
        ("/topics?x=1", "/topics"),
        ("/topics?x=<>", "/"),
        ("//evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("/a\r\nSet-Cookie: x=y", "/"),
    ):
        fields = {"action": "pause", "topic": "no such name!", "token": token, "back": back}
        reply = cluster.admin.http("POST", "/action", urlencode(fields).encode(), FORM)
        assert reply.status == 303
        assert reply.headers["Location"].partition("?")[0] == led
        assert "Set-Cookie" not in reply.headers


def test_without_rights_there_are_no_buttons_and_no_actions(
    browser: Browser, cluster: Cluster, guarded: Nsqadmin
) -> None:
    with browser.tab(guarded.url + "/nsq") as tab:
        for path in ("/topics", "/topics/guarded", "/topics/guarded/all", "/lookup"):
            tab.open(path)
            assert tab.page.locator("form[method=post], details.ask").count() == 0, path
            expect(tab.page.locator("footer")).to_contain_text("may make changes")
        tab.open("/topics/guarded/all/peek")
        expect(tab.page.locator("main")).to_contain_text(
            "Only users named by --admin-user may read messages"
        )
        assert tab.page.locator("main form").count() == 0
    fields = {"action": "pause", "topic": "guarded"}
    body = urlencode(fields).encode()
    for user in ({}, {"X-Forwarded-User": "bob"}):
        reply = guarded.http("POST", "/nsq/action", body, {**FORM, **user})
        assert reply.status == 403
    assert not any(paused(cluster))


def test_a_token_is_its_users_own(cluster: Cluster, guarded: Nsqadmin) -> None:
    token = token_of(guarded, "/nsq/topics/guarded", ANN)
    body = urlencode({"action": "pause", "topic": "guarded", "token": token}).encode()
    reply = guarded.http("POST", "/nsq/action", body, {**FORM, "X-Forwarded-User": "bob"})
    assert reply.status == 403
    reply = guarded.http(
        "POST", "/nsq/action", body, {**FORM, **ANN, "Origin": "http://evil.example"}
    )
    assert reply.status == 403
    assert not any(paused(cluster))


def test_an_admin_behind_a_proxy_with_a_path_of_its_own(
    browser: Browser, cluster: Cluster, guarded: Nsqadmin
) -> None:
    with browser.tab(guarded.url, extra_http_headers=ANN) as tab:
        tab.open("/nsq")
        expect(tab.page.locator("footer")).to_contain_text("ann")
        tab.page.locator("nav").get_by_role("link", name="Topics", exact=True).click()
        tab.page.get_by_role("link", name="guarded").click()
        tab.page.locator("details#pause > summary").click()
        tab.page.locator("details#pause form button").click()
        expect(tab.page.locator(".outcome")).to_contain_text("Paused topic guarded")
        assert all(paused(cluster))
        # The page's script takes what was told out of its address, once it runs.
        expect(tab.page).to_have_url(f"{guarded.url}/nsq/topics/guarded")
        tab.page.locator("details#unpause > summary").click()
        tab.page.locator("details#unpause form button").click()
        expect(tab.page.locator(".outcome")).to_contain_text("Unpaused")
        tab.updated()
        assert {url.split("/")[3] for url in tab.requests} == {"nsq"}
        # A body is shown as it is, whatever it is.
        tab.open("/nsq/topics/guarded/all/peek")
        tab.click("Peek")
        expect(tab.page.locator("article.message pre")).to_have_text(HOSTILE.decode())
        assert "taken" not in tab.page.title()
    assert guarded.get("/topics").status == 404
