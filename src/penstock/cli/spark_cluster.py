"""`penstock spark-cluster`: a Spark cluster on this machine, to try pipelines on.

penstock spark-cluster start                 spark://127.0.0.1:7077
penstock pipeline run archive --master spark://127.0.0.1:7077
penstock spark-cluster stop
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.flags import FlagTable, UsageError, take_word
from penstock.errors import PenstockError
from penstock.settings.table import integer, string
from penstock.spark import standalone
from penstock.version import penstock_line

PROGRAM = "penstock spark-cluster"
WORDS = ("start", "stop", "status")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    folder: str = string("Cluster", "spark-cluster", "folder for logs and working files", own=True)
    port: int = integer(
        "Cluster", 7077, "port of the master; 0: any", minimum=0, maximum=65535, own=True
    )
    workers: int = integer("Cluster", 2, "workers to start", minimum=1, maximum=64, own=True)
    cores: int = integer("Cluster", 1, "cores of a worker", minimum=1, maximum=1024, own=True)
    memory: str = string("Cluster", "1g", "memory of a worker for executors", own=True)


def flag_tables() -> list[FlagTable[Any]]:
    return [
        FlagTable(
            f"{PROGRAM} start|stop|status",
            ClusterOptions,
            summary="Starts or stops a Spark master and workers on the loopback interface.",
            environment_prefix="PENSTOCK_SPARK_CLUSTER_",
        )
    ]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    [table] = flag_tables()
    try:
        word, flags = take_word(table, arguments)
        parsed = table.parse(flags, os.environ)
        if parsed.action != "run":
            show_help = parsed.action == "help"
            print(table.help() if show_help else penstock_line() + "\n", end="")
            return 0
        if word not in WORDS:
            raise UsageError(f"{PROGRAM}: expected one of {', '.join(WORDS)}")
        for warning in parsed.warnings:
            print(f"{PROGRAM}: {warning}", file=sys.stderr)
        return run(word, parsed.options)
    except UsageError as error:
        print(f'{error}\nSee "{PROGRAM} --help" for all flags.', file=sys.stderr)
        return 2
    except (PenstockError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1


def run(word: str, options: ClusterOptions) -> int:
    folder = Path(options.folder).absolute()
    if word == "start":
        plan = standalone.ClusterPlan(
            folder,
            port=options.port,
            worker_count=options.workers,
            cores=options.cores,
            memory=options.memory,
        )
        address = standalone.start(plan)
        print(f"{address}  {options.workers} workers of {options.cores} cores, logs in {folder}")
        print(f"try: penstock pipeline run archive --master {address}")
        return 0
    if word == "stop":
        count = standalone.stop(folder)
        print(f"stopped {count} processes" if count else f"no cluster is running in {folder}")
        return 0
    found = standalone.status(folder)
    if found is None:
        print(f"no cluster is running in {folder}")
        return 1
    names = ", ".join(f"{each['name']} (pid {each['pid']})" for each in found["processes"])
    print(f"{found['master']}  {names}")
    return 0
