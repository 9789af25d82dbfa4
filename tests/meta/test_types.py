"""The types of ``src`` are right.  The check needs Spark's, and half a minute the first time."""

import subprocess
import sys

from tests.meta.coverage_table import ROOT


def test_the_type_checker_has_nothing_to_say() -> None:
    command = [sys.executable, "-m", "mypy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
