"""Our client compared with pynsq, ansq and gnsq, against our nsqd, in one run.

    python -m bench.clients                         all installed libraries, about a minute
    python -m bench.clients --quick consume         a short run of one kind of work
    python -m bench.clients --strict                exit status 1 if we are not 5 times as fast

Libraries alternate, each in a new process on a new topic (`client_load.py`); a figure is the median
of its rounds.  "times" is our rate divided by theirs, and their CPU per message divided by ours.  A
busy machine affects rates more than CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.broker import Broker, Make
from bench.client_load import BATCHES

MODULES = {"penstock": "penstock", "pynsq": "nsq", "ansq": "ansq", "gnsq": "gnsq"}
WORKS = {
    "consume": "consume a backlog of 200-byte messages, 2,500 in flight, one connection",
    "consume-async": "the same with a coroutine for a handler (others as above)",
    "publish": "single publishes of 200 bytes, 100 in flight, one connection",
    "publish-many": "batches of 100, eight in flight, one connection",
    "publish-in-turn": "batches of 100, one after the other",
}
# By rate.  For a batch nsqd does more work than the client, and one batch at a time mostly waits
# for wake-ups by the kernel: rates of all libraries are close.  So many batches are judged by the
# client's CPU, and one at a time is only shown.
JUDGED = ("consume", "consume-async", "publish")
JUDGED_BY_CPU = ("publish-many",)
WANTED_TIMES = 5.0
# We reach the count long before the time limit; the others reach the time limit first.
MESSAGES = {"penstock": 1_000_000}
MESSAGES_OTHERS = 100_000
PROCESS_SECONDS_MAX = 120

Found = dict[str, dict[str, float]]


def installed() -> list[str]:
    return [name for name, module in MODULES.items() if importlib.util.find_spec(module)]


def run_once(
    broker: Broker, library: str, work: str, topic: str, seconds: float
) -> dict[str, float]:
    """Run one library's load for ``seconds`` at most."""
    # The other libraries have one way to consume; it is compared with our second one again.
    kind = work if library == "penstock" else work.replace("-async", "")
    messages = MESSAGES.get(library, MESSAGES_OTHERS)
    messages = int(messages * min(1.0, seconds / 3))
    broker.create(topic, "bench")
    if kind in BATCHES:
        messages *= 4
    if kind.startswith("consume"):
        broker.fill(messages + 5000, topic)
    command = [sys.executable, "-m", "bench.client_load", library, kind, str(broker.tcp_port)]
    done = subprocess.run(
        [*command, topic, str(messages), str(seconds)],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    if done.returncode or not done.stdout:
        raise RuntimeError(f"{library} {work}: {done.stderr[-2000:]}")
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def measure(
    works: Sequence[str], libraries: Sequence[str], rounds: int, seconds: float
) -> dict[str, Found]:
    """The median of each library's rounds, by work."""
    results: dict[str, Found] = {}
    nsqd = str(Path(sys.executable).parent / "nsqd")
    for work in works:
        found: dict[str, list[dict[str, float]]] = {library: [] for library in libraries}
        with (
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
            Broker(Make("penstock", nsqd), Path(folder)) as broker,
        ):
            for number in range(rounds):
                for library in libraries:
                    topic = f"{library}-{number}"
                    found[library].append(run_once(broker, library, work, topic, seconds))
        results[work] = {
            library: {
                metric: statistics.median(each[metric] for each in taken) for metric in taken[0]
            }
            for library, taken in found.items()
        }
        print(table(work, results[work]), flush=True)
    return results


def times(found: Found, metric: str = "rate") -> dict[str, float]:
    """Our rate divided by each other library's, or its CPU per message divided by ours."""
    ours = found["penstock"][metric]
    others = {name: each[metric] for name, each in found.items() if name != "penstock"}
    if metric == "rate":
        return {name: ours / theirs for name, theirs in others.items()}
    return {name: theirs / ours for name, theirs in others.items()}


def table(work: str, found: Found) -> str:
    head = f"  {'':<10}{'messages/s':>12}{'times':>8}{'CPU us':>10}{'times':>8}"
    lines = [f"\n{work}: {WORKS[work]}", head]
    rates, costs = times(found), times(found, "cpu_us")
    for name, each in found.items():
        rate, cost = (f"{of[name]:8.1f}" if name in of else " " * 8 for of in (rates, costs))
        lines.append(f"  {name:<10}{each['rate']:>12,.0f}{rate}{each['cpu_us']:>10.2f}{cost}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("works", nargs="*", metavar="work", help=f"{', '.join(WORKS)}; default: all")
    add("--quick", action="store_true", help="one round of a second")
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=3.0, help="duration of one library's round")
    add("--json", metavar="FILE", help="file for the results")
    add("--strict", action="store_true", help="exit status 1 if less than 5 times any other")
    options = parser.parse_args(argv)
    for work in options.works:
        if work not in WORKS:
            parser.error(f"unknown work {work!r}; use {', '.join(WORKS)}")
    rounds, seconds = (1, 1.0) if options.quick else (options.rounds, options.seconds)
    results = measure(options.works or list(WORKS), installed(), rounds, seconds)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")
    judged = [times(results[work]) for work in JUDGED if work in results]
    judged += [times(results[work], "cpu_us") for work in JUDGED_BY_CPU if work in results]
    least = min((ratio for found in judged for ratio in found.values()), default=0.0)
    print(f"\nat least {least:.1f} times any other; target: {WANTED_TIMES:g}")
    return 1 if options.strict and least < WANTED_TIMES else 0


if __name__ == "__main__":
    sys.exit(main())
