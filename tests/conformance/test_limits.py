"""Every limit of the daemons is in one table, and each is as the table says."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.admin.options import SETTINGS as ADMIN_SETTINGS
from penstock.engine.options import SETTINGS
from penstock.lookupd.options import SETTINGS as LOOKUPD_SETTINGS
from tests.support.limits import TRIALS, Daemons, Row, rows

for file in sorted(Path(__file__).parent.glob("limits_*.py")):
    importlib.import_module(f"tests.conformance.{file.stem}")

ROWS = sorted(rows(), key=lambda row: row.what in TRIALS and TRIALS[row.what].patient)
PATIENCE_S = 150


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with Daemons(tmp_path_factory.mktemp("limits")) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def begun(daemons: Daemons) -> Iterator[dict[str, Future[None]]]:
    """Trials that take long run beside the others."""
    patient = {what: trial for what, trial in TRIALS.items() if trial.patient}
    with ThreadPoolExecutor(max(1, len(patient))) as pool:
        yield {what: pool.submit(trial.run, daemons) for what, trial in patient.items()}


def test_no_row_is_there_twice_and_no_trial_without_its_row() -> None:
    names = [row.what for row in ROWS]
    assert len(set(names)) == len(names)
    assert set(TRIALS) - set(names) == set()


def test_the_flags_in_the_table_exist() -> None:
    known = {"--" + row.flag for row in (*SETTINGS, *LOOKUPD_SETTINGS, *ADMIN_SETTINGS)}
    named = {flag for row in ROWS for flag in re.findall(r"--[a-z0-9-]+", row.flag)}
    assert named <= known


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_limit_is_as_the_table_says(
    row: Row, daemons: Daemons, begun: dict[str, Future[None]]
) -> None:
    assert row.what in TRIALS, "a row without a trial: see tests/support/limits.py"
    assert row.beyond
    trial = TRIALS[row.what]
    assert row.how_much == trial.how_much
    if trial.patient:
        begun[row.what].result(PATIENCE_S)
    else:
        trial.run(daemons)
