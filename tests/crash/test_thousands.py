"""Five thousand retained segments (R21): a real nsqd starts, publishes and seeks as with one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.daemon import Nsqd
from tests.support.thousands import COUNT, FIRST, MINUTE_NS, write_thousands

SEGMENT_COUNT = 5000
NODE_ID = 7


def cpu_s(nsqd: Nsqd) -> float:
    return nsqd.metric("penstock_cpu_seconds_total")


def memory_size(nsqd: Nsqd) -> float:
    return nsqd.metric("penstock_resident_memory_bytes")


def publish(nsqd: Nsqd, topic: str, count: int) -> float:
    """Publish one by one; the CPU time of nsqd for it."""
    before_s = cpu_s(nsqd)
    with nsqd.connect() as raw:
        for _ in range(count):
            assert raw.command(commands.pub(topic, bytes(200)))[1] == b"OK"
    return cpu_s(nsqd) - before_s


def start(folder: Path, *options: str) -> Nsqd:
    (folder.parent / "policy.toml").write_text('[[policy]]\ntopic = "*"\nretain = "365d"\n')
    policy = f"--policy-file={folder.parent / 'policy.toml'}"
    return Nsqd(folder, f"--node-id={NODE_ID}", policy, "--disk-low-watermark=0", *options)


@pytest.mark.parametrize("topic_count", [1, 50])
def test_a_start_a_publish_and_a_seek_cost_what_they_cost_with_one(
    tmp_path: Path, topic_count: int
) -> None:
    now_ns = time.time_ns()
    folder, empty = tmp_path / "many", tmp_path / "few"
    for path, count in ((folder, SEGMENT_COUNT // topic_count), (empty, 1)):
        path.mkdir()
        for number in range(topic_count):
            write_thousands(path, f"t{number}", count, node_id=NODE_ID, end_ns=now_ns)
    with start(empty) as few, start(folder) as many:
        started_s, few_s = cpu_s(many), cpu_s(few)
        assert started_s - few_s < 3, f"{started_s} s of CPU, with one segment {few_s} s"
        assert memory_size(many) - memory_size(few) < 100e6
        assert many.metric("penstock_open_files") - few.metric("penstock_open_files") <= 300
        assert many.metric('penstock_log_segments{topic="t0"}') == SEGMENT_COUNT // topic_count
        publish(many, "t0", 100)
        publish(few, "t0", 100)
        costs = [(publish(many, "t0", 2000), publish(few, "t0", 2000)) for _ in range(3)]
        assert min(m for m, _ in costs) < 1.5 * min(f for _, f in costs) + 0.05, costs
        _seek_everywhere(many, SEGMENT_COUNT // topic_count, now_ns)
        many.kill()
        many.start()
        assert not [each for each in many.get("/damage").json["records"] if each["topic"]]
        assert many.metric('penstock_log_segments{topic="t0"}') >= SEGMENT_COUNT // topic_count


def _seek_everywhere(nsqd: Nsqd, segment_count: int, end_ns: int) -> None:
    """By time: the first message appended at or after it, without walking the segments."""
    times_s = []
    for number in range(0, segment_count, max(1, segment_count // 50)):
        at_ns = end_ns - (segment_count - 1 - number) * MINUTE_NS - MINUTE_NS // 2
        begun_s = time.monotonic()
        reply = nsqd.get(f"/log/seek?topic=t0&timestamp={at_ns}")
        times_s.append(time.monotonic() - begun_s)
        assert reply.json["index"] == FIRST + number * COUNT, reply.text
    assert sorted(times_s)[len(times_s) // 2] < 0.05, times_s


def test_a_year_of_segments_that_expires_goes_in_pieces(tmp_path: Path) -> None:
    """The policy is unset: all of them go, while publishes are answered."""
    folder = tmp_path / "many"
    folder.mkdir()
    count = 1000
    end = write_thousands(folder, "t", count, node_id=NODE_ID, end_ns=time.time_ns())
    with start(folder) as nsqd:
        assert nsqd.http("PUT", "/policy?topic=t", b'{"retain": "1m"}').status == 200
        longest_s = 0.0
        with nsqd.connect() as raw:
            while nsqd.metric('penstock_log_segments{topic="t"}') > 20:
                for _ in range(50):
                    begun_s = time.monotonic()
                    assert raw.command(commands.pub("t", bytes(200)))[1] == b"OK"
                    longest_s = max(longest_s, time.monotonic() - begun_s)
        assert longest_s < 1, "not the time of a thousand unlinks"
        place = nsqd.get("/log?topic=t").json
        assert end - 20 * COUNT <= place["whole_from"] == place["first"]
