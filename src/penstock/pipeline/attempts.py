"""The attempts of a run: session and locks around its work, and what follows a fault.

    locks -> session -> work -> end
      ^         ^         |
      |         +-- pause +   a fault that passes by itself: retrying
      |                   +-> any other: failed

Rule 1: whoever has no lock writes nothing, and reads nothing that it would judge by.
Rule 2: a session that died is replaced, with a JVM of its own; one that was given to us is not.
Rule 3: a fault while it is being stopped is no failure: what was being written is repeated.  Loss
        of data, and of the lock, are told all the same.
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.pipeline")

# A signal to all processes at once may be noticed elsewhere before it is here.
STOP_GRACE_S = 0.5


class Interrupted(KeyboardInterrupt):
    """A stop while Spark starts.  It cannot be asked to end, so a signal handler raises this."""


class Attempts:
    """``open`` starts a session; ``given`` is one that is there already, and stays."""

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
        self.begun = False  # with all locks
        self.starting = False  # Spark, which cannot be asked to end

    def run(self, work: Callable[[SparkSession], None]) -> None:
        """Do the work until it returns, or a person has to mend something."""
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
        """A batch was written."""
        self._retries.count = 0
        if self._status.status.attempt:
            self._status.update(attempt=0)

    def _try(self, work: Callable[[SparkSession], None]) -> bool:
        """Whether it has come to its end; otherwise it is to be tried again."""
        try:
            work(self._ready())
        except Exception as error:
            fault = fault_of(error)
            if self._was_stopped(fault):
                return True
            passing = fault.passing
            if type(fault) is PipelineError and self._discard_dead_session():
                passing = CRASH  # whatever the error says: it is what came first to notice
            pause_s = self._retries.pause_s(passing)
            if pause_s is None:
                raise
            return self._pause(str(fault), pause_s)
        return True

    def _ready(self) -> SparkSession:
        """The session, with all locks."""
        if self._session is None:
            self.starting = True
            try:
                if self._stop.is_set():
                    raise Interrupted
                log.info("pipeline=%s: starting Spark, some 10 to 30 s", self._name)
                self._session = self._open()
            finally:
                self.starting = False
            log.info("pipeline=%s: Spark %s runs", self._name, self._session.version)
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
            "pipeline=%s: stopped; what was being written is repeated at the next start: %s",
            *(self._name, fault),
        )
        return True

    def _discard_dead_session(self) -> bool:
        """Whether the session is gone, and the next attempt gets another."""
        if self._session is None or self._given is not None or jvm.runs(self._session):
            return False
        log.warning("pipeline=%s: the session of Spark is gone", self._name)
        jvm.discard(self._session)
        self._session = None
        return True

    def _pause(self, reason: str, pause_s: float) -> bool:
        """Wait before the next attempt; whether it was stopped meanwhile."""
        count = self._retries.count
        log.warning(
            "pipeline=%s: attempt %d failed, again in %.0f s: %s",
            *(self._name, count, pause_s, reason),
        )
        self._status.update(state=PipelineState.RETRYING, error=reason, attempt=count)
        self._reports.report(PipelineState.RETRYING, reason)
        return self._stop.wait(pause_s)
