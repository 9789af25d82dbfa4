"""The options of the data source ``nsq``: one table, read from what Spark passes on.

    spark.read.format("nsq").option("nsqdHttpAddresses", "127.0.0.1:4151").option("topic", "orders")

Every option is a row of a table (`penstock.settings.table`), so it is checked, shown and
documented from one place.  Spark does not keep the case of names: ``nsqdhttpaddresses`` is the
same option.

Rule 1: an option that is unknown, wrong, or of no use where it stands is an OptionError that names
        it and what is allowed.  A typing error must not silently read from somewhere else.
Rule 2: what is not given is taken from the environment, PENSTOCK_SPARK_NSQD_HTTP_ADDRESSES: Spark
        does not pass the options of CREATE TABLE ... USING on.  It is read on the driver only.
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
    Columns,
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
# Of a wrong value in an error; those that are read by mistake may be long.
TEXT_SHOWN_MAX = 200
# Options that Spark itself puts in, or that are for Spark and pass through here.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})

BROKERS = "Brokers"
SECURITY = "TLS and tokens"
READING = "Reading"
RANGE = "Batch reads"
STREAMS = "Streams"
CHANNELS = "Streams through a channel, from a Go nsqd too"
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
    topic: tuple[str, ...] = names(BROKERS, "the topic; when reading also several with commas")
    request_timeout_ns: int = duration(
        BROKERS, "30s", "time for one answer of a node", minimum="100ms", maximum="10m"
    )
    retry_timeout_ns: int = duration(
        BROKERS, "1m", "time to reach a node before the query fails", maximum="24h"
    )

    tls: bool = boolean(SECURITY, False, "HTTPS to every address that does not say http://")
    tls_root_ca_file: str = string(SECURITY, "", "authorities to trust; the system's if empty")
    tls_cert: str = string(SECURITY, "", "certificate to show to nsqd, a PEM file")
    tls_key: str = string(SECURITY, "", "its key, if it is in a file of its own")
    tls_insecure_skip_verify: bool = boolean(SECURITY, False, "take any certificate of nsqd")
    http_token: str = string(SECURITY, "", "bearer token of the HTTP API, role read or publish")
    http_token_file: str = string(SECURITY, "", "file on the driver with that token")

    columns: tuple[str, ...] = row(Columns(), READING, COLUMNS, "columns to read, in this order")
    starting_offsets: Places = row(
        Offsets(), READING, Places(EARLIEST), "first messages to read; of a stream, the first time"
    )
    starting_timestamp: int | None = row(
        Time(), READING, None, "instead: the first message stored at or after a time"
    )
    min_partitions: int | None = row(
        Count(),
        READING,
        None,
        "partitions of a read",
        default_text="one per core, fewer for few messages",
    )
    fail_on_data_loss: bool = boolean(
        READING, True, "fail if messages of the range may be gone; otherwise warn and go on"
    )
    accept_loss: tuple[Loss, ...] = row(
        Ranges(),
        READING,
        (),
        "ranges that may be missing, as the error that tells of them has them",
    )
    fetch_size: int = integer(
        READING, 4 << 20, "bytes to ask a node for at once", minimum=1 << 16, maximum=16 << 20
    )

    ending_offsets: Places = row(Offsets(), RANGE, Places(LATEST), "where to end, exclusive")
    ending_timestamp: int | None = row(
        Time(), RANGE, None, "instead: up to the first message stored at or after a time"
    )
    push_filters: bool = boolean(
        RANGE,
        False,
        "read only what WHERE asks for; needs spark.sql.python.filterPushdown.enabled",
    )

    channel: str = row(Name(), STREAMS, "", "the pull channel that the query is on the nodes")
    max_messages_per_trigger: int | None = row(
        Count(), STREAMS, None, "most messages of a micro-batch", default_text="all there are"
    )
    poll_timeout_ns: int = duration(
        STREAMS, "500ms", "time to wait for messages before Spark is told of none", maximum="30s"
    )
    discovery_interval_ns: int = duration(
        STREAMS, "10s", "how often new nodes are looked for", minimum="10ms", maximum="1h"
    )
    identity: str = row(
        Identity(),
        STREAMS,
        "",
        "who the query is to its channel, which has one reader",
        default_text="a new query's own, kept in its checkpoint",
    )
    take_over: str = row(
        Identity(), STREAMS, "", "identity of the reader to take the channel over from, once"
    )
    reader: str = row(
        ReaderName(),
        STREAMS,
        "",
        "who reads the channel, for people",
        default_text="Spark query on HOST, pid PID",
    )
    resume_from: Positions | None = row(
        Resume(), STREAMS, None, "where a new query goes on, as if a checkpoint said so"
    )
    hold_interval_ns: int = duration(
        STREAMS, "0", "time after a batch until there is another one", maximum="7d"
    )
    hold_messages: int | None = row(
        Count(),
        STREAMS,
        None,
        "or until so many messages wait",
        default_text="only the time counts",
    )
    checkpoint: str = row(
        LocalFolder(), STREAMS, "", "the query's checkpoint, synced before the channel is committed"
    )

    mode: str = choice(
        CHANNELS, "log", "log: pull the log; channel: subscribe as any consumer", ("log", "channel")
    )
    store_path: str = string(CHANNELS, "", "folder for messages not yet committed; needed")
    nsqd_tcp_addresses: tuple[str, ...] = strings(
        CHANNELS, "TCP addresses of nsqds, if not by nsqlookupd"
    )
    max_in_flight: int = integer(
        CHANNELS, 2500, "messages at once, over all nodes", minimum=1, maximum=1_000_000
    )
    auth_secret: str = string(CHANNELS, "", "secret for AUTH, if nsqd wants one")

    write_id: str = row(
        WriteId(),
        WRITING,
        "",
        "name of a batch write: one of the same name is never published twice",
        default_text="a new one each time",
    )
    write_batch: int = integer(
        WRITING, 0, "number of a batch write among those of its writeId; they only rise", minimum=0
    )
    write_note: str = row(
        Note(), WRITING, "", "text that the brokers keep with the newest batch of a writeId"
    )


def camel(field: str) -> str:
    first, *rest = field.removesuffix("_ns").split("_")
    return first + "".join(word.capitalize() for word in rest)


def settings() -> tuple[Setting, ...]:
    """The table, with the names that Spark's users write."""
    return tuple(
        setting._replace(option=camel(setting.field), flag=camel(setting.field))
        for setting in settings_of(Options)
    )


