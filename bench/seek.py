"""Replaying a topic: its speed beside that of a first delivery, and what others notice.

    python -m bench.seek --count 500000 --segments 5000

Both read from files, in turns; the CPU of nsqd for each message is less noisy than the time.
Beside a replay another topic passes 500 messages a second.  Then seeks to times all over a log of
many segments.  Prints JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.passage import consume_timed, publish_paced

BODY_SIZE = 200
ROUNDS = 5
PASSED_RATE, PASSED_COUNT = 500, 2500
TICKS = os.sysconf("SC_CLK_TCK")


class Daemon:
    """An nsqd on a free pair of ports."""

    def __init__(self, folder: str, *flags: str) -> None:
        self.tcp, self.http = free_port(), free_port()
        program = Path(sys.executable).parent / "nsqd"
        self._process = subprocess.Popen(
            [
                str(program),
                f"--data-path={folder}",
                f"--tcp-address=127.0.0.1:{self.tcp}",
                f"--http-address=127.0.0.1:{self.http}",
                *flags,
            ],
            stderr=subprocess.DEVNULL,
        )
        for _ in range(500):
            try:
                if self.post("/ping", method="GET")[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("nsqd does not start")

    def post(self, target: str, body: bytes = b"", method: str = "POST") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=60)
        try:
            connection.request(method, target, body)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text[:1] == b"{" else text
        finally:
            connection.close()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def consume(daemon: Daemon, channel: str, count: int) -> dict[str, float]:
    """Receive and finish ``count`` messages of topic t."""
    began_s, began_cpu_s = time.monotonic(), daemon.cpu_s()
    with socket.create_connection(("127.0.0.1", daemon.tcp), 60) as sock:
        sock.sendall(b"  V2SUB t %b\nRDY 2500\n" % channel.encode())
        data, left = b"", count
        frame_size = 4 + 4 + 26 + BODY_SIZE
        while left:
            data += sock.recv(1 << 20)
            if data[4:8] == b"\0\0\0\0":  # the OK of SUB
                data = data[4 + int.from_bytes(data[:4], "big") :]
            whole = len(data) // frame_size
            ids = [data[at + 18 : at + 34] for at in range(0, whole * frame_size, frame_size)]
            data = data[whole * frame_size :]
            left -= whole
            if ids:
                sock.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")
    seconds, cpu_s = time.monotonic() - began_s, daemon.cpu_s() - began_cpu_s
    return {"rate": count / seconds, "cpu_us": cpu_s / count * 1e6}


def replay(count: int) -> dict[str, Any]:
    """First deliveries and replays in turns; then a replay beside another topic."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder, "--max-bytes-per-file=16777216", "--max-rdy-count=2500")
        try:
            for name in ("keeper", "again"):
                daemon.post("/topic/create?topic=t")
                daemon.post(f"/channel/create?topic=t&channel={name}")
            part = b"\n".join([b"x" * BODY_SIZE] * 2000)
            for _ in range(count // 2000):
                daemon.post("/mpub?topic=t", part)
            consume(daemon, "again", count)
            first, again = [], []
            for number in range(ROUNDS):
                daemon.post(f"/channel/create?topic=t&channel=n{number}&start=earliest")
                first.append(consume(daemon, f"n{number}", count))
                began_s = time.monotonic()
                status, answer = daemon.post("/channel/seek?topic=t&channel=again&to=earliest")
                assert (status, answer["messages"]) == (200, count), answer
                sought_ms = (time.monotonic() - began_s) * 1000
                again.append(consume(daemon, "again", count))
            alone, beside = passed(daemon, None), passed(daemon, count)
            return {
                "first": median(first),
                "replay": median(again),
                "seek_ms": sought_ms,
                "other_topic_alone_us": alone,
                "other_topic_beside_us": beside,
            }
        finally:
            daemon.stop()


def passed(daemon: Daemon, count: int | None) -> dict[str, float]:
    """Latencies of another topic; with a ``count``, while a replay of so many runs."""
    fork = multiprocessing.get_context("spawn")
    seconds = PASSED_COUNT / PASSED_RATE
    with fork.Pool(3) as pool:
        args = (daemon.tcp, False, PASSED_COUNT)
        taking = pool.apply_async(consume_timed, args)
        time.sleep(0.5)
        pool.apply_async(publish_paced, (daemon.tcp, False, PASSED_RATE, seconds))
        if count is not None:
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                daemon.post("/channel/seek?topic=t&channel=again&to=earliest")
                consume(daemon, "again", count)
        times_us = sorted(taking.get(120))
    return {"p50": times_us[len(times_us) // 2], "p99": times_us[len(times_us) * 99 // 100]}


def segments(count: int) -> dict[str, float]:
    """Seeks to times in a log of ``count`` segments, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder, "--max-bytes-per-file=1")
        try:
            daemon.post("/topic/create?topic=t")
            for name in ("keeper", "c"):
                daemon.post(f"/channel/create?topic=t&channel={name}")
            began_ns = time.time_ns()
            for _ in range(count):
                daemon.post("/pub?topic=t", b"m")
            ended_ns = time.time_ns()
            times_ms = []
            for number in range(200):
                at_ns = began_ns + (ended_ns - began_ns) * ((number * 37) % 200) // 200
                began_s = time.monotonic()
                status, _ = daemon.post(f"/channel/seek?topic=t&channel=c&to={at_ns}")
                times_ms.append((time.monotonic() - began_s) * 1000)
                assert status == 200
            times_ms.sort()
            files = len(list(Path(folder).rglob("*.log")))
            return {"segments": files, "p50_ms": times_ms[100], "max_ms": times_ms[-1]}
        finally:
            daemon.stop()


def median(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(each[key] for each in found) for key in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500_000)
    parser.add_argument("--segments", type=int, default=5000)
    options = parser.parse_args()
    found = {"replay": replay(options.count), "segments": segments(options.segments)}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
