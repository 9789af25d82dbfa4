"""Pipelines: sources, transforms and sinks declared in a file, run on Spark by one command.

Reading order: ``spec`` (what a pipeline is), ``spec_file`` (reads it from a file), ``plan`` (makes
a Spark query of it), ``batches`` (writes each micro-batch), ``runner`` (the life of a run).

A pipeline in Python is a module with a ``Pipeline`` named ``pipeline``:

    from penstock.pipeline import Pipeline, Source, TopicSink, Transform

    pipeline = Pipeline(
        name="big-orders",
        sources={"input": Source(topics=("orders",), nsqd_http_addresses=("127.0.0.1:4151",))},
        transforms=(Transform(sql="SELECT * FROM input WHERE length(body) > 1000"),),
        sinks=(TopicSink(topic="big-orders"),),
    )
"""

from penstock.pipeline.files import table_files
from penstock.pipeline.spec import (
    ConsoleSink,
    DeltaSink,
    Invalid,
    ParquetSink,
    Pipeline,
    PlotSink,
    Retry,
    Source,
    TopicSink,
    Transform,
    Trigger,
)

__all__ = [
    "ConsoleSink",
    "DeltaSink",
    "Invalid",
    "ParquetSink",
    "Pipeline",
    "PlotSink",
    "Retry",
    "Source",
    "TopicSink",
    "Transform",
    "Trigger",
    "table_files",
]
