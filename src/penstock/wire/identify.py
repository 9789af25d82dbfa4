"""IDENTIFY: negotiation of a connection's settings.

    IDENTIFY LF | size: i32 | JSON object |    ->    OK, or JSON if feature_negotiation is true

Rule 1: no I/O.  The result is a function of the body, the options and the settings so far.
Rule 2: checks are in nsqd's order, so a body with two mistakes gets nsqd's error.
Rule 3: what is absent, null or 0 stays as it was; but client_id, hostname, user_agent and the
        topology become "" when absent, as in nsqd.
Rule 4: names are truncated to STRING_SIZE_MAX bytes, unlike in nsqd: every page of statistics
        shows them.
Rule 5: an upgrade is negotiated if the client asks, an option allows it and the server supports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from penstock.errors import ProtocolError
from penstock.version import NSQ_VERSION
from penstock.wire import gojson

MS_NS = 1_000_000
# Half of nsqd's internal client timeout of 60 s; not an option there.
HEARTBEAT_INTERVAL_NS = 30_000 * MS_NS
HEARTBEAT_INTERVAL_MS_MIN = 1000
OUTPUT_BUFFER_SIZE = 16384
OUTPUT_BUFFER_SIZE_MIN = 64
MSG_TIMEOUT_MS_MIN = 1000
SAMPLE_RATE_MAX = 99
DEFLATE_LEVEL = 6
STRING_SIZE_MAX = 256

FIELDS: dict[str, tuple[type, int]] = {
    "client_id": (str, 0),
    "hostname": (str, 0),
    "user_agent": (str, 0),
    "feature_negotiation": (bool, 0),
    "heartbeat_interval": (int, 64),
    "output_buffer_size": (int, 64),
    "output_buffer_timeout": (int, 64),
    "sample_rate": (int, 32),
    "msg_timeout": (int, 64),
    "tls_v1": (bool, 0),
    "snappy": (bool, 0),
    "deflate": (bool, 0),
    "deflate_level": (int, 64),
    "topology_region": (str, 0),
    "topology_zone": (str, 0),
    "channel_start": (str, 0),  # ours: where SUB begins a new channel
    "bury": (bool, 0),  # ours: whether the client may send BURY
}


class Limits(Protocol):
    """The options used here; ``engine.options.Options`` has them."""

    @property
    def msg_timeout_ns(self) -> int: ...
    @property
    def max_msg_timeout_ns(self) -> int: ...
    @property
    def max_heartbeat_interval_ns(self) -> int: ...
    @property
    def max_output_buffer_size(self) -> int: ...
    @property
    def output_buffer_timeout_ns(self) -> int: ...
    @property
    def min_output_buffer_timeout_ns(self) -> int: ...
    @property
    def max_output_buffer_timeout_ns(self) -> int: ...
    @property
    def max_rdy_count(self) -> int: ...
    @property
    def max_deflate_level(self) -> int: ...
    @property
    def deflate(self) -> bool: ...
    @property
    def snappy(self) -> bool: ...
    @property
    def auth_http_addresses(self) -> Sequence[str]: ...
    @property
    def topology_region(self) -> str: ...
    @property
    def topology_zone(self) -> str: ...


class Settings(NamedTuple):
    """The settings of one connection."""

    client_id: str
    hostname: str
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval_ns: int = HEARTBEAT_INTERVAL_NS  # 0 = no heartbeats, no deadlines
    output_buffer_size: int = OUTPUT_BUFFER_SIZE
    output_buffer_timeout_ns: int = 250 * MS_NS  # 0 = no timer
    sample_rate: int = 0
    msg_timeout_ns: int = 60_000 * MS_NS
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL
    topology_region: str = ""
    topology_zone: str = ""
    channel_start: str = ""
    bury: bool = False


def initial(limits: Limits, peer_host: str) -> Settings:
    """The settings before, or without, IDENTIFY."""
    return Settings(
        client_id=peer_host,
        hostname=peer_host,
        output_buffer_timeout_ns=limits.output_buffer_timeout_ns,
        msg_timeout_ns=limits.msg_timeout_ns,
    )


def negotiate(
    body: bytes,
    limits: Limits,
    current: Settings,
    offers: frozenset[str] = frozenset(),
) -> tuple[Settings, bytes]:
    """Return the new settings and the data of the response frame.

    ``current`` are the settings so far; ``offers`` names the upgrades that the server supports
    (tls_v1, snappy, deflate).  Raises ProtocolError, always fatal.
    """
    try:
        fields = gojson.decode_object(body, FIELDS)
    except ValueError:
        raise bad_body("failed to decode JSON body") from None
    settings = _apply(fields, limits, current)
    if not settings.feature_negotiation:
        return settings, b"OK"
    settings = _upgrade(fields, limits, settings, offers)
    return settings, _reply(settings, limits)


def _apply(
    fields: dict[str, gojson.Value],
    limits: Limits,
    current: Settings,
) -> Settings:
    heartbeat_interval_ns = _heartbeat_interval(fields, limits, current)
    output_buffer_size, output_buffer_timeout_ns = _output_buffer(fields, limits, current)
    sample_rate = _integer(fields, "sample_rate")
    if not 0 <= sample_rate <= SAMPLE_RATE_MAX:
        raise bad_body(f"sample rate ({sample_rate}) is invalid")
    return current._replace(
        client_id=_string(fields, "client_id"),
        hostname=_string(fields, "hostname"),
        user_agent=_string(fields, "user_agent"),
        feature_negotiation=bool(fields.get("feature_negotiation")),
        heartbeat_interval_ns=heartbeat_interval_ns,
        output_buffer_size=output_buffer_size,
        output_buffer_timeout_ns=output_buffer_timeout_ns,
        sample_rate=sample_rate,
        msg_timeout_ns=_msg_timeout(fields, limits, current),
        topology_region=_string(fields, "topology_region"),
        topology_zone=_string(fields, "topology_zone"),
        channel_start=_string(fields, "channel_start"),
        bury=bool(fields.get("feature_negotiation")) and bool(fields.get("bury")),
    )


def _heartbeat_interval(fields: dict[str, gojson.Value], limits: Limits, current: Settings) -> int:
    interval_ms = _integer(fields, "heartbeat_interval")
    if interval_ms == -1:
        return 0
    if interval_ms == 0:
        return current.heartbeat_interval_ns
    if HEARTBEAT_INTERVAL_MS_MIN <= interval_ms <= limits.max_heartbeat_interval_ns // MS_NS:
        return interval_ms * MS_NS
    raise bad_body(f"heartbeat interval ({interval_ms}) is invalid")


def _output_buffer(
    fields: dict[str, gojson.Value], limits: Limits, current: Settings
) -> tuple[int, int]:
    """Size and timeout; nsqd checks the timeout first."""
    timeout_ms = _integer(fields, "output_buffer_timeout")
    timeout_ms_min = limits.min_output_buffer_timeout_ns // MS_NS
    timeout_ms_max = limits.max_output_buffer_timeout_ns // MS_NS
    if timeout_ms == -1:
        timeout_ns = 0
    elif timeout_ms == 0:
        timeout_ns = current.output_buffer_timeout_ns
    elif timeout_ms_min <= timeout_ms <= timeout_ms_max:
        timeout_ns = timeout_ms * MS_NS
    else:
        raise bad_body(f"output buffer timeout ({timeout_ms}) is invalid")
    size = _integer(fields, "output_buffer_size")
    if size == -1:
        return 1, 0
    if size == 0:
        return current.output_buffer_size, timeout_ns
    if OUTPUT_BUFFER_SIZE_MIN <= size <= limits.max_output_buffer_size:
        return size, timeout_ns
    raise bad_body(f"output buffer size ({size}) is invalid")


def _msg_timeout(fields: dict[str, gojson.Value], limits: Limits, current: Settings) -> int:
    timeout_ms = _integer(fields, "msg_timeout")
    if timeout_ms == 0:
        return current.msg_timeout_ns
    if MSG_TIMEOUT_MS_MIN <= timeout_ms <= limits.max_msg_timeout_ns // MS_NS:
        return timeout_ms * MS_NS
    raise bad_body(f"msg timeout ({timeout_ms}) is invalid")


def _upgrade(
    fields: dict[str, gojson.Value],
    limits: Limits,
    settings: Settings,
    offers: frozenset[str],
) -> Settings:
    snappy = limits.snappy and bool(fields.get("snappy"))
    deflate = limits.deflate and bool(fields.get("deflate"))
    # Checked before ``offers``: asking for both is an error whatever is offered.
    if snappy and deflate:
        raise ProtocolError(
            "E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression"
        )
    deflate = deflate and "deflate" in offers
    deflate_level = DEFLATE_LEVEL
    if deflate:
        deflate_level = max(0, _integer(fields, "deflate_level")) or DEFLATE_LEVEL
    return settings._replace(
        tls_v1="tls_v1" in offers and bool(fields.get("tls_v1")),
        snappy=snappy and "snappy" in offers,
        deflate=deflate,
        deflate_level=min(deflate_level, limits.max_deflate_level),
    )


def _reply(settings: Settings, limits: Limits) -> bytes:
    """The response to feature_negotiation as JSON, keys in nsqd's order, times in ms."""
    # Clients that do not ask for ours get nsqd's bytes.
    ours: dict[str, gojson.Value] = {}
    if settings.channel_start:
        ours["channel_start"] = settings.channel_start
    if settings.bury:
        ours["bury"] = True
    return gojson.encode(
        {
            "max_rdy_count": limits.max_rdy_count,
            "version": NSQ_VERSION,
            "max_msg_timeout": limits.max_msg_timeout_ns // MS_NS,
            "msg_timeout": settings.msg_timeout_ns // MS_NS,
            "tls_v1": settings.tls_v1,
            "deflate": settings.deflate,
            "deflate_level": settings.deflate_level,
            "max_deflate_level": limits.max_deflate_level,
            "snappy": settings.snappy,
            "sample_rate": settings.sample_rate,
            "auth_required": bool(limits.auth_http_addresses),
            "output_buffer_size": settings.output_buffer_size,
            "output_buffer_timeout": settings.output_buffer_timeout_ns // MS_NS,
            "topology_region": limits.topology_region,
            "topology_zone": limits.topology_zone,
            **ours,
        }
    )


def _integer(fields: dict[str, gojson.Value], name: str) -> int:
    return cast(int, fields.get(name, 0))


def _string(fields: dict[str, gojson.Value], name: str) -> str:
    text = cast(str, fields.get(name, ""))
    if len(text) <= STRING_SIZE_MAX // 4:
        return text  # a character has 4 bytes at most
    # A character that does not fit whole is left out.
    return text.encode()[:STRING_SIZE_MAX].decode(errors="ignore")


def bad_body(text: str) -> ProtocolError:
    """The error of a wrong value."""
    return ProtocolError("E_BAD_BODY", f"IDENTIFY {text}")
