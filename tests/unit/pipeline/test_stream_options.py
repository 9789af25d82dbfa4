"""The options of a pipeline's stream, as its source takes them."""

from __future__ import annotations

from pathlib import Path

from penstock.pipeline.coverage import Span
from penstock.pipeline.losses import as_losses
from penstock.pipeline.stream_options import stream_options
from penstock.spark.loss import ACCEPTED_COUNT_MAX, parse_losses
from penstock.spark.options import STREAM, parse_options
from tests.unit.pipeline.test_reconciliation import pipeline_of, settle
from tests.unit.pipeline.test_recorded_ends import OLD


def test_a_pipeline_that_was_put_back_does_not_take_its_channel_over_from_itself(
    tmp_path: Path,
) -> None:
    """The flag is for one that had lost its identity, and is still there."""
    pipeline = pipeline_of(tmp_path)
    (name,) = pipeline.sources
    settled = settle(pipeline)
    for other, taken in ((settled.identity.text, ""), ("f" * 32, "f" * 32)):
        options = stream_options(pipeline, name, ["t"], settled, other)
        assert parse_options(options, STREAM, {}).take_over == taken


def test_a_pipeline_that_has_accepted_very_many_losses_still_starts() -> None:
    count = ACCEPTED_COUNT_MAX + 5
    found = parse_losses(as_losses(Span(OLD, 10 * n, 10 * n + 3) for n in range(count)))
    assert len(found) == ACCEPTED_COUNT_MAX
    assert found[-1].end == 10 * (count - 1) + 3
