"""Counting what a draining node has left."""

from __future__ import annotations

import pytest

from penstock.engine.drain import survey
from penstock.engine.drain.survey import Left, Survey
from tests.support.engine import Engine


def test_many_channels_of_one_topic_are_counted_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 channels take 6 ms: other clients do not wait for that."""
    monkeypatch.setattr(survey, "SLICE_NS", 0)
    engine = Engine()
    topic, _ = engine.broker.create_topic("t")
    count = 3 * survey.CHANNEL_COUNT_MAX
    for number in range(count):
        topic.create_channel(f"c{number}")
    engine.settle()
    assert engine.publish("t", b"0") is None
    components = engine.components
    walk = Survey(components.context, engine.broker.topics, components.deferred, components.staging)
    found: list[Left] = []
    slices = 0
    walk.run(found.append)
    while not found:
        slices += 1
        engine.turns.calls.popleft()()
    assert slices >= 3
    assert (found[0].queued, found[0].topics, found[0].blocked_count) == (count, 1, count)
    assert not walk.is_empty()
