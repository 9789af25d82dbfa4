"""What a segment holds and where, against a list of its batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.appender import Batch
from penstock.core.batches import BATCH_HEADER_SIZE, HEADER_SIZE, ORIGINS
from penstock.core.tables import STRIDE, Tally

# (indexes left out, messages, bytes of payload, slot or 0)
made = st.tuples(
    st.integers(0, 2), st.integers(1, 5), st.integers(1, 2 * STRIDE), st.integers(0, 3)
)


@given(st.lists(made, max_size=20))
def test_a_tally_knows_what_was_appended(batches: list[tuple[int, int, int, int]]) -> None:
    tally = Tally(100)
    index, offset, noted = 100, HEADER_SIZE, -STRIDE
    first_of_all = 100
    sparse, gaps, origins, slots, count = [], [], [], set(), 0
    for number, (skipped, messages, size, slot) in enumerate(batches):
        if number and skipped:
            gaps.append((index, index + skipped))
        index += skipped
        if not number:
            first_of_all = index
        if offset - noted >= STRIDE:
            noted = offset
            sparse.append((index, offset, number + 1))
        if slot:
            origins.append(offset)
            slots.add(slot)
        flags = ORIGINS if slot else 0
        end = tally.append(Batch(bytes(size), index, messages, number + 1, 0, slot, flags))
        index += messages
        count += messages
        offset += BATCH_HEADER_SIZE + size
        assert end == offset
    tables = tally.tables
    assert list(zip(tables.indexes, tables.offsets, tables.times, strict=True)) == sparse
    assert (tables.gaps, list(tables.origins), tally.slots) == (gaps, origins, slots)
    assert (tally.first, tally.end, tally.count, tally.size) == (first_of_all, index, count, offset)
    assert (tally.append_ns_first, tally.append_ns_last) == (
        (1, len(batches)) if batches else (0, 0)
    )
    visible = tally.visible()
    assert (visible.size, visible.end, visible.count) == (offset, index, count)
    for start, at, _ in sparse:
        assert tables.before(start) == (start, at)
        assert tables.before(start + 1)[0] >= start
    if sparse:
        assert tables.before(0) == sparse[0][:2]
