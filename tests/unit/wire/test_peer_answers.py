"""How the answers of nsqlookupd and nsqd are read."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.wire.peer_answers import (
    addresses_in,
    channels_in,
    decode,
    names_in,
    stats_query,
    topics_in,
)

NODE = {"broadcast_address": "a", "tcp_port": 1, "http_port": 2, "x": {}}
STATS = {
    "topics": [
        {"topic_name": "t", "channels": [{"channel_name": "c"}, {"channel_name": "d"}]},
        {"topic_name": "u", "channels": None},
    ]
}


def test_both_forms_of_an_answer_are_read() -> None:
    inner = b'{"channels":[],"producers":[]}'
    assert decode(inner) == decode(b'{"status_code":200,"data":%b}' % inner)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000])
def test_what_is_not_json_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="an invalid answer"):
        decode(body)


def test_nodes_by_either_port() -> None:
    answer = {"producers": [NODE, {**NODE, "broadcast_address": "::1"}]}
    assert addresses_in(answer, "tcp_port") == ["a:1", "[::1]:1"]
    assert addresses_in(answer, "http_port") == ["a:2", "[::1]:2"]
    assert addresses_in({"producers": None}, "tcp_port") == []


@pytest.mark.parametrize("answer", [[], None, {}, {"producers": [{}]}, {"producers": [1]}])
def test_nodes_without_sense_are_an_error(answer: Any) -> None:
    with pytest.raises(ValueError, match="an invalid answer"):
        addresses_in(answer, "tcp_port")


def test_names() -> None:
    assert names_in({"topics": ["a", "b"]}, "topics") == ["a", "b"]
    for answer in ({}, {"topics": None}, {"topics": [1]}, [], None):
        with pytest.raises(ValueError, match="without a list of topics"):
            names_in(answer, "topics")


def test_topics_and_channels_of_stats() -> None:
    assert [name for name, _ in topics_in(STATS)] == ["t", "u"]
    assert [(topic, name) for topic, name, _ in channels_in(STATS)] == [("t", "c"), ("t", "d")]
    assert [name for _, name, _ in channels_in(STATS, ["t"], "d")] == ["d"]
    assert list(channels_in(STATS, [])) == []
    for stats in (None, [], {}, {"topics": [{}]}, {"topics": [{"topic_name": 1}]}):
        with pytest.raises(ValueError):
            topics_in(stats)


def test_the_parameters_of_stats() -> None:
    assert stats_query() == {"format": "json", "include_clients": "false"}
    assert stats_query("t", include_clients="") == {"format": "json", "topic": "t"}
