"""The real `nsqd` and `penstock` commands: what they print, and how they end."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.engine.options import SETTINGS
from tests.support.timing import late_s

BIN = Path(sys.executable).parent
SECONDS_MAX = 30


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / program, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


@pytest.mark.parametrize("flag", ["-version", "--version", "-version=true"])
def test_version_is_the_line_that_managers_parse(flag: str) -> None:
    result = run("nsqd", flag)
    assert result.returncode == 0
    assert re.match(r"nsqd v1\.\d+\.\d+ \(built w/go[\d.]+\)", result.stdout)
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


def test_version_is_quick() -> None:
    # The aim is 0.1 s on an idle machine; a loaded one is given some room.
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run("nsqd", "-version")
        times.append(time.perf_counter() - start)
    assert min(times) < late_s(0.25)


def test_version_loads_nothing_it_does_not_need() -> None:
    child = (
        "import sys; before = set(sys.modules); from penstock.cli.nsqd import main;"
        "main(['-version']); print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", child], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    loaded = set(result.stdout.splitlines()[1].split()) - {"__future__"}
    assert loaded == {"penstock", "penstock.cli", "penstock.cli.nsqd", "penstock.version"}


def test_help_names_every_flag_and_fits_the_screen() -> None:
    result = run("nsqd", "--help")
    assert result.returncode == 0
    flags = set(re.findall(r"^  -([a-z0-9-]+)", result.stdout, re.MULTILINE))
    assert {setting.flag for setting in SETTINGS} < flags
    assert flags >= {"version", "config", "help", "verbose", "worker-id"}
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_an_unknown_flag_ends_with_2_and_a_hint() -> None:
    result = run("nsqd", "-x")
    assert result.returncode == 2
    assert result.stderr.splitlines()[0] == "flag provided but not defined: -x"
    assert "--help" in result.stderr


def test_a_wrong_value_ends_with_2_and_what_is_allowed() -> None:
    result = run("nsqd", "--msg-timeout", "soon")
    assert result.returncode == 2
    assert 'invalid value "soon" for flag -msg-timeout: must be a duration' in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--node-id=1024"], "--node-id must be [0,1024)"),
        (["--max-deflate-level=10"], "--max-deflate-level must be [1,9]"),
    ],
)
def test_a_start_error_is_a_fatal_line_and_ends_with_1(arguments: list[str], text: str) -> None:
    result = run("nsqd", *arguments)
    assert result.returncode == 1
    line = (
        r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: failed to instantiate nsqd - (.*)\n"
    )
    match = re.fullmatch(line, result.stderr)
    assert match
    assert match[1] == text


def test_a_wrong_variable_or_file_is_a_fatal_line_and_ends_with_1() -> None:
    for result in (
        run("nsqd", PENSTOCK_NSQD_SYNC_EVERY="often"),
        run("nsqd", "-config=/nonexistent/nsqd.cfg"),
    ):
        assert result.returncode == 1
        assert " FATAL: " in result.stderr
        assert "Traceback" not in result.stderr


def test_penstock_runs_the_command_it_is_given() -> None:
    assert run("penstock", "nsqd", "-version").stdout == run("nsqd", "-version").stdout
    assert run("penstock", "help", "nsqd").stdout == run("nsqd", "--help").stdout


def test_penstock_lists_its_commands() -> None:
    result = run("penstock", "--help")
    assert result.returncode == 0
    assert set(re.findall(r"^  (\w[\w-]*) ", result.stdout, re.MULTILINE)) >= {
        "nsqd",
        "dump",
        "bench",
    }
    assert run("penstock", "--version").stdout.startswith("penstock v")


def test_penstock_suggests_a_command_for_an_unknown_one() -> None:
    result = run("penstock", "nsdq")
    assert result.returncode == 2
    assert 'no command "nsdq"; did you mean "nsqd"?' in result.stderr
    assert run("penstock").returncode == 2
