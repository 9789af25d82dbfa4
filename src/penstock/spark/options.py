"""The options of the data source ``nsq``, as one table.

    spark.read.format("nsq").option("nsqdHttpAddresses", "127.0.0.1:4151").option("topic", "orders")

Every option is a row of a table (`penstock.settings.table`), from which it is checked, shown and
documented.  Spark does not preserve the case of names: ``nsqdhttpaddresses`` is the same option.

Rule 1: an option that is unknown, wrong, or not applicable is an OptionError that names it and what
        is allowed.  A misspelled option must not silently read from another place.
Rule 2: defaults come from the environment, such as PENSTOCK_SPARK_NSQD_HTTP_ADDRESSES, because
        Spark does not pass on the options of CREATE TABLE ... USING.  Read on the driver only.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from penstock.errors import OptionError
from penstock.settings.kinds import Listed
from penstock.settings.table import (
    Setting,
    boolean,
    choice,
    duration,
    integer,
    row,
    settings_of,
    string,
    strings,
)
from penstock.spark.loss import Loss
from penstock.spark.offsets import EARLIEST, LATEST, Places, Positions
from penstock.spark.option_kinds import (
    COLUMNS,
    ColumnList,
    Count,
    Identity,
    LocalFolder,
    Name,
    Note,
    Offsets,
    Ranges,
    ReaderName,
    Resume,
    Time,
    WriteId,
)

BATCH, STREAM, WRITE = "a batch read", "a stream", "a write"

ENVIRONMENT_PREFIX = "PENSTOCK_SPARK_"
# Characters of a wrong value that an error shows.
TEXT_SHOWN_MAX = 200
# Options that Spark adds, or that are meant for Spark.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})

BROKERS = "Brokers"
SECURITY = "TLS and tokens"
READING = "Reading"
RANGE = "Batch reads"
STREAMS = "Streams"
CHANNELS = "Streams through a channel, also from Go's nsqd"
WRITING = "Writes"

USES = {
    BROKERS: {BATCH, STREAM, WRITE},
    SECURITY: {BATCH, STREAM, WRITE},
    READING: {BATCH, STREAM},
    RANGE: {BATCH},
    STREAMS: {STREAM},
    CHANNELS: {STREAM},
    WRITING: {WRITE},
}


def names(group: str, help: str) -> Any:
    return row(Listed(Name()), group, (), help)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options; see docs/options-spark.md."""

    nsqd_http_addresses: tuple[str, ...] = strings(
        BROKERS, "HTTP addresses of nsqds, as host:port or https://host:port"
    )
    lookupd_http_addresses: tuple[str, ...] = strings(
        BROKERS, "HTTP addresses of nsqlookupds that know the nsqds"
    )
    topic: tuple[str, ...] = names(
        BROKERS, "the topic; for reads, also several, separated by commas"
    )
    request_timeout_ns: int = duration(
        BROKERS, "30s", "timeout for one response of a node", minimum="100ms", maximum="10m"
    )
    retry_timeout_ns: int = duration(
        BROKERS, "1m", "time to retry a node before the query fails", maximum="24h"
    )

    tls: bool = boolean(SECURITY, False, "use HTTPS for every address without http://")
    tls_root_ca_file: str = string(
        SECURITY, "", "trusted CA certificates (PEM file); empty: the system's"
    )
    tls_cert: str = string(SECURITY, "", "client certificate for nsqd (PEM file)")
    tls_key: str = string(SECURITY, "", "its private key, if it is in a separate file")
    tls_insecure_skip_verify: bool = boolean(SECURITY, False, "skip certificate verification")
    http_token: str = string(
        SECURITY, "", "bearer token for the HTTP API, with role read or publish"
    )
    http_token_file: str = string(SECURITY, "", "file on the driver with that token")

    columns: tuple[str, ...] = row(ColumnList(), READING, COLUMNS, "columns to read, in this order")
    starting_offsets: Places = row(
        Offsets(), READING, Places(EARLIEST), "where to start; for a stream, on its first run only"
    )
    starting_timestamp: int | None = row(
        Time(), READING, None, "start at the first message stored at or after this time instead"
    )
    min_partitions: int | None = row(
        Count(),
        READING,
        None,
        "partitions of a read",
        default_text="one per core, fewer for few messages",
    )
    fail_on_data_loss: bool = boolean(
        READING, True, "fail if messages in the range may be lost; false: warn and continue"
    )
    accept_loss: tuple[Loss, ...] = row(
        Ranges(),
        READING,
        (),
        "ranges that may be missing, copied from the error message",
    )
    fetch_size: int = integer(
        READING, 4 << 20, "bytes to request from a node at once", minimum=1 << 16, maximum=16 << 20
    )

    ending_offsets: Places = row(Offsets(), RANGE, Places(LATEST), "where to stop, exclusive")
    ending_timestamp: int | None = row(
        Time(), RANGE, None, "stop before the first message stored at or after this time instead"
    )
    push_filters: bool = boolean(
        RANGE,
        False,
        "push WHERE down to the read; needs spark.sql.python.filterPushdown.enabled",
    )

    channel: str = row(Name(), STREAMS, "", "name of the query's pull channel on the nodes")
    max_messages_per_trigger: int | None = row(
        Count(), STREAMS, None, "most messages in a micro-batch", default_text="all there are"
    )
    poll_timeout_ns: int = duration(
        STREAMS, "500ms", "time to wait for messages before reporting none to Spark", maximum="30s"
    )
    discovery_interval_ns: int = duration(
        STREAMS, "10s", "how often to search for new nodes", minimum="10ms", maximum="1h"
    )
    identity: str = row(
        Identity(),
        STREAMS,
        "",
        "identity of the query as the one reader of its channel",
        default_text="generated, and kept in the checkpoint",
    )
    take_over: str = row(
        Identity(), STREAMS, "", "identity of the reader to take the channel over from, once"
    )
    reader: str = row(
        ReaderName(),
        STREAMS,
        "",
        "name of the reader, for people",
        default_text="Spark query on HOST, pid PID",
    )
    resume_from: Positions | None = row(
        Resume(), STREAMS, None, "where a new query resumes, as if from a checkpoint"
    )
    hold_interval_ns: int = duration(
        STREAMS, "0", "time to wait after a batch before the next one", maximum="7d"
    )
    hold_messages: int | None = row(
        Count(),
        STREAMS,
        None,
        "end that wait once this many messages are available",
        default_text="wait for the time only",
    )
    checkpoint: str = row(
        LocalFolder(),
        STREAMS,
        "",
        "the query's checkpoint folder, synced before the channel is committed",
    )

    mode: str = choice(
        CHANNELS,
        "log",
        "log: read the log; channel: subscribe like any consumer",
        ("log", "channel"),
    )
    store_path: str = string(
        CHANNELS, "", "folder for messages that are not committed yet; required"
    )
    nsqd_tcp_addresses: tuple[str, ...] = strings(
        CHANNELS, "TCP addresses of nsqds, if not found through nsqlookupd"
    )
    max_in_flight: int = integer(
        CHANNELS, 2500, "messages in flight, over all nodes", minimum=1, maximum=1_000_000
    )
    auth_secret: str = string(CHANNELS, "", "secret for AUTH, if nsqd requires one")

    write_id: str = row(
        WriteId(),
        WRITING,
        "",
        "name of a batch write; the same name is never published twice",
        default_text="a new name each time",
    )
    write_batch: int = integer(
        WRITING, 0, "number of a batch within its writeId; must increase", minimum=0
    )
    write_note: str = row(
        Note(), WRITING, "", "text that the brokers store with the newest batch of a writeId"
    )


