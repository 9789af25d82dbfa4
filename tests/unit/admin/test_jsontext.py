"""What is posted to NSQ's API, read as Go reads it."""

from __future__ import annotations

import pytest

from penstock.admin.jsontext import read_object
from penstock.net.http_message import HttpError


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b'{"topic":"t","channel":"c"}', {"topic": "t", "channel": "c"}),
        (b' {"Topic":"t"} trailing', {"topic": "t"}),
        (b'{"topic":null,"x":3}', {}),
        (b"null", {}),
    ],
)
def test_objects_are_read_as_go_reads_them(body: bytes, fields: dict[str, str]) -> None:
    assert read_object(body) == fields


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "EOF"),
        (b" \n", "EOF"),
        (b'{"a', "unexpected EOF"),
        (b'{"topic":3}', "json: cannot unmarshal number into Go struct field .topic"),
        (b'{"topic":[]}', "json: cannot unmarshal array into Go struct field .topic"),
        (b"true", "json: cannot unmarshal bool into Go value"),
        (b"'", "invalid character '\\'' looking for beginning of value"),
    ],
)
def test_what_is_no_object_is_told(body: bytes, text: str) -> None:
    with pytest.raises(HttpError) as caught:
        read_object(body)
    assert (caught.value.status, caught.value.text) == (400, text)
