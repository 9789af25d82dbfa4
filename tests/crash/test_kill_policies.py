"""kill -9 of a real nsqd, again and again, while policies are at work (R20, R21, R24, R25, R26)."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.load import Choice, Consumer, Ledger, Mix, Producer, finish_all
from tests.crash.test_kill import JOURNAL_WINDOW_NS, create, kill_again_and_again
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

ATTEMPTS_MAX = 2
POLICIES = {
    "kept": {"retain": "1h"},
    "bounded": {"max_messages": 100},
}
CHANNEL_POLICIES = {
    "poison": {"max_attempts": ATTEMPTS_MAX, "on_max_attempts": "bury"},
    "moved": {"max_attempts": ATTEMPTS_MAX, "on_max_attempts": "topic"},
}
DEAD = "moved.a.dead"
WAYS = (
    (),
    ("--sync-every=1",),
    ("--max-bytes-per-file=16384",),
    ("--max-bytes-per-file=65536", "--sync-every=1"),
)


def test_policies_keep_what_they_promise_through_twenty_kills(tmp_path: Path) -> None:
    """A-3, R20, R21, R24, R25, R26."""
    _mixed_load(tmp_path, WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--sync-every=1",)])
def test_policies_keep_what_they_promise_through_kills_of_one_mode(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    _mixed_load(tmp_path, (flags,))


def often_requeue(chance: random.Random) -> str | int | None:
    number = chance.random()
    if number < 0.6:
        return "FIN"
    return 0 if number < 0.995 else None


def keep_waiting(chance: random.Random) -> str | int:
    return "FIN" if chance.random() < 0.5 else chance.randint(300, 900)


def _mixed_load(tmp_path: Path, all_ways: Sequence[tuple[str, ...]]) -> None:
    ledger = Ledger()
    nsqd = Nsqd(tmp_path / "nsqd", "--msg-timeout=1s")
    nsqd.start(*all_ways[0])
    for topic in (*POLICIES, *CHANNEL_POLICIES):
        create(nsqd, topic, "a")
    create(nsqd, DEAD, "x")
    for topic, policy in POLICIES.items():
        _set(nsqd, f"topic={topic}", policy)
    for topic, policy in CHANNEL_POLICIES.items():
        _set(nsqd, f"topic={topic}&channel=a", policy)

    stop, failing_stop, consumers_stop = threading.Event(), threading.Event(), threading.Event()
    topics = [*POLICIES, *CHANNEL_POLICIES]
    mix = Mix(topics, stop=stop, pause_s=0.002, body_size=200)
    clients = [Producer(nsqd, ledger, f"p{n}", mix, n) for n in range(4)]

    def consume(topic: str, channel: str, choose: Choice, stop: threading.Event) -> None:
        clients.append(Consumer(nsqd, ledger, topic, channel, stop, choose, seed=len(clients)))
        if running:
            clients[-1].start()

    running = False
    consume("kept", "a", finish_all, consumers_stop)
    consume("bounded", "a", keep_waiting, consumers_stop)
    for topic in CHANNEL_POLICIES:
        consume(topic, "a", often_requeue, failing_stop)
    consume(DEAD, "x", finish_all, consumers_stop)
    for client in clients:
        client.start()
    running = True
    try:
        kill_again_and_again(nsqd, ledger, all_ways)
        stop.set()
        failing_stop.set()
        time.sleep(0.5)
        _check_attempts(ledger)
        target = "/channel/create?topic=kept&channel=again&start=earliest"
        assert nsqd.post(target).status == 200
        consume("kept", "again", finish_all, consumers_stop)
        for topic in CHANNEL_POLICIES:
            consume(topic, "a", finish_all, consumers_stop)
        _finish(nsqd, ledger)
    finally:
        stop.set()
        failing_stop.set()
        consumers_stop.set()
        for client in clients:
            client.join(10)
        nsqd.stop()
    assert not ledger.failures, ledger.failures
    assert not ledger.refused, ledger.refused[:3]
    assert len(ledger.acked) > 2000, "too little load to judge"
    assert len(ledger.full) > 50, "the bound was never reached"
    assert len(ledger.delivered[DEAD, "x"]) > 5, "too little was moved"
    ledger.check_invented()
    ledger.check_full()
    ledger.check_ids()
    ledger.check_early()
    ledger.check_answers(JOURNAL_WINDOW_NS)


def _set(nsqd: Nsqd, where: str, policy: dict[str, object]) -> None:
    assert nsqd.http("PUT", f"/policy?{where}", json.dumps(policy).encode()).status == 200


def _finish(nsqd: Nsqd, ledger: Ledger) -> None:
    """Whatever happened to a message: it was finished, or is where its policy puts it."""
    everywhere = [(topic, "a") for topic in (*POLICIES, *CHANNEL_POLICIES)]
    for key in (*everywhere, ("kept", "again")):
        wait_until(
            lambda key=key: not ledger.missing(*key),
            why=lambda key=key: f"{key}: {len(ledger.missing(*key))} missing, {nsqd.stats()}",
        )
    assert nsqd.post("/channel/kick?topic=poison&channel=a").json["kicked"] > 5
    for topic, elsewhere in (("poison", ()), ("moved", ledger.delivered[DEAD, "x"])):
        wait_until(
            lambda topic=topic, elsewhere=elsewhere: (
                ledger.acked_of(topic) <= ledger.finished(topic, "a") | set(elsewhere)
            ),
            why=lambda topic=topic: f"{topic}: {nsqd.stats()}",
        )


def _check_attempts(ledger: Ledger) -> None:
    """No delivery is one too many (R26)."""
    for topic in CHANNEL_POLICIES:
        for body, deliveries in ledger.delivered[topic, "a"].items():
            assert max(d.attempts for d in deliveries) <= ATTEMPTS_MAX, (body, deliveries)
