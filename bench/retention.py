"""What retention costs (R21).

`retained`: a start, memory, a publish and a search by time with thousands of retained segments.
They are sparse files with true headers and footers, 50 GB in name only.

`retaining`: the latency of a publish at full speed, while old segments go as fast as new ones come.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

from tests.support.thousands import MINUTE_NS, write_thousands

from bench.broker import Broker
from bench.throughput import Metrics
from bench.timing import times
from penstock.cli.load_workers import Histogram
from penstock.wire import commands

NODE_ID = 7
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


def retaining(
    broker: Broker, *, retain_mib: int, seconds: int, connections: int, every_ms: int
) -> Metrics:
    """Flood a topic with MPUBs, and time single PUBs to it meanwhile.

    What an ephemeral channel without a consumer does not take is finished at once, so consumers
    need no core of their own.
    """
    broker.create("bench", "bench%23ephemeral")
    policy = json.dumps({"retain_bytes": f"{retain_mib}MiB"}).encode()
    assert broker.http("PUT", "/policy?topic=bench", policy).status == 200
    flood = broker.task("pub", batch=200, connections=connections, seconds=float(seconds))
    with ThreadPoolExecutor(1) as beside:
        flooding = beside.submit(broker.load, flood)
        histogram = _timed(broker, seconds, every_ms)
        report = flooding.result()
    kept_mib = broker.metric('penstock_topic_retained_bytes{topic="bench"}') / 2**20
    stored = broker.get("/log?topic=bench").json["message_count"]
    return {
        "rate": report.published.per_second,
        **times(histogram),
        "gone_share": 1 - stored / (report.published.messages + histogram.count),
        "kept_share": kept_mib / retain_mib,
    }


def _timed(broker: Broker, seconds: int, every_ms: int) -> Histogram:
    """From sending a PUB to its OK, one after another."""
    histogram = Histogram()
    connection = broker.connect_client()
    command = commands.pub("bench", bytes(200))
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        start_ns = time.monotonic_ns()
        connection.request(command)
        histogram.add(time.monotonic_ns() - start_ns)
        time.sleep(every_ms / 1000)
    connection.close()
    return histogram
