"""Addresses and URLs, joined and taken apart."""

from __future__ import annotations

import pytest

from penstock.errors import OptionError
from penstock.wire.address import join_address, peer_address, split_address
from penstock.wire.url import Url, lookupd_url, parse_url


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1:4150"), ("::1", "[::1]:4150"), ("", ":4150"), ("h", "h:4150")],
)
def test_join_and_split_are_inverse(host: str, address: str) -> None:
    assert join_address(host, 4150) == address
    assert split_address(address) == (host, 4150)


def test_a_path_is_a_unix_socket() -> None:
    assert split_address("/run/nsqd.sock") == ("/run/nsqd.sock", None)


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match="must be host:port or a path"):
        split_address(address)


def test_the_other_end_of_a_socket() -> None:
    assert peer_address(("::1", 5, 0, 0)) == "[::1]:5"
    assert peer_address(("10.0.0.1", 5)) == "10.0.0.1:5"
    assert (peer_address(""), peer_address(None, "unix:1")) == ("@", "unix:1")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://h", Url("h", 80, False, "h", "/")),
        ("https://h/a?b=c", Url("h", 443, True, "h", "/a?b=c")),
        ("http://u:p@[::1]:4151/stats", Url("::1", 4151, False, "[::1]:4151", "/stats")),
    ],
)
def test_a_url_in_its_parts(url: str, parts: Url) -> None:
    assert parse_url(url) == parts


@pytest.mark.parametrize("url", ["ftp://h/", "http://", "h:80", "http://h:99999/"])
def test_what_is_not_a_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        parse_url(url)


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
def test_an_address_of_nsqlookupd_becomes_a_url(address: str, url: str) -> None:
    assert lookupd_url(address, "/lookup", topic="t") == url


def test_the_topic_is_quoted() -> None:
    assert lookupd_url("h:1", "/lookup", topic="t#ephemeral").endswith("?topic=t%23ephemeral")


@pytest.mark.parametrize("address", ["localhost", "http://localhost/", "h:port"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match="missing port"):
        lookupd_url(address, "/lookup", topic="t")
