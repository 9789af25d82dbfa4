"""The JVM of a session: it ignores the signals that stop a pipeline, and is replaced if it dies.

A stop signal may reach all processes of a pipeline at once: from Ctrl-C, or from systemd, which by
default signals the whole control group.  The driver then completes the batch that is being written,
and needs the JVM for it.  A JVM started with a signal ignored leaves it ignored, and so do most
Python processes that it starts; ``penstock.spark.daemon`` starts the workers.  The exception are
the planner processes, whose daemon handles SIGTERM: blocking the signal prevents that, but only
Java 17 to 21 pass the signal mask on.  That daemon ends when its standard input is closed, with
the driver.
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
    """Arguments for ``launch_gateway``, whose own preexec_fn ignores only SIGINT."""

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
    """Whether a session can be used: its JVM runs and its context was not stopped."""
    try:
        process = getattr(spark.sparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return False
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        # Py4J raises many kinds of errors for a dead JVM; after stop() even AttributeError.
        return False


def discard(spark: SparkSession) -> None:
    """Stop a session and kill its JVM, in any state: the next session starts another JVM."""
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
