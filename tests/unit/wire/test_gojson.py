from __future__ import annotations

import pytest

from penstock.wire import gojson

FIELDS: dict[str, tuple[type, int]] = {
    "name": (str, 0),
    "task": (str, 0),
    "count": (int, 64),
    "rate": (int, 32),
    "on": (bool, 0),
}


def read(raw: bytes) -> dict[str, gojson.Value]:
    return gojson.decode_object(raw, FIELDS)


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b"{}", {}),
        (b" \t\r\n{ } \n", {}),
        (b"null", {}),
        (b'{"name":"a","count":1,"on":true}', {"name": "a", "count": 1, "on": True}),
        (b'{"NAME":"a","cOUNT":-1}', {"name": "a", "count": -1}),
        ('{"ta\u017f\u212a":"a"}'.encode(), {"task": "a"}),
        (b'{"name":null,"count":null,"on":null}', {}),
        (b'{"name":"a","name":null}', {"name": "a"}),
        (b'{"name":"a","name":"b","Name":"c"}', {"name": "c"}),
        (b'{"other":[1.5,{"name":5}],"count":-0}', {"count": 0}),
        (b'{"other":' + b"9" * 10_000 + b"}", {}),
        (b'{"count":9223372036854775807}', {"count": 2**63 - 1}),
        (b'{"count":-9223372036854775808}', {"count": -(2**63)}),
        (b'{"rate":2147483647}', {"rate": 2**31 - 1}),
        (b'{"name":"\\u00e9\\n"}', {"name": "é\n"}),
        (b'{"name":"\\ud83d\\ude00"}', {"name": "\U0001f600"}),
        (b'{"name":"\\ud800A"}', {"name": "\ufffdA"}),
        (b'{"name":"\xff"}', {"name": "\ufffd"}),
        (b'{"name":"\xe2\x82"}', {"name": "\ufffd\ufffd"}),
    ],
)
def test_what_go_accepts_is_accepted(raw: bytes, values: dict[str, gojson.Value]) -> None:
    assert read(raw) == values


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{bad",
        b"{} x",
        b"{}{}",
        b"[]",
        b"1",
        b'"name"',
        b"true",
        b"\xef\xbb\xbf{}",
        b'{"count":1000.0}',
        b'{"count":1e3}',
        b'{"count":"1"}',
        b'{"count":true}',
        b'{"count":9223372036854775808}',
        b'{"count":' + b"9" * 10_000 + b"}",
        b'{"rate":2147483648}',
        b'{"on":1}',
        b'{"on":"true"}',
        b'{"name":1}',
        b'{"name":{}}',
        b'{"name":["a"]}',
        b'{"name":5,"name":"right"}',
        b'{"name":"\x01"}',
        b'{"other":NaN}',
        b'{"other":Infinity}',
        b'{"other":01}',
        b'{"name":"a",}',
        b"{'name':1}",
        b"[" * 200_000,
        b'{"other":' * 200_000,
    ],
)
def test_what_go_refuses_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        read(raw)


def test_writing_escapes_what_go_escapes() -> None:
    assert gojson.encode({"a": "<é&\u2028>\n", "b": [1, None, True]}) == (
        '{"a":"\\u003cé\\u0026\\u2028\\u003e\\n","b":[1,null,true]}'.encode()
    )
