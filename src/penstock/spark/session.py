"""A Spark session with settings for streams of messages, and a quiet log.

The effect of each setting, measured with micro-batches of 100 rows on two cores (p50):

    Python over unix sockets          139 -> 95 ms   without it each Python task waits 40 ms on TCP
    checkpoints by FileSystem          58 -> 24 ms   Hadoop forks a chmod for each checkpoint file
    ... without Hadoop's checksums     24 ->  9 ms   breaks RocksDB's state: stateless queries only

With buffers of 512 KiB between Python and the JVM, instead of 64, scans are 10 % faster.

Rule 1: the user's settings take precedence.
Rule 2: no setting here makes a query lose or repeat rows; the user may set those that can.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import SparkSetupError
from penstock.spark.archive import archive_settings, make_archive
from penstock.spark.java import set_up_java
from penstock.spark.jvm import PopenArguments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_VERSION_MIN = (4, 2)  # the first whose Python sources can limit the size of a batch
LOG4J_FILE = Path(__file__).with_name("log4j2.properties")
LOG_LEVELS = ("debug", "info", "warn", "error")
STREAMING = "org.apache.spark.sql.execution.streaming"

BUFFER_SIZE = 512 << 10
DAEMON = "penstock.spark.daemon"

STOP_POLL_S = 0.05

LAST_LINES_MAX = 5
TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_LINES_MAX = 200
LAST_LINES_WAIT_S = 5.0

# What the JVM prints at its start at any log level.
NOISE = (
    "WARNING: Using incubator modules",
    "WARNING: package sun.",
    "NOTE: Picked up JDK_JAVA_OPTIONS",
    "Picked up JAVA_TOOL_OPTIONS",
)


class Interrupted(Exception):
    """The caller's ``stop`` was set while Spark starts."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What a session is for; determines which settings are safe.

    ``stateful``: a query with a state store (aggregations, joins, dedupe).
    ``local_files``: every checkpoint is in a folder of this machine.
    """

    name: str = "penstock"
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    stateful: bool = False
    local_files: bool = True
    log_level: str = "error"
    ship: bool = True  # send Penstock to executors on other machines

    @property
    def local(self) -> bool:
        return self.master == "local" or self.master.startswith("local[")

    @property
    def core_count(self) -> int:
        """Cores of a local master; 1 for any other."""
        if not self.local:
            return 1
        match = re.match(r"local\[(\d+|\*)", self.master)
        if match is None:
            return 1
        return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])


def settings_of(plan: SessionPlan) -> dict[str, str]:
    """All settings of the session, including the user's."""
    java_options = f"-Dlog4j2.configurationFile={LOG4J_FILE} -Dpenstock.log={plan.log_level}"
    settings = {
        "spark.app.name": plan.name,
        "spark.master": plan.master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.buffer.size": str(BUFFER_SIZE),
        "spark.driver.extraJavaOptions": java_options,
        # Dates in folder names must not depend on the driver's time zone.
        "spark.sql.session.timeZone": "UTC",
        # Two sinks of one pipeline, or a stop during a batch, must not wait forever.
        "spark.sql.streaming.stopTimeout": "60s",
    }
    if plan.local or re.match(r"spark://(127\.0\.0\.1|localhost)[:/]", plan.master):
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    if plan.local:
        settings["spark.python.daemon.module"] = DAEMON
        # 200 by default; each is a task and, with state, a folder in the checkpoint.
        settings["spark.sql.shuffle.partitions"] = str(max(2, plan.core_count))
    if plan.local_files:
        manager = f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
        settings["spark.sql.streaming.checkpointFileManagerClass"] = manager
    if plan.stateful:
        store = f"{STREAMING}.state.RocksDBStateStoreProvider"
        settings["spark.sql.streaming.stateStore.providerClass"] = store
        prefix = "spark.sql.streaming.stateStore.rocksdb"
        settings[f"{prefix}.changelogCheckpointing.enabled"] = "true"
    elif plan.local_files and plan.local:
        settings["spark.hadoop.fs.file.impl"] = "org.apache.hadoop.fs.RawLocalFileSystem"
    return {**settings, **_with_user_java_options(plan.conf, java_options)}


def _with_user_java_options(conf: Mapping[str, str], ours: str) -> dict[str, str]:
    """Append the user's JVM options to ours: if two conflict, the JVM uses the last."""
    name = "spark.driver.extraJavaOptions"
    return {**conf, name: f"{ours} {conf[name]}"} if name in conf else dict(conf)


