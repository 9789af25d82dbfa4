"""Notifications: nobody waits for them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.admin.notifications import QUEUE_COUNT_MAX, Notifier, basic_user
from penstock.admin.options import AdminOptions
from penstock.admin.upstream import Upstream
from penstock.net.http_message import Request


def test_a_slow_endpoint_loses_notices_but_holds_nobody() -> None:
    notifier = Notifier("http://127.0.0.1:9/", Upstream(AdminOptions()))
    request = Request("POST", "/api/topics/t", b"")
    for _ in range(QUEUE_COUNT_MAX + 7):
        notifier.notify("pause_topic", request, "t")
    assert notifier.dropped_count == 7
    quiet = Notifier("", Upstream(AdminOptions()))
    quiet.notify("pause_topic", request, "t")
    asyncio.run(quiet.drain(1.0))


@pytest.mark.parametrize(
    ("header", "user"),
    [
        (b"Basic Y2Fyb2w6c2VjcmV0", "carol"),
        (b"Basic !!!", ""),
        (b"Basic Y2Fyb2w=", ""),
        (b"Bearer Y2Fyb2w6c2VjcmV0", ""),
        (b"", ""),
    ],
)
def test_the_user_is_that_of_basic_authentication(header: bytes, user: str) -> None:
    assert basic_user(header) == user
