"""Options of the client: names, ranges, texts."""

from __future__ import annotations

import pytest

import penstock
from penstock.client.config import OFF, Config
from penstock.client.connection import identity
from penstock.errors import OptionError
from penstock.settings.table import settings_of


def test_defaults_are_go_nsqs() -> None:
    config = Config()
    assert (config.max_in_flight, config.max_attempts) == (1, 5)
    assert (config.lookupd_poll_interval, config.lookupd_poll_jitter) == (60.0, 0.3)
    assert (config.default_requeue_delay, config.max_requeue_delay) == (90.0, 900.0)
    assert (config.heartbeat_interval, config.read_timeout) == (30.0, 60.0)


def test_texts_are_read_like_flags() -> None:
    config = Config.of(max_in_flight="200", msg_timeout="1m30s", snappy="true", deflate_level="9")
    assert config == Config(max_in_flight=200, msg_timeout=90, snappy=True, deflate_level=9)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("max_in_flight", -1, "0 or more"),
        ("sample_rate", 100, "from 0 to 99"),
        ("lookupd_poll_jitter", 1.5, "from 0 to 1"),
        ("deflate_level", 0, "from 1 to 9"),
        ("heartbeat_interval", 0.5, "1s or more, or -1 for none"),
        ("max_requeue_delay", "2h", "from 0 to 1h"),
        ("dial_timeout", "soon", "a duration such as"),
        ("backoff_strategy", "linear", "one of exponential, full_jitter"),
        ("tls_v1", 1, "true or false"),
        ("tls_context", "x", "an ssl.SSLContext"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    option: str, value: object, allowed: str
) -> None:
    with pytest.raises(OptionError, match=option) as caught:
        Config.of(**{option: value})
    assert allowed in str(caught.value)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(OptionError, match="'max_inflight'"):
        Config.of(max_inflight=3)


def test_options_that_exclude_one_another() -> None:
    with pytest.raises(OptionError, match="cannot be combined"):
        Config(snappy=True, deflate=True)
    with pytest.raises(OptionError, match="heartbeat_interval"):
        Config(heartbeat_interval=30, read_timeout=10)


def test_replace_keeps_the_rest() -> None:
    config = Config(max_in_flight=7).replace(msg_timeout=3)
    assert (config.max_in_flight, config.msg_timeout) == (7, 3.0)


def test_every_option_can_be_shown_and_read_again() -> None:
    for setting in settings_of(Config):
        if setting.option != "tls_context":
            assert setting.kind.parse(setting.show_default()) == setting.default, setting.option


def test_identify_speaks_milliseconds() -> None:
    fields = identity(Config(heartbeat_interval=OFF, msg_timeout=1.5, client_id="me"))
    assert fields["heartbeat_interval"] == -1
    assert fields["msg_timeout"] == 1500
    assert fields["output_buffer_timeout"] == 250
    assert fields["client_id"] == "me"
    assert "msg_timeout" not in identity(Config())


def test_the_package_names_its_client() -> None:
    assert penstock.Config is Config
    with pytest.raises(AttributeError):
        _ = penstock.Customer


def test_a_consumer_and_a_producer_want_names_and_addresses() -> None:
    with pytest.raises(OptionError, match="valid name for a topic"):
        penstock.Consumer("b@d", "c", nsqd_tcp_addresses="127.0.0.1:1")
    with pytest.raises(OptionError, match="valid name for a channel"):
        penstock.Consumer("t", "", nsqd_tcp_addresses="127.0.0.1:1")
    with pytest.raises(OptionError, match="needs"):
        penstock.Consumer("t", "c")
    with pytest.raises(OptionError, match="missing port"):
        penstock.Consumer("t", "c", lookupd_http_addresses="localhost")
    with pytest.raises(OptionError, match="missing host or port"):
        penstock.Producer("localhost")
