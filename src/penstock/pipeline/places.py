"""Checks where a pipeline writes: no two of its folders and files may be the same or nested.

Two tables in one folder would be two writers of one state: each takes the other's batches for its
own, and rows are lost.  The files of a table inside another appear among its rows.

    <table>/_penstock/...       the table's own state; readers skip it.  A checkpoint may be there,
                                as that of the shipped `archive` is
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.errors import PipelineError
from penstock.pipeline.spec import DeltaSink, ParquetSink, Pipeline, PlotSink, TopicSink

STATE = "_penstock"
# Names in it that the table uses itself.
TAKEN = ("ledger", "schema.json")


@dataclass(frozen=True, slots=True)
class Place:
    """A path as declared, and resolved: without links and with one spelling."""

    what: str
    path: str
    real: str
    table: bool = False
    checkpoint: bool = False


def check_places(pipeline: Pipeline) -> None:
    """Raise PipelineError if two places of a pipeline are the same or nested."""
    places = list(_places(pipeline))
    for number, one in enumerate(places):
        for other in places[number + 1 :]:
            _check_pair(one, other)


def _places(pipeline: Pipeline) -> Iterator[Place]:
    several = len(pipeline.sinks) > 1
    for number, sink in enumerate(pipeline.sinks, 1):
        if isinstance(sink, (ParquetSink, DeltaSink, PlotSink)):
            what = f"[[sink]] {number} path" if several else "[sink] path"
            yield _place(pipeline, what, sink.path, table=not isinstance(sink, PlotSink))
            if isinstance(sink, PlotSink):
                yield _place(pipeline, f"{what}, its points,", f"{sink.path}.json")
    if pipeline.invalid.path:
        yield _place(pipeline, "[invalid] path", pipeline.invalid.path, table=True)
    checkpoint = pipeline.checkpoint_path
    yield _place(pipeline, "the checkpoint", checkpoint, checkpoint=True)
    if any(isinstance(sink, TopicSink) for sink in pipeline.sinks):
        what = "the ledger of topics"
        yield _place(pipeline, what, f"{checkpoint.rstrip('/')}.ledger", checkpoint=True)


def _place(
    pipeline: Pipeline, what: str, path: str, *, table: bool = False, checkpoint: bool = False
) -> Place:
    try:
        real = real_path(pipeline.resolve(path))
    except ValueError as error:
        raise PipelineError(f"{what}: {path!r}: {error}") from None
    return Place(what, path, real, table, checkpoint)


def real_path(path: str) -> str:
    """One spelling for each place: links, ``.``, ``..`` and slashes resolved.

    ``path`` is as ``Pipeline.resolve`` returns it, so a plain one is local.
    """
    if "://" not in path:
        return os.path.realpath(path)
    parts = urlsplit(path)
    if parts.scheme.lower() == "file":
        raise ValueError(f"{parts.netloc!r} would be another machine; write file:///path")
    inner = re.sub("^/+", "/", posixpath.normpath(f"/{parts.path}"))
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{inner}"


def is_inside(path: str, folder: str) -> bool:
    """Whether a real path is in a folder, at any depth."""
    return path.startswith(folder.rstrip("/") + "/")


def _check_pair(one: Place, other: Place) -> None:
    if one.real == other.real:
        raise PipelineError(
            f"{one.what} and {other.what} are the same path, {one.real}; each needs its own"
        )
    inner, outer = (one, other) if is_inside(one.real, other.real) else (other, one)
    if not is_inside(inner.real, outer.real) or _is_allowed(inner, outer):
        return
    if inner.checkpoint and outer.table:
        advice = f"put it elsewhere, or in {outer.path.rstrip('/')}/{STATE}/checkpoint"
        if not inner.real.startswith(f"{outer.real}/{STATE}"):
            advice += "; stop the pipeline before you move it"
    else:
        advice = "put them side by side"
    raise PipelineError(
        f"{inner.what} ({inner.real}) is inside {outer.what} ({outer.real}); {advice}"
    )


def _is_allowed(inner: Place, outer: Place) -> bool:
    """A checkpoint may be in the table's state folder, under a name that the table does not use."""
    if not (inner.checkpoint and outer.table):
        return False
    words = inner.real.removeprefix(outer.real.rstrip("/") + "/").split("/")
    return words[0] == STATE and len(words) > 1 and words[1] not in TAKEN
