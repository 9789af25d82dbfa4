"""The options of the data source nsq: one table, and a clear word about every mistake."""

from __future__ import annotations

import pickle
import re

import pytest

from penstock.errors import OptionError
from penstock.spark.offsets import EARLIEST, LATEST, Position
from penstock.spark.option_kinds import COLUMNS
from penstock.spark.options import (
    BATCH,
    SETTINGS,
    STREAM,
    USES,
    WRITE,
    Options,
    parse_brokers,
    parse_columns,
    parse_options,
)

NODES = {"nsqdHttpAddresses": "127.0.0.1:4151"}
READ = {**NODES, "topic": "orders"}
FOLLOW = {**READ, "channel": "c"}
ENOUGH = {BATCH: READ, STREAM: FOLLOW, WRITE: READ}

# A value that each option refuses, and a piece of what it says then.  The others take any text.
WRONG = {
    "topic": ("no topic!", "a name of 1 to 64 letters"),
    "requestTimeout": ("soon", "a duration such as"),
    "retryTimeout": ("1x", "a duration such as"),
    "tls": ("maybe", "true or false"),
    "tlsInsecureSkipVerify": ("2", "true or false"),
    "columns": ("body,boddy", "some of topic, node, index, id, timestamp, body"),
    "startingOffsets": ("middle", "earliest, latest, or JSON"),
    "startingTimestamp": ("yesterday", "milliseconds since 1970, or ISO 8601"),
    "minPartitions": ("0", "an integer, 1 or more"),
    "failOnDataLoss": ("no", "true or false"),
    "fetchSize": ("100", "from 65536 to 16777216"),
    "endingOffsets": ('{"n":{"orders":-1}}', "-1 is not an index"),
    "endingTimestamp": ("1969-01-01", "milliseconds since 1970"),
    "pushFilters": ("x", "true or false"),
    "channel": ("c#ephemeral", "a name of 1 to 64 letters"),
    "maxMessagesPerTrigger": ("many", "an integer, 1 or more"),
    "pollTimeout": ("31s", "from 0 to 30s"),
    "discoveryInterval": ("1ms", "from 10ms to 1h"),
    "acceptLoss": ('[{"node":"n"}]', "JSON such as"),
    "identity": ("me", "32 hex digits"),
    "takeOver": ("1f2e", "32 hex digits"),
    "reader": ("x" * 256, "1 to 255 bytes"),
    "resumeFrom": ('{"nodes":{"n":{"orders":{"index":1}}}}', "has no instance"),
    "holdInterval": ("8d", "from 0 to 7d"),
    "holdMessages": ("0", "an integer, 1 or more"),
    "checkpoint": ("hdfs://there/c", "a folder on this machine"),
    "mode": ("tcp", "one of log, channel"),
    "maxInFlight": ("0", "from 1 to 1000000"),
    "writeId": ("two words", "1 to 200 ASCII characters"),
    "writeBatch": ("-1", "0 or more"),
    "writeNote": ("x" * ((1 << 20) + 1), "a text of up to 1 MiB"),
}
ANY_TEXT = {
    *("nsqdHttpAddresses", "lookupdHttpAddresses", "nsqdTcpAddresses", "storePath", "authSecret"),
    *("tlsRootCaFile", "tlsCert", "tlsKey", "httpToken", "httpTokenFile"),
}


def test_every_option_is_either_tested_here_with_a_wrong_value_or_takes_any_text() -> None:
    assert {setting.option for setting in SETTINGS} == set(WRONG) | ANY_TEXT


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_is_refused_with_the_option_and_what_is_allowed(option: str) -> None:
    (setting,) = (each for each in SETTINGS if each.option == option)
    use = next(use for use in (BATCH, STREAM, WRITE) if use in USES[setting.group])
    value, allowed = WRONG[option]
    with pytest.raises(OptionError) as caught:
        parse_options({**ENOUGH[use], option: value}, use)
    assert f"option {option} must be" in str(caught.value)
    assert allowed in str(caught.value)
    assert repr(value[:200]) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_every_option_is_named_grouped_and_explained() -> None:
    assert len({setting.option.lower() for setting in SETTINGS}) == len(SETTINGS)
    for setting in SETTINGS:
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", setting.option)
        assert 10 < len(setting.help) < 100 and not setting.help.endswith("."), setting.option
        assert "|" not in setting.help
        assert setting.group in USES


def test_names_are_taken_in_any_case() -> None:
    options = parse_options({"NSQDHTTPADDRESSES": "a:1, b:2", "topic": "x,y"}, BATCH)
    assert options.nsqd_http_addresses == ("a:1", "b:2")
    assert options.topic == ("x", "y")


def test_what_is_not_given_has_its_default() -> None:
    options = parse_options(READ, BATCH, {})
    assert options == Options(nsqd_http_addresses=("127.0.0.1:4151",), topic=("orders",))
    assert options.columns == COLUMNS
    assert (options.starting_offsets.word, options.ending_offsets.word) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss is True


