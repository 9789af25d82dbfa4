"""What lives long is kept out of the collector's way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from penstock.nsqd.clients import Clients
from penstock.nsqd.garbage import GROWTH_COUNT, GarbageCollection
from tests.support.engine import Engine


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_topics_that_came_are_frozen_and_let_go_with_them() -> None:
    engine = Engine()
    loop = asyncio.new_event_loop()
    collecting = GarbageCollection(engine.broker, Clients(), loop)
    collecting.start()
    start_count = gc.get_freeze_count()
    for number in range(2 * GROWTH_COUNT):
        engine.broker.create_topic(f"t{number}#ephemeral")
    collecting._check()
    full_count = gc.get_freeze_count()
    assert full_count > start_count + 2 * GROWTH_COUNT
    for number in range(2 * GROWTH_COUNT):
        engine.broker.delete_topic(f"t{number}#ephemeral")
    collecting._check()
    assert gc.get_freeze_count() < full_count - 2 * GROWTH_COUNT
    collecting.stop()
    loop.close()
