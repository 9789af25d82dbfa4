"""kill -9 of a real nsqd, again and again, under mixed load (A-3, R1, R2, R6, R16).

A body is published once, so its id says which append it came from: a deferred message that was
fired twice would have two ids, an index that came back would be one id with two bodies.
"""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.crash.load import Consumer, Ledger, Mix, Producer, finish_all
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

KILL_COUNT = 22
# The journal is written five times a second; the rest is what a busy machine may be late by.
JOURNAL_WINDOW_NS = 500_000_000

# One life each, in turn: what one way of running leaves behind, the next one finds.
WAYS = (
    (),
    ("--sync-every=1",),
    ("--max-bytes-per-file=65536",),
    ("--max-bytes-per-file=16384", "--sync-every=50"),
    ("--mem-queue-size=0", "--queue-scan=sample"),
)


def test_nothing_acknowledged_is_lost_by_twenty_kills(tmp_path: Path) -> None:
    """A-3, R1, R2, R16, D-1, D-2, D-3, D-5, D-6: PUB, MPUB, DPUB, FIN and REQ all the time."""
    _mixed_load(tmp_path, WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--sync-every=1",)])
def test_nothing_is_lost_by_twenty_kills_of_one_mode(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """The same, always synced as at the start or with every OK (R3, R8)."""
    _mixed_load(tmp_path, (flags,))


def _mixed_load(tmp_path: Path, all_ways: Sequence[tuple[str, ...]]) -> None:
    ledger = Ledger()
    nsqd = Nsqd(tmp_path / "nsqd", "--msg-timeout=1s")
    nsqd.start(*all_ways[0])
    for channel in ("a", "b"):
        create(nsqd, "main", channel)
    create(nsqd, "paused", "a")
    assert nsqd.post("/topic/pause?topic=paused").status == 200
    create(nsqd, "held")

    stop = threading.Event()
    mixes = [
        Mix(["main"], stop=stop, pause_s=0.001),
        Mix(["main", "held", "paused"], stop=stop, pause_s=0.002),
    ]
    consumers_stop = threading.Event()
    clients = [Producer(nsqd, ledger, f"p{n}", mixes[n % 2], n) for n in range(4)]
    clients += [
        Consumer(nsqd, ledger, "main", channel, consumers_stop, seed=n)
        for n, channel in enumerate(("a", "a", "b"))
    ]
    clients.append(Consumer(nsqd, ledger, "paused", "a", consumers_stop))
    for client in clients:
        client.start()
    try:
        kill_again_and_again(nsqd, ledger, all_ways)
        stop.set()
        assert not ledger.delivered["paused", "a"], "a paused topic delivered"
        _finish(nsqd, ledger, consumers_stop)
    finally:
        stop.set()
        consumers_stop.set()
        for client in clients:
            client.join(10)
        nsqd.stop()
    assert not ledger.failures, ledger.failures
    assert not ledger.refused, ledger.refused[:3]
    assert len(ledger.acked) > 2000, "too little load to judge"
    assert sum(1 for known in ledger.acked.values() if known.due_ns) > 300
    ledger.check_invented()
    ledger.check_ids()
    ledger.check_early()
    ledger.check_answers(JOURNAL_WINDOW_NS)


def _finish(nsqd: Nsqd, ledger: Ledger, stop: threading.Event) -> None:
    """Deliver everything that is still there, on every channel."""
    assert nsqd.post("/topic/unpause?topic=paused").status == 200
    late = Consumer(nsqd, ledger, "held", "first", stop, choose=finish_all)
    late.start()
    for key in (("main", "a"), ("main", "b"), ("paused", "a"), ("held", "first")):
        wait_until(
            lambda key=key: not ledger.missing(*key),
            15,
            lambda key=key: (
                f"{key}: {len(ledger.missing(*key))} of {len(ledger.acked)} missing, {nsqd.stats()}"
            ),
        )


def kill_again_and_again(
    nsqd: Nsqd, ledger: Ledger, all_ways: Iterable[tuple[str, ...]], kill_count: int = KILL_COUNT
) -> None:
    """Under the load of others; no start finds anything damaged."""
    chance = random.Random(1)
    ways = itertools.cycle(all_ways)
    for _ in range(kill_count):
        time.sleep(chance.uniform(0.3, 0.8))
        ledger.kills_ns.append(time.time_ns())
        nsqd.kill()
        ledger.kills_ns.append(time.time_ns())
        nsqd.start(*next(ways))
        assert nsqd.get("/damage").json == {"records": []}
    time.sleep(0.3)


def create(nsqd: Nsqd, topic: str, channel: str = "") -> None:
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    if channel:
        assert nsqd.post(f"/channel/create?topic={topic}&channel={channel}").status == 200


class Churn(threading.Thread):
    """Creates and deletes topics and channels over HTTP, and knows what was answered.

    ``topics`` maps a name to its channels as answered; what a kill left unanswered stands in
    ``unsure`` and may be either way.
    """

    def __init__(self, nsqd: Nsqd, seed: int) -> None:
        super().__init__(daemon=True)
        self.nsqd = nsqd
        self.random = random.Random(seed)
        self.topics: dict[str, set[str]] = {}
        self.unsure: set[str] = set()
        self.bodies: dict[str, set[bytes]] = {}
        self.count = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Until the daemon dies."""
        try:
            while self._one():
                pass
        except BaseException as failure:
            self.failure = failure
            raise

    def _one(self) -> bool:
        name = f"t{self.random.randrange(6)}"
        if name in self.unsure:
            return True
        if name not in self.topics:
            done = self._ask(name, f"/topic/create?topic={name}")
            if done:
                self.topics[name], self.bodies[name] = set(), set()
            return done
        channel = f"c{self.random.randrange(3)}"
        there = channel in self.topics[name]
        kind = self.random.choice(("channel", "channel", "publish", "topic"))
        if kind == "topic":
            done = self._ask(name, f"/topic/delete?topic={name}")
            if done:
                del self.topics[name], self.bodies[name]
        elif kind == "publish":
            self.count += 1
            body = f"{name}-{self.count}".encode()
            done = self._ask(name, f"/pub?topic={name}", body)
            if done:
                self.bodies[name].add(body)
        else:
            action = "delete" if there else "create"
            done = self._ask(name, f"/channel/{action}?topic={name}&channel={channel}")
            if done:
                self.topics[name] ^= {channel}
                if not self.topics[name]:
                    self.bodies[name].clear()  # they went with the last channel
        return done

    def _ask(self, name: str, target: str, body: bytes = b"") -> bool:
        self.unsure.add(name)
        try:
            reply = self.nsqd.post(target, body)
        except (OSError, http.client.HTTPException):
            return False
        assert reply.status == 200, (target, reply)
        self.unsure.discard(name)
        return True


def test_an_answered_create_or_delete_survives_a_kill(tmp_path: Path) -> None:
    """R6: topics and channels come and go while the daemon is killed ten times.

    A topic that was deleted and made again is a new one: what the old one held does not come back.
    """
    nsqd = Nsqd(tmp_path / "nsqd")
    nsqd.start()
    chance = random.Random(2)
    done = 0
    with nsqd:
        for seed in range(10):
            churn = Churn(nsqd, seed)
            _adopt(nsqd, churn)
            churn.start()
            time.sleep(chance.uniform(0.2, 0.5))
            errors = [line for line in nsqd.lines if "ERROR" in line or "WARNING" in line]
            nsqd.kill()
            churn.join(10)
            assert churn.failure is None
            assert not errors, errors
            nsqd.start()
            done += churn.count
            found = _existing(nsqd)
            for name in {*churn.topics, *found} - churn.unsure:
                assert found.get(name) == churn.topics.get(name), (name, found, churn.topics)
            for name, bodies in churn.bodies.items():
                if name not in churn.unsure and not churn.topics[name]:
                    _check_held(nsqd, name, bodies)
    assert done > 50, "too little was done to judge"


def _existing(nsqd: Nsqd) -> dict[str, set[str]]:
    return {
        topic["topic_name"]: {channel["channel_name"] for channel in topic["channels"]}
        for topic in nsqd.stats()["topics"]
    }


def _adopt(nsqd: Nsqd, churn: Churn) -> None:
    """Start from nothing that is unknown: remove what earlier lives left."""
    for name in _existing(nsqd):
        assert nsqd.post(f"/topic/delete?topic={name}").status == 200
    assert not _existing(nsqd)


def _check_held(nsqd: Nsqd, topic: str, bodies: set[bytes]) -> None:
    """A topic without channels holds what was published since its last channel went."""
    with nsqd.connect() as raw:
        assert raw.command(commands.sub(topic, "check"))[1] == b"OK"
        raw.send(commands.rdy(2500))
        depth = (
            nsqd.channel(topic, "check")["depth"] + nsqd.channel(topic, "check")["in_flight_count"]
        )
        seen = {raw.message().body for _ in range(depth)}
    assert seen == bodies, (topic, seen ^ bodies)
