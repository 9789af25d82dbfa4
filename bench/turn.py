"""What a packet costs: clients that await each answer, beside Redis, Go's nsqd and the floor.

    python -m bench.turn                                 every row, about fifteen minutes
    python -m bench.turn --quick alone fifty             a short look at two rows
    python -m bench.turn --go-nsqd ~/bin/nsqd            with Go's nsqd
    python -m bench.turn --old /elsewhere/.venv/bin/nsqd with another build of ours, as "old"

Peers take turns within a row; a figure is the median of the rounds.  A peer that is not installed
is left out, and the first lines say which.  The data path has to be on a real file system: on a
tmpfs a sync costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import peers
from bench.broker import Make
from bench.compiled import native
from bench.flags import Parser, write_record
from bench.passage import consume_timed, publish_paced
from bench.peers import Exchange, NsqPeer, Peer
from bench.report import write_page
from bench.run import allow_open_files, describe_machine, progress
from bench.turn_report import BEGIN, END, Asked, Result, markdown
from penstock.cli.usage import settle, usage

BODY = bytes(200)
TMPFS = 0x01021994


@dataclass(frozen=True)
class Row:
    """One measure: ``run`` on each of ``peers``, with ``flags`` for ours."""

    name: str
    title: str
    run: Callable[..., dict[str, float]]
    full: dict[str, Any]
    quick: dict[str, Any]
    asked: tuple[Asked, ...] = ()
    peers: tuple[str, ...] = ("penstock", "old", "redis", "go", "floor")
    synced: bool = False
    flags: tuple[str, ...] = ()


# A client that awaits each answer


def publish(peer: Peer, *, connections: int, messages: int) -> dict[str, float]:
    exchange = peer.publish(BODY)
    with connected(peer.port, exchange, connections) as sockets:
        awaited(sockets, exchange, messages // 10)
        before = usage(peer.pid).cpu_us
        seconds, times_ns = awaited(sockets, exchange, messages)
        cpu_us = usage(peer.pid).cpu_us - before
    return {"rate": messages / seconds, "cpu_us": cpu_us / messages, **quantiles(times_ns)}


@contextlib.contextmanager
def connected(port: int, exchange: Exchange, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            each = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.settimeout(None)
            each.sendall(exchange.greeting)
            sockets.append(each)
        time.sleep(0.1)
        yield sockets


def awaited(
    sockets: list[socket.socket], exchange: Exchange, count: int
) -> tuple[float, list[int]]:
    fds = [each.fileno() for each in sockets]
    rule = (exchange.reply_size, exchange.reply_lines)
    seconds, times_ns = native().await_replies(fds, exchange.request, *rule, count)
    return seconds, times_ns


def quantiles(times_ns: list[int]) -> dict[str, float]:
    cuts = statistics.quantiles(times_ns, n=100)
    return {"p50_us": cuts[49] / 1e3, "p99_us": cuts[98] / 1e3}


# As NSQ's bench_writer: batches, each of which awaits its OK


def write(peer: NsqPeer, *, connections: int, messages: int, batch: int) -> dict[str, float]:
    exchange = Exchange(b"  V2", peers.mpub(BODY, batch), reply_size=10)
    with connected(peer.port, exchange, connections) as sockets:
        awaited(sockets, exchange, messages // batch // 10)
        before = usage(peer.pid).cpu_us
        seconds, _ = awaited(sockets, exchange, messages // batch)
        cpu_us = usage(peer.pid).cpu_us - before
    return {"rate": messages / seconds, "cpu_us": cpu_us / messages}


# As NSQ's bench_reader: a consumer that finishes one message a packet


def finish(peer: NsqPeer, *, messages: int) -> dict[str, float]:
    peer.broker.fill(messages + 5_000)
    peer.broker.settle()
    with socket.create_connection(("127.0.0.1", peer.port), 10) as consumer:
        consumer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        consumer.settimeout(None)
        before = usage(peer.pid).cpu_us
        consumer.sendall(b"  V2SUB bench bench\nRDY 200\n")
        seconds = native().finish_singly(consumer.fileno(), messages)
        cpu_us = settle(peer.pid).cpu_us - before
    return {"rate": messages / seconds, "cpu_us": cpu_us / messages}


# From a publisher to a consumer


def passage(peer: Peer, *, rate: int, seconds: float) -> dict[str, float]:
    """Latency at a steady rate: a channel, or XREAD BLOCK of a stream."""
    redis = peer.name == "redis"
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        times = pool.submit(consume_timed, peer.port, redis, int(rate * seconds))
        time.sleep(1)
        pool.submit(publish_paced, peer.port, redis, rate, seconds).result(seconds + 60)
        return quantiles([int(each * 1e3) for each in times.result(60)])


# Fairness: others beside a flood


def flooded(peer: NsqPeer, *, seconds: float) -> dict[str, float]:
    """A paced publisher and GET /ping, 100 per second each, beside 50 that pipeline PUBs."""
    stop = multiprocessing.Event()
    flooding = multiprocessing.Process(target=flood, args=(peer.port, 50, stop), daemon=True)
    flooding.start()
    try:
        time.sleep(1)
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            paced = pool.submit(pace_publisher, peer.port, seconds)
            pinged = pool.submit(pace_ping, peer.broker.http_port, seconds)
            paced_ms, pinged_ms = paced.result(seconds + 30), pinged.result(seconds + 30)
    finally:
        stop.set()
        flooding.join(10)
        flooding.kill()
    return {"p99_pub_ms": p99(paced_ms), "p99_ping_ms": p99(pinged_ms)}


def flood(port: int, connections: int, stop: Any) -> None:
    """Send PUBs as fast as the sockets take them, and read what comes back."""
    import selectors

    chunk = memoryview(peers.pub(BODY) * 100)
    sockets = []
    chosen = selectors.DefaultSelector()
    sent: dict[int, int] = {}
    for _ in range(connections):
        each = socket.create_connection(("127.0.0.1", port), 10)
        each.sendall(b"  V2")
        each.setblocking(False)
        chosen.register(each, selectors.EVENT_READ | selectors.EVENT_WRITE)
        sockets.append(each)
        sent[each.fileno()] = 0
    while not stop.is_set():
        for key, events in chosen.select(0.1):
            each = key.fileobj
            assert isinstance(each, socket.socket)
            if events & selectors.EVENT_READ:
                each.recv(1 << 16)
            if events & selectors.EVENT_WRITE:
                at = sent[key.fd]
                with contextlib.suppress(BlockingIOError):
                    at += each.send(chunk[at:])
                sent[key.fd] = at % len(chunk)


def pace_publisher(port: int, seconds: float) -> list[float]:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"  V2")
        return paced(seconds, lambda: round_trip(client, peers.pub(BODY), 10))


def pace_ping(port: int, seconds: float) -> list[float]:
    request = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return paced(seconds, lambda: round_trip(client, request, 1))


def round_trip(client: socket.socket, request: bytes, size_min: int) -> None:
    client.sendall(request)
    got = 0
    while got < size_min:
        data = client.recv(1 << 16)
        if not data:
            raise RuntimeError("the connection was closed")
        got += len(data)


def paced(seconds: float, once: Callable[[], None], rate: float = 100.0) -> list[float]:
    """Milliseconds of each call, from when it was due."""
    times_ms = []
    start_s = time.monotonic()
    for number in range(int(seconds * rate)):
        due_s = start_s + number / rate
        if time.monotonic() > start_s + 2 * seconds:
            break
        time.sleep(max(0.0, due_s - time.monotonic()))
        once()
        times_ms.append((time.monotonic() - due_s) * 1e3)
    return times_ms


def p99(times_ms: list[float]) -> float:
    return statistics.quantiles(times_ms, n=100)[98]


# Connections that do nothing


def idle(peer: NsqPeer, *, connections: int, seconds: float) -> dict[str, float]:
    exchange = Exchange(b"  V2", b"")
    before = settle(peer.pid)
    with connected(peer.port, exchange, connections):
        settle(peer.pid)
        start = usage(peer.pid)
        time.sleep(seconds)
        end = usage(peer.pid)
    cpu_percent = (end.cpu_us - start.cpu_us) / (end.wall_ns - start.wall_ns) * 1e5
    return {
        "cpu_percent": cpu_percent,
        "connection_kib": (end.rss_size - before.rss_size) / 1024 / connections,
    }


NSQDS = ("penstock", "old", "go")
ROWS = (
    Row(
        "alone",
        "PUB of 200 bytes, one connection, each OK awaited",
        publish,
        full={"connections": 1, "messages": 100_000},
        quick={"messages": 20_000},
        asked=(
            Asked("rate", 1, "redis", at_least=True),
            Asked("cpu_us", 1, "redis"),
            Asked("cpu_us", 1.25, "floor"),
        ),
    ),
    Row(
        "alone-polled",
        "the same with --busy-poll",
        publish,
        full={"connections": 1, "messages": 100_000},
        quick={"messages": 20_000},
        asked=(Asked("rate", 1.4, "redis", at_least=True),),
        peers=("penstock", "redis"),
        flags=("--busy-poll",),
    ),
    Row(
        "fifty",
        "PUB of 200 bytes, 50 connections, each OK awaited",
        publish,
        full={"connections": 50, "messages": 400_000},
        quick={"messages": 100_000},
        asked=(
            Asked("rate", 1.2, "redis", at_least=True),
            Asked("rate", 1.2, "go", at_least=True),
            Asked("cpu_us", 0.8, "redis"),
            Asked("cpu_us", 0.55, "go"),
        ),
    ),
    Row(
        "alone-synced",
        "the same on one connection, each OK after a sync (--sync-every=1, appendfsync always)",
        publish,
        full={"connections": 1, "messages": 10_000},
        quick={"messages": 2_000},
        peers=("penstock", "old", "redis", "floor"),
        synced=True,
        asked=(
            Asked("rate", 1, "redis", at_least=True),
            Asked("cpu_us", 1.1, "redis"),
        ),
    ),
    Row(
        "fifty-synced",
        "the same on 50 connections, each OK after a sync",
        publish,
        full={"connections": 50, "messages": 100_000},
        quick={"messages": 20_000},
        peers=("penstock", "old", "redis", "floor"),
        synced=True,
        asked=(
            Asked("rate", 1, "redis", at_least=True),
            Asked("cpu_us", 1.1, "redis"),
        ),
    ),
    Row(
        "finish",
        "a consumer that finishes one message a packet, RDY 200, as NSQ's bench_reader",
        finish,
        full={"messages": 300_000},
        quick={"messages": 60_000},
        peers=NSQDS,
        asked=(
            Asked("rate", 2, "go", at_least=True),
            Asked("cpu_us", 0.33, "go"),
        ),
    ),
    Row(
        "write",
        "MPUB of 200 messages over two connections, each OK awaited, as NSQ's bench_writer",
        write,
        full={"connections": 2, "messages": 4_000_000, "batch": 200},
        quick={"messages": 400_000},
        peers=NSQDS,
        asked=(
            Asked("rate", 1.8, "go", at_least=True),
            Asked("cpu_us", 0.33, "go"),
        ),
    ),
    Row(
        "latency",
        "PUB to a consumer at 5,000 a second: a channel, or XREAD BLOCK of a stream",
        passage,
        full={"rate": 5000, "seconds": 10.0},
        quick={"rate": 5000, "seconds": 3.0},
        peers=("penstock", "old", "redis", "go"),
        asked=(
            Asked("p50_us", 1, "redis"),
            Asked("p99_us", 1, "redis"),
        ),
    ),
    Row(
        "flooded",
        "PUB and GET /ping at 100 a second beside 50 flooding publishers",
        flooded,
        full={"seconds": 20.0},
        quick={"seconds": 5.0},
        peers=NSQDS,
        asked=(
            Asked("p99_pub_ms", 5),
            Asked("p99_ping_ms", 5),
        ),
    ),
    Row(
        "idle",
        "5,000 idle connections",
        idle,
        full={"connections": 5000, "seconds": 20.0},
        quick={"connections": 1000, "seconds": 5.0},
        peers=NSQDS,
        asked=(
            Asked("cpu_percent", 2),
            Asked("connection_kib", 1, "old"),
        ),
    ),
)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    allow_open_files()
    native()
    found = find_peers(options)
    machine = describe_machine({"go": Make("go", options.go_nsqd)} if options.go_nsqd else {})
    record: dict[str, Any] = {"machine": machine, "quick": options.quick, "rows": {}}
    results: list[Result] = []
    for row in ROWS:
        if options.rows and row.name not in options.rows:
            continue
        rounds = measure(row, [name for name in row.peers if name in found], options)
        medians = {
            name: {metric: statistics.median(r[metric] for r in each) for metric in each[0]}
            for name, each in rounds.items()
        }
        record["rows"][row.name] = {"title": row.title, "rounds": rounds, "median": medians}
        results.append(Result(row.name, row.title, row.asked, medians))
        print(results[-1].text(), flush=True)
    write_record(options, record, "turn-")
    write_page(options.markdown, markdown(machine, results), BEGIN, END)
    if options.plots:
        from bench import plots

        plots.draw_packets(Path(options.plots), {each.name: each.figures for each in results})
    missed = any(asked.met(each.figures) is False for each in results for asked in each.asked)
    return 1 if options.strict and missed else 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    titles = {row.name: row.title for row in ROWS}
    parser = Parser("bench.turn", __doc__, "row", titles, folder="the current folder")
    parser.add_report()
    parser.add_go()
    parser.add_program("--old", "nsqd of another build of Penstock")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each row (5)")
    return parser.parsed(argv)


def find_peers(options: argparse.Namespace) -> list[str]:
    """The peers that there are; says which are left out, and why."""
    found = ["penstock", "floor"]
    if options.old:
        found.append("old")
    if options.go_nsqd:
        found.append("go")
    else:
        print("Go's nsqd is left out: --go-nsqd names its program")
    if shutil.which(peers.REDIS):
        found.append("redis")
    else:
        print(f"Redis is left out: there is no {peers.REDIS}")
    return found


def measure(
    row: Row, names: list[str], options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    parameters = {**row.full, **(row.quick if options.quick else {})}
    for number in range(options.rounds):
        for name in names:
            progress(f"{row.name}: {name}, round {number + 1} of {options.rounds}")
            folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=options.data_path or "."))
            try:
                with started(name, folder, options, row) as peer:
                    rounds[name].append(row.run(peer, **parameters))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    progress("")
    return rounds


def started(
    name: str, folder: Path, options: argparse.Namespace, row: Row
) -> contextlib.AbstractContextManager[Any]:
    if name == "redis":
        return peers.redis(folder, synced=row.synced)
    if name == "floor":
        return peers.floor(folder, synced=row.synced)
    programs = {
        "penstock": str(Path(sys.executable).parent / "nsqd"),
        "old": options.old,
        "go": options.go_nsqd,
    }
    flags = ("--sync-every=1",) if row.synced else ()
    if name != "go":
        flags += row.flags
    return peers.nsqd(Make(name, str(Path(programs[name]).absolute())), folder, *flags)


if __name__ == "__main__":
    sys.exit(main())
