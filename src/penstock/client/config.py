"""The options of a producer or consumer, as go-nsq and pynsq name them.

    Config(max_in_flight=200, msg_timeout=90)             numbers: durations are seconds
    Config.of(max_in_flight="200", msg_timeout="1m30s")   texts, as from a command line

Every option is a row of a table (`penstock.settings.table`), from which it is checked, shown and
documented.  A Config is immutable; ``replace`` returns a changed copy.
"""

from __future__ import annotations

import dataclasses
import ssl
from typing import Any, Self, Unpack

from penstock.client.options import Options
from penstock.errors import OptionError
from penstock.net.tls import client_context
from penstock.settings.daemon import TLS_VERSIONS
from penstock.settings.kinds import Duration, Text, format_duration, parse_duration
from penstock.settings.places import NOUN, QUEUED, parse_place
from penstock.settings.table import boolean, choice, integer, number, row, settings_of, string
from penstock.version import VERSION

NS = 1_000_000_000
OFF = -1.0  # NSQ's value for an interval that is switched off


class Seconds(Duration):
    """A duration that the program gives and reads as a number of seconds."""

    def __init__(self, minimum: str = "0", maximum: str | None = None, *, off: bool = False):
        maximum_ns = None if maximum is None else parse_duration(maximum)
        super().__init__(parse_duration(minimum), maximum_ns)
        self.off = off

    def parse(self, text: str) -> Any:
        return self.convert(OFF if text == "-1" else parse_duration(text) / NS)

    def convert(self, value: object) -> Any:
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(value)
        seconds = float(value)
        if self.off and seconds == OFF:
            return seconds
        high_s = float("inf") if self.maximum_ns is None else self.maximum_ns / NS
        if not self.minimum_ns / NS <= seconds <= high_s:
            raise ValueError(value)
        return seconds

    def show(self, value: Any) -> str:
        return "-1" if value == OFF else format_duration(round(value * NS))

    def limits(self) -> str:
        return super().limits() + (", or -1 for none" if self.off else "")


class Context(Text):
    """An ``ssl.SSLContext``, which has no text."""

    kind = "SSLContext"
    noun = "an ssl.SSLContext"

    def convert(self, value: object) -> Any:
        if value is None or isinstance(value, ssl.SSLContext):
            return value
        raise ValueError(value)

    def show(self, value: Any) -> str:
        return ""


