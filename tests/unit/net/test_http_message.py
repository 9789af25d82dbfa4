"""The arguments of a request, each read in one way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.net.http_message import HttpError, Request


def request(query: str) -> Request:
    return Request("GET", "/", query.encode())


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(HttpError) as caught:
        read()
    assert caught.value.status == 400
    return caught.value.text


def test_an_argument_must_be_there() -> None:
    assert request("topic=&x=1").argument("topic") == ""
    assert refusal(lambda: request("").argument("topic")) == "MISSING_ARG_TOPIC"
    assert refusal(lambda: request("topic=%zz").argument("topic")) == "INVALID_REQUEST"


def test_a_name_is_valid() -> None:
    assert request("topic=orders").name("topic") == "orders"
    assert refusal(lambda: request("topic=a%20b").name("topic")) == "INVALID_ARG_TOPIC"
    assert refusal(lambda: request("topic=").name("topic", "INVALID_TOPIC")) == "INVALID_TOPIC"


def test_all_names_are_there_before_one_is_judged() -> None:
    names = ("topic", "channel")
    assert request("topic=t&channel=c").names(*names) == ["t", "c"]
    assert refusal(lambda: request("topic=!").names(*names)) == "MISSING_ARG_CHANNEL"
    assert refusal(lambda: request("topic=!&channel=!").names(*names)) == "INVALID_ARG_TOPIC"


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "x", "11", "1" * 20, "\u0663"])
def test_a_number_is_digits_within_its_limits(text: str) -> None:
    assert request("n=10").number("n", 10) == 10
    assert refusal(lambda: request(f"n={text}").number("n", 10)) == "INVALID_ARG_N"


def test_a_number_may_be_absent_or_have_a_minimum() -> None:
    assert request("").number("n", 10, absent=7) == 7
    assert refusal(lambda: request("").number("n", 10)) == "MISSING_ARG_N"
    low = request("n=0")
    assert refusal(lambda: low.number("n", 10, minimum=1, refusal="INVALID_N")) == "INVALID_N"


def test_a_boolean_is_strict_and_a_flag_is_nsqds() -> None:
    assert [request(f"b={text}").boolean("b") for text in ("true", "false")] == [True, False]
    assert not request("").boolean("b")
    assert refusal(lambda: request("b=1").boolean("b")) == "INVALID_B"
    given = [request(f"b={text}").flag("b", absent=False) for text in ("1", "0", "no", "false")]
    assert given == [True, False, True, False]
    assert request("").flag("b", absent=True)
