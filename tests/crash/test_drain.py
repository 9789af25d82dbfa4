"""A drain through every crash point of both nodes: each deferred message is handed over once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock.engine.drain import handover
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX
from tests.support.drained import ADDRESS, Pair
from tests.support.engine import HOUR, MINUTE, SECOND, Engine

TOPICS = ("t", "u", "new")
BODIES = Counter({b"%s%d" % (topic, i): 1 for topic in (b"t", b"u") for i in range(5)})


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "BATCH_COUNT_MAX", 4)
    monkeypatch.setattr(handover, "PART_SIZE_MAX", 3)


def fill(engine: Engine) -> None:
    """Deferred messages of two topics, in slots that are near and far; synced."""
    for i in range(5):
        assert engine.defer("t", (10 * MINUTE, 50 * MINUTE, 2 * HOUR)[i % 3], b"t%d" % i) is None
        assert engine.defer("u", (11 * MINUTE, 2 * HOUR)[i % 2] + i, b"u%d" % i) is None
    engine.advance(3 * SECOND)


def pair_of(seed: int = 0, sync_every: int = 1) -> Pair:
    pair = Pair(seed, sync_every=sync_every)
    fill(pair.here)
    pair.there.clock.advance(pair.here.clock.monotonic_ns() - pair.there.clock.monotonic_ns())
    return pair


def drain(pair: Pair) -> None:
    """Drain until the end, whatever stops meanwhile."""
    begun = pair.here.components.drain.begin(ADDRESS)
    pair.run(MINUTE)
    assert begun is not None
    if not pair.ended:
        # The crash came before the drain was durable: it was not answered either.
        assert not pair.here.components.drain.draining
        pair.here.components.drain.begin(ADDRESS)
        pair.run(MINUTE)
    assert pair.ended, pair.here.components.drain.progress()


def check(pair: Pair) -> None:
    """Each message is fired once, by one of the two."""
    pair.let_time_pass(4)
    assert pair.bodies(*TOPICS) == BODIES
    for engine in (pair.here, pair.there):
        engine.check()
        engine.components.deferred.check()
        assert len(engine.components.deferred.table.files) == 0
        assert not engine.components.damage.records
    assert not pair.here.components.drain.draining, "the next start is an ordinary one"


def test_a_drained_node_hands_over_what_is_deferred() -> None:
    pair = pair_of()
    drain(pair)
    assert pair.here.components.drain.record.handed_over == 10
    assert pair.here.components.deferred.tallies.total == 0
    assert pair.there.components.deferred.tallies.total == 10
    check(pair)


def steps_of(name: str, sync_every: int) -> range:
    pair = pair_of(sync_every=sync_every)
    files = getattr(pair, name).files
    begun = files.step_count
    drain(pair)
    return range(begun, files.step_count + 1)


@pytest.mark.parametrize("who", ["here", "there"])
@pytest.mark.parametrize("mode", [KEEP, LOSE, PREFIX, HOLES])
def test_a_crash_at_any_step_hands_every_message_over_once(who: str, mode: str) -> None:
    """R19, R16: staged, decided, published, done here; of either node, at every step."""
    for crash_at in steps_of(who, 1):
        pair = pair_of(seed=crash_at if crash_at % 2 else 0)
        getattr(pair, who).files.crash_at = crash_at
        pair.crash_modes = [mode]
        try:
            drain(pair)
            check(pair)
        except AssertionError as error:
            raise AssertionError(f"crash of {who} at {crash_at}") from error


@pytest.mark.parametrize("lost", range(12))
def test_a_lost_answer_is_asked_for_again(lost: int) -> None:
    pair = pair_of()
    pair.here.components.drain.begin(ADDRESS)
    while len(pair.asked) < lost:
        pair.run(SECOND // 10)
    pair.lost_answers = 3
    pair.run(2 * MINUTE)
    assert pair.ended
    check(pair)


@pytest.mark.parametrize("other", ["has them", "does not know them"])
def test_after_a_restart_only_the_open_batch_waits_for_the_other_node(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others in its slots are delivered when they are due, also if that node never comes back."""
    pair = pair_of()
    ask = pair.ask

    def ask_until_publish(method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if target != "/staging/publish":
            return ask(method, target, body)
        if other == "has them":
            ask(method, target, body)
        pair.unreachable = True
        return 0, {"message": "the connection was lost"}

    monkeypatch.setattr(pair, "ask", ask_until_publish)
    pair.here.components.drain.begin(ADDRESS)
    pair.run(SECOND)
    intent = pair.here.components.drain.record.intent
    assert intent is not None
    if other == "does not know them":
        pair.there.components.staging.discard(intent.query)
    pair.restart_here()
    pair.here.clock.step_wall(3 * HOUR)
    pair.run(MINUTE)
    progress = pair.here.components.drain.progress()
    assert progress["left"]["deferred"] == progress["handing_over"] == intent.count == 4
    assert len(pair.here.logged("t")) + len(pair.here.logged("u")) == 6
    monkeypatch.setattr(pair, "ask", ask)
    pair.unreachable = False
    pair.here.components.drain.cancel()
    assert pair.here.components.drain.state == "cancelling"
    pair.run(MINUTE)
    assert pair.here.components.drain.state == "off"
    check(pair)


@pytest.mark.parametrize("why", ["a part is refused", "the drain is cancelled"])
def test_what_was_staged_in_vain_is_discarded(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node would keep it for a day, and could not be drained until then."""
    pair = pair_of()
    ask = pair.ask
    staged: list[int] = []

    def refuse(method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        staged.append(pair.there.components.staging.staging_count)
        if target.startswith("/staging/seal") and why == "the drain is cancelled":
            pair.here.components.drain.cancel()
        elif target.startswith("/staging/part") and "topic=u" in target:
            return 507, {"message": "TOPIC_FULL", "detail": "u"}
        return ask(method, target, body)

    monkeypatch.setattr(pair, "ask", refuse)
    if why == "the drain is cancelled":
        monkeypatch.setattr(handover, "BATCH_COUNT_MAX", 1)
    pair.here.components.drain.begin(ADDRESS)
    pair.run(MINUTE)
    assert max(staged) == 1
    assert pair.there.components.staging.staging_count == 0
    assert pair.here.components.deferred.tallies.total == 10
    monkeypatch.setattr(pair, "ask", ask)
    drain(pair)
    check(pair)


def test_a_handover_to_a_node_that_is_gone_for_good_ends_without_drain_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As docs/operations.md says: then the messages of the open batch are delivered here."""
    pair = pair_of()
    ask = pair.ask

    def lose_publish(method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        pair.unreachable = pair.unreachable or target == "/staging/publish"
        return ask(method, target, body)

    monkeypatch.setattr(pair, "ask", lose_publish)
    pair.here.components.drain.begin(ADDRESS)
    pair.run(SECOND)
    pair.here.components.drain.cancel()
    pair.run(MINUTE)
    assert pair.here.components.drain.state == "cancelling"
    pair.here.exit()
    for path in (pair.here.data.drain, pair.here.data.drain_copy):
        pair.here.files.unlink(path)
    pair.restart_here()
    assert pair.here.components.drain.state == "off"
    check(pair)
