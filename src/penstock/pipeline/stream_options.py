"""The options of a pipeline's stream: what it reads, its identity, where it resumes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.pipeline.discovery import reader_name
from penstock.pipeline.folders import is_local
from penstock.pipeline.losses import as_losses
from penstock.pipeline.plan import source_options
from penstock.pipeline.reconciliation import Settled
from penstock.pipeline.spec import Pipeline, channel_of
from penstock.spark.offsets import encode


def stream_options(
    pipeline: Pipeline, name: str, topics: Sequence[str], settled: Settled | None, take_over: str
) -> dict[str, str]:
    """All options of the data source ``nsq``; the source's own options come last."""
    if pipeline.functions:
        topics = (*topics, pipeline.retry_topic)
    return {
        **source_options(pipeline, name, topics),
        **place_options(pipeline, name, settled, take_over),
        **pipeline.sources[name].options,
    }


def place_options(
    pipeline: Pipeline, name: str, settled: Settled | None, take_over: str
) -> dict[str, str]:
    """The stream's identity, where it resumes, and which losses are accepted."""
    if settled is None:
        return {}
    channel = channel_of(pipeline, name)
    options = {"identity": settled.identity.text, "reader": reader_name(pipeline)}
    if is_local(pipeline.checkpoint_path):
        options["checkpoint"] = pipeline.checkpoint_path
    # Set even if empty: the source then knows that nothing was read yet.
    options["resumeFrom"] = json.dumps(encode(channel, settled.resume.get(channel, {})))
    if settled.accepted:
        options["acceptLoss"] = as_losses(settled.accepted)
    # A restored pipeline may be that reader itself: then there is nothing to take over.
    if take_over and take_over != settled.identity.text:
        options["takeOver"] = take_over
    trigger = pipeline.trigger
    if trigger.every_ns and not trigger.available_now:
        options["holdInterval"] = f"{max(1, trigger.every_ns // 1_000_000)}ms"
        if trigger.messages:
            options["holdMessages"] = str(trigger.messages)
    return options
