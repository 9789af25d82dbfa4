"""`nsqlookupd` as a program: flags, version, start and end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.daemon import Nsqlookupd
from tests.support.timing import late_s

BIN = Path(sys.executable).parent
SECONDS_MAX = 20.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "nsqlookupd", *arguments], capture_output=True, text=True, timeout=SECONDS_MAX
    )


@pytest.mark.parametrize("flag", ["-version", "--version", "--version=true"])
def test_the_version_is_one_line_that_managers_can_parse(flag: str) -> None:
    result = run(flag)
    assert result.returncode == 0
    assert result.stdout.startswith("nsqlookupd v1.3.0 (built w/go1.21.5)")
    assert result.stdout.count("\n") == 1


def test_the_version_needs_nothing_but_itself() -> None:
    script = (
        "import sys; before = set(sys.modules); from penstock.cli.nsqlookupd import main;"
        "main(['-version']); print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    loaded = {m for m in result.stdout.splitlines()[-1].split() if "penstock" in m}
    assert loaded == {"penstock", "penstock.cli", "penstock.cli.nsqlookupd", "penstock.version"}


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["-nonsense"], 2, "flag provided but not defined: -nonsense"),
        (["-tombstone-lifetme=1s"], 2, "did you mean -tombstone-lifetime?"),
        (["-tombstone-lifetime=x"], 2, 'invalid value "x" for flag -tombstone-lifetime'),
        (["-config=/no/such/file"], 1, "failed to load config file"),
        (["-tcp-address=nonsense"], 1, "failed to instantiate nsqlookupd - listen (nonsense)"),
        (["-tcp-address=192.0.2.1:1"], 1, "listen (192.0.2.1:1) failed"),
    ],
)
def test_a_wrong_start_is_told(arguments: list[str], status: int, text: str) -> None:
    result = run(*arguments)
    assert result.returncode == status
    assert text in result.stderr


def test_penstock_lookupd_is_the_same_program() -> None:
    result = subprocess.run(
        [BIN / "penstock", "help", "lookupd"], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert result.stdout == run("--help").stdout
    assert "-inactive-producer-timeout duration" in result.stdout


def test_options_come_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.toml"
    config.write_text('broadcast_address = "unused"\nlog_prefix = "[here] "\nverbose = true\n')
    with Nsqlookupd(f"-config={config}", "-verbose") as lookupd:
        assert lookupd.lines[0].startswith("[here] ")


def test_a_hangup_reads_the_file_again_and_nothing_ends(tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.toml"
    config.write_text('log_level = "info"\n')
    with Nsqlookupd(f"-config={config}") as lookupd:
        config.write_text('log_level = "debug"\ntombstone_lifetime = "1s"\n')
        lookupd.signal(signal.SIGHUP)
        lookupd.wait_for_log("SIGHUP: log_level is debug now")
        lookupd.wait_for_log("SIGHUP: tombstone_lifetime needs a restart")
        config.write_text("nonsense")
        lookupd.signal(signal.SIGHUP)
        lookupd.wait_for_log("SIGHUP: nothing changed")
        assert lookupd.get("/ping").body == b"OK"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_with_clients_connected(number: int) -> None:
    lookupd = Nsqlookupd()
    with lookupd, lookupd.connect(), lookupd.connect(b""):
        started_s = time.monotonic()
        lookupd.signal(number)
        assert lookupd.wait() == 0
        assert time.monotonic() - started_s < late_s(2)
        # The same ports again at once.
        lookupd.start()
        assert lookupd.get("/ping").body == b"OK"
