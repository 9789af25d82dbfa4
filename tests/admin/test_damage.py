"""Damage that a real nsqd found: on the overview and on its page, until an admin clears it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.admin.browser import Browser
from tests.admin.cluster import Nsqadmin
from tests.support.daemon import Nsqd
from tests.support.waits import wait_for


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def damaged(folder: Path) -> Nsqd:
    """A nsqd that found one bit of a topic's journal flipped when it started."""
    nsqd = Nsqd(folder, "--broadcast-address=127.0.0.1").start()
    nsqd.post("/topic/create?topic=hurt")
    nsqd.post("/channel/create?topic=hurt&channel=c")
    for number in range(50):
        nsqd.post("/pub?topic=hurt", b"%d" % number + b"x" * 100)
    assert nsqd.terminate() == 0
    [journal] = folder.rglob("journal")
    flip(journal)
    nsqd.start()
    wait_for(lambda: nsqd.stats().get("damage"), lambda damage: damage)
    return nsqd


def test_damage_is_shown_with_its_records_and_cleared_by_an_admin(
    browser: Browser, tmp_path: Path
) -> None:
    nsqd = damaged(tmp_path / "hurt")
    try:
        with (
            Nsqd(tmp_path / "well", "--broadcast-address=127.0.0.1") as well,
            Nsqadmin(
                f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}",
                f"--nsqd-http-address=127.0.0.1:{well.http_port}",
                "--admin-user=ann",
            ) as admin,
        ):
            shown_and_cleared(browser, nsqd, well, admin)
    finally:
        nsqd.terminate()


def shown_and_cleared(browser: Browser, nsqd: Nsqd, well: Nsqd, admin: Nsqadmin) -> None:
    node = f"127.0.0.1:{nsqd.http_port}"
    [record] = nsqd.get("/damage").json["records"]
    rows = {row["node"]: row for row in admin.view("/nodes")["nodes"]}
    assert rows[node]["damage"]["records"] == 1
    assert rows[node]["damage"]["kinds"] == {record["kind"]: 1}
    assert rows[node]["state"] == "ok", "it works"
    assert rows[f"127.0.0.1:{well.http_port}"]["damage"] is None
    with browser.tab(admin.url) as tab:
        tab.open("/")
        expect(tab.page.locator("#damage")).to_contain_text("damaged or missing on 1 node")
        expect(tab.page.locator("#damage li")).to_contain_text(node)
        expect(tab.page.locator("#nodes .badge.warn")).to_have_text("damage")
        tab.screenshot("overview-damage-light")
        tab.page.locator("#damage a").click()
        expect(tab.page.locator("#records tbody tr")).to_have_count(1)
        for text in (record["kind"], record["topic"], record["text"]):
            expect(tab.page.locator("#records")).to_contain_text(text)
        assert tab.page.locator("#damage form").count() == 0, "only admins clear it"
        tab.screenshot("node-damage-light")
    body = b'{"action":"clear","node":"' + node.encode() + b'"}'
    headers = {"Content-Type": "application/json"}
    assert admin.http("POST", "/api/action", body, headers).status == 403
    with browser.tab(admin.url, extra_http_headers={"X-Forwarded-User": "ann"}) as tab:
        tab.open(f"/nodes/{node}")
        tab.page.get_by_role("button", name="Clear these records").click()
        expect(tab.page.locator(".outcome")).to_contain_text(
            f"Cleared the damage records on {node}"
        )
        expect(tab.page.locator("#damage")).to_have_count(0)
        tab.open("/")
        expect(tab.page.locator("#damage")).to_have_count(0)
    assert nsqd.get("/damage").json["records"] == []
    assert "clear on" in admin.log and "by ann" in admin.log
    reply = admin.http("POST", "/api/action", b'{"action":"clear"}', headers | ANN)
    assert (reply.status, reply.json) == (400, {"message": "INVALID_NODE"})
    body = b'{"action":"clear","node":"127.0.0.1:9"}'
    reply = admin.http("POST", "/api/action", body, headers | ANN)
    assert (reply.status, reply.json) == (404, {"message": "NODE_NOT_FOUND"})


ANN = {"X-Forwarded-User": "ann"}
