"""What thousands of retained segments cost: a start, memory, a publish, a search by time (R21).

They are sparse files with true headers and footers, 50 GB in name only.
"""

from __future__ import annotations

import time

from tests.support.thousands import MINUTE_NS, write_thousands

from bench.broker import Broker
from bench.throughput import Metrics

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
