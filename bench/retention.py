"""What retention costs (R21).

`retained`: a start, memory, a publish and a search by time with thousands of retained segments.
They are sparse files with true headers and footers, 50 GB in name only.

`retaining`: the latency of a publish, while old segments go as fast as new ones come.
"""

from __future__ import annotations

import json
import multiprocessing
import time

from tests.support.thousands import MINUTE_NS, write_thousands

from bench.broker import Broker
from bench.throughput import Metrics
from bench.timing import times
from penstock.cli.load_workers import Connection, Histogram
from penstock.wire import commands

NODE_ID = 7
BATCH_COUNT = 200
POLICY = '[[policy]]\ntopic = "*"\nretain = "3650d"\n'


def retained(broker: Broker, *, segments: int, seeks: int, messages: int) -> Metrics:
    """The same with one segment first, and then with all of them."""
    policy = broker.data_path / "policy.toml"
    policy.write_text(POLICY)
    options = (f"--policy-file={policy}", "--disk-low-watermark=0")
    few = _measure(broker, options, 1, "few", seeks, messages)
    many = _measure(broker, options, segments, "many", seeks, messages)
    return {
        "start_s": many["start_s"] - few["start_s"],
        "rss_growth_mib": many["rss_mib"] - few["rss_mib"],
        "cpu_factor": many["cpu_us"] / few["cpu_us"],
        "seek_ms": many["seek_ms"],
        "missing": many["missing"],
    }


def _measure(
    broker: Broker, options: tuple[str, ...], count: int, topic: str, seeks: int, messages: int
) -> Metrics:
    broker.terminate()
    end_ns = time.time_ns()
    write_thousands(broker.data_path, topic, count, node_id=NODE_ID, end_ns=end_ns)
    start_s = time.monotonic()
    broker.start(*options)
    start_s = time.monotonic() - start_s
    rss_size = broker.settle().rss_size
    longest_s = 0.0
    for number in range(seeks):
        at_ns = end_ns - (count * number // seeks) * MINUTE_NS - MINUTE_NS // 2
        begun_s = time.monotonic()
        assert broker.get(f"/log/seek?topic={topic}&timestamp={at_ns}").status == 200
        longest_s = max(longest_s, time.monotonic() - begun_s)
    missing = count - broker.metric(f'penstock_log_segments{{topic="{topic}"}}')
    task = broker.task("pub", topic, size=200, batch=1, messages=messages)
    broker.load(task)  # what a start leaves to do in its first seconds is not measured
    report = broker.load(task)
    return {
        "start_s": start_s,
        "rss_mib": rss_size / 2**20,
        "seek_ms": 1000 * longest_s,
        "cpu_us": report.cpu_us_per_message,
        "missing": missing,
    }


def retaining(broker: Broker, *, retain_mib: int, rate: int, seconds: int) -> Metrics:
    """MPUBs at ``rate`` messages a second, each timed.

    What an ephemeral channel without a consumer does not take is finished at once, so consumers
    need no core of their own.
    """
    broker.create("bench", "bench%23ephemeral")
    policy = json.dumps({"retain_bytes": f"{retain_mib}MiB"}).encode()
    assert broker.http("PUT", "/policy?topic=bench", policy).status == 200
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        buckets, passed_s = pool.apply(_publish_paced, (broker.tcp_port, rate, seconds))
    histogram = Histogram(buckets)
    count = BATCH_COUNT * histogram.count
    kept_mib = broker.metric('penstock_topic_retained_bytes{topic="bench"}') / 2**20
    stored = broker.get("/log?topic=bench").json["message_count"]
    return {
        "rate": count / passed_s,
        **times(histogram),
        "gone_share": 1 - stored / count,
        "kept_share": kept_mib / retain_mib,
    }


def _publish_paced(port: int, rate: int, seconds: int) -> tuple[list[tuple[int, int]], float]:
    """The times from sending an MPUB to its OK, as buckets, and how long it all took."""
    histogram, connection = Histogram(), Connection("127.0.0.1", port)
    command = commands.mpub("bench", [bytes(200)] * BATCH_COUNT)
    start_ns = time.monotonic_ns()
    for number in range(rate * seconds // BATCH_COUNT):
        due_ns = start_ns + number * BATCH_COUNT * 1_000_000_000 // rate
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        sent_ns = time.monotonic_ns()
        connection.request(command)
        histogram.add(time.monotonic_ns() - sent_ns)
    connection.close()
    return list(histogram.buckets.items()), (time.monotonic_ns() - start_ns) / 1e9
