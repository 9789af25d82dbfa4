"""The cost of existing things: a backlog, idle channels, one message that is never finished."""

from __future__ import annotations

import time
from dataclasses import replace

from bench.broker import Broker
from bench.throughput import Metrics
from penstock.cli.usage import open_file_count
from penstock.wire import commands


def backlog(broker: Broker, *, messages: int) -> Metrics:
    """Memory with a large backlog; then kill -9, and the time until nsqd responds again."""
    broker.create("bench", "bench")
    broker.fill(messages)
    before = broker.settle()
    broker.kill()
    start_s = time.monotonic()
    broker.start()
    while broker.get("/ping").status != 200:
        time.sleep(0.005)
    restart_s = time.monotonic() - start_s
    depth = broker.channel("bench", "bench")["depth"]
    report = broker.load(broker.task("sub", messages=min(messages, 200_000)))
    return {
        "rss_mib": before.rss_size / 2**20,
        "restart_s": restart_s,
        "rss_after_mib": broker.usage().rss_size / 2**20,
        "missing": messages - depth,
        "rate": report.consumed.per_second,
    }


def idle(broker: Broker, *, topics: int, channels: int, seconds: int) -> Metrics:
    """A-8: many idle channels: CPU share and open files."""
    names = [f"channel-{n}" for n in range(channels)]
    start_s = time.monotonic()
    for topic in range(topics):
        broker.create(f"topic-{topic}", *names)
    create_s = time.monotonic() - start_s
    before = broker.settle()
    time.sleep(seconds)
    after = broker.usage()
    wall_us = (after.wall_ns - before.wall_ns) / 1000
    return {
        "cpu_percent": 100 * (after.cpu_us - before.cpu_us) / wall_us,
        "open_files": open_file_count(broker.pid),
        "rss_mib": after.rss_size / 2**20,
        "create_s": create_s,
    }


def stuck(broker: Broker, *, warm: int, messages: int) -> Metrics:
    """One message stays in flight while millions after it are published and finished."""
    broker.create("bench", "bench")
    holder = broker.connect_client(msg_timeout=900_000, heartbeat_interval=60_000)
    holder.request(commands.sub("bench", "bench"))
    broker.fill(1)
    holder.sock.sendall(commands.rdy(1))
    if not any(holder.receive(4096) for _ in range(40)):
        raise RuntimeError("the message that should be stuck was not delivered")
    pass_through(broker, warm)
    before, journal_before = broker.settle(), broker.stored_size("**/journal*")
    report_seconds = pass_through(broker, messages)
    after, journal_after = broker.settle(), broker.stored_size("**/journal*")
    in_flight = broker.channel("bench", "bench")["in_flight_count"]
    holder.close()
    return {
        "rss_growth_mib": (after.rss_size - before.rss_size) / 2**20,
        "journal_growth_kib": (journal_after - journal_before) / 2**10,
        "journal_kib": journal_after / 2**10,
        "stored_mib": broker.stored_size() / 2**20,
        "rate": messages / report_seconds,
        "missing": 1 - in_flight,
    }


def pass_through(broker: Broker, messages: int) -> float:
    """Publish and consume ``messages``; return the seconds until the last was finished."""
    task = broker.task("pub", messages=messages, batch=200)
    report = broker.load(replace(task, kind="sub"), task)
    return max(report.consumed.seconds, 1e-9)
