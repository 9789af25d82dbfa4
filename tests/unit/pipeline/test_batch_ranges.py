"""The ranges of a batch: what it reads, and the logs that enter with it."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.pipeline.batch_ranges import BatchRanges
from penstock.pipeline.coverage import Log, Span
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.offset_log import OffsetLog
from penstock.spark.offsets import Position, encode
from tests.unit.pipeline.test_reconciliation import pipeline_of

BUSY, QUIET = (Log("c", node, "t", instance * 16) for node, instance in (("n1", "a"), ("n2", "b")))


def offset(busy: int, quiet: int) -> dict[str, object]:
    positions = {
        log.node: {"t": Position(log.instance, index)}
        for log, index in ((BUSY, busy), (QUIET, quiet))
    }
    return encode("c", positions)


def test_a_log_without_messages_enters_with_the_first_batch(tmp_path: Path) -> None:
    """Else nobody knew where it begins when Spark had forgotten the batch: all was lacking."""
    folder = LocalFolder(str(tmp_path / "checkpoint"))
    begin = {"begin": offset(5, 7)["nodes"]}
    for number, told in enumerate((offset(9, 7) | begin, offset(12, 7))):
        folder.write(f"offsets/{number}", f"v1\n{{}}\n{json.dumps(told)}".encode())
    ranges = BatchRanges(pipeline_of(tmp_path), OffsetLog(folder), "0" * 32)
    assert ranges.of(0) == (Span(BUSY, 5, 9), Span(QUIET, 7, 7, 0))
    assert ranges.of(1) == (Span(BUSY, 9, 12),)