class Start(Text):
    """A place in a topic's log, or nothing."""

    kind = "place"
    noun = f"{QUEUED}, {NOUN}, or empty"

    def parse(self, text: str) -> str:
        return str(parse_place(text)) if text else text

    def convert(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(value)
        return self.parse(value)


def seconds(group: str, default: str, help: str, **limits: Any) -> Any:
    kind = Seconds(**limits)
    return row(kind, group, kind.parse(default), help)


def context(group: str, help: str) -> Any:
    return row(Context(), group, None, help)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All options; see docs/client.md."""

    client_id: str = string("Identity", "", "name shown by nsqd; the short host name if empty")
    hostname: str = string("Identity", "", "host name shown by nsqd; this machine's if empty")
    user_agent: str = string("Identity", f"penstock/{VERSION}", "program shown by nsqd")
    topology_region: str = string("Identity", "", "region of this client")
    topology_zone: str = string("Identity", "", "zone of this client")

    dial_timeout: float = seconds("Connection", "1s", "time limit for connecting", minimum="1ms")
    read_timeout: float = seconds(
        "Connection", "1m", "close the connection after this long without data", minimum="100ms"
    )
    write_timeout: float = seconds(
        "Connection",
        "5s",
        "close the connection if nsqd accepts no data for this long",
        minimum="100ms",
    )
    heartbeat_interval: float = seconds(
        "Connection", "30s", "heartbeat interval", minimum="1s", off=True
    )
    reconnect_delay: float = seconds(
        "Connection", "250ms", "first wait before reconnecting; doubles each time", minimum="1ms"
    )
    max_reconnect_delay: float = seconds(
        "Connection", "15s", "longest wait before reconnecting", minimum="1ms"
    )
    output_buffer_size: int = integer(
        "Connection", 16384, "bytes nsqd buffers before sending; -1: no buffering", minimum=-1
    )
    output_buffer_timeout: float = seconds(
        "Connection", "250ms", "time nsqd buffers before sending", off=True
    )
    max_msg_size: int = integer(
        "Connection", 0, "largest message to accept; 0: 5 MiB", minimum=0, maximum=2**31 - 64
    )

    tls_v1: bool = boolean("Security", False, "encrypt with TLS")
    tls_context: ssl.SSLContext | None = context(  # noqa: RUF009
        "Security", "your own SSLContext, instead of the tls options below"
    )
    tls_root_ca_file: str = string("Security", "", "trusted CA certificates (PEM file)")
    tls_cert: str = string("Security", "", "this client's certificate (PEM file)")
    tls_key: str = string("Security", "", "the certificate's private key (PEM file)")
    tls_insecure_skip_verify: bool = boolean("Security", False, "skip certificate verification")
    tls_min_version: str = choice(
        "Security", "tls1.2", "oldest TLS version to accept", TLS_VERSIONS
    )
    auth_secret: str = string("Security", "", "secret for AUTH; also sent to nsqlookupd")
    lookupd_authorization: bool = boolean("Security", True, "send auth_secret to nsqlookupd")

    snappy: bool = boolean("Compression", False, "compress with snappy")
    deflate: bool = boolean("Compression", False, "compress with deflate")
    deflate_level: int = integer(
        "Compression", 6, "1 is fastest, 9 compresses best", minimum=1, maximum=9
    )

    lookupd_poll_interval: float = seconds(
        "Discovery", "1m", "how often nsqlookupd is polled", minimum="10ms", maximum="5m"
    )
    lookupd_poll_jitter: float = number(
        "Discovery",
        0.3,
        "largest random delay before polling starts, as a fraction of the interval",
        minimum=0.0,
        maximum=1.0,
    )
    lookupd_poll_timeout: float = seconds(
        "Discovery", "5s", "time limit for one poll", minimum="10ms"
    )

    max_in_flight: int = integer(
        "Consumer", 1, "messages in flight over all connections; 0: paused", minimum=0
    )
    concurrency: int = integer(
        "Consumer", 0, "coroutine handlers that run at once; 0: max_in_flight", minimum=0
    )
    threads: int = integer(
        "Consumer",
        0,
        "threads for function handlers; 0: run on the event loop",
        minimum=0,
        maximum=1024,
    )
    batch_size: int = integer(
        "Consumer", 0, "messages per call of the handler; 0: one, not in a list", minimum=0
    )
    batch_timeout: float = seconds("Consumer", "100ms", "time a batch waits to fill")
    max_attempts: int = integer(
        "Consumer", 5, "deliveries before giving up; 0: no limit", minimum=0, maximum=65535
    )
    default_requeue_delay: float = seconds(
        "Consumer", "90s", "delay of a requeued message, times its attempts", maximum="1h"
    )
    max_requeue_delay: float = seconds(
        "Consumer", "15m", "longest delay of a requeued message", maximum="1h"
    )
    msg_timeout: float = seconds("Consumer", "0", "time to finish a message; 0: nsqd's default")
    auto_touch: bool = boolean("Consumer", False, "touch messages in flight at half their timeout")
    sample_rate: int = integer(
        "Consumer", 0, "percentage of messages to receive; 0: all", minimum=0, maximum=99
    )
    start: str = row(
        Start(),
        "Consumer",
        "",
        "where a channel that SUB creates starts, such as -1h; empty: by the topic's policy",
    )
    backoff_strategy: str = choice(
        "Consumer",
        "exponential",
        "how the pauses after failures grow",
        ("exponential", "full_jitter"),
    )
    max_backoff_duration: float = seconds(
        "Consumer", "2m", "longest pause after failures; 0: no backoff", maximum="1h"
    )
    backoff_multiplier: float = seconds(
        "Consumer", "1s", "unit of the pauses after failures", maximum="1h"
    )
    low_rdy_idle_timeout: float = seconds(
        "Consumer",
        "10s",
        "idle time until RDY moves to another connection",
        minimum="1ms",
        maximum="5m",
    )
    low_rdy_timeout: float = seconds(
        "Consumer",
        "30s",
        "time until RDY moves to another connection in any case",
        minimum="1ms",
        maximum="5m",
    )
    rdy_redistribute_interval: float = seconds(
        "Consumer", "5s", "how often RDY is redistributed", minimum="1ms", maximum="5s"
    )
    stop_timeout: float = seconds("Stopping", "30s", "time to finish the messages in flight")

    publish_timeout: float = seconds(
        "Producer", "30s", "time limit for a publish, including retries", minimum="1ms"
    )
    response_timeout: float = seconds(
        "Producer", "10s", "time limit for one answer; then the connection is closed", minimum="1ms"
    )
    publish_retries: int = integer(
        "Producer", 3, "retries after a failure", minimum=0, maximum=1000
    )
    retry_unknown: bool = boolean(
        "Producer", True, "retry even if the message may be stored: duplicates, no loss"
    )
    max_pending_size: int = integer(
        "Producer", 8 << 20, "bytes in flight before publishers wait", minimum=1
    )
    batch_publish_count: int = integer(
        "Producer", 0, "messages to collect into one MPUB; 0: no batching", minimum=0
    )
    batch_publish_size: int = integer(
        "Producer", 256 << 10, "bytes to collect into one MPUB", minimum=1, maximum=4 << 20
    )
    batch_publish_timeout: float = seconds("Producer", "5ms", "longest time to collect")

    def __post_init__(self) -> None:
        for setting in settings_of(type(self)):
            value = getattr(self, setting.field)
            try:
                checked = setting.kind.convert(value)
            except (ValueError, TypeError):
                raise OptionError(
                    f"{setting.option} must be {setting.kind.allowed()}, not {value!r}"
                ) from None
            object.__setattr__(self, setting.field, checked)
        if self.snappy and self.deflate:
            raise OptionError("snappy and deflate cannot be combined")
        if self.heartbeat_interval > self.read_timeout:
            raise OptionError(
                f"heartbeat_interval ({self.heartbeat_interval:g} s) must not be longer than "
                f"read_timeout ({self.read_timeout:g} s)"
            )

    @classmethod
    def of(cls, base: Config | None = None, **options: object) -> Self:
        """Return ``base``, or the defaults, with ``options`` changed; values may be texts."""
        known = {setting.option for setting in settings_of(cls)}
        for name in options:
            if name not in known:
                raise OptionError(f"there is no option {name!r}")
        before = {} if base is None else {name: getattr(base, name) for name in known}
        return cls(**{**before, **options})

    def replace(self, **options: Unpack[Options]) -> Self:
        return self.of(self, **options)


def make_context(config: Config) -> ssl.SSLContext:
    """Return the TLS context of ``config``; raises OptionError for a file that cannot be used."""
    return config.tls_context or client_context(
        config.tls_root_ca_file,
        config.tls_cert,
        config.tls_key,
        insecure=config.tls_insecure_skip_verify,
        version=config.tls_min_version,
    )
