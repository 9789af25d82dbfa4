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
from penstock.pipeline.faults import fault_of

# As Spark passes on an error of the process that runs the source's code.
REPORT = """[STREAM_FAILED] Query [id = 5] terminated: Traceback (most recent call last):
  File "penstock/spark/follow.py", line 1, in plan
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
