"""Names of hosts: which may stand in a URL, and under which nsqadmin answers."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.admin.hosts import Hosts, host_of, is_address, is_host
from penstock.admin.options import AdminOptions
from penstock.errors import OptionError


def hosts(*allowed: str, own: tuple[str, ...] = ("web-1.corp",), listen: str = "") -> Hosts:
    options = dataclasses.replace(
        AdminOptions(), allowed_hosts=allowed, http_address=listen or "0.0.0.0:4171"
    )
    return Hosts(options, own)


@pytest.mark.parametrize(
    "header",
    [
        *("127.0.0.1", "127.0.0.1:4171", "10.1.2.3", "[::1]", "[::1]:4171", "[2001:db8::1]:80"),
        *("localhost", "localhost:4171", "LOCALHOST", "localhost.", "localhost.:443"),
        *("x.localhost:4171", "web-1.corp", "WEB-1.corp.:8080", "web-1", "127.0.0.1:"),
    ],
)
def test_it_answers_under_its_own_names(header: str) -> None:
    assert hosts().allowed(header)


@pytest.mark.parametrize(
    "header",
    [
        *("evil.example", "evil.example:4171", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("evillocalhost", "web-1.corp.evil.example", "xweb-1.corp", "corp", "", ":4171", "."),
        *("127.0.0.1@evil.example", "evil.example/127.0.0.1", "[::1", "::1]", "[evil.example]"),
        *("127.0.0.1 evil.example", "127.0.0.1,evil.example", "127.0.0.1:4171:1", "a:b", "*"),
        *("0x7f.1.example", "127.0.0.1\x00", "\xff"),
    ],
)
def test_it_does_not_answer_under_others(header: str) -> None:
    assert not hosts().allowed(header)


def test_a_flag_names_more() -> None:
    named = hosts("Admin.Example.org", ".apps.example.org", "bücher.example")
    for header in (
        *(
            "admin.example.org",
            "ADMIN.example.org.:443",
            "x.apps.example.org",
            "a.b.apps.example.org",
        ),
        *("xn--bcher-kva.example", "XN--BCHER-KVA.example:80"),
    ):
        assert named.allowed(header), header
    for header in (
        "example.org",
        "x.admin.example.org",
        "apps.example.org.evil",
        "xapps.example.org",
    ):
        assert not named.allowed(header), header
    assert hosts("*").allowed("whatever.example")


def test_the_name_it_listens_on_is_its_own() -> None:
    assert hosts(listen="admin.corp:4171").allowed("admin.corp")
    assert not hosts(listen="/run/admin.sock").allowed("admin.corp")


@pytest.mark.parametrize("value", ["", "a b", "example.org:80", "http://example.org", "a/b", "@"])
def test_a_value_that_no_header_could_match_is_refused(value: str) -> None:
    with pytest.raises(OptionError, match="--allowed-host"):
        hosts(value)


def test_a_host_header_in_one_form() -> None:
    assert host_of("Example.ORG.:8080") == "example.org"
    assert host_of("[::1]:80") == "::1"
    assert host_of("a b") is None


@pytest.mark.parametrize(
    ("text", "good"),
    [
        *(("h", True), ("h_1.example", True), ("::1", True), ("10.0.0.1", True), ("bücher", True)),
        *(
            ("", False),
            ("h/x", False),
            ("u@h", False),
            ("h:1", False),
            ("h?", False),
            ("a b", False),
        ),
        *(("x" * 256, False), ("h#", False), ("h\\x", False), ("h%41", False), ("[::1]", False)),
    ],
)
def test_what_may_stand_in_a_url(text: str, good: bool) -> None:
    assert is_host(text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        *(("h:1", True), ("[::1]:4161", True), ("10.0.0.1:65535", True)),
        *(("h", False), ("h:", False), ("h:65536", False), ("::1:1", False), ("h:1/x", False)),
        *(("u@h:1", False), (":1", False), ("h:-1", False), ("h:\uff11", False)),
    ],
)
def test_what_is_an_address(text: str, good: bool) -> None:
    assert is_address(text) is good
