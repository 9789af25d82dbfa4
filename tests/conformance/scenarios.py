"""What every client must be able to do with our nsqd; test_pynsq and the others run it.

Rows of the seed notes: S0-2, S3-5, S3-7, S4-6, S4-7, A-7.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.bodies import numbered
from tests.support.daemon import Nsqd
from tests.support.timing import early_s, late_s, load_per_core
from tests.support.waits import eventually

WAIT_SECONDS_MAX = 20.0
# What a busy machine may add to a wait.
TIMEOUT_MS = 1000


@dataclass(frozen=True)
class Delivery:
    """A message as a client saw it."""

    id: str
    attempts: int
    timestamp_ns: int
    body: bytes
    came_s: float


class Driven:
    """A client in a process of its own; see tests/conformance/clients for what it speaks."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._deliveries: queue.Queue[Delivery] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL: what it had in flight is never answered."""
        self._process.kill()
        self._process.wait(WAIT_SECONDS_MAX)
        self._reader.join(WAIT_SECONDS_MAX)

    def subscribe(self, topic: str, channel: str, ready: int = 10) -> Self:
        self._do("subscribe", topic=topic, channel=channel, ready=ready, timeout_ms=TIMEOUT_MS)
        assert self._reply()["event"] == "subscribed"
        return self

    def publish(self, topic: str, *bodies: bytes) -> None:
        self._do("publish", topic=topic, bodies=[body.decode("latin-1") for body in bodies])
        assert self._reply() == {"event": "published", "error": None}

    def refused(self, topic: str, body: bytes) -> str:
        """Publish, and return the error that the client reports."""
        self._do("publish", topic=topic, bodies=[body.decode("latin-1")])
        answer = self._reply()
        assert answer["event"] == "published" and answer["error"], answer
        return str(answer["error"])

    def try_publish(self, topic: str, body: bytes) -> str | None:
        """Publish; return the error as the client reports it, or None."""
        self._do("publish", topic=topic, bodies=[body.decode("latin-1")])
        error = self._reply()["error"]
        return None if error is None else str(error)

    def defer(self, topic: str, delay_ms: int, body: bytes) -> None:
        self._do("defer", topic=topic, body=body.decode("latin-1"), delay_ms=delay_ms)
        assert self._reply() == {"event": "published", "error": None}

    def finish(self, delivery: Delivery) -> None:
        self._do("finish", id=delivery.id)

    def touch(self, delivery: Delivery) -> None:
        self._do("touch", id=delivery.id)

    def requeue(self, delivery: Delivery, delay_ms: int = 0) -> None:
        self._do("requeue", id=delivery.id, delay_ms=delay_ms)

    def take(self, timeout_s: float = WAIT_SECONDS_MAX) -> Delivery:
        """The next message."""
        return self._deliveries.get(timeout=timeout_s)

    def taken(self) -> list[Delivery]:
        """What has come, without waiting."""
        found = []
        while not self._deliveries.empty():
            found.append(self._deliveries.get())
        return found

    def _do(self, command: str, **fields: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **fields}) + "\n")
        self._process.stdin.flush()

    def _reply(self) -> dict[str, Any]:
        return self._replies.get(timeout=WAIT_SECONDS_MAX)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] != "message":
                self._replies.put(event)
                continue
            self._deliveries.put(
                Delivery(
                    event["id"],
                    event["attempts"],
                    event["timestamp_ns"],
                    event["body"].encode("latin-1"),
                    time.monotonic(),
                )
            )


def ready_client_count(nsqd: Nsqd, topic: str) -> int:
    """Clients that get messages; some send RDY, or even SUB, a moment after they say so."""
    topics = nsqd.stats(f"&topic={topic}")["topics"] or [{"channels": []}]
    clients = [client for channel in topics[0]["channels"] for client in channel["clients"]]
    return sum(client["ready_count"] > 0 for client in clients)


