"""Patterns of readers (R47) on the page Pipelines: listed once over all nodes, deletable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.admin.browser import Browser
from tests.admin.cluster import Nsqadmin
from tests.support.daemon import Nsqd
from tests.support.waits import wait_for

JSON = {"Content-Type": "application/json"}
ANN = {"X-Forwarded-User": "ann"}
ONE, TWO = "1" * 32, "2" * 32


def leave(nsqd: Nsqd, channel: str, identity: str = ONE, **more: Any) -> None:
    body = {"channel": channel, "identity": identity, "topics": ["orders.*", "x"], **more}
    assert nsqd.post("/channel/pattern", json.dumps(body).encode()).status == 200


def patterns(admin: Nsqadmin) -> dict[str, Any]:
    return {row["channel"]: row for row in admin.view("/pipelines")["patterns"]}


def test_patterns_are_listed_and_deleted_by_an_admin(browser: Browser, tmp_path: Path) -> None:
    place = "--broadcast-address=127.0.0.1"
    with (
        Nsqd(tmp_path / "one", place) as first,
        Nsqd(tmp_path / "two", place) as second,
        Nsqadmin(
            f"--nsqd-http-address=127.0.0.1:{first.http_port}",
            f"--nsqd-http-address=127.0.0.1:{second.http_port}",
            "--admin-user=ann",
        ) as admin,
    ):
        assert patterns(admin) == {}
        for nsqd in (first, second):
            leave(nsqd, "archive", reader="archive on host7", **{"except": ["orders.retry"]})
        leave(second, "billing", TWO, reader="<b>hostile</b>")
        found = wait_for(lambda: patterns(admin), lambda rows: len(rows) == 2)
        nodes = [f"127.0.0.1:{nsqd.http_port}" for nsqd in (first, second)]
        assert sorted(found["archive"]["nodes"]) == sorted(nodes)
        assert found["archive"]["topics"] == ["orders.*", "x"]
        assert found["archive"]["except"] == ["orders.retry"]
        assert found["billing"]["nodes"] == [nodes[1]]
        with browser.tab(admin.url) as tab:
            tab.open("/pipelines")
            expect(tab.page.locator("#patterns tbody tr")).to_have_count(2)
            for text in ("archive on host7", "orders.*, x", "without orders.retry", ONE):
                expect(tab.page.locator("#patterns")).to_contain_text(text)
            expect(tab.page.locator("#patterns")).to_contain_text("<b>hostile</b>")
            assert tab.page.locator("#patterns form").count() == 0, "only admins delete them"
            tab.screenshot("pipelines-patterns-light")
        body = json.dumps({"action": "forget", "channel": "archive", "confirm": "archive"})
        assert admin.http("POST", "/api/action", body.encode(), JSON).status == 403
        with browser.tab(admin.url, extra_http_headers=ANN) as tab:
            tab.open("/pipelines")
            row = tab.page.locator("#patterns tbody tr").first
            row.locator("summary").click()
            row.get_by_label("Type archive to confirm").fill("archive")
            row.get_by_role("button", name="Delete").click()
            expect(tab.page.locator(".outcome")).to_contain_text(
                "Deleted the pattern of channel archive on 2 daemons"
            )
            expect(tab.page.locator("#patterns tbody tr")).to_have_count(1)
        assert first.get("/channel/patterns").json["patterns"] == []
        assert "pattern=archive: forget by ann" in admin.log
        refused = {
            "CONFIRM_NAME": {"channel": "billing"},
            "INVALID_CHANNEL": {"channel": ""},
            "PATTERN_NOT_FOUND": {"channel": "nothing", "confirm": "nothing"},
        }
        for code, fields in refused.items():
            body = json.dumps({"action": "forget", **fields})
            reply = admin.http("POST", "/api/action", body.encode(), JSON | ANN)
            assert reply.json["message"] == code
        body = json.dumps({"action": "forget", "channel": "billing", "confirm": "billing"})
        assert admin.http("POST", "/api/action", body.encode(), JSON | ANN).status == 200
        wait_for(lambda: patterns(admin), lambda rows: not rows)
