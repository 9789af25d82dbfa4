"""`penstock bench`: load for any nsqd, and a report; see DESCRIPTION."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.cli.load_workers import Task
    from penstock.cli.measurement import Flow, Report, Show

DESCRIPTION = """\
Generates load for any nsqd, Penstock's or Go's, and reports what it measured.

  pub      publish as fast as the server answers
  sub      consume and finish the messages that are there
  both     publish and consume at the same time
  latency  publish at a fixed rate and measure the time from sending to arrival
"""
EXAMPLES = """\
examples:
  penstock bench pub --batch 200 --messages 2000000
  penstock bench sub --messages 2000000 --connections 2
  penstock bench pub --connections 50                  one PUB at a time on each connection
  penstock bench latency --rate 10000 --duration 10
  penstock bench both --batch 100 --pid $(pidof nsqd) --json result.json

A publisher waits for each OK before it sends again, as NSQ's bench_writer does; --window allows
more commands in flight.  With --messages the run ends after that many, with --duration after that
time; otherwise after 10 s.  Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""
BUFFER_HELP = (
    "consumer's buffer on the server; -1 sends each message at once (the default of latency)"
)
UPGRADES = ("tls", "snappy", "deflate", "tls+snappy", "tls+deflate")
UPGRADE_HELP = "tls, snappy, deflate, tls+snappy or tls+deflate; certificates are not verified"
DURATION_S = 10.0
RATE = 1000.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if problem := wrong(options):
        parser.error(problem)
    from penstock.cli.measurement import measure
    from penstock.errors import LoadError

    try:
        with_progress, finish = progress_display(options)
        try:
            report = measure(tasks(options), pid=options.pid, progress=with_progress)
        finally:
            finish()
        if options.json:
            write_json(options, report)
    except LoadError as error:
        print(f"penstock bench: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"penstock bench: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    if options.json != "-":
        print("\n".join(lines(options, report)))
    return 130 if report.interrupted else 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "command",
        choices=("pub", "sub", "both", "latency"),
        help="what to run (see above)",
        metavar="command",
    )
    add("--nsqd-tcp-address", default="127.0.0.1:4150", metavar="HOST:PORT", help="(%(default)s)")
    add("--topic", default="bench", help="topic to publish to and consume from (%(default)s)")
    add("--channel", default="bench", help="channel to consume from (%(default)s)")
    add("--size", type=positive, default=200, help="size of a message body, in bytes (%(default)s)")
    add("--batch", type=positive, default=1, help="messages per command; 1: PUB, more: MPUB")
    add("--connections", type=positive, default=1, help="connections of each kind (%(default)s)")
    add(
        "--processes", type=positive, default=1, help="processes to spread them over, for each kind"
    )
    add("--window", type=positive, default=1, help="commands in flight on a connection")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--messages", type=positive, default=0, help="total number of messages")
    amount.add_argument("--duration", type=seconds, default=0.0, help="duration in seconds")
    add("--idle", type=seconds, default=5.0, help="stop after this many seconds without messages")
    add("--rdy", type=positive, default=2500, help="ready count of a consumer (%(default)s)")
    add("--rate", type=seconds, default=0.0, help="latency: messages per second in total (1000)")
    add("--output-buffer-size", type=int, default=0, metavar="BYTES", help=BUFFER_HELP)
    add(
        "--output-buffer-timeout",
        type=int,
        default=0,
        metavar="MS",
        help="how long the server buffers; -1: no buffering",
    )
    add("--upgrade", choices=UPGRADES, default="", metavar="WAY", help=UPGRADE_HELP)
    add(
        "--pid",
        type=positive,
        default=0,
        help="process id of the server, to report its CPU and memory",
    )
    add(
        "--json",
        metavar="FILE",
        help="write the result as JSON; - for standard output, without the text report",
    )
    add("--quiet", action="store_true", help="no progress display")
    return parser


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def nsqd_address(options: argparse.Namespace) -> tuple[str, int]:
    """Host and port; "" and 0 if the address is invalid."""
    from penstock.errors import OptionError
    from penstock.wire.address import split_address

    try:
        host, port = split_address(options.nsqd_tcp_address)
    except OptionError:
        return "", 0
    return host, port or 0


def wrong(options: argparse.Namespace) -> str:
    """The usage error that argparse cannot detect; empty if there is none."""
    host, port = nsqd_address(options)
    if not (host and port):
        return f"argument --nsqd-tcp-address: {options.nsqd_tcp_address!r} is not HOST:PORT"
    if options.rate and options.command != "latency":
        return "argument --rate: only latency has a rate"
    if options.command == "latency" and options.batch > 1:
        return "argument --batch: latency publishes single messages"
    if options.command == "latency" and options.size < 8:
        return "argument --size: latency needs 8 bytes for the time"
    return ""


