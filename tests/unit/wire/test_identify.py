from __future__ import annotations

import contextlib
import json
import time

import pytest

from penstock.engine.options import Options
from penstock.errors import ProtocolError
from penstock.wire.identify import MS_NS, Settings, initial, negotiate

OPTIONS = Options()
FIRST = initial(OPTIONS, "10.0.0.1")
ALL = frozenset(("tls_v1", "snappy", "deflate"))
REPLY = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
    b'"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
    b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
    b'"output_buffer_timeout":250,"topology_region":"","topology_zone":""}'
)


def settle(**fields: object) -> Settings:
    return negotiate(json.dumps(fields).encode(), OPTIONS, FIRST)[0]


def refusal(body: bytes, options: Options = OPTIONS) -> str:
    with pytest.raises(ProtocolError) as caught:
        negotiate(body, options, FIRST)
    assert caught.value.fatal
    return str(caught.value)


def reply(fields: dict[str, object], options: Options = OPTIONS) -> dict[str, object]:
    body = json.dumps({"feature_negotiation": True} | fields).encode()
    answer: dict[str, object] = json.loads(negotiate(body, options, FIRST, ALL)[1])
    return answer


def test_before_identify_a_client_is_known_by_its_address() -> None:
    assert FIRST.client_id == FIRST.hostname == "10.0.0.1"
    assert FIRST.heartbeat_interval_ns == 30_000 * MS_NS
    assert FIRST.msg_timeout_ns == OPTIONS.msg_timeout_ns


def test_without_negotiation_the_reply_is_ok_and_fields_apply() -> None:
    settings, answer = negotiate(b'{"client_id":"c","msg_timeout":1000}', OPTIONS, FIRST, ALL)
    assert answer == b"OK"
    assert settings.client_id == "c"
    assert settings.msg_timeout_ns == 1000 * MS_NS


def test_without_negotiation_no_upgrade_happens() -> None:
    body = b'{"tls_v1":true,"snappy":true,"deflate":true}'
    settings, answer = negotiate(body, OPTIONS, FIRST, ALL)
    assert answer == b"OK"
    assert not (settings.tls_v1 or settings.snappy or settings.deflate)


def test_the_negotiated_reply_is_nsqds_byte_by_byte() -> None:
    assert negotiate(b'{"feature_negotiation":true}', OPTIONS, FIRST)[1] == REPLY