def check_pyspark() -> str:
    """Return the version of PySpark; raises SparkSetupError that says what to do."""
    from importlib.metadata import PackageNotFoundError, version

    advice = "Run: pip install 'penstock[spark]'"
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        raise SparkSetupError(f"PySpark is not installed.  {advice}") from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < PYSPARK_VERSION_MIN:
        wanted = ".".join(map(str, PYSPARK_VERSION_MIN))
        raise SparkSetupError(f"PySpark {found} is too old, {wanted} is needed.  {advice}")
    return found


def open_session(
    plan: SessionPlan,
    show: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> SparkSession:
    """Start Spark, or return the existing session of this process.

    ``show`` gets each line that the JVM and the Python workers write; by default they go to
    standard error.  ``stop`` ends the wait for Spark: raises Interrupted.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    from penstock.spark.session_guard import share

    active = SparkSession.getActiveSession()
    if active is not None:
        share(active)
        return active
    set_up_java()
    # Otherwise workers run the PATH's python3, which may not have this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if plan.local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = settings_of(plan)
    if plan.ship and not plan.local:
        settings.update(archive_settings(settings, make_archive()))
    if stop is None:
        _start_context(settings, show or _to_stderr)
    else:
        _start_until(stop, settings, show or _to_stderr)
    spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    share(spark)
    return spark


def _start_until(
    stop: threading.Event, settings: Mapping[str, str], show: Callable[[str], None]
) -> None:
    """Start Spark in a thread: the start cannot be cancelled, only left.  Its JVM ends with this
    process.
    """
    errors: list[BaseException] = []

    def start() -> None:
        try:
            _start_context(settings, show)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=start, name="start-spark", daemon=True)
    thread.start()
    while thread.is_alive():
        if stop.is_set():
            raise Interrupted
        thread.join(STOP_POLL_S)
    if errors:
        raise errors[0]


def _start_context(settings: Mapping[str, str], show: Callable[[str], None]) -> None:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    # It logs each error of foreachBatch with a long stack trace; the caller reports it anyway.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    # A process has one JVM, which later sessions reuse.
    gateway = SparkContext._gateway
    if gateway is None:
        log = JvmLog(show)
        try:
            arguments = PopenArguments(stderr=log.write_fd)
            gateway = launch_gateway(conf, arguments)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            log.close()
            raise SparkSetupError(f"Spark does not start: {log.last_lines() or error}") from None
        log.close()
    before = signal.getsignal(signal.SIGINT)
    try:
        SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        raise SparkSetupError(f"Spark does not start: {reason_of(error)}") from None
    # In the main thread Spark installs its own handler: keep it instead of Python's default, but
    # not of a custom one.
    if before not in (None, signal.default_int_handler, signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, before)


def reason_of(error: BaseException) -> str:
    """The first line of an error from the JVM, whose text includes the stack trace."""
    java = getattr(error, "java_exception", None)
    text = str(java) if java is not None else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), repr(error))


class JvmLog:
    """Reads what the JVM and its children write to standard error, line by line."""

    def __init__(self, show: Callable[[str], None]) -> None:
        read_fd, self.write_fd = os.pipe()
        self._show = show
        self._last: deque[str] = deque(maxlen=LAST_LINES_MAX)
        # A daemon thread: workers of a killed JVM may keep the pipe open after this process.
        self._thread = threading.Thread(target=self._forward, args=(read_fd,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close our write end; the JVM has its own copy."""
        os.close(self.write_fd)

    def last_lines(self) -> str:
        self._thread.join(LAST_LINES_WAIT_S)
        return " ".join(line.strip() for line in self._last)

    def _forward(self, read_fd: int) -> None:
        block: list[str] = []  # a traceback, until its last line shows the error
        with os.fdopen(read_fd, encoding="utf-8", errors="backslashreplace") as lines:
            for line in lines:
                if line.startswith(NOISE):
                    continue
                block.append(line)
                inside = block[0].startswith(TRACEBACK) and (len(block) == 1 or line[0] == " ")
                if inside and len(block) < TRACEBACK_LINES_MAX:
                    continue
                if not is_broken_pipe_of_worker(block):
                    self._emit(block)
                block.clear()
        self._emit(block)

    def _emit(self, lines: list[str]) -> None:
        for line in lines:
            self._last.append(line)
            self._show(line.rstrip("\n"))


def is_broken_pipe_of_worker(lines: list[str]) -> bool:
    """Whether it is pyspark.daemon's traceback for a worker that ended after its reader."""
    own = any("pyspark" in line for line in lines[1:-1])
    return len(lines) > 2 and own and lines[-1].startswith("BrokenPipeError")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