class ClientScenarios:
    """To be inherited by a test class that knows how to start its client."""

    @classmethod
    def start(cls, nsqd: Nsqd) -> Driven:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def nsqd(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
        with Nsqd(tmp_path_factory.mktemp("client")) as daemon:
            yield daemon
            assert "Traceback" not in daemon.log, daemon.log

    @pytest.fixture(scope="class")
    @classmethod
    def client(cls, nsqd: Nsqd) -> Iterator[Driven]:
        """One that publishes; a test that consumes starts its own."""
        with cls.start(nsqd) as client:
            yield client

    def test_what_is_published_arrives(self, nsqd: Nsqd, client: Driven) -> None:
        """PUB, MPUB and DPUB; bodies of any bytes, one of them large."""
        bodies = [b"plain", bytes(range(256)), b"\n", b"x" * 500_000]
        began_ns = time.time_ns()
        for body in bodies:
            client.publish("arrives", body)
        client.publish("arrives", *numbered(100))
        deferred_s = time.monotonic()
        client.defer("arrives", 600, b"deferred")
        with self.start(nsqd).subscribe("arrives", "work", ready=50) as consumer:
            came = []
            for _ in range(len(bodies) + 101):
                delivery = consumer.take()
                consumer.finish(delivery)
                came.append(delivery)
            assert sorted(d.body for d in came) == sorted([*bodies, *numbered(100), b"deferred"])
            assert {d.attempts for d in came} == {1}
            # Of some clients the timestamp comes as a float, good to a microsecond.
            assert all(began_ns - 1000 < d.timestamp_ns <= time.time_ns() for d in came)
            waited_s = next(d.came_s for d in came if d.body == b"deferred") - deferred_s
            assert 0.59 < waited_s < 0.6 + late_s(1.5)
            assert eventually(lambda: nsqd.channel("arrives", "work")["in_flight_count"] == 0)
            assert nsqd.channel("arrives", "work")["depth"] == 0

    def test_what_fails_too_often_is_buried_and_comes_again_after_a_kick(
        self, nsqd: Nsqd, client: Driven
    ) -> None:
        """R24, R26: for the client it is a message that does not come any more, and then does."""
        nsqd.post("/topic/create?topic=buried")
        nsqd.post("/channel/create?topic=buried&channel=work")
        policy = json.dumps({"max_attempts": 3}).encode()
        assert nsqd.http("PUT", "/policy?topic=buried&channel=work", policy).status == 200
        client.publish("buried", b"requeued", b"late", *numbered(5))
        with self.start(nsqd).subscribe("buried", "work") as consumer:
            came = {b"requeued": 0, b"late": 0}
            count = 0
            while count < 3 + 3 + 5:
                delivery = consumer.take()
                count += 1
                if delivery.body == b"requeued":
                    consumer.requeue(delivery)
                elif delivery.body != b"late":  # which times out
                    consumer.finish(delivery)
                if delivery.body in came:
                    came[delivery.body] += 1
                    assert delivery.attempts == came[delivery.body]
            target = "/channel/dead?topic=buried&channel=work"
            assert eventually(lambda: nsqd.get(target).json["count"] == 2)
            assert {m["attempts"] for m in nsqd.get(target).json["messages"]} == {3}
            reply = nsqd.post("/channel/kick?topic=buried&channel=work")
            assert reply.json == {"kicked": 2, "left": 0}
            again = [consumer.take() for _ in range(2)]
            assert {(d.body, d.attempts) for d in again} == {(b"requeued", 1), (b"late", 1)}
            for delivery in again:
                consumer.finish(delivery)
            assert eventually(lambda: nsqd.channel("buried", "work")["in_flight_count"] == 0)

    def test_what_is_answered_and_what_is_not(self, nsqd: Nsqd, client: Driven) -> None:
        """Finish, requeue with and without a delay, touch, timeout; S0-2, S4-7, S3-5."""
        kinds = [b"finish", b"requeue", b"delay", b"touch", b"timeout"]
        client.publish("answers", *kinds)
        with self.start(nsqd).subscribe("answers", "work") as consumer:
            first = {delivery.body: delivery for delivery in (consumer.take() for _ in kinds)}
            consumer.finish(first[b"finish"])
            consumer.requeue(first[b"requeue"])
            consumer.requeue(first[b"delay"], 500)
            time.sleep(max(0.0, first[b"touch"].came_s + 0.3 - time.monotonic()))
            consumer.touch(first[b"touch"])
            again: dict[bytes, Delivery] = {}
            while len(again) < 4:
                delivery = consumer.take()
                assert delivery.body not in again
                again[delivery.body] = delivery
                consumer.finish(delivery)
            for body, wait_s in (
                (b"requeue", 0),
                (b"delay", 0.5),
                (b"timeout", 1),
                (b"touch", 1.3),
            ):
                assert again[body].attempts == 2
                assert again[body].id == first[body].id
                assert again[body].timestamp_ns == first[body].timestamp_ns
                waited_s = again[body].came_s - first[body].came_s
                assert -early_s(0.05) < waited_s - wait_s < late_s(1.5), body
            # Heartbeats come every second: whoever did not answer them is gone after two.
            time.sleep(1.2)
            channel = nsqd.channel("answers", "work")
            assert (channel["client_count"], channel["depth"], channel["in_flight_count"]) == (
                1,
                0,
                0,
            )
            assert (channel["requeue_count"], channel["timeout_count"]) == (2, 2)
            assert not consumer.taken()
        client.publish("answers", b"the producer is still there")

    def test_several_consumers_share(self, nsqd: Nsqd, client: Driven) -> None:
        """S3-7: each message to one of them, and to each a fair part."""
        consumers = [self.start(nsqd).subscribe("shared", "work", ready=5) for _ in range(3)]
        try:
            assert eventually(lambda: ready_client_count(nsqd, "shared") == 3)
            client.publish("shared", *numbered(300))
            taken: list[list[Delivery]] = [[] for _ in consumers]
            deadline_s = time.monotonic() + WAIT_SECONDS_MAX
            while sum(map(len, taken)) < 300 and time.monotonic() < deadline_s:
                for consumer, deliveries in zip(consumers, taken, strict=True):
                    for delivery in consumer.taken():
                        consumer.finish(delivery)
                        deliveries.append(delivery)
                time.sleep(0.002)
            bodies = [delivery.body for deliveries in taken for delivery in deliveries]
            assert sorted(bodies) == sorted(numbered(300))
            # Who waits for a core takes less.
            assert min(map(len, taken)) >= 30 / load_per_core(), list(map(len, taken))
        finally:
            for consumer in consumers:
                consumer.kill()

    def test_a_client_dies_and_comes_back(self, nsqd: Nsqd, client: Driven) -> None:
        """A-7: what it had in flight comes again, what it finished does not."""
        client.publish("dies", *numbered(20))
        with self.start(nsqd).subscribe("dies", "work", ready=10) as consumer:
            finished = consumer.take()
            consumer.finish(finished)
            # The tenth comes when the first is finished.
            held = {consumer.take().id for _ in range(10)}
            consumer.kill()
        with self.start(nsqd).subscribe("dies", "work", ready=10) as consumer:
            came = []
            for _ in range(19):
                delivery = consumer.take()
                consumer.finish(delivery)
                came.append(delivery)
            assert {d.body for d in came} == set(numbered(20)) - {finished.body}
            assert all(d.attempts == 2 for d in came if d.id in held)
            assert eventually(lambda: nsqd.channel("dies", "work")["in_flight_count"] == 0)

    def test_a_drain_refuses_publishes_and_delivers_the_rest(self, tmp_path: Path) -> None:
        """#1302: its consumer gets what was published before, and the node ends."""
        with (
            Nsqd(tmp_path) as nsqd,
            self.start(nsqd) as producer,
            self.start(nsqd) as consumer,
        ):
            consumer.subscribe("drained", "ch", ready=1)
            producer.publish("drained", *numbered(3))
            assert nsqd.post("/drain").status == 200
            assert "draining" in producer.refused("drained", b"late")
            bodies = []
            for _ in range(3):
                delivery = consumer.take()
                bodies.append(delivery.body)
                consumer.finish(delivery)
            assert sorted(bodies) == sorted(numbered(3))
            assert nsqd.wait(WAIT_SECONDS_MAX) == 0, nsqd.log


class DeadTopicScenarios(ClientScenarios):
    """Also what fails too often."""

    def test_what_always_fails_goes_to_the_dead_topic(self, nsqd: Nsqd, client: Driven) -> None:
        """R25: the client requeues it like any message, and consumes the dead topic like any."""
        client.publish("poisoned", b"good")
        assert nsqd.post("/channel/create?topic=poisoned&channel=c").status == 200
        keys = b'{"max_attempts": 2, "on_max_attempts": "topic", "dead_topic": "mourned"}'
        assert nsqd.http("PUT", "/policy?topic=poisoned&channel=c", keys).status == 200
        client.publish("poisoned", b"bad")
        with self.start(nsqd) as consumer, self.start(nsqd) as mourner:
            consumer.subscribe("poisoned", "c")
            mourner.subscribe("mourned", "again")
            for _ in range(3):
                delivery = consumer.take()
                if delivery.body == b"good":
                    consumer.finish(delivery)
                else:
                    consumer.requeue(delivery)
            moved = mourner.take()
            assert (moved.body, moved.attempts) == (b"bad", 1)
            mourner.finish(moved)

    def test_a_publish_at_a_bound_is_an_error_and_a_later_one_works(self, nsqd: Nsqd) -> None:
        """R20: nsqd leaves the connection open; nsqjs and pynsq close it after any error."""
        bounded(nsqd, "full", {"max_messages": 2})
        with self.start(nsqd) as client:
            assert [client.try_publish("full", b"x") for _ in range(2)] == [None, None]
            assert "topic is full (max_messages)" in (client.try_publish("full", b"x") or "")
        assert nsqd.channel("full", "c")["depth"] == 2
        assert nsqd.post("/channel/empty?topic=full&channel=c").status == 200
        with self.start(nsqd) as client:
            assert client.try_publish("full", b"y") is None

    def test_a_consumer_goes_on_when_what_it_holds_is_dropped(self, nsqd: Nsqd) -> None:
        """R20: the places of the dropped messages are free again, and the newest ones come."""
        bounded(nsqd, "flowing", {"max_messages": 16, "overflow": "drop-oldest"})
        with self.start(nsqd) as consumer:
            consumer.subscribe("flowing", "c", ready=2)
            assert nsqd.post("/mpub?topic=flowing", b"held 1\nheld 2").status == 200
            held = {consumer.take().body for _ in range(2)}
            assert held == {b"held 1", b"held 2"}
            for number in range(64):
                assert nsqd.post("/pub?topic=flowing", b"%d" % number).status == 200
            came: list[bytes] = []
            while b"63" not in came:
                delivery = consumer.take()
                came.append(delivery.body)
                consumer.finish(delivery)
            assert came[-10:] == [b"%d" % number for number in range(54, 64)]
            assert not held & set(came)

            def finished() -> bool:
                # A client that closes after a late FIN has connected again, and gets the rest.
                for delivery in consumer.taken():
                    consumer.finish(delivery)
                channel = nsqd.channel("flowing", "c")
                return channel["depth"] == channel["in_flight_count"] == 0

            assert eventually(finished)
        assert nsqd.channel("flowing", "c")["dropped_count"] >= 48


def bounded(nsqd: Nsqd, topic: str, policy: dict[str, object]) -> None:
    """A topic with the channel c and a policy."""
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    assert nsqd.post(f"/channel/create?topic={topic}&channel=c").status == 200
    assert nsqd.http("PUT", f"/policy?topic={topic}", json.dumps(policy).encode()).status == 200
