"""A segment while it grows, and how far its log reaches, against lists of batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.appender import Batch
from penstock.core.batches import BATCH_HEADER_SIZE, HEADER_SIZE
from penstock.core.tables import Tally
from penstock.storage.segment import Extent, Segment

# What happens next: a batch of so many messages is written, the oldest is shown, or all is synced.
steps = st.lists(st.one_of(st.integers(1, 5), st.sampled_from(["show", "sync"])), max_size=30)


def size_of(batches: list[Batch]) -> int:
    return sum(BATCH_HEADER_SIZE + len(batch.payload) for batch in batches)


@given(steps)
def test_it_knows_what_is_written_shown_and_synced(what: list[int | str]) -> None:
    segment, extent = Segment("/a.log", 100, 5), Extent(0)
    segment.tally = Tally(100)
    written: list[Batch] = []
    shown = synced = 0
    for step in what:
        if isinstance(step, int):
            first = written[-1].end if written else 100
            written.append(Batch(bytes(10 * step), first, step, 7 + len(written), 0))
            segment.wrote(written[-1], extent)
            assert written[-1].segment is segment
        elif step == "sync":
            extent.reached(extent.count, extent.size)
            synced = len(written)
        elif shown < len(written):
            assert segment.show(written[shown]) == (shown == 0)
            shown += 1
        assert extent.end == (written[-1].end if written else 0)
        assert extent.unsynced_count == sum(batch.count for batch in written[synced:])
        assert extent.unsynced_size == size_of(written[synced:])
        assert segment.visible.count == sum(batch.count for batch in written[:shown])
        if shown:
            assert (
                segment.visible.size == segment.file_size == HEADER_SIZE + size_of(written[:shown])
            )
            assert segment.visible.end == written[shown - 1].end
            assert (segment.first, segment.append_ns_first) == (100, 7)


def test_an_older_sync_that_ends_later_takes_nothing_back() -> None:
    extent = Extent(0)
    extent.found(5, 500)
    extent.reached(5, 500)
    extent.reached(2, 200)
    assert (extent.unsynced_count, extent.unsynced_size) == (0, 0)
