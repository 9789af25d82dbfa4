"""Delays of deadlines, deferral and delivery, in milliseconds.

The first 8 bytes of a body are the time when the message was due or sent, by this machine's clock.
"""

from __future__ import annotations

import os
import random
import selectors
import struct
import time
from array import array
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bench.broker import Broker
from bench.throughput import Metrics
from penstock.cli.load_workers import Connection, Histogram
from penstock.cli.measurement import measure
from penstock.core.frames import Message
from penstock.wire import commands

_STAMP = struct.Struct(">q")
PIPELINE_COUNT = 500
# A virtual machine returns freed memory to its host, and stalls on all cores meanwhile, up to
# 35 ms at a time; some seconds after 3 GB were dropped that is over.
DROP_WAIT_S = 8.0


def times(histogram: Histogram, prefix: str = "") -> Metrics:
    return {
        f"{prefix}p50_ms": histogram.percentile(50) / 1e6,
        f"{prefix}p99_ms": histogram.percentile(99) / 1e6,
        f"{prefix}max_ms": histogram.percentile(100) / 1e6,
    }


def latency(broker: Broker, *, rate: int, seconds: int) -> Metrics:
    """From sending a PUB to its message's arrival, at a steady rate."""
    broker.create("bench", "bench")
    task = broker.task("paced", rate=float(rate), seconds=float(seconds), output_buffer_size=-1)
    report = broker.load(replace(task, kind="sub", seconds=0.0), task)
    missing = report.published.messages - report.consumed.messages
    return {**times(report.latency), "cpu_us": report.cpu_us_per_message, "missing": missing}


class Crowd:
    """Many subscribed connections in one loop."""

    def __init__(self, connections: Iterable[Connection]) -> None:
        self.selector = selectors.DefaultSelector()
        self.connections = list(connections)
        for connection in self.connections:
            self.selector.register(connection.sock, selectors.EVENT_READ, connection)

    def messages(self, wait_s: float) -> list[tuple[Connection, Message, int]]:
        """Messages that arrive within ``wait_s``: connection, message, time of arrival."""
        arrived: list[tuple[Connection, Message, int]] = []
        for key, _ in self.selector.select(wait_s):
            frames = key.data.reader.feed(key.data.receive(65536))
            now_ns = time.monotonic_ns()
            for frame in frames:
                if isinstance(frame, Message):
                    arrived.append((key.data, frame, now_ns))
                else:
                    key.data.served(frame)
        return arrived

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def redelivery(broker: Broker, *, channels: int, wait_s: int) -> Metrics:
    """A-1: one message in flight in each of many channels; from its deadline to redelivery.

    The deadlines are 1 ms apart, so that this single reader can time the arrivals exactly.
    """
    names = [f"channel-{n}" for n in range(channels)]
    broker.create("bench", *names)
    crowd = Crowd(broker.connect_client(msg_timeout=1000) for _ in names)
    for connection, name in zip(crowd.connections, names, strict=True):
        connection.request(commands.sub("bench", name))
    broker.wait_for_scan()
    broker.load(broker.task("pub", messages=1))
    first_ns: dict[Connection, int] = {}
    late = Histogram()
    to_ready = iter(crowd.connections)
    give_up_s = time.monotonic() + wait_s
    while late.count < channels and time.monotonic() < give_up_s:
        if ready := next(to_ready, None):
            ready.sock.sendall(commands.rdy(1))
        for connection, message, now_ns in crowd.messages(0.001 if ready else 0.05):
            if message.attempts == 1:
                first_ns[connection] = now_ns
            else:
                late.add(now_ns - first_ns[connection] - 1_000_000_000)
                connection.sock.sendall(commands.fin(message.id))
    crowd.close()
    return {**times(late), "missing": channels - late.count}


def lost_consumer(broker: Broker, *, in_flight: int, msg_timeout_s: int) -> Metrics:
    """A-7: a consumer dies with messages in flight; the time until another one has them."""
    broker.create("bench", "bench")
    broker.fill(in_flight)
    broker.wait_for_scan()
    victim, heir = (broker.connect_client(msg_timeout=msg_timeout_s * 1000) for _ in range(2))
    for connection in (victim, heir):
        connection.request(commands.sub("bench", "bench"))
    held = Crowd([victim])
    victim.sock.sendall(commands.rdy(in_flight))
    count = 0
    give_up_s = time.monotonic() + 30
    while count < in_flight and time.monotonic() < give_up_s:
        count += len(held.messages(0.1))
    heir.sock.sendall(commands.rdy(2500))
    victim.close()
    died_ns = time.monotonic_ns()
    back, waits = Crowd([heir]), Histogram()
    give_up_s = time.monotonic() + msg_timeout_s + 30
    while waits.count < in_flight and time.monotonic() < give_up_s:
        for _, message, now_ns in back.messages(0.1):
            waits.add(now_ns - died_ns)
            heir.sock.sendall(commands.fin(message.id))
    heir.close()
    return {**times(waits), "missing": in_flight - waits.count}


