"""The JVM of a session: started deaf to the signals that stop a pipeline, and replaced if it dies.

A stop may reach all processes of a pipeline at once: by Ctrl-C, or by systemd, whose default is to
signal the whole control group.  The driver then ends the batch that is being written, and needs the
JVM for it.  A JVM that is started with a signal ignored leaves it ignored, and so do most Python
processes that it starts; workers are started by ``penstock.spark.daemon``.  What is left are the
processes that plan, whose daemon listens to SIGTERM: with the signal blocked it does not hear it,
but only Java 17 to 21 hand that on.  It ends when its standard input does, with the driver.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IGNORED = (signal.SIGINT, signal.SIGTERM)
END_S = 10.0


class PopenArguments(dict[str, Any]):
    """For ``launch_gateway``, which sets a preexec_fn of its own that ignores SIGINT only."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _ignoring(value) if name == "preexec_fn" else value)


def _ignoring(before: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        before()
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)

    return run


def runs(spark: SparkSession) -> bool:
    """Whether a session can be used: its JVM is there and its context was not stopped."""
    try:
        process = getattr(spark.sparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return False
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        # Py4J raises many kinds for a JVM that is gone, AttributeError after stop() among them.
        return False


def discard(spark: SparkSession) -> None:
    """Forget a session and its JVM, whatever their state: the next one starts another JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    gateway: Any = SparkContext._gateway
    with contextlib.suppress(Exception):
        spark.stop()
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.kill()
        process.wait(END_S)
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
