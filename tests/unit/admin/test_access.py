"""Who may do what: users, other sites, tokens, addresses."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.admin.access import TOKEN_HOURS, Access, foreign
from penstock.admin.options import AdminOptions, checked
from penstock.admin.posted_actions import form_fields, json_fields
from penstock.errors import OptionError
from penstock.net.http_message import HttpError, Request


class Now:
    s = 1_794_717_613.0


def request_of(**headers: str) -> Request:
    request = Request("POST", "/action", b"")
    request.headers = {
        name.replace("_", "-").lower().encode(): value.encode() for name, value in headers.items()
    }
    request.remote_address = "127.0.0.1:5000"
    return request


def access_of(*users: str, now: Now | None = None) -> Access:
    options = dataclasses.replace(AdminOptions(), admin_users=users)
    return Access(options, lambda: now.s if now is not None else Now.s)


def test_a_token_lasts_a_working_day() -> None:
    now = Now()
    access = access_of(now=now)
    token = access.token(request_of())
    for hours in range(TOKEN_HOURS):
        now.s = Now.s + hours * 3600
        access.check_token(request_of(), token)
    now.s = Now.s + TOKEN_HOURS * 3600
    with pytest.raises(HttpError):
        access.check_token(request_of(), token)
    now.s = Now.s - 3600
    with pytest.raises(HttpError):
        access.check_token(request_of(), token)


def test_a_token_is_its_users_and_its_process() -> None:
    access = access_of("alice", "bob")
    token = access.token(request_of(X_Forwarded_User="alice"))
    access.check_token(request_of(X_Forwarded_User="alice"), token)
    for other in ("bob", "", "alice "):
        with pytest.raises(HttpError):
            access.check_token(request_of(X_Forwarded_User=other), token)
    with pytest.raises(HttpError):
        access_of("alice").check_token(request_of(X_Forwarded_User="alice"), token)
    for wrong in ("", "x", token[:-1], token.upper(), "é" * 64, "\udcff"):
        with pytest.raises(HttpError):
            access.check_token(request_of(X_Forwarded_User="alice"), wrong)


def test_every_site_but_our_own_is_foreign() -> None:
    own = {"Host": "admin:4171"}
    for fine in (
        {},
        {"Origin": "http://admin:4171"},
        {"Origin": "https://ADMIN:4171"},
        {"Referer": "http://admin:4171/topics?x=y"},
        {"Sec_Fetch_Site": "same-origin", "Origin": "http://elsewhere"},
        {"Origin": "https://shown", "X_Forwarded_Host": "shown, inner"},
    ):
        assert foreign(request_of(**own, **fine)) == "", fine
    for wrong in (
        {"Origin": "http://admin"},
        {"Origin": "http://admin:4172"},
        {"Origin": "http://admin:4171.evil"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://[::1"},
        {"Referer": "http://evil/admin:4171"},
        {"Referer": ""},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "", "Origin": "http://admin:4171"},
    ):
        assert foreign(request_of(**own, **wrong)), wrong
    assert foreign(request_of(Origin="http://admin:4171")), "asked without a host"


def test_config_is_for_a_network() -> None:
    request = request_of()
    for peer, status in (
        ("127.0.0.1:1", 0),
        ("127.9.9.9:1", 0),
        ("[::ffff:127.0.0.1]:1", 0),
        ("10.0.0.1:1", 403),
        ("[::1]:1", 403),
        ("@", 400),
    ):
        request.remote_address = peer
        if status:
            with pytest.raises(HttpError) as caught:
                access_of().check_config(request)
            assert caught.value.status == status
        else:
            access_of().check_config(request)


def test_forms_and_objects_are_read_within_bounds() -> None:
    form = request_of(Content_Type="application/x-www-form-urlencoded; charset=utf-8")
    form.body = b"action=pause&topic=t%23ephemeral&body=%00%ff+a&channel="
    assert form_fields(form) == {
        "action": "pause",
        "topic": "t#ephemeral",
        "body": "\x00\udcff a",
        "channel": "",
    }
    for body in (b"&".join(b"a=1" for _ in range(100)), "topic=ä".encode()):
        form.body = body
        with pytest.raises(HttpError):
            form_fields(form)
    posted = request_of(Content_Type="application/json")
    posted.body = b'{"topic":"t","count":3,"node":null}'
    assert json_fields(posted) == {"topic": "t", "count": "3"}
    for body in (b"", b"[", b"[]", b"3", b"[" * 100_000):
        posted.body = body
        with pytest.raises(HttpError):
            json_fields(posted)


@pytest.mark.parametrize(
    ("given", "clean"), [("", "/"), ("/", "/"), ("a", "/a"), ("/a/b/", "/a/b"), ("//a", "/a")]
)
def test_a_base_path_is_made_clean(given: str, clean: str) -> None:
    options = AdminOptions(base_path=given, nsqd_http_addresses=("h:1",))
    assert checked(options).base_path == clean


@pytest.mark.parametrize("given", ["/../x", "/a?b", "/a\nb"])
def test_a_base_path_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(OptionError):
        checked(AdminOptions(base_path=given, nsqd_http_addresses=("h:1",)))
