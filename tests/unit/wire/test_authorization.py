"""Replies of auth servers: what they allow, and which are invalid."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from penstock.errors import AuthError
from penstock.wire.authorization import TTL_S_MAX, read_reply
from tests.support.auth_server import entry, reply


def read(value: Any) -> Any:
    return read_reply(json.dumps(value).encode())


def test_a_reply_is_read() -> None:
    granted = read(reply(entry("^ok"), entry("x"), ttl=60))
    assert (granted.ttl_s, granted.identity) == (60, "bob")
    assert granted.identity_url == "http://x/bob"
    assert len(granted.entries) == 2


@pytest.mark.parametrize(
    ("given", "topic", "channel", "allowed"),
    [
        (entry("^ok.*$"), "ok1", "", True),
        (entry("^ok.*$"), "not-ok", "", False),
        (entry("ok"), "not-ok", "", True),
        (entry("", ("",)), "anything", "c", True),
        (entry("ok", ("^c$",)), "ok", "c", True),
        (entry("ok", ("^c$",)), "ok", "cc", False),
        (entry("ok", ("^c$", "^d")), "ok", "dd", True),
        (entry("ok", ("^c$",)), "ok", "", False),
        (entry("ok", ()), "ok", "", False),
        (entry("ok", ()), "ok", "c", False),
        (entry("ok", (".*",), ("publish",)), "ok", "c", False),
        (entry("ok", (".*",), ("publish",)), "ok", "", True),
        (entry("ok", (".*",), ("subscribe",)), "ok", "", False),
        (entry("ok", (".*",), ()), "ok", "", False),
        # RE2's, not Python's: \z ends the text, \pL is a letter.
        (entry(r"^ok\z"), "ok", "", True),
        (entry(r"^\pL+$"), "letters", "", True),
    ],
)
def test_an_entry_allows(given: Any, topic: str, channel: str, allowed: bool) -> None:
    assert read(reply(given)).allows(topic, channel) is allowed
    assert read(reply(entry("^never$"), given)).allows(topic, channel) is allowed


def test_keys_match_as_in_go() -> None:
    granted = read(
        {
            "TTL": 5,
            "Identity": None,
            "unknown": [1, {"x": 2}],
            "Authorizations": [{"Topic": "t", "CHANNELS": [".*"], "Permissions": ["publish"]}],
        }
    )
    assert granted.allows("t")
    assert granted.identity == ""


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "text",
        {},
        reply(ttl=0),
        reply(ttl=-1),
        {"ttl": 1.5},
        {"ttl": "60"},
        {"ttl": 60, "authorizations": {}},
        {"ttl": 60, "authorizations": ["x"]},
        {"ttl": 60, "identity": 5},
        reply(entry(permissions=("publish", "delete"))),
        reply(entry("(")),
        reply(entry(".*", ("*",))),
        reply(entry(r"(?=ahead)")),
        reply(entry(), {"topic": 5, "channels": [], "permissions": []}),
        reply({"topic": "t", "channels": "c", "permissions": []}),
        reply({"topic": "t", "channels": [5], "permissions": []}),
    ],
)
def test_one_wrong_thing_makes_a_reply_invalid(value: Any) -> None:
    with pytest.raises(AuthError):
        read(value)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"{} x", b"[" * 100_000])
def test_what_is_no_json_is_invalid(body: bytes) -> None:
    with pytest.raises(AuthError):
        read_reply(body)


def test_no_entries_is_a_valid_reply_that_allows_nothing() -> None:
    granted = read({"ttl": 1, "authorizations": None})
    assert granted.entries == ()
    assert not granted.allows("t")


def test_a_long_life_is_bounded() -> None:
    assert read(reply(ttl=2**62)).ttl_s == TTL_S_MAX


def test_no_pattern_takes_long(capfd: pytest.CaptureFixture[str]) -> None:
    granted = read(reply(entry(r"^(a+)+$", (r"(x+x+)+y",))))
    began_s = time.monotonic()
    assert not granted.allows("a" * 63 + "b", "x" * 64)
    assert time.monotonic() - began_s < 0.5
    with pytest.raises(AuthError):
        read(reply(entry("(")))
    # The library would say so on standard error too.
    assert capfd.readouterr().err == ""
