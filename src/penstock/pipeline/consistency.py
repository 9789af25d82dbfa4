"""Checks whether the parts of a pipeline fit together, which no key can check by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import OptionError, PipelineError
from penstock.pipeline.bodies import RESERVED
from penstock.pipeline.ddl import column_names
from penstock.pipeline.places import check_places
from penstock.pipeline.spec import (
    ConsoleSink,
    DeltaSink,
    ParquetSink,
    Pipeline,
    PlotSink,
    Sink,
    Source,
    TopicSink,
    Transform,
    channel_of,
)
from penstock.spark.node_client import host_and_port
from penstock.wire.names import is_valid_name

# Spark accepts "10 minutes"; a Go duration would fail much later.
INTERVAL = re.compile(r"\d+ (second|minute|hour|day)s?")
# Derived topics append to the name: NAME.invalid must be a valid name too.
NAME_SIZE_MAX = 64 - len(".invalid")
# Options of the data source nsq that are addresses; option names ignore case.
ADDRESS_OPTIONS = ("nsqdhttpaddresses", "lookupdhttpaddresses", "nsqdtcpaddresses")


def check(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline, or raise PipelineError that says what is wrong and what is allowed."""
    if not is_valid_name(pipeline.name) or len(pipeline.name) > NAME_SIZE_MAX:
        raise PipelineError(
            f"name must be 1 to {NAME_SIZE_MAX} letters, digits or ._-, not {pipeline.name!r}"
        )
    for name in pipeline.spark:
        if not name.startswith("spark."):
            raise PipelineError(f"[spark] {name}: Spark settings start with spark.")
    if pipeline.job:
        if pipeline.sources or pipeline.sinks or pipeline.transforms:
            raise PipelineError("a pipeline with a job cannot have sources, transforms or sinks")
        for name in ("nsqd", "lookupd"):
            given = pipeline.parameters.get(name, "").split(",")
            _check_addresses([text for text in given if text.strip()], f"parameter {name}: ")
        return pipeline
    if not pipeline.sources:
        raise PipelineError("[source] is missing")
    if not pipeline.sinks:
        raise PipelineError("[[sink]] is missing")
    for name, source in pipeline.sources.items():
        _check_source(source, f"[source.{name}] " if len(pipeline.sources) > 1 else "[source] ")
    _check_transforms(pipeline)
    for number, sink in enumerate(pipeline.sinks, 1):
        place = f"[[sink]] {number}: " if len(pipeline.sinks) > 1 else "[sink] "
        _check_sink(sink, pipeline, place)
    _check_topics(pipeline)
    _check_trigger(pipeline)
    check_places(pipeline)
    return pipeline


def _check_addresses(addresses: Iterable[str], place: str) -> None:
    for address in addresses:
        try:
            host_and_port(address.strip())
        except (OptionError, ValueError):
            raise PipelineError(
                f"{place}{address!r} must be host:port or https://host:port, such as 127.0.0.1:4151"
            ) from None


def _check_brokers(table: Source | TopicSink, place: str) -> None:
    _check_addresses(table.nsqd_http_addresses, f"{place}nsqd_http_addresses: ")
    _check_addresses(table.lookupd_http_addresses, f"{place}lookupd_http_addresses: ")
    for name, text in table.options.items():
        if name.lower() in ADDRESS_OPTIONS:
            given = [part for part in text.split(",") if part.strip()]
            _check_addresses(given, f"{place}options: {name}: ")


def _check_source(source: Source, place: str) -> None:
    if source.format == "nsq":
        if not source.topics:
            raise PipelineError(f"{place}topics must be given")
        for topic in source.topics:
            if not is_valid_name(re.sub(r"[*?]", "x", topic)) or "#" in topic:
                raise PipelineError(f"{place}topics: {topic!r} is not a valid topic name")
        if bool(source.nsqd_http_addresses) == bool(source.lookupd_http_addresses):
            raise PipelineError(
                f"{place}either nsqd_http_addresses or lookupd_http_addresses must be given"
            )
        _check_brokers(source, place)
        if source.channel and not is_valid_name(source.channel):
            raise PipelineError(f"{place}channel: {source.channel!r} is not a valid channel name")
    elif source.body != "bytes":
        raise PipelineError(f"{place}body is for messages; the format is {source.format}")
    if source.body == "json" and not source.schema:
        raise PipelineError(f'{place}schema must be given with body = "json"; or "infer"')
    if source.schema == "infer" and source.body != "json":
        raise PipelineError(f'{place}schema = "infer" is for JSON bodies')
    if source.schema and source.schema != "infer":
        _check_schema(source, place)
    if source.watermark and not INTERVAL.fullmatch(source.watermark):
        raise PipelineError(
            f'{place}watermark must be such as "10 minutes" or "30 seconds", '
            f"not {source.watermark!r}"
        )
    if source.dedupe and not source.watermark:
        raise PipelineError(f"{place}dedupe needs a watermark: how long to remember earlier rows")


def _check_schema(source: Source, place: str) -> None:
    is_body = source.body == "json"
    for name in _check_columns(source.schema, f"{place}schema: ", colons=is_body):
        if is_body and name in RESERVED:
            raise PipelineError(f"{place}schema: the name {name} is reserved for the message")


def _check_columns(text: str, place: str, *, colons: bool = True) -> list[str]:
    try:
        return column_names(text, colons=colons)
    except PipelineError as error:
        raise PipelineError(f"{place}{error}") from None


