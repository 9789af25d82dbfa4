"""A node is drained from its page: started, watched, cancelled, and ended."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.admin.browser import Browser
from tests.admin.cluster import Nsqadmin
from tests.support.daemon import Nsqd
from tests.support.waits import wait_for

HOUR_MS = 3_600_000
ANN = {"X-Forwarded-User": "ann"}


def test_a_node_is_drained_from_its_page(browser: Browser, tmp_path: Path) -> None:
    with (
        Nsqd(tmp_path / "a", "--broadcast-address=127.0.0.1") as nsqd,
        Nsqd(tmp_path / "b", "--broadcast-address=127.0.0.1") as other,
        Nsqadmin(
            f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}",
            f"--nsqd-http-address=127.0.0.1:{other.http_port}",
            "--admin-user=ann",
        ) as admin,
    ):
        node, to = (f"127.0.0.1:{each.http_port}" for each in (nsqd, other))
        assert nsqd.post("/topic/create?topic=orders").status == 200
        assert nsqd.post("/channel/create?topic=orders&channel=email").status == 200
        for target in ("/pub?topic=orders", f"/pub?topic=orders&defer={HOUR_MS}"):
            assert nsqd.post(target, b"body").status == 200
        wait_for(lambda: len(admin.view("/nodes")["nodes"]), 2)
        with browser.tab(admin.url, extra_http_headers=ANN) as tab:
            page = tab.page
            tab.open(f"/nodes/{node}")
            expect(page.locator("#drain")).to_have_count(0)
            page.locator("#drain-ask summary").click()
            page.locator("#drain-to").select_option(to)
            page.locator("#drain-confirm").fill("another")
            page.locator("#drain-ask").get_by_role("button", name="Drain").click()
            expect(page.locator("main")).to_contain_text(f"the name typed is not {node}")
            assert nsqd.get("/drain").json == {"state": "off"}
            tab.open(f"/nodes/{node}")
            page.locator("#drain-ask summary").click()
            page.locator("#drain-to").select_option(to)
            page.locator("#drain-confirm").fill(node)
            page.locator("#drain-ask").get_by_role("button", name="Drain").click()
            expect(page.locator(".outcome")).to_contain_text(f"Draining the node on {node}")
            expect(page.locator("#drain")).to_contain_text("1 message left in 1 topic")
            expect(page.locator("#drain")).to_contain_text("1 deferred messages were handed over")
            expect(page.locator("#blocked tbody tr")).to_have_count(1)
            expect(page.locator("#blocked")).to_contain_text("the channel has no consumers")
            expect(page.locator("h1 + .badge + .badge")).to_have_text("draining")
            expect(page.locator("#drain")).not_to_contain_text("is due by")
            tab.screenshot("node-drain-light")
            tab.open("/nodes")
            expect(page.locator("tbody .badge.warn").first).to_have_text("draining")
            tab.open(f"/nodes/{node}")
            page.get_by_role("button", name="Cancel the drain").click()
            expect(page.locator(".outcome")).to_contain_text(f"the drain of the node on {node}")
            expect(page.locator("#drain")).to_have_count(0)
            assert nsqd.post("/pub?topic=orders", b"again").status == 200
            refused(admin, node)
            body = {"action": "drain", "node": node, "confirm": node}
            assert tab.page.request.post(f"{admin.url}/api/action", data=body).ok
            with nsqd.connect() as consumer:
                consumer.subscribe("orders", "email")
                for _ in range(2):
                    consumer.send(b"FIN " + consumer.receive().id + b"\n")
                assert nsqd.wait(30) == 0, nsqd.log
            tab.open(f"/nodes/{node}")
            expect(page.locator("h1 + .badge")).to_have_text("no response")
        assert "node: drain on " in admin.log and "by ann" in admin.log
        assert other.stats()["topics"][0]["deferred_count"] == 1


def refused(admin: Nsqadmin, node: str) -> None:
    """What is no admin's, or wrong, changes nothing."""
    json = {"Content-Type": "application/json"}
    sent = b'{"action":"drain","node":"%s","confirm":"%s"}' % (node.encode(), node.encode())
    assert admin.http("POST", "/api/action", sent, json).status == 403
    for body, status, message in (
        (b'{"action":"drain"}', 400, "INVALID_NODE"),
        (b'{"action":"undrain"}', 400, "INVALID_NODE"),
        (b'{"action":"drain","node":"%s"}' % node.encode(), 400, "CONFIRM_NAME"),
        (b'{"action":"drain","node":"h:1","confirm":"h:1"}', 404, "NODE_NOT_FOUND"),
        (sent[:-1] + b',"to":"evil:1"}', 404, "NODE_NOT_FOUND"),
    ):
        reply = admin.http("POST", "/api/action", body, json | ANN)
        assert (reply.status, reply.json) == (status, {"message": message}), body
