"""Offsets: what users give, and what Spark keeps."""

from __future__ import annotations

import json

import pytest

from penstock.errors import QueryError
from penstock.spark.offsets import (
    EARLIEST,
    LATEST,
    Places,
    Position,
    decode,
    encode,
    flat,
    parse_places,
)

A, B = "9f0c61f2a3b4d5e6", "0000000000000001"


def test_a_word_is_for_all() -> None:
    for word in (EARLIEST, LATEST):
        places = parse_places(f" {word.upper()} ")
        assert places == Places(word, default=False)
        assert places.of("node", "address", "topic", "other") == word
        assert list(places.named()) == []


def test_json_is_by_node_or_address_and_topic() -> None:
    text = json.dumps({"n1": {"a": 5, "b": "latest"}, "h:1": {"a": {"instance": A, "index": 7}}})
    places = parse_places(text)
    assert places.of("n1", "h:9", "a", EARLIEST) == Position("", 5)
    assert places.of("n1", "h:9", "b", EARLIEST) == LATEST
    assert places.of("n2", "h:1", "a", EARLIEST) == Position(A, 7)
    assert places.of("n2", "h:1", "b", EARLIEST) == EARLIEST
    assert set(places.named()) == {("n1", "a"), ("n1", "b"), ("h:1", "a")}


def test_an_offset_of_a_stream_is_a_place_to_start_from() -> None:
    offset = encode("c", {"n1": {"a": Position(A, 7)}})
    places = parse_places(json.dumps(offset))
    assert places.of("n1", "", "a", EARLIEST) == Position(A, 7)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("middle", "Expecting value"),
        ("[]", "the value is not a JSON object"),
        ('{"n": 5}', "the value of 'n' is not a JSON object"),
        ('{"n": {"a b": 5}}', "'a b' is not a valid topic"),
        ('{"n": {"a": -1}}', "-1 is not an index"),
        ('{"n": {"a": true}}', "True is not an index"),
        ('{"n": {"a": 18014398509481985}}', "is not an index"),
        ('{"n": {"a": "soon"}}', "'soon' is not an index, earliest or latest"),
        ('{"n": {"a": {"instance": "x", "index": 1}}}', "'x' is not an instance"),
        ('{"n": {"a": {"instance": "' + A + '"}}}', "None is not an index"),
    ],
)
def test_what_is_no_place_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_places(text)


def test_equal_offsets_are_equal_as_text() -> None:
    one = {"n2": {"b": Position(B, 1), "a": Position(A, 2)}, "n1": {"a": Position(A, 3)}}
    other = {"n1": {"a": Position(A, 3)}, "n2": {"a": Position(A, 2), "b": Position(B, 1)}}
    assert json.dumps(encode("c", one)) == json.dumps(encode("c", other))
    assert decode(json.loads(json.dumps(encode("c", one)))) == one
    assert list(flat(one)) == list(flat(other))


def test_a_node_without_topics_is_left_out() -> None:
    assert encode("c", {"n1": {}}) == {"channel": "c", "nodes": {}}


@pytest.mark.parametrize("offset", [None, 5, {}, {"nodes": 1}, {"nodes": {"n": {"a": 1}}}])
def test_an_offset_of_another_source_is_refused(offset: object) -> None:
    with pytest.raises(QueryError, match="does the checkpoint belong to another query"):
        decode(offset)
