"""Policies of a real nsqd: the file and its reload, GET and PUT, roles, kills, wrong input."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.wire import commands
from tests.support.daemon import RESPONSE, Nsqd, Reply
from tests.support.waits import eventually

RULES = '[[policy]]\ntopic = "orders*"\nretain = "1h"\nmax_attempts = 5\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policies.toml"
    path.write_text(RULES)
    return path


@pytest.fixture
def nsqd(tmp_path: Path, file: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "nsqd", f"--policy-file={file}") as daemon:
        for topic in ("orders", "billing", "t%23ephemeral"):
            assert daemon.post(f"/topic/create?topic={topic}").status == 200
        assert daemon.post("/channel/create?topic=orders&channel=email").status == 200
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def put(nsqd: Nsqd, place: str, body: object) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return nsqd.http("PUT", f"/policy?{place}", data)


def policy(nsqd: Nsqd, place: str) -> dict[str, Any]:
    reply = nsqd.get(f"/policy?{place}")
    assert reply.status == 200, reply.text
    return dict(reply.json["policy"])


def stats(nsqd: Nsqd, query: str = "") -> dict[str, Any]:
    found = nsqd.get(f"/stats?format=json{query}").json
    return {topic["topic_name"]: topic for topic in found["topics"]} | {"": found}


def test_the_file_is_read_at_start_and_at_sighup(nsqd: Nsqd, file: Path) -> None:
    assert policy(nsqd, "topic=orders")["retain"] == {
        "value": "1h",
        "origin": f"file: {file}:3",
    }
    email = policy(nsqd, "topic=orders&channel=email")
    assert email["max_attempts"] == {"value": 5, "origin": f"file: {file}:4"}
    assert "retain" not in email
    file.write_text(RULES.replace("5", "7"))
    nsqd.signal(signal.SIGHUP)
    eventually(lambda: policy(nsqd, "topic=orders&channel=email")["max_attempts"]["value"] == 7)
    file.write_text(RULES.replace("5", "many"))
    nsqd.signal(signal.SIGHUP)
    nsqd.wait_for_log(r"policies stay as they were: --policy-file .*: Invalid")
    file.write_text(RULES.replace("5", '"many"'))
    nsqd.signal(signal.SIGHUP)
    nsqd.wait_for_log(r"policies stay as they were: .*: line 4: max_attempts must be an integer")
    assert policy(nsqd, "topic=orders&channel=email")["max_attempts"]["value"] == 7
    told = stats(nsqd, "&policies=true")[""]["policy_file"]
    assert (told["rules"], told["refused_count"]) == (1, 2) and "line 4" in told["error"]
    assert nsqd.metric("penstock_policy_file_refusals_total") == 2


def test_a_wrong_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[[policy]]\nretain = "soon"\n')
    (tmp_path / "data").mkdir()
    nsqd = Nsqd(tmp_path / "data", f"--policy-file={path}")
    done = subprocess.run(
        [*nsqd.command(), *nsqd.options], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert f"--policy-file {path}: line 2: retain must be a duration" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_was_answered_survives_a_kill(nsqd: Nsqd) -> None:
    for n in range(5):
        assert put(nsqd, "topic=orders", {"retain": f"{n + 1}d"}).status == 200
        assert put(nsqd, "topic=orders&channel=email", {"max_attempts": n + 1}).status == 200
        nsqd.kill()
        nsqd.start()
        days = policy(nsqd, "topic=orders")["retain"]["value"]
        assert days == ("24h" if n == 0 else f"{n + 1}d")
        shown = policy(nsqd, "topic=orders&channel=email")["max_attempts"]
        assert shown == {"value": n + 1, "origin": "set"}
    reply = put(nsqd, "topic=orders", {"retain": None})
    assert reply.json["policy"]["retain"]["value"] == "1h"
    nsqd.restart()
    assert policy(nsqd, "topic=orders")["retain"]["value"] == "1h"


def test_stats_have_a_policy_only_where_there_is_one(nsqd: Nsqd) -> None:
    found = stats(nsqd)
    assert found["orders"]["policy"] == {"retain": "1h"}
    assert found["orders"]["channels"][0]["policy"] == {"max_attempts": 5}
    assert "policy" not in found["billing"] and "policy_file" not in found[""]
    assert stats(nsqd, "&policies=true")["billing"]["policy"] == {}
    assert put(nsqd, "topic=billing", {"max_messages": 0}).status == 200
    assert stats(nsqd)["billing"]["policy"] == {"max_messages": 0}
    assert nsqd.get("/stats").status == 200


@pytest.mark.parametrize(
    ("place", "status", "code"),
    [
        ("", 400, "MISSING_ARG_TOPIC"),
        ("topic=a%20b", 400, "INVALID_ARG_TOPIC"),
        ("topic=none", 404, "TOPIC_NOT_FOUND"),
        ("topic=orders&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("topic=orders&channel=", 400, "INVALID_ARG_CHANNEL"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(
    nsqd: Nsqd, place: str, status: int, code: str
) -> None:
    for reply in (put(nsqd, place, {}), nsqd.get(f"/policy?{place}")):
        assert (reply.status, reply.json["message"]) == (status, code)


BODIES = [
    (b"", 400, "INVALID_BODY"),
    (b"[]", 400, "INVALID_BODY"),
    (b"null", 400, "INVALID_BODY"),
    (b"{", 400, "INVALID_BODY"),
    (b"\xff\xfe", 400, "INVALID_BODY"),
    (b'{"retain":NaN}', 400, "INVALID_BODY"),
    (b'{"retain":"1h","retain":"2h"}', 400, "INVALID_BODY"),
    (b'{"max_messages":' + b"9" * 5000 + b"}", 400, "INVALID_BODY"),
    (b'{"max_messages":' + b"9" * 4000 + b"}", 400, "INVALID_VALUE"),
    (b'{"max_messages":1e99}', 400, "INVALID_VALUE"),
    (b'{"max_messages":' + b"[" * 8000 + b"]" * 8000 + b"}", 400, "INVALID_BODY"),
    (b'{"max_messages":' + b'{"a":' * 900 + b"1" + b"}" * 901, 400, "INVALID_VALUE"),
    (b'{"retain":"1\\ud800h"}', 400, "INVALID_VALUE"),
    (b'{"\\ud800":1}', 400, "INVALID_KEY"),
    (b'{"retain":"' + b"1h" * 7000 + b'"}', 400, "INVALID_VALUE"),
    (b'{"' + b"k" * 15000 + b'":1}', 400, "INVALID_KEY"),
    (b"{" + b",".join(b'"k%d":1' % n for n in range(1500)) + b"}", 400, "INVALID_KEY"),
    (b'{"max_attempts":5}', 400, "INVALID_KEY"),
    (b'{"retain":"1h","overflow":"no"}', 400, "INVALID_VALUE"),
    (b" " * 17_000, 413, "BODY_TOO_BIG"),
]


@pytest.mark.parametrize(("body", "status", "code"), BODIES, ids=range(len(BODIES)))
def test_a_hostile_body_is_refused_and_changes_nothing(
    nsqd: Nsqd, body: bytes, status: int, code: str
) -> None:
    before = policy(nsqd, "topic=billing")
    reply = put(nsqd, "topic=billing", body)
    assert (reply.status, reply.json["message"]) == (status, code), reply.text
    assert len(reply.body) < 2000
    assert policy(nsqd, "topic=billing") == before


def test_conflicts_are_409(nsqd: Nsqd) -> None:
    nsqd.post("/channel/create?topic=orders&channel=e%23ephemeral")
    nsqd.post("/channel/pull?topic=orders&channel=spark")
    for place, body, code in (
        ("topic=t%23ephemeral", {"retain": "1h"}, "EPHEMERAL_TOPIC"),
        ("topic=orders&channel=e%23ephemeral", {"on_expired": "bury"}, "EPHEMERAL_CHANNEL"),
        ("topic=orders&channel=e%23ephemeral", {"max_attempts": 5}, "EPHEMERAL_CHANNEL"),
        ("topic=orders&channel=spark", {"max_attempts": 1}, "PULL_CHANNEL"),
    ):
        reply = put(nsqd, place, body)
        assert (reply.status, reply.json["message"]) == (409, code), reply.text
        assert reply.json["key"] in body
    assert put(nsqd, "topic=t%23ephemeral", {"max_messages": 10}).status == 200


def test_reading_a_policy_needs_the_role_read_and_setting_it_admin(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    roles = ("publish", "read", "metrics", "admin")
    tokens.write_text("".join(f"{role} {role}-token-0\n" for role in roles))
    allowed = {"publish": (403, 403), "read": (200, 403), "metrics": (403, 403)}
    with Nsqd(tmp_path / "nsqd", f"--http-auth-token-file={tokens}") as nsqd:

        def call(role: str, method: str, target: str) -> int:
            headers = {"Authorization": f"Bearer {role}-token-0"}
            return nsqd.http(method, target, b"{}", headers=headers).status

        assert call("admin", "POST", "/topic/create?topic=orders") == 200
        for role in roles:
            got = call(role, "GET", "/policy?topic=orders")
            put = call(role, "PUT", "/policy?topic=orders")
            assert (got, put) == allowed.get(role, (200, 200)), role


def test_ten_thousand_rules_do_not_hold_the_loop(nsqd: Nsqd, file: Path) -> None:
    for n in range(200):
        nsqd.post(f"/topic/create?topic=many{n}")
        nsqd.post(f"/channel/create?topic=many{n}&channel=c")
    rules = [f'[[policy]]\ntopic = "*{n % 10}*{n // 10}*"\nretain = "{n}s"\n' for n in range(9_998)]
    last = '[[policy]]\ntopic = "*"\nmax_messages = 77\n[[policy]]\nchannel="*"\nmax_attempts=1\n'
    file.write_text("".join(rules) + last)
    with nsqd.connect() as raw:
        nsqd.signal(signal.SIGHUP)

        def applied() -> bool:
            assert raw.command(commands.pub("other", b"x")) == (RESPONSE, b"OK")
            return "10000 policy rules" in nsqd.log

        eventually(applied)
        eventually(lambda: policy(nsqd, "topic=many199")["max_messages"]["value"] == 77)
    # None of the loop's turns took long: parsing runs beside it, and applying in slices.
    assert nsqd.post("/topic/create?topic=late").status == 200
    assert policy(nsqd, "topic=late")["max_messages"]["value"] == 77
    nsqd.post("/channel/create?topic=late&channel=c")
    assert policy(nsqd, "topic=late&channel=c")["max_attempts"]["value"] == 1


def test_an_idle_channel_lapses(nsqd: Nsqd) -> None:
    nsqd.post("/channel/create?topic=billing&channel=idle")
    nsqd.post("/channel/create?topic=billing&channel=busy")
    with nsqd.connect() as raw:
        raw.subscribe("billing", "busy")
        for name in ("idle", "busy"):
            assert (
                put(nsqd, f"topic=billing&channel={name}", {"channel_lapse": "1ms"}).status == 200
            )
        nsqd.wait_for_log("topic=billing channel=idle: lapsed after")
        assert nsqd.metric("penstock_channel_lapses_total") == 1
        names = [c["channel_name"] for c in stats(nsqd)["billing"]["channels"]]
        assert names == ["busy"]
    nsqd.wait_for_log("topic=billing channel=busy: lapsed after")
    nsqd.restart()
    assert stats(nsqd)["billing"]["channels"] == []
