from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock.engine.options import SETTINGS, Options
from penstock.errors import OptionError
from penstock.net import live_options, log


class Holder:
    def __init__(self) -> None:
        self.options = Options()


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = log.LOGGER.level
    yield
    log.LOGGER.setLevel(before)


def test_the_log_level_takes_effect_at_once() -> None:
    holder = Holder()
    live_options.change(holder, "log_level", live_options.parse("log_level", b"WARN"))
    assert holder.options.log_level == "warn"
    assert log.LOGGER.level == logging.WARNING


def test_addresses_are_a_json_array_of_strings() -> None:
    assert live_options.parse("nsqlookupd_tcp_addresses", b'["a:1","b:2"]') == ("a:1", "b:2")
    assert live_options.parse("nsqlookupd_tcp_addresses", b"[]") == ()
    for wrong in (b"a:1", b'{"a":1}', b"[1]", b'"a:1"', b"null", b"\xff", b"[" * 100_000):
        with pytest.raises(ValueError):
            live_options.parse("nsqlookupd_tcp_addresses", wrong)


def test_a_reload_takes_what_is_live_and_names_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    holder = Holder()
    log.LOGGER.setLevel(logging.INFO)
    new = Options(log_level="info", nsqlookupd_tcp_addresses=("a:1",), mem_queue_size=5)
    with caplog.at_level(logging.INFO):
        live_options.reload(holder, lambda: new, SETTINGS)
    assert holder.options == Options(nsqlookupd_tcp_addresses=("a:1",))
    assert [record.getMessage() for record in caplog.records] == [
        "SIGHUP: nsqlookupd_tcp_addresses is a:1 now",
        "SIGHUP: mem_queue_size needs a restart",
    ]


def test_a_config_file_that_is_wrong_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    holder = Holder()

    def read() -> Options:
        raise OptionError("log_level must be one of debug, info")

    with caplog.at_level(logging.INFO):
        live_options.reload(holder, read, SETTINGS)
    assert holder.options == Options()
    assert "nothing changed" in caplog.text
