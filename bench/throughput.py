"""Publishing and consuming at full speed: messages per second, and server CPU per message."""

from __future__ import annotations

from bench import http_load
from bench.broker import Broker

Metrics = dict[str, float]


def publish(broker: Broker, *, messages: int, batch: int, connections: int = 1) -> Metrics:
    """Each connection waits for its OK before it publishes again."""
    broker.create("bench", "bench")
    report = broker.load(
        broker.task("pub", messages=messages, batch=batch, connections=connections)
    )
    return {"rate": report.published.per_second, "cpu_us": report.cpu_us_per_message}


def publish_http(
    broker: Broker, *, requests: int, batch: int, connections: int, size: int = 200
) -> Metrics:
    """/pub, or with a ``batch`` /mpub in its binary form; each connection awaits its response."""
    broker.create("bench", "bench")
    if batch == 1:
        raw = http_load.request("/pub?topic=bench", bytes(size))
    else:
        body = batch.to_bytes(4, "big") + (size.to_bytes(4, "big") + bytes(size)) * batch
        raw = http_load.request("/mpub?topic=bench&binary=true", body)
    http_load.post(broker.http_port, raw, requests=requests // 10, connections=connections)
    before = broker.usage()
    sent = http_load.post(broker.http_port, raw, requests=requests, connections=connections)
    cpu_us = broker.usage().cpu_us - before.cpu_us
    return {"rate": sent.per_second * batch, "cpu_us": cpu_us / (requests * batch)}


def consume(broker: Broker, *, messages: int, connections: int, rdy: int = 2500) -> Metrics:
    """Consume an existing backlog.

    The backlog is a little larger than what is consumed: at the very end a broker may wait for its
    flush timer, which says nothing about its speed.  The consumer's count must be what the channel
    has lost: a broker that delivers messages twice would look fast.
    """
    filled = messages + 10_000
    broker.create("bench", "bench")
    broker.fill(filled)
    broker.settle()
    report = broker.load(broker.task("sub", messages=messages, connections=connections, rdy=rdy))
    return {
        "rate": report.consumed.per_second,
        "cpu_us": report.cpu_us_per_message,
        "missing": max(0, messages - report.consumed.messages),
        "doubled": report.consumed.messages - (filled - broker.unfinished()),
    }


def consume_upgraded(broker: Broker, *, messages: int, ways: list[str]) -> Metrics:
    """Consume the same in clear, encrypted and compressed."""
    metrics: Metrics = {}
    for way in ways:
        topic = way.replace("+", "-")
        broker.create(topic, "bench")
        broker.fill(messages + 10_000, topic)
        broker.settle()
        upgrade = "" if way == "plain" else way
        report = broker.load(broker.task("sub", topic, messages=messages, upgrade=upgrade))
        metrics[f"rate@{way}"] = report.consumed.per_second
        metrics[f"cpu_us@{way}"] = report.cpu_us_per_message
        broker.empty(topic)
    for way in ways[1:]:
        metrics[f"share@{way}"] = metrics[f"rate@{way}"] / metrics[f"rate@{ways[0]}"]
    return metrics


def publish_by_channels(broker: Broker, *, messages: int, channels: list[int]) -> Metrics:
    """Publish the same to topics with few and many channels."""
    metrics: Metrics = {}
    # The first run of a process is never its fastest.
    broker.load(broker.task("pub", "warm-up", messages=messages // 5, batch=200))
    for count in channels:
        topic = f"fan-{count}"
        broker.create(topic, *(f"channel-{n}" for n in range(count)))
        report = broker.load(broker.task("pub", topic, messages=messages, batch=200))
        metrics[f"cpu_us@{count}"] = report.cpu_us_per_message
        metrics[f"rate@{count}"] = report.published.per_second
    metrics["growth"] = growth(metrics, channels)
    return metrics


def consume_by_backlog(broker: Broker, *, messages: int, backlogs: list[int]) -> Metrics:
    """Consume the same number of messages from small and from large backlogs.

    A small backlog is filled repeatedly, because the clock is too coarse for one; a tenth is left
    each time because of the flush timer, as in `consume`.
    """
    metrics: Metrics = {}
    for backlog in backlogs:
        topic = f"backlog-{backlog}"
        broker.create(topic, "bench")
        cpu_us = seconds = 0.0
        done = 0
        while done < messages:
            broker.fill(backlog, topic)
            broker.settle()
            count = min(backlog * 9 // 10, messages - done)
            report = broker.load(broker.task("sub", topic, messages=count))
            cpu_us += report.cpu_us_per_message * report.consumed.messages
            seconds += report.consumed.seconds
            done += report.consumed.messages
            broker.empty(topic)
        metrics[f"cpu_us@{backlog}"] = cpu_us / done
        metrics[f"rate@{backlog}"] = done / seconds
    metrics["growth"] = growth(metrics, backlogs)
    return metrics


def growth(metrics: Metrics, steps: list[int]) -> float:
    """The last step's CPU per message divided by the first one's."""
    first, last = metrics[f"cpu_us@{steps[0]}"], metrics[f"cpu_us@{steps[-1]}"]
    return last / first if first else 0.0
