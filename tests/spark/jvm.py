"""How the tests start Spark's JVM: quickly, since none of them runs for long.

    python -m tests.spark.jvm           # what `make test` does first; quick when it has been done

A start loads some 20,000 classes.  The first one leaves them in an archive, which the others map
into memory: that halves their time.  Without the archive, or with another Spark or Java than its
own, a JVM starts as usual.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from penstock.spark.java import set_up_java

ARCHIVE = Path(__file__).parents[2] / "build" / "spark.jsa"
ARCHIVE_SECONDS_MAX = 300

# Half the CPU of a start: nothing here runs long enough for the JVM's second compiler to pay.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# An archive that does not fit is no reason for a warning on standard output.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
# For the option spark.driver.extraJavaOptions.
QUICK_DRIVER = f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} {QUIET}"
QUERY = "select a % 7 b, count(*) c from (select explode(sequence(1, 100)) a) group by 1 order by 2"


def write_archive(path: Path) -> None:
    """Start Spark, do a little, and have it write the archive when it ends."""
    from pyspark.sql import SparkSession

    set_up_java()
    options = f"{QUICK} -XX:ArchiveClassesAtExit={path} {QUIET}"
    start = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = start.config("spark.driver.extraJavaOptions", options).getOrCreate()
    folder = str(path.with_suffix(".rows"))
    session.sql(QUERY).write.mode("overwrite").parquet(folder)
    rows = session.readStream.schema("b int, c long").parquet(folder)
    query = rows.writeStream.format("memory").queryName("seen").start()
    query.processAllAvailable()
    query.stop()
    session.stop()


def main() -> None:
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > Path(pyspark.__file__).stat().st_mtime:
        return
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    # The JVM writes when its Python has ended; until then it holds the output open.
    code = "from tests.spark import jvm; jvm.write_archive(jvm.ARCHIVE)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ARCHIVE_SECONDS_MAX)
    if not ARCHIVE.exists():
        print(f"no archive of classes, Spark starts slower: {done.stderr[-2000:]}", file=sys.stderr)


if __name__ == "__main__":
    main()