def test_an_unknown_option_is_named_with_the_nearest_and_all_others() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'topik'.*did you mean topic") as caught:
        parse_options({**READ, "topik": "x"}, BATCH)
    assert "startingOffsets" in str(caught.value)
    with pytest.raises(OptionError, match="option topic"):
        parse_columns({"path": "orders"})
    with pytest.raises(OptionError, match="unknown option 'nonsense'"):
        parse_columns({"nonsense": "1"})
    with pytest.raises(OptionError, match="unknown option 'nonsense'"):
        parse_brokers({**NODES, "nonsense": "1"})


def test_an_option_that_is_of_no_use_here_is_refused() -> None:
    with pytest.raises(OptionError, match="endingOffsets is for a batch read, not for a stream"):
        parse_options({**FOLLOW, "endingOffsets": "latest"}, STREAM)
    with pytest.raises(OptionError, match="channel is for a stream, not for a batch read"):
        parse_options({**READ, "channel": "c"}, BATCH)
    with pytest.raises(OptionError, match="columns is for a batch read and a stream, not for a wr"):
        parse_options({**READ, "columns": "body"}, WRITE)


def test_options_of_spark_itself_pass() -> None:
    parse_options({**READ, "checkpointLocation": "/x", "queryName": "q"}, WRITE)


@pytest.mark.parametrize(
    ("use", "given", "text"),
    [
        (BATCH, {"topic": "t"}, "either nsqdHttpAddresses or lookupdHttpAddresses is required"),
        (BATCH, {**READ, "lookupdHttpAddresses": "a:1"}, "either nsqdHttpAddresses or"),
        (BATCH, NODES, "option topic is required"),
        (BATCH, {**READ, "topic": "a,b,a"}, "has a duplicate topic"),
        (STREAM, READ, "option channel is required"),
        (WRITE, {**NODES, "topic": "a,b"}, "must be one topic"),
        (WRITE, {**READ, "writeBatch": "1"}, "writeBatch needs writeId"),
        (WRITE, {**READ, "writeNote": "{}"}, "writeNote needs writeId"),
        (BATCH, {**READ, "httpToken": "x", "httpTokenFile": "y"}, "cannot be combined"),
        (
            BATCH,
            {**READ, "startingOffsets": "earliest", "startingTimestamp": "1"},
            "startingOffsets and startingTimestamp cannot",
        ),
        (
            BATCH,
            {**READ, "endingOffsets": "latest", "endingTimestamp": "1"},
            "endingOffsets and endingTimestamp cannot",
        ),
        (
            STREAM,
            {"topic": "t", "channel": "c", "mode": "channel", "storePath": "/s"},
            "either nsqdTcpAddresses or lookupdHttpAddresses",
        ),
        (
            STREAM,
            {"topic": "t", "channel": "c", "mode": "channel", "nsqdTcpAddresses": "a:1"},
            "storePath is required",
        ),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    use: str, given: dict[str, str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        parse_options(given, use, {})


@pytest.mark.parametrize("columns", ["", "body,body"])
def test_columns_are_some_and_none_twice(columns: str) -> None:
    with pytest.raises(OptionError, match="at least one column, and no duplicates"):
        parse_columns({"columns": columns})


def test_a_write_may_leave_the_topic_to_a_column() -> None:
    assert parse_options(NODES, WRITE).topic == ()


def test_the_environment_gives_what_the_options_do_not() -> None:
    environment = {
        "PENSTOCK_SPARK_NSQD_HTTP_ADDRESSES": "a:1",
        "PENSTOCK_SPARK_TOPIC": "from_environment",
        "PENSTOCK_SPARK_REQUEST_TIMEOUT": "3s",
        "PENSTOCK_SPARK_CHANNEL": "of no use in a batch read",
    }
    options = parse_options({"topic": "given"}, BATCH, environment)
    assert options.nsqd_http_addresses == ("a:1",)
    assert options.topic == ("given",)
    assert options.request_timeout_ns == 3_000_000_000
    with pytest.raises(OptionError, match="PENSTOCK_SPARK_CHANNEL must be"):
        parse_options({}, STREAM, environment)


def test_a_listener_takes_the_options_of_a_stream_and_keeps_what_it_needs() -> None:
    options = parse_brokers({**FOLLOW, "httpToken": "secret", "startingOffsets": "latest"}, {})
    assert options == Options(
        nsqd_http_addresses=("127.0.0.1:4151",), topic=("orders",), http_token="secret"
    )
    with pytest.raises(OptionError, match="either nsqdHttpAddresses"):
        parse_brokers({}, {})


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("1700000000123", 1_700_000_000_123_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500_000_000),
        ("2023-11-14 22:13:20", 1_700_000_000_000_000_000),
        ("1970-01-02", 86_400_000_000_000),
    ],
)
def test_times_are_milliseconds_or_iso_8601(text: str, time_ns: int) -> None:
    options = parse_options({**READ, "startingTimestamp": text}, BATCH)
    assert options.starting_timestamp == time_ns


def test_options_travel_to_the_executors() -> None:
    given = {**READ, "startingOffsets": '{"n":{"orders":5}}', "columns": "body,index"}
    options = parse_options(given, BATCH)
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.starting_offsets.of("n", "", "orders", EARLIEST) == Position("", 5)
