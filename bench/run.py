"""Measures our nsqd, alone or compared with Go's, and prints the figures of docs/benchmarks.md.

    python -m bench.run                              everything, about ten minutes
    python -m bench.run --quick publish consume      a short run of two workloads
    python -m bench.run --go-nsqd ~/bin/nsqd         Go's nsqd in the same run, round by round

Makes alternate within a workload (ours, Go's, ours, Go's ..), so that other load on the machine
affects both; a figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import report
from bench.broker import Broker, Make
from bench.flags import Parser, write_record
from bench.workloads import WORKLOADS, Workload

Found = dict[str, dict[str, float]]


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    allow_open_files()
    makes = find_makes(options.go_nsqd)
    machine = describe_machine(makes)
    chosen = [w for w in WORKLOADS if not options.workloads or w.name in options.workloads]
    start_s = time.monotonic()
    results: list[tuple[Workload, Found]] = []
    record: dict[str, Any] = {"machine": machine, "quick": options.quick, "workloads": {}}
    for workload in chosen:
        rounds = run_workload(workload, makes, options)
        found = report.medians(rounds)
        if found:
            results.append((workload, found))
            record["workloads"][workload.name] = {"rounds": rounds, "median": found}
            print(report.text(workload, found), flush=True)
    judged = [met for w, found in results for _, met in report.verdicts(w, found)]
    print(
        f"\n{judged.count(True)} targets met, {judged.count(False)} missed, "
        f"{judged.count(None)} not compared; {time.monotonic() - start_s:.0f} s"
        + (" (quick: too short for conclusions)" if options.quick else "")
    )
    write_results(options, record, machine, results)
    return 1 if options.strict and False in judged else 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("bench.run", __doc__, "workload", {w.name: w.title for w in WORKLOADS})
    parser.add_go()
    parser.add_argument("--only-go", action="store_true", help="without ours")
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of each workload; default: its own"
    )
    parser.add_report()
    options = parser.parsed(argv)
    if options.only_go and not options.go_nsqd:
        parser.error("--only-go needs --go-nsqd")
    return options


def find_makes(go_nsqd: str) -> dict[str, Make]:
    nsqd = str(Path(sys.executable).parent / "nsqd")
    makes = [Make("penstock", nsqd), Make("penstock-sample", nsqd, ("--queue-scan=sample",))]
    if go_nsqd:
        makes.append(Make("go", str(Path(go_nsqd).resolve())))
    return {make.name: make for make in makes}


def run_workload(
    workload: Workload, makes: dict[str, Make], options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """The results of each make, a list of rounds."""
    wanted = [name for name in workload.makes if name in makes]
    if options.only_go:
        wanted = [name for name in wanted if name == "go"]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in wanted}
    count = options.rounds or (1 if options.quick else workload.rounds)
    for number in range(count):
        for name in wanted:
            progress(f"{workload.name}: {name}, round {number + 1} of {count}")
            rounds[name].append(run_once(workload, makes[name], options))
    progress("")
    return rounds


def run_once(workload: Workload, make: Make, options: argparse.Namespace) -> dict[str, float]:
    """One round: a new broker on an empty folder."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=options.data_path))
    flags = workload.go_flags if make.name == "go" else workload.flags
    try:
        with Broker(make, folder, *flags) as broker:
            return workload.measure(broker, quick=options.quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)


def allow_open_files() -> None:
    """Raise the limit: a thousand consumers need a thousand sockets, here and in the broker."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def describe_machine(makes: dict[str, Make]) -> dict[str, str]:
    machine = {"cores": str(os.cpu_count()), "Linux": platform.release()}
    machine["Python"] = platform.python_version()
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in cpu_lines if "model name" in line]
    if models:
        machine["CPU"] = models[0]
    if "go" in makes:
        machine["Go's nsqd"] = os.popen(f"'{makes['go'].program}' -version").read().strip()
    return machine


def write_results(
    options: argparse.Namespace,
    record: dict[str, Any],
    machine: dict[str, str],
    results: list[tuple[Workload, Found]],
) -> None:
    write_record(options, record)
    report.write_page(options.markdown, report.markdown(machine, results))
    if options.plots:
        from bench import plots

        plots.draw(Path(options.plots), {w.name: found for w, found in results})


if __name__ == "__main__":
    sys.exit(main())
