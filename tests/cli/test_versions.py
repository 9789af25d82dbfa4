"""Where the version is told: NSQ's line where programs match on it, Penstock's own elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.version import VERSION
from tests.meta.coverage_table import ROOT
from tests.support.daemon import Nsqd, Nsqlookupd

PROGRAMS = Path(sys.executable).parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_package_knows_its_version() -> None:
    assert penstock.__version__ == VERSION
    assert "__version__" in penstock.__all__


def test_the_package_runs_as_a_module() -> None:
    done = run(sys.executable, "-m", "penstock", "--version")
    assert (done.returncode, done.stdout) == (0, f"penstock v{VERSION} (as NSQ v1.3.0)\n")
    assert run(sys.executable, "-m", "penstock", "nonsense").returncode == 2
    listed = run(sys.executable, "-m", "penstock", "--help").stdout
    assert listed == run(str(PROGRAMS / "penstock"), "--help").stdout


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_a_daemons_version_is_what_managers_match(program: str) -> None:
    line = f"{program} v1.3.0 (built w/go1.21.5) penstock v{VERSION}\n"
    assert run(str(PROGRAMS / program), "-version").stdout == line
    # With another flag beside it, which is read by another way.
    assert run(str(PROGRAMS / program), "-log-level=warn", "-version").stdout == line


@pytest.mark.parametrize(
    "words",
    [
        ["up"],
        ["tail"],
        ["spark-pack"],
        ["spark-cluster", "status"],
        ["pipeline", "run"],
        ["pipeline", "status"],
    ],
    ids=" ".join,
)
def test_other_commands_do_not_speak_of_go(words: list[str]) -> None:
    done = run(str(PROGRAMS / "penstock"), *words, "--version")
    assert done.returncode == 0, done.stderr
    assert "built" not in done.stdout
    assert "v" in done.stdout


def test_logs_do_not_speak_of_go(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd, Nsqd(tmp_path) as nsqd:
        assert nsqd.get("/stats").text.startswith("nsqd v1.3.0 (built w/go1.21.5)")
        for daemon in (lookupd, nsqd):
            daemon.terminate()
            assert f"v1.3.0 penstock v{VERSION}" in daemon.lines[0]
            assert "built w/" not in daemon.log


def test_only_one_place_of_the_source_speaks_of_go() -> None:
    files = (ROOT / "src" / "penstock").rglob("*.p*")
    told = [path.name for path in files if path.suffix != ".pyc" and b"w/go1" in path.read_bytes()]
    assert told == ["version.py"]
