"""The tree is as tidy as CONTRIBUTING says."""

import subprocess
import sys

import pytest

from tests.meta.coverage_table import ROOT

CHECKS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_checkers_have_nothing_to_say(check: str) -> None:
    command = [sys.executable, "-m", *CHECKS[check]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
