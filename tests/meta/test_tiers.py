"""`make unit` gets by without Spark, also where it is installed."""

import subprocess
import sys

from tests.conftest import SPARK_FILES, TESTS
from tests.meta.coverage_table import ROOT

FOLDERS = ("meta", "model", "unit")


def test_the_files_left_out_are_there_and_in_a_folder_that_is_run() -> None:
    """One that was moved would no longer be left out, or left out for nothing."""
    for path in SPARK_FILES:
        assert path.is_file() and path.relative_to(TESTS).parts[0] in FOLDERS, path


def test_the_other_files_import_nothing_of_sparks() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "--without-spark"]
    folders = [str(TESTS / folder) for folder in FOLDERS]
    done = subprocess.run(
        [*command, *folders], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
