"""The table of nsqd's options, and how command line, environment and file are read against it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from penstock.cli.flags import UsageError
from penstock.cli.nsqd import flag_table
from penstock.engine.options import SETTINGS, Options, checked
from penstock.errors import OptionError
from penstock.settings.kinds import format_duration, parse_duration
from penstock.settings.table import config_values

SECOND_NS = 1_000_000_000


def parse(*arguments: str, **environment: str) -> Options:
    return flag_table().parse(arguments, environment).options


def parse_file(path: Path, text: str, *arguments: str, **environment: str) -> Options:
    file = path / "nsqd.cfg"
    file.write_text(text)
    return parse(f"-config={file}", *arguments, **environment)


def test_without_arguments_the_options_are_nsqs_defaults() -> None:
    options = parse()
    assert options == Options()
    assert options.tcp_address == "0.0.0.0:4150"
    assert options.msg_timeout_ns == 60 * SECOND_NS
    assert options.broadcast_address == os.uname().nodename
    assert options.max_defer_ns == 365 * 24 * 3600 * SECOND_NS


@pytest.mark.parametrize(
    "arguments",
    [
        ["-max-rdy-count=7"],
        ["--max-rdy-count=7"],
        ["-max-rdy-count", "7"],
        ["--max-rdy-count", "7"],
        ["--max-rdy-count=3", "--max-rdy-count=7"],
        ["--max-rdy-count=0x7", "--"],
        ["--max-rdy-count=07"],
    ],
)
def test_a_flag_is_written_in_any_of_gos_ways(arguments: list[str]) -> None:
    assert parse(*arguments).max_rdy_count == 7


def test_a_switch_does_not_take_the_next_argument() -> None:
    options = parse("--statsd-exclude-ephemeral", "--snappy=false", "-deflate=0", "-tls-required")
    assert options.statsd_exclude_ephemeral
    assert not options.snappy
    assert not options.deflate
    assert options.tls_required == "true"


def test_lists_are_repeated_or_separated_by_commas() -> None:
    options = parse("-lookupd-tcp-address=a:1,b:2", "-lookupd-tcp-address", "c:3")
    assert options.nsqlookupd_tcp_addresses == ("a:1", "b:2", "c:3")


def test_percentiles_are_sorted_from_the_highest() -> None:
    flag = "-e2e-processing-latency-percentile"
    assert parse(f"{flag}=0.5,1.0", f"{flag}=0.95").e2e_processing_latency_percentiles == (
        1.0,
        0.95,
        0.5,
    )


def test_an_equals_sign_may_stand_in_a_value() -> None:
    assert parse("-log-prefix=a=b").log_prefix == "a=b"


def test_a_value_may_look_like_a_flag() -> None:
    assert parse("-log-prefix", "-x").log_prefix == "-x"


@pytest.mark.parametrize("word", ["-verbose", "--verbose=true", "-worker-id=5"])
def test_flags_without_effect_are_accepted(word: str) -> None:
    assert parse(word, "-max-rdy-count=7").max_rdy_count == 7
    assert parse("-worker-id", "5", "-max-rdy-count=7").max_rdy_count == 7


@pytest.mark.parametrize("end", ["--", "word", "-"])
def test_what_follows_the_flags_is_ignored_with_a_warning(end: str) -> None:
    parsed = flag_table().parse(["-max-rdy-count=7", end, "-max-rdy-count=8"], {})
    assert parsed.options.max_rdy_count == 7
    assert len(parsed.warnings) == 1
    assert "-max-rdy-count=8" in parsed.warnings[0]


def test_version_and_help_are_actions() -> None:
    assert flag_table().parse(["-snappy", "-version"], {}).action == "version"
    assert flag_table().parse(["-version=false"], {}).action == "run"
    assert flag_table().parse(["-h", "-nonsense"], {}).action == "help"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-x"], "flag provided but not defined: -x"),
        (["--x=1"], "flag provided but not defined: -x"),
        (["--msg-timeot=1s"], "flag provided but not defined: -msg-timeot (did you mean"),
        (["---x"], "bad flag syntax: ---x"),
        (["-=1"], "bad flag syntax: -=1"),
        (["-msg-timeout"], "flag needs an argument: -msg-timeout"),
        (["-config"], "flag needs an argument: -config"),
        (["-version=maybe"], 'invalid boolean value "maybe" for -version'),
        (["-msg-timeout=5"], 'invalid value "5" for flag -msg-timeout: must be a duration'),
        (["-msg-timeout=-1"], 'invalid value "-1" for flag -msg-timeout: must be a duration'),
        (["-sync-every=0"], 'invalid value "0" for flag -sync-every: must be an integer 1 or more'),
        (["-broadcast-tcp-port=70000"], "must be an integer from 0 to 65535"),
        (["-snappy=maybe"], 'invalid value "maybe" for flag -snappy: must be true or false'),
        (["-log-level=loud"], "must be one of debug, info, warn, error, fatal"),
        (["-queue-scan-dirty-percent=nan"], "must be a number from 0 to 1"),
        (["-max-rdy-count=1e3"], "must be an integer 1 or more"),
        (["-max-rdy-count=99999999999999999999"], "must be an integer 1 or more"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_reason(arguments: list[str], text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(*arguments)
    assert str(refusal.value).startswith(text) or text in str(refusal.value)


def test_the_command_line_goes_before_environment_before_file(tmp_path: Path) -> None:
    text = "max_rdy_count = 1\nmax_body_size = 1\nmax_msg_size = 1\n"
    options = parse_file(
        tmp_path,
        text,
        "-max-rdy-count=3",
        PENSTOCK_NSQD_MAX_RDY_COUNT="2",
        PENSTOCK_NSQD_MAX_BODY_SIZE="2",
    )
    assert (options.max_rdy_count, options.max_body_size, options.max_msg_size) == (3, 2, 1)


def test_a_list_on_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    text = 'nsqlookupd_tcp_addresses = ["a:1", "b:2"]'
    assert parse_file(tmp_path, text).nsqlookupd_tcp_addresses == ("a:1", "b:2")
    options = parse_file(tmp_path, text, "-lookupd-tcp-address=c:3")
    assert options.nsqlookupd_tcp_addresses == ("c:3",)


def test_a_file_has_the_types_of_toml(tmp_path: Path) -> None:
    text = """
        id = 5
        msg_timeout = "1m30s"
        sync_timeout = 250
        tls_required = true
        tls_min_version = ""
        snappy = false
        log_level = "DEBUG"
        queue_scan_dirty_percent = 1
        e2e_processing_latency_percentiles = [0.5, 1.0]
        auth_http_addresses = "a:1,b:2"
    """
    options = parse_file(tmp_path, text)
    assert options.node_id == 5
    assert options.msg_timeout_ns == 90 * SECOND_NS
    assert options.sync_timeout_ns == 250_000_000
    assert options.tls_required == "true"
    assert options.tls_min_version == "tls1.0"
    assert not options.snappy
    assert options.log_level == "debug"
    assert options.queue_scan_dirty_percent == 1.0
    assert options.e2e_processing_latency_percentiles == (1.0, 0.5)
    assert options.auth_http_addresses == ("a:1", "b:2")


@pytest.mark.parametrize(
    "text",
    [
        'max_rdy_count = "many"',
        "max_rdy_count = true",
        "max_rdy_count = 1.5",
        "msg_timeout = [1]",
        'msg_timeout = "60"',
        "snappy = 1",
        "http_address = 4151",
        "nsqlookupd_tcp_addresses = [1]",
        "nsqlookupd_tcp_addresses = 1",
        "log_level = 2",
    ],
)
def test_a_wrong_value_in_a_file_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    option = text.split()[0]
    with pytest.raises(OptionError, match=f"for {option} in .*nsqd.cfg .flag -.*must be") as error:
        parse_file(tmp_path, text)
    assert not isinstance(error.value, UsageError)


def test_unknown_keys_of_a_file_are_ignored_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text("max_rdy_count = 7\nnonsense = 1\nverbose = true\n")
    parsed = flag_table().parse([], {"PENSTOCK_NSQD_CONFIG": str(file)})
    assert parsed.options.max_rdy_count == 7
    assert parsed.warnings == [f"config file {file}: nonsense is not an option of nsqd"]


@pytest.mark.parametrize("text", ["x = ", "\xff", None])
def test_an_unreadable_file_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "nsqd.cfg"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    with pytest.raises(OptionError, match=f"failed to load config file {file} - "):
        parse(f"-config={file}")


def test_an_empty_variable_counts_as_unset_and_an_unknown_one_is_warned_about() -> None:
    variables = {"PENSTOCK_NSQD_MAX_RDY_COUNT": "", "PENSTOCK_NSQD_NONSENSE": "1", "HOME": "/"}
    parsed = flag_table().parse([], variables)
    assert parsed.options == Options()
    assert parsed.warnings == [
        "environment variable PENSTOCK_NSQD_NONSENSE is not an option of nsqd"
    ]


def test_a_wrong_variable_is_refused_with_its_name() -> None:
    with pytest.raises(OptionError, match=r"for PENSTOCK_NSQD_SYNC_EVERY .flag -sync-every"):
        parse(PENSTOCK_NSQD_SYNC_EVERY="often")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-max-deflate-level=0"], "--max-deflate-level must be [1,9]"),
        (["-max-deflate-level=10"], "--max-deflate-level must be [1,9]"),
        (["-node-id=1024"], "--node-id must be [0,1024)"),
        (["-node-id", "-1"], "--node-id must be [0,1024)"),
        (["-auth-http-request-method=put"], "--auth-http-request-method must be post or get"),
        (
            ["-tls-required"],
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            ["-tls-client-auth-policy=require"],
            "cannot require TLS client connections without TLS key and cert",
        ),
        (["-tls-cert=x"], "failed to build TLS config - --tls-cert and --tls-key go together"),
        (
            ["-lookupd-tls", "-lookupd-tls-key=x"],
            "--lookupd-tls-cert and --lookupd-tls-key go together",
        ),
        (
            ["-lookupd-tls-root-ca-file=x"],
            "--lookupd-tls-cert and --lookupd-tls-root-ca-file need --lookupd-tls",
        ),
        (
            ["-e2e-processing-latency-percentile=2"],
            "invalid E2E processing latency percentile: 2",
        ),
        (
            ["-e2e-processing-latency-percentile=1.5,0"],
            "invalid E2E processing latency percentile: 1.5",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_nsqs_words(
    arguments: list[str], text: str
) -> None:
    with pytest.raises(OptionError) as refusal:
        checked(parse(*arguments))
    assert str(refusal.value) == text


def test_a_client_certificate_policy_implies_that_tls_is_required() -> None:
    options = parse("-tls-cert=c", "-tls-key=k", "-tls-client-auth-policy=require-verify")
    assert options.tls_required == "false"
    assert checked(options).tls_required == "true"


def test_config_shows_values_as_nsq_does() -> None:
    shown = config_values(parse("-lookupd-tcp-address=a:1", "-tls-required=tcp-https"))
    assert shown["msg_timeout"] == 60 * SECOND_NS
    assert shown["log_level"] == 2
    assert shown["tls_required"] == 1
    assert shown["tls_min_version"] == 769
    assert shown["nsqlookupd_tcp_addresses"] == ["a:1"]
    assert shown["log_prefix"] == "[nsqd] "
    assert 0 <= shown["id"] < 1024


def test_every_default_is_what_its_own_text_means() -> None:
    for setting in SETTINGS:
        if not setting.default_text and setting.default != ():
            assert setting.kind.parse(setting.show_default()) == setting.default, setting.flag


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().max_rdy_count = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("0", 0),
        ("-1", -1),
        ("1ns", 1),
        ("250ms", 250_000_000),
        ("1h30m", 5400 * SECOND_NS),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", SECOND_NS),
        ("+2us", 2000),
        ("2µs", 2000),
        ("-2s", -2 * SECOND_NS),
        ("365d", 365 * 86400 * SECOND_NS),
        ("2562047h47m16.854775807s", 2**63 - 1),
    ],
)
def test_a_duration_is_read_as_go_does(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize(
    "text",
    ["", "1", "s", ".s", "1x", "1h 30m", "--1s", "٣s", "2562048h", "-", "+", "1s ", "1e3s", "-0.5"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        parse_duration(text)
