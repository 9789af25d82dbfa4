"""Many objects created at once: the effect of new topics on others, and the cost of channels."""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bench.broker import Broker
from bench.throughput import Metrics
from bench.timing import times
from penstock.cli.measurement import Report
from penstock.wire import commands

OK_SECONDS_MAX = 120.0


def new_topics(broker: Broker, *, topics: int, rate: int, seconds: int) -> Metrics:
    """The latency of others, alone and while one client publishes to many new topics."""
    broker.create("bench", "bench")
    alone = _paced(broker, rate, seconds)
    with ThreadPoolExecutor(1) as beside:
        flooding = beside.submit(_publish_to_new, broker, topics)
        report = _paced(broker, rate, seconds)
        flood_s = flooding.result()
    published = alone.published.messages + report.published.messages
    consumed = alone.consumed.messages + report.consumed.messages
    return {
        **times(alone.latency, "alone_"),
        **times(report.latency),
        "missing": published - consumed,
        "flood_s": flood_s,
    }


def _paced(broker: Broker, rate: int, seconds: int) -> Report:
    task = broker.task("paced", rate=float(rate), seconds=float(seconds), output_buffer_size=-1)
    return broker.load(replace(task, kind="sub", seconds=0.0), task)


def _publish_to_new(broker: Broker, count: int) -> float:
    """Publish to ``count`` new topics without waiting; return the seconds until the last OK."""
    time.sleep(0.5)
    connection = broker.connect_client()
    start_s = time.monotonic()
    connection.sock.sendall(b"".join(commands.pub(f"new-{n}", b"first") for n in range(count)))
    answered = 0
    while answered < count:
        if time.monotonic() > start_s + OK_SECONDS_MAX:
            raise TimeoutError(f"{answered} of {count} PUBs were answered")
        answered += connection.oks(connection.receive(65536))
    connection.close()
    return time.monotonic() - start_s


def channel_costs(broker: Broker, *, channels: list[int]) -> Metrics:
    """Server CPU to create and delete a channel, on topics with few and many channels."""
    metrics: Metrics = {}
    for count in channels:
        topic = f"many-{count}"
        names = [f"channel-{n}" for n in range(count)]
        before = broker.settle()
        broker.create(topic, *names)
        _delete(broker, topic, names)
        metrics[f"channel_us@{count}"] = (broker.settle().cpu_us - before.cpu_us) / count
    first, last = metrics[f"channel_us@{channels[0]}"], metrics[f"channel_us@{channels[-1]}"]
    metrics["channel_growth"] = last / first if first else 0.0
    return metrics


def _delete(broker: Broker, topic: str, channels: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=60)
    for channel in channels:
        connection.request("POST", f"/channel/delete?topic={topic}&channel={channel}")
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"channel/delete: {answer.status}")
    connection.close()