SETTINGS = settings()
_BY_NAME = {setting.option.lower(): setting for setting in SETTINGS}


def parse_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The value of the option columns alone, for a schema.

    What is read or written later is not known yet, so only options of no use at all are refused.
    """
    for name in given:
        if name.lower() not in _BY_NAME and name.lower() not in SPARKS_OWN:
            _known(name, BATCH)
    text = given.get("columns")
    if text is None:
        return COLUMNS
    columns: tuple[str, ...] = _parse(_BY_NAME["columns"], text, "option columns")
    if not columns or len(set(columns)) != len(columns):
        raise OptionError("option columns must have at least one column, and none twice")
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
    """Only where the nodes are and how to reach them; other options may be there too."""
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
            f"there is no option {name!r} of the data source nsq{_suggestion(name, use)}; "
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
        return " (name the topic in the option topic)"
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
    """What no single option can know."""
    if options.mode == "channel":
        _check_channel_mode(options)
    else:
        _check_addresses(options)
    if use != WRITE and not options.topic:
        raise OptionError("option topic must be given: a topic, or several with commas between")
    if use == WRITE and len(options.topic) > 1:
        raise OptionError("option topic of a write must be one topic; a column topic routes rows")
    if len(set(options.topic)) != len(options.topic):
        raise OptionError("option topic has a topic twice")
    if use == STREAM and not options.channel:
        raise OptionError(
            "option channel must be given: a stream is a pull channel of this name on the nodes, "
            "which keeps what the stream has not read yet; every stream needs its own"
        )
    if options.take_over and options.take_over == options.identity:
        raise OptionError("option takeOver is the identity of the other reader, not of this one")
    if options.write_batch and not options.write_id:
        raise OptionError("option writeBatch needs writeId")
    if options.write_note and not options.write_id:
        raise OptionError("option writeNote needs writeId")
    if options.http_token and options.http_token_file:
        raise OptionError("options httpToken and httpTokenFile exclude one another")
    if options.starting_timestamp is not None and not options.starting_offsets.default:
        raise OptionError("options startingOffsets and startingTimestamp exclude one another")
    if options.ending_timestamp is not None and not options.ending_offsets.default:
        raise OptionError("options endingOffsets and endingTimestamp exclude one another")


def _check_addresses(options: Options) -> None:
    if bool(options.nsqd_http_addresses) == bool(options.lookupd_http_addresses):
        raise OptionError("either nsqdHttpAddresses or lookupdHttpAddresses must be given")


def _check_channel_mode(options: Options) -> None:
    if bool(options.nsqd_tcp_addresses) == bool(options.lookupd_http_addresses):
        raise OptionError(
            "with mode=channel either nsqdTcpAddresses or lookupdHttpAddresses must be given"
        )
    if not options.store_path:
        raise OptionError(
            "with mode=channel option storePath must be given: a folder that driver and executors "
            "reach, for messages that are taken from nsqd and not yet committed by the query"
        )
