from __future__ import annotations

import pytest

from penstock.cli.pipeline import EXIT_STATUSES, exit_status, flag_tables
from penstock.errors import (
    AlreadyRunningError,
    DataLossError,
    DataWouldBeLostError,
    NodeError,
    NotProvableError,
    PenstockError,
    PipelineError,
    QueryError,
)
from penstock.pipeline.faults import CRASH, fault_of
from penstock.pipeline.retries import COUNT_MAX_CRASH, Retries

# As Spark passes on an error of the process that runs the source's code.
REPORT = """[STREAM_FAILED] Query [id = 5] terminated: Traceback (most recent call last):
  File "penstock/spark/follower.py", line 1, in plan
penstock.errors.{}: topic orders: messages [5, 9) are gone
"""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PipelineError("x"), 1),
        (NotProvableError("x"), 3),
        (AlreadyRunningError("x"), 4),
        (DataWouldBeLostError("x"), 5),
        (DataLossError("x"), 5),
        (NodeError("x", 404), 1),
        (QueryError("x"), 1),
        (OSError("x"), 1),
    ],
)
def test_an_error_has_its_exit_status(error: PenstockError | OSError, status: int) -> None:
    assert exit_status(error) == status
    if not isinstance(error, OSError):
        fault = fault_of(RuntimeError("somewhere"), error)
        assert (exit_status(fault), str(fault)) == (status, "x")


def test_a_loss_that_only_a_report_names_has_its_status_too() -> None:
    fault = fault_of(None, RuntimeError(REPORT.format("DataLossError")))
    assert isinstance(fault, DataWouldBeLostError)
    assert str(fault).startswith("topic orders: messages [5, 9) are gone.  ")
    assert type(fault_of(RuntimeError(REPORT.format("NodeError")))) is PipelineError


def test_help_lists_the_exit_statuses() -> None:
    [table] = [table for table in flag_tables() if " run " in table.program]
    said = table.help().splitlines()
    begin = said.index("Exit status:")
    assert [line.split()[0] for line in said[begin + 1 : begin + 7]] == list("012345")
    assert [number for number, _ in EXIT_STATUSES] == list(range(6))


PYTHON_WORKER = """Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times
org.apache.spark.SparkException: {}
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala)
"""


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (NodeError("nsqd a:1 does not answer: timed out"), "node"),
        (NodeError("nsqd a:1 answers 503 DISK_FULL to POST /x", 503), "node"),
        (NodeError("no nsqd has answered for 60 s: a:1"), "node"),
        (NodeError("nsqd a:1 does not answer: [SSL: CERTIFICATE_VERIFY_FAILED] ..."), ""),
        (NodeError("nsqd a:1 answers 409 CHANNEL_HAS_READER to GET /log/read", 409), ""),
        (NodeError("nsqd a:1 is not an nsqd of Penstock"), ""),
        (RuntimeError(REPORT.format("NodeError")), ""),
        (RuntimeError("penstock.errors.NodeError: nsqd a:1 does not answer: refused\n"), "node"),
        (RuntimeError(PYTHON_WORKER.format("Python worker failed to connect back.")), "worker"),
        (
            RuntimeError(PYTHON_WORKER.format("Python worker exited unexpectedly (crashed)")),
            "crash",
        ),
        (RuntimeError("org.apache.spark.SparkException: SparkContext was shut down"), "session"),
        (ConnectionRefusedError(111, "Connection refused"), "machine"),
        (OSError(28, "No space left on device"), ""),
        (RuntimeError("[CAST_INVALID_INPUT] The value 'x' of the type STRING"), ""),
        (DataLossError("gone"), ""),
        (AlreadyRunningError("x"), ""),
    ],
)
def test_what_passes_by_itself_is_told_from_what_a_person_must_mend(
    error: Exception, passing: str
) -> None:
    assert fault_of(error).passing == passing


def test_pauses_grow_to_a_minute_and_a_batch_begins_anew() -> None:
    retries = Retries(finite=False)
    pauses = [retries.pause_s("node") or 0.0 for _ in range(20)]
    assert pauses[0] == 1.0 and all(0.7 <= pause <= 60 for pause in pauses)
    assert all(pause >= 45 for pause in pauses[7:]) and pauses[3] > pauses[0]
    retries.count = 0
    assert retries.pause_s("session") == 1.0
    assert retries.pause_s("") is None


def test_what_cannot_pass_for_ever_is_tried_so_often() -> None:
    crashing = Retries(finite=False)
    count = 0
    while crashing.pause_s(CRASH) is not None:
        count += 1
    assert count == COUNT_MAX_CRASH
    finite = Retries(finite=True)
    assert finite.pause_s("node") is None, "its retryTimeout is over"
    assert [finite.pause_s("worker") is None for _ in range(4)] == [False, False, False, True]
