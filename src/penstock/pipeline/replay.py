"""A pipeline's messages once more, from a place in their logs, into a new output.

Nothing that was written is written again: a replay has a table and a checkpoint of its own, which
must not exist before, and reads without a channel, so that the running pipeline keeps its position.
Invalid messages go to a table beside the output rather than to their topic.
"""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime
from pathlib import Path

from penstock.errors import PipelineError
from penstock.pipeline.consistency import check
from penstock.pipeline.places import STATE, is_inside, real_path
from penstock.pipeline.spec import DeltaSink, Invalid, ParquetSink, Pipeline, Source, Trigger
from penstock.settings.places import AGO, EARLIEST, TIME, Place, parse_place

NOUN = "earliest, a duration such as -1d, or a time as in RFC 3339"
_STARTS = ("startingoffsets", "startingtimestamp")


def place_of(text: str) -> Place:
    """Raises ValueError if a replay cannot begin there."""
    place = parse_place(text)
    if place.kind not in (AGO, EARLIEST, TIME):
        raise ValueError(text)
    return place


def replayed(pipeline: Pipeline, place: Place, output: str, checkpoint: str = "") -> Pipeline:
    """The pipeline that writes everything since ``place`` to the new table ``output``."""
    if not output:
        raise PipelineError("--replay needs --output: a new folder, so that nothing comes twice")
    if "://" in output:
        raise PipelineError("--output: a replay is written to a folder of this machine")
    if pipeline.job or len(pipeline.sinks) != 1:
        raise PipelineError("--replay is for a pipeline with one sink")
    (sink,) = pipeline.sinks
    if not isinstance(sink, ParquetSink | DeltaSink):
        raise PipelineError("--replay is for a pipeline whose sink is a table (parquet or delta)")
    _check_streams(pipeline)
    folder = str(Path(output).absolute())
    checkpoint = checkpoint or f"{folder}/{STATE}/replay"
    found = dataclasses.replace(
        pipeline,
        sources={name: _from(source, place) for name, source in pipeline.sources.items()},
        sinks=(dataclasses.replace(sink, path=folder),),
        invalid=Invalid(path=f"{folder}-invalid"),
        trigger=Trigger(once=True),
        checkpoint=checkpoint,
    )
    for path in (folder, f"{folder}-invalid", found.checkpoint_path):
        _check_new(path, pipeline)
    try:
        return check(found)
    except PipelineError as error:
        raise PipelineError(f"--replay: {error}") from None


def _check_streams(pipeline: Pipeline) -> None:
    if pipeline.functions:
        raise PipelineError("--replay: row functions with retries need a stream")
    if any(source.watermark or source.dedupe for source in pipeline.sources.values()):
        raise PipelineError("--replay: watermark and dedupe need a stream")
    if not any(source.format == "nsq" for source in pipeline.sources.values()):
        raise PipelineError("--replay: no source reads topics")


def _from(source: Source, place: Place) -> Source:
    if source.format != "nsq":
        return source
    start = EARLIEST
    if place.kind != EARLIEST:
        ago = place.kind == AGO
        since_ns = max(0, time.time_ns() - place.number) if ago else place.number
        start = datetime.fromtimestamp(since_ns // 1_000_000 / 1000, UTC).isoformat()
    options = {name: value for name, value in source.options.items() if name.lower() not in _STARTS}
    return dataclasses.replace(source, start=start, options=options)


def _check_new(path: str, pipeline: Pipeline) -> None:
    """Raise PipelineError unless nothing is there, also nothing of the pipeline itself."""
    real = real_path(path)
    old = [pipeline.checkpoint_path]
    old += [pipeline.resolve(each.path) for each in pipeline.sinks if hasattr(each, "path")]
    for other in map(real_path, old):
        if real == other or is_inside(real, other) or is_inside(other, real):
            raise PipelineError(f"{path}: the pipeline writes to {other}; name a new folder")
    found = Path(real)
    if found.exists() and not (found.is_dir() and next(found.iterdir(), None) is None):
        raise PipelineError(f"{path} exists already; a replay needs a new folder")
