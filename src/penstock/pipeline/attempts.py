"""The attempts of a run: takes the locks, opens the session, does the work, retries after a fault.

    locks -> session -> work -> end
      ^         ^         |
      |         +-- pause +   a transient fault: retrying
      |                   +-> any other: failed

Rule 1: without its locks a run writes nothing, and reads nothing that it bases a decision on.
Rule 2: a session that died is replaced, with a new JVM; one that the caller passed in is not.
Rule 3: a fault while the run is being stopped is not a failure: the next start repeats what was
        being written.  Loss of data and loss of the lock are reported all the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import AlreadyRunningError, DataWouldBeLostError, PipelineError
from penstock.pipeline.faults import CRASH, fault_of
from penstock.pipeline.lock import Locks
from penstock.pipeline.reports import RunReports
from penstock.pipeline.retries import Retries
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.status import StatusFile
from penstock.progress import PipelineState
from penstock.spark import jvm
from penstock.spark.session import Interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.pipeline")

# A signal to the whole process group may reach Spark's processes before this one.
STOP_GRACE_S = 0.5


class Attempts:
    """``open`` starts a session; ``given`` is the caller's, and is never closed."""

    def __init__(
        self,
        pipeline: Pipeline,
        status: StatusFile,
        reports: RunReports,
        stop: threading.Event,
        open: Callable[[], SparkSession],
        given: SparkSession | None,
    ) -> None:
        self._name = pipeline.name
        self._status = status
        self._reports = reports
        self._stop = stop
        self._open = open
        self._given = given
        self._session = given
        self._retries = Retries(finite=pipeline.trigger.available_now or pipeline.trigger.once)
        self.locks = Locks(pipeline)
        self.begun = False  # has held all locks
        self.starting = False  # Spark is starting

    def run(self, work: Callable[[SparkSession], None]) -> None:
        """Run ``work`` until it returns, or until a fault needs a person."""
        try:
            self.locks.take_local()
            while not self._try(work):
                self._status.update(state=PipelineState.STARTING)
        finally:
            self._status.update(stopping=True)
            if self._session is not None and self._given is None:
                self._session.stop()
            self.locks.release()

    def progressed(self) -> None:
        """A batch was written: reset the count of failed attempts."""
        self._retries.count = 0
        if self._status.status.attempt:
            self._status.update(attempt=0)

    def _try(self, work: Callable[[SparkSession], None]) -> bool:
        """Whether the work is over; if not, try again."""
        try:
            work(self._ready())
        except Interrupted:
            raise
        except Exception as error:
            fault = fault_of(error)
            if self._was_stopped(fault):
                return True
            passing = fault.passing
            if type(fault) is PipelineError and self._discard_dead_session():
                passing = CRASH  # the error only shows who noticed the dead session first
            pause_s = self._retries.pause_s(passing)
            if pause_s is None:
                raise
            return self._pause(str(fault), pause_s)
        return True

    def _ready(self) -> SparkSession:
        """The session, with all locks held."""
        if self._session is None:
            self.starting = True
            try:
                log.info("pipeline=%s: starting Spark, which takes 10 to 30 s", self._name)
                self._session = self._open()
            finally:
                self.starting = False
            if self._stop.is_set():
                raise Interrupted
            log.info("pipeline=%s: Spark %s is running", self._name, self._session.version)
        self.locks.take_others(self._session)
        self.begun = True
        return self._session

    def _was_stopped(self, fault: PipelineError) -> bool:
        """Rule 3."""
        if isinstance(fault, AlreadyRunningError | DataWouldBeLostError):
            return False
        if not self._stop.wait(0.0 if fault.passing else STOP_GRACE_S):
            return False
        log.warning(
            "pipeline=%s: stopped; the next start repeats the batch that was being written: %s",
            *(self._name, fault),
        )
        return True

    def _discard_dead_session(self) -> bool:
        """Whether the session died; the next attempt then opens another."""
        if self._session is None or self._given is not None or jvm.runs(self._session):
            return False
        log.warning("pipeline=%s: the Spark session has died", self._name)
        jvm.discard(self._session)
        self._session = None
        return True

    def _pause(self, reason: str, pause_s: float) -> bool:
        """Wait before the next attempt; True if the run was stopped meanwhile."""
        count = self._retries.count
        log.warning(
            "pipeline=%s: attempt %d failed, retrying in %.0f s: %s",
            *(self._name, count, pause_s, reason),
        )
        self._status.update(state=PipelineState.RETRYING, error=reason, attempt=count)
        self._reports.report(PipelineState.RETRYING, reason)
        return self._stop.wait(pause_s)