def tasks(options: argparse.Namespace) -> list[Task]:
    """The tasks of this run's workers."""
    from dataclasses import replace

    from penstock.cli.load_workers import Task
    from penstock.cli.measurement import spread

    host, port = nsqd_address(options)
    duration_s = options.duration or (0.0 if options.messages else DURATION_S)
    latency = options.command == "latency"
    base = Task(
        kind="pub",
        host=host,
        port=port,
        topic=options.topic,
        channel=options.channel,
        size=options.size,
        batch=options.batch,
        connections=options.connections,
        window=options.window,
        messages=options.messages,
        seconds=duration_s,
        idle_seconds=options.idle,
        rdy=options.rdy,
        rate=(options.rate or RATE) if latency else 0.0,
        # Without a buffer nsqd sends each message immediately.
        output_buffer_size=options.output_buffer_size or (-1 if latency else 0),
        output_buffer_timeout_ms=options.output_buffer_timeout,
        upgrade=options.upgrade,
    )
    # With a publisher, the subscriber ends when it has received everything published.
    sub = replace(base, kind="sub", seconds=duration_s if options.command == "sub" else 0.0)
    kinds = {
        "pub": [base],
        "sub": [sub],
        "both": [sub, base],
        "latency": [sub, replace(base, kind="paced")],
    }
    return [task for whole in kinds[options.command] for task in spread(whole, options.processes)]


def progress_display(options: argparse.Namespace) -> tuple[Show | None, Callable[[], None]]:
    """A progress display if stderr is a terminal, and a function to call at the end."""
    if options.quiet or not sys.stderr.isatty():
        return None, lambda: None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:
        return plain_display(options)
    display = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[line]}", highlighter=None),
        console=Console(stderr=True),
        transient=True,
    )
    bar = display.add_task(options.command, total=1.0, line="connecting")
    display.start()
    rates = Rates(options)

    def show(published: Flow, consumed: Flow) -> None:
        line = rates.line(published, consumed)
        display.update(bar, completed=rates.share(published, consumed), line=line)

    return show, display.stop


def plain_display(options: argparse.Namespace) -> tuple[Show, Callable[[], None]]:
    rates = Rates(options)

    def show(published: Flow, consumed: Flow) -> None:
        share, line = rates.share(published, consumed), rates.line(published, consumed)
        print(f"\r{share:4.0%} {line}\x1b[K", end="", file=sys.stderr, flush=True)

    return show, lambda: print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Rates:
    """Current rates, and the share of the run that is done, from counts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.start_s = self.last_s = time.monotonic()
        self.last = {"published": 0, "consumed": 0}

    def share(self, published: Flow, consumed: Flow) -> float:
        """The share of the run that is done, 0 to 1."""
        total: float = self.options.messages or self.options.duration or DURATION_S
        if not self.options.messages:
            return min(1.0, (time.monotonic() - self.start_s) / total)
        last = published if self.options.command == "pub" else consumed
        return min(1.0, last.messages / total)

    def line(self, published: Flow, consumed: Flow) -> str:
        now_s = time.monotonic()
        elapsed_s = max(now_s - self.last_s, 1e-3)
        parts = [f"{now_s - self.start_s:6.1f} s"]
        for name, flow in (("published", published), ("consumed", consumed)):
            if flow.messages:
                rate = (flow.messages - self.last[name]) / elapsed_s
                parts.append(f"{name} {flow.messages:,} ({max(rate, 0):,.0f}/s)")
            self.last[name] = flow.messages
        self.last_s = now_s
        return "  ".join(parts)


def lines(options: argparse.Namespace, report: Report) -> list[str]:
    """The result, formatted for people."""
    version = report.server.get("version", "?")
    found = [f"{options.command} at {options.nsqd_tcp_address} (nsqd {version})"]
    for name, flow in (("published", report.published), ("consumed", report.consumed)):
        if flow.messages or name == expected_flow(options):
            found.append(
                f"  {name:<10} {flow.messages:,} messages in {flow.seconds:.2f} s: "
                f"{flow.per_second:,.0f} messages/s, {mib_per_second(flow):,.1f} MiB/s"
            )
    if report.latency.count:
        times = report.as_json()["latency_ms"]
        found.append(
            "  latency    " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in times.items())
        )
    if report.before is not None and report.after is not None:
        found.append(
            f"  server     {report.cpu_us_per_message:.2f} us of CPU per message, resident "
            f"{report.before.rss_size / 2**20:,.1f} -> {report.after.rss_size / 2**20:,.1f} MiB"
        )
    if report.published.messages > report.consumed.messages and options.command != "pub":
        missing = report.published.messages - report.consumed.messages
        found.append(f"  missing    {missing:,} messages were published but not consumed")
    return found


def expected_flow(options: argparse.Namespace) -> str:
    return "consumed" if options.command == "sub" else "published"


def mib_per_second(flow: Flow) -> float:
    return flow.size / 2**20 / flow.seconds if flow.seconds > 0 else 0.0


def write_json(options: argparse.Namespace, report: Report) -> None:
    result: dict[str, Any] = {"command": options.command, "options": vars(options)}
    text = json.dumps({**result, **report.as_json()}, indent=2) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    else:
        Path(options.json).write_text(text)