def _check_transforms(pipeline: Pipeline) -> None:
    names = {*pipeline.sources}
    for number, step in enumerate(pipeline.transforms, 1):
        place = f"[[transform]] {number}: "
        kinds = [bool(step.sql), bool(step.function), bool(step.dataframe)]
        if sum(kinds) != 1:
            raise PipelineError(f"{place}exactly one of sql, function and dataframe must be given")
        if step.returns and not step.function:
            raise PipelineError(f"{place}returns is for a function")
        if step.returns:
            _check_columns(step.returns, f"{place}returns: ")
        if step.name and (step.name in names or not step.name.isidentifier()):
            raise PipelineError(f"{place}name: {step.name!r} is taken or not a valid view name")
        names.add(step.name)
    _check_order(pipeline.transforms)
    messages = any(source.format == "nsq" for source in pipeline.sources.values())
    if pipeline.functions and not messages:
        raise PipelineError("a function needs a source of messages: refused rows go back there")
    if len(pipeline.sources) > 1 and not pipeline.queries:
        raise PipelineError("several sources need a [[transform]] with sql that joins them")


def _check_order(steps: tuple[Transform, ...]) -> None:
    """A row that a function refuses is retried after the SQL, so only functions may follow.

    Otherwise the function would run once for the rows that pass and once for those that fail,
    and a row might do both, or neither.
    """
    last_query = max((n for n, step in enumerate(steps) if not step.function), default=-1)
    first_function = min((n for n, step in enumerate(steps) if step.function), default=len(steps))
    if last_query > first_function:
        raise PipelineError(
            f"[[transform]] {last_query + 1}: sql and dataframe must come before the functions; "
            "use the sql of a sink for what comes after"
        )
    for number, step in enumerate(steps[:-1], 1):
        if step.function and step.returns:
            raise PipelineError(f"[[transform]] {number}: only the last function can have returns")


def _check_sink(sink: Sink, pipeline: Pipeline, place: str) -> None:
    match sink:
        case TopicSink():
            if sink.topic and not is_valid_name(sink.topic):
                raise PipelineError(f"{place}topic: {sink.topic!r} is not a valid topic name")
            if sink.nsqd_http_addresses and sink.lookupd_http_addresses:
                raise PipelineError(
                    f"{place}use only one of nsqd_http_addresses and lookupd_http_addresses"
                )
            _check_brokers(sink, place)
            if not _brokers(sink, pipeline):
                raise PipelineError(f"{place}nsqd_http_addresses must be given")
            if sink.rate and not pipeline.trigger.once:
                raise PipelineError(f"{place}rate is for a pipeline with trigger once = true")
        case ParquetSink() | DeltaSink() | PlotSink():
            if not sink.path:
                raise PipelineError(f"{place}path must be given")
            if not isinstance(sink, ParquetSink) and "://" in pipeline.resolve(sink.path):
                raise PipelineError(f"{place}path: {sink.type} needs a local path")
            if isinstance(sink, PlotSink) and not sink.values:
                raise PipelineError(f"{place}values must be given: the columns to plot")
        case ConsoleSink():
            pass
    needs_columns = isinstance(sink, (ParquetSink, DeltaSink, PlotSink))
    if needs_columns and pipeline.functions and not pipeline.functions[-1].returns:
        raise PipelineError(
            f"{place}a table needs columns: the last function must declare them with returns"
        )


def _brokers(sink: TopicSink, pipeline: Pipeline) -> bool:
    own = sink.nsqd_http_addresses or sink.lookupd_http_addresses
    return bool(own) or any(source.format == "nsq" for source in pipeline.sources.values())


def _check_topics(pipeline: Pipeline) -> None:
    """A pipeline that reads what it writes would never end."""
    for source in pipeline.sources.values():
        for sink in pipeline.sinks:
            if isinstance(sink, TopicSink) and sink.topic in source.topics:
                raise PipelineError(f"topic {sink.topic} is both read and written")
    read: set[tuple[str, str]] = set()
    for name, source in pipeline.sources.items():
        for topic in source.topics:
            place = (topic, channel_of(pipeline, name))
            if place in read:
                raise PipelineError(
                    f"[source.{name}] topic {topic} is read twice in channel {place[1]}; "
                    "give one of the sources another channel"
                )
            read.add(place)
    for key, topic in (
        ("[retry] topic", pipeline.retry_topic),
        ("[retry] dead_topic", pipeline.dead_topic),
        ("[invalid] topic", pipeline.invalid_topic),
    ):
        if topic and not is_valid_name(topic):
            raise PipelineError(f"{key}: {topic!r} is not a valid topic name")
    if pipeline.invalid.topic and pipeline.invalid.path:
        raise PipelineError("[invalid] use only one of topic and path")


def _check_trigger(pipeline: Pipeline) -> None:
    trigger = pipeline.trigger
    given = [trigger.interval_ns, trigger.every_ns, trigger.available_now, trigger.once]
    if sum(map(bool, given)) > 1:
        raise PipelineError("[trigger] use only one of interval, every, available_now and once")
    if trigger.messages and not trigger.every_ns:
        raise PipelineError("[trigger] messages needs every")
    streaming = [source.streaming for source in pipeline.sources.values()]
    if not any(streaming) and not trigger.once:
        raise PipelineError("[trigger] a source that is not a stream needs once = true")
    if trigger.once and any(source.watermark for source in pipeline.sources.values()):
        raise PipelineError("[source] watermark and dedupe are for streams, not for once = true")
    if trigger.once and pipeline.functions:
        raise PipelineError("[trigger] once = true: functions are for streams; use a dataframe")