@pytest.mark.parametrize("body", [b"null", b"{}", b'{"client_id":null,"msg_timeout":null}'])
def test_identity_becomes_empty_when_absent_and_the_rest_stays(body: bytes) -> None:
    settings, _ = negotiate(body, OPTIONS, FIRST)
    assert settings == FIRST._replace(client_id="", hostname="")


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"heartbeat_interval": -1}, "heartbeat_interval_ns", 0),
        ({"heartbeat_interval": 0}, "heartbeat_interval_ns", 30_000 * MS_NS),
        ({"heartbeat_interval": 1000}, "heartbeat_interval_ns", 1000 * MS_NS),
        ({"heartbeat_interval": 60000}, "heartbeat_interval_ns", 60_000 * MS_NS),
        ({"output_buffer_size": -1}, "output_buffer_size", 1),
        (
            {"output_buffer_size": -1, "output_buffer_timeout": 100},
            "output_buffer_timeout_ns",
            0,
        ),
        ({"output_buffer_size": 0}, "output_buffer_size", 16384),
        ({"output_buffer_size": 64}, "output_buffer_size", 64),
        ({"output_buffer_size": 65536}, "output_buffer_size", 65536),
        ({"output_buffer_timeout": -1}, "output_buffer_timeout_ns", 0),
        ({"output_buffer_timeout": 0}, "output_buffer_timeout_ns", 250 * MS_NS),
        ({"output_buffer_timeout": 25}, "output_buffer_timeout_ns", 25 * MS_NS),
        ({"output_buffer_timeout": 30000}, "output_buffer_timeout_ns", 30_000 * MS_NS),
        ({"sample_rate": 99}, "sample_rate", 99),
        ({"msg_timeout": 0}, "msg_timeout_ns", 60_000 * MS_NS),
        ({"msg_timeout": 1000}, "msg_timeout_ns", 1000 * MS_NS),
        ({"msg_timeout": 900000}, "msg_timeout_ns", 900_000 * MS_NS),
        ({"user_agent": "x/1"}, "user_agent", "x/1"),
        ({"topology_zone": "z"}, "topology_zone", "z"),
        ({"TOPOLOGY_Region": "r"}, "topology_region", "r"),
        ({"short_id": 1, "long_id": {}}, "client_id", ""),
    ],
)
def test_values_in_range_apply(fields: dict[str, object], attribute: str, value: object) -> None:
    assert getattr(settle(**fields), attribute) == value


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{bad", "failed to decode JSON body"),
        (b"[]", "failed to decode JSON body"),
        (b'{"msg_timeout":1000.0}', "failed to decode JSON body"),
        (b'{"client_id":1}', "failed to decode JSON body"),
        (b"{} {}", "failed to decode JSON body"),
        (b'{"sample_rate":2147483648}', "failed to decode JSON body"),
        (b'{"heartbeat_interval":999}', "heartbeat interval (999) is invalid"),
        (b'{"heartbeat_interval":-2}', "heartbeat interval (-2) is invalid"),
        (b'{"heartbeat_interval":60001}', "heartbeat interval (60001) is invalid"),
        (b'{"output_buffer_timeout":24}', "output buffer timeout (24) is invalid"),
        (b'{"output_buffer_timeout":30001}', "output buffer timeout (30001) is invalid"),
        (b'{"output_buffer_size":63}', "output buffer size (63) is invalid"),
        (b'{"output_buffer_size":65537}', "output buffer size (65537) is invalid"),
        (b'{"sample_rate":-1}', "sample rate (-1) is invalid"),
        (b'{"sample_rate":100}', "sample rate (100) is invalid"),
        (b'{"msg_timeout":-1}', "msg timeout (-1) is invalid"),
        (b'{"msg_timeout":900001}', "msg timeout (900001) is invalid"),
    ],
)
def test_values_out_of_range_are_refused(body: bytes, text: str) -> None:
    assert refusal(body) == f"E_BAD_BODY IDENTIFY {text}"


def test_checks_stand_in_nsqds_order() -> None:
    wrong = {
        "msg_timeout": 1,
        "sample_rate": 100,
        "output_buffer_size": 1,
        "output_buffer_timeout": 1,
        "heartbeat_interval": 1,
    }
    seen = []
    while wrong:
        seen.append(refusal(json.dumps(wrong).encode()).split("IDENTIFY ")[1].split(" (")[0])
        wrong.popitem()
    assert seen == [
        "heartbeat interval",
        "output buffer timeout",
        "output buffer size",
        "sample rate",
        "msg timeout",
    ]


def test_a_second_identify_keeps_what_it_does_not_name() -> None:
    first, _ = negotiate(b'{"msg_timeout":5000,"heartbeat_interval":2000}', OPTIONS, FIRST)
    second, _ = negotiate(b'{"client_id":"c"}', OPTIONS, first)
    assert second.msg_timeout_ns == 5000 * MS_NS
    assert second.heartbeat_interval_ns == 2000 * MS_NS


