"""R10: the cost of a window follows what is unfinished, not how far the cursor has gone."""

from __future__ import annotations

import random
import time
import tracemalloc

from penstock.core.block import Block
from penstock.core.window import Consumer, Window
from tests.support.blocks import NODE_ID, block_of, frame, read_runs
from tests.unit.core.windows import LIMIT, consumer_of

BATCH = 10_000


def block_at(first: int, template: Block) -> Block:
    """``template`` at other indexes: the window goes by the span, not by the ids in the frames."""
    return Block(template.data, [(first, BATCH, 0, len(template.data))], NODE_ID)


def pass_by(window: Window, consumer: Consumer, template: Block, finished_max: int) -> None:
    """Deliver and finish batch after batch behind whatever is stuck."""
    for first in range(window.cursor, window.cursor + finished_max, BATCH):
        window.load(block_at(first, template))
        given = window.deliver(consumer, BATCH, 1 << 30, LIMIT, 0)
        assert given is not None and given[1] == BATCH
        for index in range(first, first + BATCH):
            window.finish_index(consumer, index, NODE_ID)


def template_block() -> Block:
    data = frame(0, b"") * BATCH
    return Block(data, [(0, BATCH, 0, len(data))], NODE_ID)


def test_one_stuck_message_with_millions_finished_behind_it_costs_nothing() -> None:
    """R10: neither the window's memory nor what the journal is told grows."""
    template = template_block()
    window = Window(0)
    consumer = consumer_of(window)
    window.load(block_of([0]))
    window.deliver(consumer, 1, 1 << 20, LIMIT, 0)
    window.advance(1)
    pass_by(window, consumer, template, BATCH + 1_800_000)
    # Tracing makes it five times as slow, so only the last are traced: a bit each would be seen.
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        pass_by(window, consumer, template, 200_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000, "of 90 bytes a message in flight, nothing stays"
    assert window.low == 0 and window.unfinished_count == 1
    end = 1 + BATCH + 2_000_000
    assert window.cursor == end
    low, runs, marks = window.snapshot()
    assert (low, read_runs(runs), len(marks)) == (0, [(1, end)], 18)
    low, runs, marks = window.drain()
    assert (low, read_runs(runs), marks) == (0, [(1, end)], b"")
    assert window.drain() == (0, b"", b"")
    window.check()


def test_tracemalloc_sees_the_memory_of_a_window() -> None:
    """The test above rests on it."""
    template = template_block()
    tracemalloc.start()
    try:
        window = Window(0)
        window.load(template)
        before, _ = tracemalloc.get_traced_memory()
        window.deliver(consumer_of(window), BATCH, 1 << 30, LIMIT, 0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 60 * BATCH < after - before < 250 * BATCH


def test_finishes_in_any_order_cost_the_holes_between_two_drains() -> None:
    """Runs are merged when they are many; a list that is nearly full is not merged each time."""
    count = 400_000
    data = frame(0, b"") * count
    window = Window(0)
    window.load(Block(data, [(0, count, 0, len(data))], NODE_ID))
    consumer = consumer_of(window)
    window.deliver(consumer, count, 1 << 30, LIMIT, 0)
    order = list(range(1, count))
    random.Random(3).shuffle(order)
    for index in order:
        assert window.finish_index(consumer, index, NODE_ID) == 0
    low, runs, _ = window.drain()
    assert (low, read_runs(runs)) == (0, [(1, count)])
    window.check()


def test_finding_a_message_does_not_slow_down_with_dense_runs() -> None:
    """S0-4: two dense runs whose places would meet in a plain table stay quick and correct."""
    window = Window(0)
    for base in (0, 1 << 20, 1 << 30, 1 << 40):
        for index in range(base, base + 5000):
            window.restore(index, 1, 0)
    consumer = consumer_of(window)
    for _ in range(20_000):
        index = window.next_ready
        assert index is not None
        window.redeliver(consumer, frame(index, b""), 0)
        assert window.finish_index(consumer, index, NODE_ID) == 0
    assert window.unfinished_count == 0
    window.check()


def test_every_message_is_found_whatever_lies_beside_it_in_the_table() -> None:
    """S0-4: indexes far apart collide in the table; taking one out must not hide another."""
    choose = random.Random(11)
    indexes = sorted(choose.sample(range(1 << 54), 3000))
    window = Window(0)
    consumer = consumer_of(window)
    for index in indexes:
        window.restore(index, 0, 0)
        window.redeliver(consumer, frame(index, b""), 0)
    choose.shuffle(indexes)
    for gone, index in enumerate(indexes, 1):
        assert window.finish_index(consumer, index, NODE_ID) == 0
        assert window.describe(index) is None
        if gone % 100 == 0:
            window.check()
    assert window.unfinished_count == 0


def test_a_seek_from_a_million_deferred_messages_takes_no_turn_of_its_own() -> None:
    """R9, R22: the entries are dropped as a whole."""
    window = Window(0)
    for index in range(1_000_000):
        window.restore(index, 1, 10**18 + index)
    began_s = time.perf_counter()
    window.rewind(5)
    assert time.perf_counter() - began_s < 0.1
    window.check()
    assert (window.cursor, window.low, window.unfinished_count, window.deferred_count) == (
        5,
        5,
        0,
        0,
    )
    window.restore(7, 1, 0)
    window.check()
    assert window.depth == 1


def test_a_search_of_each_range_in_turn_costs_about_one_search_of_all() -> None:
    """A log with many small segments has many ranges: here 100,000 entries in 10,000."""
    template = template_block()
    window = Window(0)
    consumer = consumer_of(window)
    for first in range(0, 100_000, BATCH):
        window.load(block_at(first, template))
        window.deliver(consumer, BATCH, 1 << 30, LIMIT, 0)
    assert window.in_flight_count == 100_000
    start_s = time.process_time()
    for start in range(0, 100_000, 10):
        assert window.unfinished(start, start + 10, 9) is None
    assert time.process_time() - start_s < 0.2


def test_a_snapshot_makes_no_object_for_each_message() -> None:
    """R9: the loop takes it, of a million requeued or kicked messages too."""
    window = Window(0)
    count = 100_000
    for index in range(count):
        window.restore(index, 1, 0)
    tracemalloc.start()
    try:
        _, _, marks = window.snapshot()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(marks) == 18 * count
    assert peak < 36 * count
