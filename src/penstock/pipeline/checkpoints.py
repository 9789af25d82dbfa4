"""Checks whether a checkpoint belongs to the pipeline that is about to resume from it.

A checkpoint contains ``penstock.json`` beside Spark's own files:

    {"version": 1, "pipeline": "orders", "sources": {"input": "nsq orders"}, "state": "5e0c...",
     "sinks": ["parquet /data/orders"], "schemas": {"input": "id bigint, total double"}}

Spark identifies sources by their order and state by its shape: with different ones it would fail
late, or read on as if nothing had changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError
from penstock.pipeline.folders import Folder
from penstock.pipeline.spec import Pipeline, channel_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "penstock.json"
VERSION = 1


@dataclass(slots=True)
class Checkpoint:
    """What a pipeline was when its checkpoint was created."""

    pipeline: str
    sources: dict[str, str]
    state: str = ""
    sinks: list[str] = field(default_factory=list)
    schemas: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps({"version": VERSION, **fields}, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Checkpoint:
        found: dict[str, Any] = json.loads(text)
        return cls(**{name: found[name] for name in cls.__dataclass_fields__})


def describe(pipeline: Pipeline, schemas: dict[str, StructType], stateful: bool) -> Checkpoint:
    """What to store about a pipeline."""
    sources = {
        name: f"{source.format} {channel_of(pipeline, name)}"
        for name, source in pipeline.sources.items()
    }
    sinks = [
        f"{sink.type} {getattr(sink, 'path', '') or getattr(sink, 'topic', '')}".strip()
        for sink in pipeline.sinks
    ]
    ddl = {name: schema.toDDL() for name, schema in schemas.items()}
    return Checkpoint(pipeline.name, sources, _state(pipeline) if stateful else "", sinks, ddl)


def _state(pipeline: Pipeline) -> str:
    """Everything that determines the shape of the state, except the layout of the text."""
    steps = [" ".join(step.sql.split()) or str(step.dataframe) for step in pipeline.queries]
    rows = [[source.schema, source.dedupe] for source in pipeline.sources.values()]
    return hashlib.sha256(json.dumps([steps, rows]).encode()).hexdigest()[:16]


def load(folder: Folder) -> Checkpoint | None:
    """The checkpoint of a folder; None if there is none yet."""
    text = folder.read(NAME)
    if text is not None:
        try:
            return Checkpoint.from_json(text)
        except (ValueError, KeyError, TypeError):
            raise PipelineError(f"{folder.uri}/{NAME} is damaged.  {ADVICE}") from None
    if folder.read("metadata") is not None:
        raise PipelineError(
            f"the checkpoint {folder.uri} was not created by `penstock pipeline`.  {ADVICE}"
        )
    return None


ADVICE = (
    "Use another folder with --checkpoint.  A pipeline whose SQL keeps state then also needs "
    "another name and another output."
)


def check_owner(stored: Checkpoint, pipeline: str, uri: str) -> None:
    """Raise PipelineError if a checkpoint belongs to a pipeline of another name."""
    if stored.pipeline != pipeline:
        raise PipelineError(
            f"the checkpoint {uri} belongs to the pipeline {stored.pipeline}, not to {pipeline}.  "
            f"{ADVICE}"
        )


def check_fit(stored: Checkpoint, now: Checkpoint, uri: str) -> list[str]:
    """Raise PipelineError if the pipeline cannot resume from there; return what has changed."""
    place = f"the checkpoint {uri}"
    check_owner(stored, now.pipeline, uri)
    if stored.sources != now.sources:
        raise PipelineError(
            f"{place} was created with the sources {_listed(stored.sources)}, and now they are "
            f"{_listed(now.sources)}.  {ADVICE}"
        )
    if stored.state != now.state:
        raise PipelineError(
            f"{place} contains the state of another query: SQL with aggregations, joins or dedupe, "
            f"or its schema, has changed.  {ADVICE}"
        )
    return [
        f"sink {sink} is new: it gets rows from now on, not earlier ones"
        for sink in now.sinks
        if sink not in stored.sinks
    ]


def _listed(sources: dict[str, str]) -> str:
    return ", ".join(f"{name} ({text})" for name, text in sources.items())