def publish_deferred(connection: Connection, topic: str, delays_ms: list[int]) -> None:
    """DPUB with the due time in each body, pipelined."""
    pad = bytes(200 - _STAMP.size)
    for at in range(0, len(delays_ms), PIPELINE_COUNT):
        part = delays_ms[at : at + PIPELINE_COUNT]
        now_ns = time.time_ns()
        connection.sock.sendall(
            b"".join(
                commands.dpub(topic, ms, _STAMP.pack(now_ns + ms * 1_000_000) + pad) for ms in part
            )
        )
        answered = 0
        give_up_s = time.monotonic() + 30
        while answered < len(part):
            if time.monotonic() > give_up_s:
                raise TimeoutError("no reply to DPUB for 30 s")
            answered += connection.oks(connection.receive(65536))


class Lateness:
    """Consumes until a due time has passed, and records how late each message arrived."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.connection = broker.connect_client(output_buffer_size=-1)
        self.connection.request(commands.sub(topic, "bench"))
        self.connection.sock.sendall(commands.rdy(2500))
        self.late = Histogram()
        self.early = 0

    def consume(self, count: int, until_s: float) -> None:
        """Consume ``count`` messages, or until wall-clock time ``until_s``."""
        while self.late.count < count and time.time() < until_s:
            finished = self.connection.reader.finish(self.connection.receive(65536))
            now_ns = time.time_ns()
            if finished.count:
                self.connection.sock.sendall(finished.commands)
            for reply in finished.replies:
                self.connection.served(reply)
            for due_ns in array("q", finished.stamps):
                self.early += now_ns < due_ns
                self.late.add(now_ns - due_ns)

    def metrics(self, expected: int, prefix: str = "") -> Metrics:
        found = times(self.late, prefix)
        found[f"{prefix}early"] = self.early
        found[f"{prefix}missing"] = expected - self.late.count
        return found


def deferred(broker: Broker, *, far: int, near: int, near_s: int) -> Metrics:
    """A-2: many messages over the next 24 hours, and the delay of those due in seconds."""
    choose = random.Random(far)
    broker.create("bench", "bench")
    before = broker.settle()
    connection = broker.connect_client()
    # No far message is due during the run, so that the near ones can be counted.
    delays_ms = [choose.randrange(600_000, 86_400_000) for _ in range(far)]
    start_s = time.monotonic()
    publish_deferred(connection, "bench", delays_ms)
    seconds = time.monotonic() - start_s
    after = broker.settle()
    broker.wait_for_scan()
    lateness = Lateness(broker, "bench")
    near_ms = [choose.randrange(500, near_s * 1000) for _ in range(near)]
    publish_deferred(connection, "bench", near_ms)
    lateness.consume(near, time.time() + near_s + 20)
    return {
        "rate": far / seconds,
        "cpu_us": (after.cpu_us - before.cpu_us) / far,
        "rss_mib": after.rss_size / 2**20,
        "rss_growth_mib": (after.rss_size - before.rss_size) / 2**20,
        **lateness.metrics(near),
    }


def deferred_restart(
    broker: Broker, *, count: int, ends: list[str], from_ms: int, to_ms: int
) -> Metrics:
    """A-4: a clean stop or a kill -9 before deferred messages are due.

    The delays are longer than a restart takes, because messages due while nsqd is down are late.
    """
    metrics: Metrics = {}
    for end in ends:
        choose = random.Random(count)
        delays_ms = [choose.randrange(from_ms, to_ms) for _ in range(count)]
        topic = f"bench-{end}"
        broker.create(topic, "bench")
        publish_deferred(broker.connect_client(), topic, delays_ms)
        due_end_s = time.time() + to_ms / 1000
        broker.kill() if end == "kill" else broker.terminate()
        broker.start()
        lateness = Lateness(broker, topic)
        lateness.consume(count, due_end_s + 5)
        metrics |= lateness.metrics(count, f"{end}_")
        lateness.connection.close()
    return metrics


def cold_read(broker: Broker, *, count: int, size: int, rate: int, seconds: int) -> Metrics:
    """The latency of others while an uncached backlog is consumed at full speed."""
    broker.create("cold", "bench")
    broker.create("bench", "bench")
    broker.fill(count, "cold", size)
    broker.settle()
    drop_from_cache(broker)
    task = broker.task("paced", rate=float(rate), seconds=float(seconds), output_buffer_size=-1)
    # The bulk reader starts first and still runs when the last latency is measured.
    bulk = broker.task("sub", "cold", seconds=seconds + 2.0, idle_seconds=float(seconds))
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(measure, [bulk])
        report = broker.load(replace(task, kind="sub", seconds=0.0), task)
        cold = reading.result()
    return {
        **times(report.latency),
        "missing": report.published.messages - report.consumed.messages,
        "cold_mib": cold.consumed.size / 2**20,
        "cold_s": cold.consumed.seconds,
        "cold_mib_s": cold.consumed.size / 2**20 / max(cold.consumed.seconds, 1e-9),
    }


def drop_from_cache(broker: Broker) -> None:
    """Drop the data path's files from the page cache."""
    os.sync()
    for path in broker.data_path.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    time.sleep(DROP_WAIT_S)
