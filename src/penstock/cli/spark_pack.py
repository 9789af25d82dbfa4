"""`penstock spark-pack`: the archive that Spark unpacks for executors without Penstock.

`penstock pipeline run --master ...` creates and sends it itself; for other Spark programs:

    penstock spark-pack --file penstock.tar.gz
    spark-submit --archives penstock.tar.gz#penstock-env \\
        --conf spark.executorEnv.PYTHONPATH=penstock-env job.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.flags import FlagTable, UsageError
from penstock.errors import PenstockError
from penstock.settings.table import string
from penstock.version import penstock_line

PROGRAM = "penstock spark-pack"


@dataclass(frozen=True, slots=True)
class PackOptions:
    file: str = string("Archive", "penstock.tar.gz", "file to write", own=True)


def flag_tables() -> list[FlagTable[Any]]:
    return [
        FlagTable(
            PROGRAM,
            PackOptions,
            summary="Packages Penstock, its compiled core and dependencies for Spark executors.",
            environment_prefix="PENSTOCK_SPARK_PACK_",
            argument_flag="file",
        )
    ]


def main(argv: Sequence[str] | None = None) -> int:
    [table] = flag_tables()
    try:
        parsed = table.parse(sys.argv[1:] if argv is None else argv, os.environ)
        if parsed.action != "run":
            show_help = parsed.action == "help"
            print(table.help() if show_help else penstock_line() + "\n", end="")
            return 0
        for warning in parsed.warnings:
            print(f"{PROGRAM}: {warning}", file=sys.stderr)
        from penstock.spark.archive import FOLDER, make_archive
        from penstock.spark.session import check_pyspark

        check_pyspark()
        path = make_archive(Path(parsed.options.file))
    except UsageError as error:
        print(f'{error}\nSee "{PROGRAM} --help" for all flags.', file=sys.stderr)
        return 2
    except (PenstockError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    path = path.absolute()
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB; use it with")
    print(f"  --archives {path}#{FOLDER} --conf spark.executorEnv.PYTHONPATH={FOLDER}")
    return 0
