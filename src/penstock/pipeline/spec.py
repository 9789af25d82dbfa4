"""What a pipeline is: the tables of its file, each a frozen dataclass, each key a row of a table.

    sources -> parse -> watermark, dedupe -> transforms -> sinks
                 |                              |
              [invalid]                    [retry] -> dead letters

A key declares its kind, default and meaning here; the checks of ``spec_file``, the example of
`penstock pipeline init` and the reference in ``docs/`` are derived from that.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.settings.kinds import Text
from penstock.settings.table import boolean, choice, duration, integer, row, string, strings

Function = Any  # "module:function", or in Python the function itself

INPUT = "input"  # the view of the previous step's result
SIZE_UNITS = {"": 1, "KB": 1000, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20}

# The prefixes of a local path.
LOCAL = re.compile(r"file:(//(localhost)?(?=/)|(?!//))", re.IGNORECASE)

# Columns of a message.  Beside the fields of a JSON body they have a prefix.
MESSAGE_COLUMNS = ("topic", "node", "index", "id", "timestamp", "body")
PREFIX = "nsq_"


class Size(Text):
    """Bytes, as a number or with a unit."""

    kind = "size"
    noun = "a size such as 64MB or 1GB"

    def parse(self, text: str) -> int:
        match = re.fullmatch(r"(\d[\d_]*) ?([A-Za-z]*)", text)
        if match is None or match[2].upper() not in SIZE_UNITS:
            raise ValueError(text)
        return int(match[1]) * SIZE_UNITS[match[2].upper()]

    def convert(self, value: object) -> int:
        text = str(value) if isinstance(value, int) else value
        return super().convert(text)  # type: ignore[no-any-return]

    def show(self, value: Any) -> str:
        for unit in ("GB", "MB", "KB"):
            if value and value % SIZE_UNITS[unit] == 0:
                return f"{value // SIZE_UNITS[unit]}{unit}"
        return str(value)


class OptionTable(Text):
    """A table of texts, numbers and booleans, such as options passed to Spark."""

    kind = "table"
    noun = 'a table such as { "a.b" = "c" }'

    def parse(self, text: str) -> dict[str, str]:
        pairs = [part.partition("=") for part in text.split(",") if part]
        return {name.strip(): value.strip() for name, _, value in pairs}

    def convert(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            return super().convert(value)  # type: ignore[no-any-return]
        return {str(name): self._text(item) for name, item in value.items()}

    def _text(self, value: object) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (dict, list)):
            raise ValueError(value)
        return str(value)

    def show(self, value: Any) -> str:
        return ", ".join(f"{name}={text}" for name, text in value.items())


class Moment(Text):
    """``earliest``, ``latest`` or a time."""

    kind = "moment"
    noun = "earliest, latest or a time such as 2026-01-31T12:00:00Z"

    def parse(self, text: str) -> str:
        if text not in ("earliest", "latest"):
            datetime.datetime.fromisoformat(text)
        return text

    def convert(self, value: object) -> str:
        if isinstance(value, (datetime.date, datetime.datetime)):
            return value.isoformat()
        return super().convert(value)  # type: ignore[no-any-return]


class Code(Text):
    kind = "function"
    noun = "module:function"

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"[\w.]+:\w+", text):
            raise ValueError(text)
        return text

    def show(self, value: Any) -> str:
        return value if isinstance(value, str) else getattr(value, "__name__", "")


def table(group: str, help: str) -> Any:
    return row(OptionTable(), group, dict, help, default_text="{}")


def compact_after(group: str) -> Any:
    return duration(
        group, "10m", "merge the small files of a folder not written to for this long; 0: never"
    )


def compact_files(group: str) -> Any:
    return integer(
        group, 3, "merge if a folder has this many files smaller than file_size", minimum=2
    )


def file_size(group: str) -> Any:
    return row(
        Size(), group, 128 * 10**6, "smallest size of a merged file, if there is enough data"
    )


def code(group: str, help: str) -> Any:
    return row(Code(), group, "", help)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """``[source]``: what to read, and how bodies become columns."""

    format: str = string("source", "nsq", "nsq, or a Spark format: parquet, json, csv, rate")
    topics: tuple[str, ...] = strings("source", "topics; * and ? are wildcards")
    nsqd_http_addresses: tuple[str, ...] = strings("source", "HTTP addresses of nsqds")
    lookupd_http_addresses: tuple[str, ...] = strings("source", "HTTP addresses of nsqlookupds")
    channel: str = string(
        "source", "", "pull channel of the stream", default_text="the pipeline's name"
    )
    start: str = row(Moment(), "source", "earliest", "where a new pipeline starts")
    max_messages: int = integer(
        "source", 1_000_000, "most messages in a batch; 0: no limit", minimum=0
    )
    fail_on_data_loss: bool = boolean("source", True, "stop if messages to read may be lost")
    path: str = string("source", "", "folder or file, for other formats")
    options: Mapping[str, str] = table("source", "further options, passed to the data source")
    body: str = choice("source", "bytes", "format of the bodies", ("bytes", "text", "json"))
    schema: str = string(
        "source", "", "for JSON bodies: columns as in CREATE TABLE, including NOT NULL; or infer"
    )
    event_time: str = string(
        "source", "", "column of the watermark", default_text="the message's timestamp"
    )
    watermark: str = string("source", "", 'how late rows may arrive, such as "10 minutes"')
    dedupe: tuple[str, ...] = strings(
        "source", "columns that identify a row; duplicates within the watermark are dropped"
    )

    @property
    def streaming(self) -> bool:
        return self.format in ("nsq", "rate", "rate-micro-batch")

    @property
    def time_column(self) -> str:
        return self.event_time or ("nsq_timestamp" if self.body == "json" else "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """``[[transform]]``: exactly one of ``sql``, ``function`` and ``dataframe``."""

    name: str = string("transform", "", "name of the result for later SQL; input always works too")
    sql: str = string(
        "transform", "", "Spark SQL; the view input is the result of the previous step"
    )
    function: Function = code(
        "transform", "Python, per row: takes a dict; returns a dict, several or None"
    )
    dataframe: Function = code(
        "transform", "Python, on the whole: takes a DataFrame, returns a DataFrame"
    )
    returns: str = string("transform", "", "columns that the function returns, if not just a body")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """``[retry]``: what happens to a row whose function raises."""

    max_attempts: int = integer("retry", 5, "attempts in total, including the first", minimum=1)
    delay_ns: int = duration("retry", "10s", "wait before the second attempt", minimum="1ms")
    delay_max_ns: int = duration("retry", "15m", "longest wait; each is twice the one before")
    topic: str = string(
        "retry", "", "topic in which rows wait for a retry", default_text="NAME.retry"
    )
    dead_topic: str = string(
        "retry", "", "topic for rows that failed every attempt", default_text="NAME.dead"
    )

    def delay_of(self, attempts: int) -> int:
        """Nanoseconds to wait after that many attempts; doubles each time, unlike NSQ's requeue."""
        return min(self.delay_ns << min(attempts - 1, 40), self.delay_max_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """``[invalid]``: where messages go whose body does not match the schema."""

    topic: str = string("invalid", "", "topic for invalid messages", default_text="NAME.invalid")
    path: str = string("invalid", "", "folder of a Parquet table for them, instead of a topic")
    compact_after_ns: int = compact_after("invalid")
    compact_files: int = compact_files("invalid")
    file_size: int = file_size("invalid")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """Rows become messages: a column ``body`` as it is, otherwise the whole row as JSON."""

    topic: str = string("topic", "", "topic, unless the rows have a column topic")
    nsqd_http_addresses: tuple[str, ...] = strings(
        "topic", "HTTP addresses of nsqds, if not those of the source"
    )
    lookupd_http_addresses: tuple[str, ...] = strings("topic", "or of nsqlookupds")
    rate: int = integer(
        "topic", 0, "messages per second, with trigger once; 0: no limit", minimum=0
    )
    options: Mapping[str, str] = table("topic", "further options of the data source nsq")
    sql: str = string("topic", "", "SQL from input, for this sink only")

    type = "topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSink:
    """A folder of Parquet files with every row exactly once."""

    path: str = string("parquet", "", "the folder")
    partition_by: tuple[str, ...] = strings(
        "parquet", "columns that become folders; date and hour are made from the time"
    )
    compact_after_ns: int = compact_after("parquet")
    compact_files: int = compact_files("parquet")
    file_size: int = file_size("parquet")
    sql: str = string("parquet", "", "SQL from input, for this sink only")

    type = "parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSink:
    """A Delta table, written through deltalake."""

    path: str = string("delta", "", "folder of the table")
    partition_by: tuple[str, ...] = strings(
        "delta", "columns that become folders; date and hour are made from the time"
    )
    compact_after_ns: int = compact_after("delta")
    compact_files: int = compact_files("delta")
    file_size: int = file_size("delta")
    sql: str = string("delta", "", "SQL from input, for this sink only")

    type = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink:
    """Rows printed on the terminal, for trying things out."""

    rows: int = integer("console", 20, "most rows to print per batch", minimum=1, maximum=10_000)
    sql: str = string("console", "", "SQL from input, for this sink only")

    type = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSink:
    """Line charts over time, one line for each value column and series, redrawn with each batch."""

    path: str = string("plot", "", "SVG file")
    time: str = string("plot", "time", "time column")
    series: str = string("plot", "", "column whose values become separate lines")
    values: tuple[str, ...] = strings("plot", "columns to plot, one chart each")
    points: int = integer("plot", 600, "most points per line", minimum=2, maximum=100_000)
    terminal: bool = boolean("plot", False, "also draw in the terminal")
    sql: str = string("plot", "", "SQL from input, for this sink only")

    type = "plot"


Sink = TopicSink | ParquetSink | DeltaSink | ConsoleSink | PlotSink
SINKS: dict[str, type[Any]] = {
    kind.type: kind for kind in (TopicSink, ParquetSink, DeltaSink, ConsoleSink, PlotSink)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """``[trigger]``: when a batch starts.  Without one: as soon as there are messages."""

    interval_ns: int = duration("trigger", "0", "time between batches")
    every_ns: int = duration(
        "trigger",
        "0",
        "process everything available at this interval, then sleep; picks up new topics each time",
    )
    messages: int = integer(
        "trigger", 0, "with every: start earlier if this many messages wait", minimum=0
    )
    available_now: bool = boolean("trigger", False, "process everything available, then exit")
    once: bool = boolean("trigger", False, "no stream: read, write and exit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The top of the file, and its tables."""

    name: str = string(
        "", "", "letters, digits and ._-; used for the channel, checkpoint and status"
    )
    description: str = string("", "", "what it is for")
    checkpoint: str = string("", "", "folder of the checkpoint", default_text="checkpoints/NAME")
    master: str = string("", "local[*]", "Spark master")
    output_mode: str = choice("", "append", "output mode of aggregations", ("append", "update"))
    job: Function = code("", "function to run instead of sources and sinks")
    spark: Mapping[str, str] = table("", "Spark settings: spark.*")
    parameters: Mapping[str, str] = table("", "values of :name in SQL; can be set when starting")
    sources: Mapping[str, Source] = field(default_factory=dict)
    transforms: tuple[Transform, ...] = ()
    sinks: tuple[Sink, ...] = ()
    retry: Retry = Retry()
    invalid: Invalid = Invalid()
    trigger: Trigger = Trigger()
    folder: Path = Path()  # what relative paths start from
    code_folder: Path | None = None  # the folder of its modules, if different

    @property
    def functions(self) -> tuple[Transform, ...]:
        return tuple(step for step in self.transforms if step.function)

    @property
    def queries(self) -> tuple[Transform, ...]:
        """The steps before the functions: SQL and DataFrames."""
        return tuple(step for step in self.transforms if not step.function)

    @property
    def checkpoint_path(self) -> str:
        return self.resolve(self.checkpoint or f"checkpoints/{self.name}")

    @property
    def retry_topic(self) -> str:
        return self.retry.topic or f"{self.name}.retry"

    @property
    def dead_topic(self) -> str:
        return self.retry.dead_topic or f"{self.name}.dead"

    @property
    def invalid_topic(self) -> str:
        return "" if self.invalid.path else self.invalid.topic or f"{self.name}.invalid"

    @property
    def modules(self) -> Path:
        """The folder of the modules that it names."""
        return self.folder if self.code_folder is None else self.code_folder

    def places(self) -> list[str]:
        """Where its rows go, for people."""
        found = []
        for sink in self.sinks:
            if isinstance(sink, TopicSink):
                found.append(f"topic {sink.topic}" if sink.topic else "the topics of its rows")
            elif isinstance(sink, ConsoleSink):
                found.append("the terminal")
            else:
                found.append(self.resolve(sink.path))
        return found

    def resolve(self, path: str) -> str:
        """Resolve a path: unchanged if absolute or with a scheme, else relative to the file.

        A local path is returned plain, also if it was written as ``file:/a`` or ``file:///a``.
        """
        if match := LOCAL.match(path):
            path = path[match.end() :]
        return path if "://" in path else os.path.normpath(self.folder / path)


def channel_of(pipeline: Pipeline, name: str) -> str:
    """The pull channel of a source; each of several sources has its own."""
    source = pipeline.sources[name]
    if source.channel:
        return source.channel
    return pipeline.name if len(pipeline.sources) == 1 else f"{pipeline.name}.{name}"
