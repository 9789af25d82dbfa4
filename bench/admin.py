"""The cost of nsqadmin on a large cluster: time to first byte, CPU, memory.

    python -m bench.admin                  2,000 topics of 3 channels on 3 nodes, about 4 minutes
    python -m bench.admin --topics 200 --seconds 10
    python -m bench.admin --strict         exit status 1 if a target is missed

Every topic gets a message in every sample, so that none is idle.  A "browser" requests its page as
a real one does: once per interval, with the ETag of what it has.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.admin.cluster import Nsqadmin
from tests.support.daemon import Nsqd, Nsqlookupd

from penstock.cli.usage import Usage, usage

NODE_COUNT = 3
CHANNELS = ("email", "billing", "audit")
INTERVAL_S = 5.0
FIRST_BYTE_COUNT = 20

FIRST_BYTE_MS_MAX = 500.0
CPU_SHARE_MAX = 0.10


@dataclass(frozen=True)
class Spent:
    """The resources of a process between two samples."""

    cpu_share: float
    rss_size: int


def create(nsqd: Nsqd, topic_count: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", nsqd.http_port, timeout=60)
    for number in range(topic_count):
        paths = [f"/topic/create?topic=topic-{number:05d}"]
        paths += [f"/channel/create?topic=topic-{number:05d}&channel={c}" for c in CHANNELS]
        for path in paths:
            connection.request("POST", path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, (path, answer.status)
    connection.close()


def publish(nsqds: Sequence[Nsqd], topic_count: int, over: threading.Event) -> None:
    """Publish a message to every topic in every interval."""
    links = [http.client.HTTPConnection("127.0.0.1", n.http_port, timeout=60) for n in nsqds]
    while not over.is_set():
        begin_s = time.monotonic()
        for number in range(topic_count):
            link = links[number % len(links)]
            link.request("POST", f"/pub?topic=topic-{number:05d}", b"x" * 100)
            link.getresponse().read()
            if over.is_set():
                return
        over.wait(max(0.0, INTERVAL_S - (time.monotonic() - begin_s)))


@contextmanager
def cluster(folder: Path, topic_count: int) -> Iterator[tuple[list[Nsqd], Nsqadmin]]:
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        nsqds = [stack.enter_context(Nsqd(folder / f"{n}", *flags)) for n in range(NODE_COUNT)]
        makers = [threading.Thread(target=create, args=(nsqd, topic_count)) for nsqd in nsqds]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()
        over = threading.Event()
        load = threading.Thread(target=publish, args=(nsqds, topic_count, over))
        load.start()
        stack.callback(load.join)
        stack.callback(over.set)
        interval = f"--sample-interval={INTERVAL_S:g}s"
        address = f"--lookupd-http-address={lookupd.http_address}"
        yield nsqds, stack.enter_context(Nsqadmin(interval, address))


def first_byte_ms(admin: Nsqadmin, path: str) -> float:
    """The longest time from a request to the first byte, on new connections, during samples too."""
    times = []
    for _ in range(FIRST_BYTE_COUNT):
        connection = http.client.HTTPConnection("127.0.0.1", admin.http_port, timeout=60)
        begin_s = time.monotonic()
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        times.append((time.monotonic() - begin_s) * 1e3)
        answer.read()
        connection.close()
        time.sleep(INTERVAL_S * 2 / FIRST_BYTE_COUNT)
    return max(times)


def watched(admin: Nsqadmin, path: str | None, seconds: float) -> Spent:
    """The cost of nsqadmin while a browser shows ``path``; None: without a browser."""
    connection = http.client.HTTPConnection("127.0.0.1", admin.http_port, timeout=60)
    tag = ""
    before = usage(admin.pid)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if path is not None:
            headers = {"Accept-Encoding": "gzip", **({"If-None-Match": tag} if tag else {})}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            tag = answer.headers.get("ETag", "")
        time.sleep(min(INTERVAL_S, max(0.0, end_s - time.monotonic())))
    connection.close()
    return spent(before, usage(admin.pid))


def spent(before: Usage, after: Usage) -> Spent:
    passed_us = (after.wall_ns - before.wall_ns) / 1e3
    return Spent((after.cpu_us - before.cpu_us) / passed_us, after.rss_size)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args(argv)
    met = True
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder), options.topics) as (nsqds, admin),
    ):
        time.sleep(3 * INTERVAL_S)
        for path in ("/", "/topics", "/topics/topic-00000", "/api/view/topics"):
            slowest_ms = first_byte_ms(admin, path)
            print(f"first byte of {path:<22} {slowest_ms:7.1f} ms, the slowest of 20", flush=True)
            met &= path != "/" or slowest_ms < FIRST_BYTE_MS_MAX
        nodes = [usage(nsqd.pid) for nsqd in nsqds]
        for path in (None, "/", "/topics"):
            cost = watched(admin, path, options.seconds)
            what = "no browser is open" if path is None else f"a browser shows {path}"
            print(f"CPU while {what:<26} {cost.cpu_share:7.1%}", flush=True)
            met &= cost.cpu_share < CPU_SHARE_MAX
        shares = [spent(b, usage(n.pid)).cpu_share for b, n in zip(nodes, nsqds, strict=True)]
        print(f"CPU of an nsqd, with publishing     {statistics.mean(shares):7.1%}")
        print(f"memory                              {cost.rss_size >> 20:7} MiB")
    return 0 if met or not options.strict else 1


if __name__ == "__main__":
    sys.exit(main())