@pytest.mark.parametrize("offers", [frozenset(), ALL])
def test_both_compressions_are_refused_whatever_is_offered(offers: frozenset[str]) -> None:
    body = b'{"feature_negotiation":true,"snappy":true,"deflate":true}'
    with pytest.raises(ProtocolError) as caught:
        negotiate(body, OPTIONS, FIRST, offers)
    assert str(caught.value) == (
        "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    )


def test_both_compressions_pass_when_one_is_switched_off() -> None:
    answer = reply({"snappy": True, "deflate": True}, Options(deflate=False))
    assert answer["snappy"] is True
    assert answer["deflate"] is False


def test_an_upgrade_needs_the_client_the_option_and_the_server() -> None:
    asked = {"tls_v1": True, "snappy": True}
    assert reply(asked)["tls_v1"] is True
    assert reply(asked)["snappy"] is True
    assert reply(asked, Options(snappy=False))["snappy"] is False
    assert reply({})["snappy"] is False
    body = b'{"feature_negotiation":true,"tls_v1":true,"snappy":true}'
    assert negotiate(body, OPTIONS, FIRST)[1] == REPLY


@pytest.mark.parametrize(
    ("asked", "level_max", "level"),
    [(0, 6, 6), (-1, 6, 6), (1, 6, 1), (9, 6, 6), (9, 9, 9), (0, 3, 3)],
)
def test_the_deflate_level_is_the_asked_one_up_to_the_limit(
    asked: int, level_max: int, level: int
) -> None:
    options = Options(max_deflate_level=level_max)
    assert reply({"deflate": True, "deflate_level": asked}, options)["deflate_level"] == level


def test_the_deflate_level_is_ignored_without_deflate() -> None:
    assert reply({"deflate_level": 1})["deflate_level"] == 6
    assert reply({"deflate_level": 1}, Options(max_deflate_level=3))["deflate_level"] == 3


def test_the_reply_shows_effective_values_and_this_nodes_topology() -> None:
    options = Options(topology_region="r", topology_zone="z", auth_http_addresses=("a:1",))
    fields = {"sample_rate": 7, "output_buffer_size": -1, "topology_zone": "other"}
    answer = reply(fields, options)
    assert answer["sample_rate"] == 7
    assert answer["output_buffer_size"] == 1
    assert answer["output_buffer_timeout"] == 0
    assert answer["topology_zone"] == "z"
    assert answer["topology_region"] == "r"
    assert answer["auth_required"] is True


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * 256, "x" * 256),
        ("x" * 257, "x" * 256),
        ("é" * 128, "é" * 128),
        ("é" * 129, "é" * 128),
        ("x" + "é" * 128, "x" + "é" * 127),
        ("\U0001f600" * 64, "\U0001f600" * 64),
        ("xx" + "\U0001f600" * 64, "xx" + "\U0001f600" * 63),
        ("x" * 60_000, "x" * 256),
    ],
)
def test_texts_are_cut_between_two_characters(text: str, kept: str) -> None:
    names = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
    settings = settle(**dict.fromkeys(names, text))
    for name in names:
        assert getattr(settings, name) == kept, name


HOSTILE = {
    "members": b"{" + b'"a":1,' * 10_900 + b'"a":1}',
    "numbers": b'{"a":[' + b"1," * 32_000 + b"1]}",
    "objects": b'{"a":[' + b"{}," * 21_000 + b"{}]}",
    "depth": b"[" * 65_536,
    "depth of objects": b'{"a":' * 13_000,
    "bytes that are not UTF-8": b'{"client_id":"' + b"\xff" * 65_000 + b'"}',
    "every other byte": b'{"client_id":"' + b"\xffa" * 32_000 + b'"}',
    "a key of them": b'{"' + b"\xff" * 65_000 + b'":1}',
    "halves of pairs": b'{"client_id":"' + b"\\ud800" * 10_900 + b'"}',
    "quotes without an end": b'{"a":["' + b',\\"' * 21_000,
    "a backslash at the end": b'{"a":["' + b"," * 60_000 + b"\\",
    "digits": b'{"msg_timeout":' + b"9" * 65_000 + b"}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_body_costs_a_few_milliseconds(body: bytes) -> None:
    """The quickest of some tries is the cost; the rest is the machine's."""
    costs = []
    for _ in range(5):
        start_s = time.process_time()
        with contextlib.suppress(ProtocolError):
            negotiate(body, OPTIONS, FIRST, ALL)
        costs.append(time.process_time() - start_s)
    assert min(costs) < 0.012


def test_signs_in_texts_are_not_members() -> None:
    agent = ',[{\\"' * 50
    assert settle(user_agent=agent, other=agent * 200).user_agent == agent[:256]
