"""What is asked of nsqlookupd, and how its answers are read."""

from __future__ import annotations

import pytest

from penstock.client.config import Config
from penstock.client.discovery import addresses_in, lookup_url
from penstock.client.link import reconnect_delay_s
from penstock.client.message import requeue_delay_s
from penstock.errors import DiscoveryError, OptionError


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:4161", "http://127.0.0.1:4161/lookup?topic=t"),
        ("http://h:4161/", "http://h:4161/lookup?topic=t"),
        ("http://h:4161/prefix/lookup", "http://h:4161/prefix/lookup?topic=t"),
        ("h:4161?zone=a", "http://h:4161/lookup?zone=a&topic=t"),
        ("https://h/", "https://h/lookup?topic=t"),
        ("[::1]:4161", "http://[::1]:4161/lookup?topic=t"),
    ],
)
def test_an_address_becomes_a_url(address: str, url: str) -> None:
    assert lookup_url(address, "t") == url


def test_the_topic_is_quoted() -> None:
    assert lookup_url("h:1", "t#ephemeral").endswith("?topic=t%23ephemeral")


@pytest.mark.parametrize("address", ["localhost", "http://localhost/", "h:port"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match="missing port"):
        lookup_url(address, "t")


def test_both_forms_of_an_answer_are_read() -> None:
    inner = b'{"channels":[],"producers":[{"broadcast_address":"a","tcp_port":1,"x":{}}]}'
    assert addresses_in(inner, plain=True) == ["a:1"]
    assert addresses_in(inner, plain=False) == ["a:1"]
    assert addresses_in(b'{"status_code":200,"data":%b}' % inner, plain=False) == ["a:1"]
    assert addresses_in(b'{"producers":null}', plain=True) == []
    six = b'{"producers":[{"broadcast_address":"::1","tcp_port":4150}]}'
    assert addresses_in(six, plain=True) == ["[::1]:4150"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{}", b'{"producers":[{}]}', b'{"producers":[1]}', b"<html>"],
)
def test_an_answer_without_sense_is_an_error(body: bytes) -> None:
    with pytest.raises(DiscoveryError):
        addresses_in(body, plain=True)


def test_reconnecting_slows_down_with_a_random_half() -> None:
    config = Config(reconnect_delay=1.0, max_reconnect_delay=8.0)
    assert [reconnect_delay_s(config, n, 0.0) for n in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert reconnect_delay_s(config, 3, 0.999) == pytest.approx(8.0, abs=0.01)
    assert reconnect_delay_s(config, 10**6, 0.0) == 4.0


def test_the_delay_of_a_requeued_message_grows_with_its_attempts() -> None:
    assert [requeue_delay_s(n, 90.0, 900.0) for n in (1, 2, 3, 10, 50)] == [90, 180, 270, 900, 900]