def camel(field: str) -> str:
    first, *others = field.removesuffix("_ns").split("_")
    return first + "".join(word.capitalize() for word in others)


def settings() -> tuple[Setting, ...]:
    """The table, with names in camel case."""
    return tuple(
        setting._replace(option=camel(setting.field), flag=camel(setting.field))
        for setting in settings_of(Options)
    )


SETTINGS = settings()
_BY_NAME = {setting.option.lower(): setting for setting in SETTINGS}


def parse_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the value of the option columns, for a schema.

    Whether it is for a read or a write is not known yet, so only unknown options are refused.
    """
    for name in given:
        if name.lower() not in _BY_NAME and name.lower() not in SPARKS_OWN:
            _known(name, BATCH)
    text = given.get("columns")
    if text is None:
        return COLUMNS
    columns: tuple[str, ...] = _parse(_BY_NAME["columns"], text, "option columns")
    if not columns or len(set(columns)) != len(columns):
        raise OptionError("option columns must have at least one column, and no duplicates")
    return columns


def parse_options(
    given: Mapping[str, str], use: str, environment: Mapping[str, str] = os.environ
) -> Options:
    """Return the options of ``use`` (one of BATCH, STREAM and WRITE), or raise OptionError."""
    values = _from_environment(environment, use)
    for name, text in given.items():
        if name.lower() not in SPARKS_OWN:
            setting = _known(name, use)
            values[setting.field] = _parse(setting, text, f"option {setting.option}")
    options = Options(**values)
    _check(options, use)
    return options


def parse_brokers(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Options:
    """Return only the options to reach the nodes; others are checked and left out."""
    groups = {setting.field: setting.group for setting in SETTINGS}
    values = _from_environment(environment, STREAM)
    for name, text in given.items():
        if name.lower() not in SPARKS_OWN:
            setting = _known(name, STREAM)
            values[setting.field] = _parse(setting, text, f"option {setting.option}")
    options = Options(
        **{field: value for field, value in values.items() if groups[field] in (BROKERS, SECURITY)}
    )
    _check_addresses(options)
    return options


def _from_environment(environment: Mapping[str, str], use: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        variable = ENVIRONMENT_PREFIX + setting.field.removesuffix("_ns").upper()
        if environment.get(variable) and use in USES[setting.group]:
            values[setting.field] = _parse(setting, environment[variable], variable)
    return values


def _known(name: str, use: str) -> Setting:
    setting = _BY_NAME.get(name.lower())
    if setting is None:
        raise OptionError(
            f"unknown option {name!r} of the data source nsq{_suggestion(name, use)}; "
            f"options: {', '.join(_allowed(use))}"
        )
    if use not in USES[setting.group]:
        uses = " and ".join(sorted(USES[setting.group]))
        raise OptionError(f"option {setting.option} is for {uses}, not for {use}")
    return setting


def _allowed(use: str) -> list[str]:
    return [setting.option for setting in SETTINGS if use in USES[setting.group]]


def _suggestion(name: str, use: str) -> str:
    from difflib import get_close_matches

    if name.lower() == "path":
        return " (set the option topic)"
    lower = {option.lower(): option for option in _allowed(use)}
    close = get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f" (did you mean {lower[close[0]]}?)" if close else ""


def _parse(setting: Setting, text: str, place: str) -> Any:
    try:
        return setting.kind.parse(text.strip())
    except ValueError as error:
        reason = str(error)
        detail = f": {reason}" if reason and reason != text.strip() else ""
        raise OptionError(
            f"{place} must be {setting.kind.allowed()}, not {text[:TEXT_SHOWN_MAX]!r}{detail}"
        ) from None


def _check(options: Options, use: str) -> None:
    """Check options that depend on one another."""
    if options.mode == "channel":
        _check_channel_mode(options)
    else:
        _check_addresses(options)
    if use != WRITE and not options.topic:
        raise OptionError("option topic is required: a topic, or several separated by commas")
    if use == WRITE and len(options.topic) > 1:
        raise OptionError("option topic of a write must be one topic; a column topic routes rows")
    if len(set(options.topic)) != len(options.topic):
        raise OptionError("option topic has a duplicate topic")
    if use == STREAM and not options.channel:
        raise OptionError(
            "option channel is required: a stream is a pull channel of this name on the nodes, "
            "which keeps what the stream has not read yet; every stream needs its own"
        )
    if options.take_over and options.take_over == options.identity:
        raise OptionError("option takeOver is the identity of the other reader, not of this one")
    if options.write_batch and not options.write_id:
        raise OptionError("option writeBatch needs writeId")
    if options.write_note and not options.write_id:
        raise OptionError("option writeNote needs writeId")
    if options.http_token and options.http_token_file:
        raise OptionError("options httpToken and httpTokenFile cannot be combined")
    if options.starting_timestamp is not None and not options.starting_offsets.default:
        raise OptionError("options startingOffsets and startingTimestamp cannot be combined")
    if options.ending_timestamp is not None and not options.ending_offsets.default:
        raise OptionError("options endingOffsets and endingTimestamp cannot be combined")


def _check_addresses(options: Options) -> None:
    if bool(options.nsqd_http_addresses) == bool(options.lookupd_http_addresses):
        raise OptionError("either nsqdHttpAddresses or lookupdHttpAddresses is required")


def _check_channel_mode(options: Options) -> None:
    if bool(options.nsqd_tcp_addresses) == bool(options.lookupd_http_addresses):
        raise OptionError(
            "with mode=channel either nsqdTcpAddresses or lookupdHttpAddresses is required"
        )
    if not options.store_path:
        raise OptionError(
            "with mode=channel option storePath is required: a folder that driver and executors "
            "can access, for messages taken from nsqd and not yet committed by the query"
        )
