"""`nsqadmin` as a program: flags, version, start and end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.admin.cluster import Nsqadmin
from tests.support.timing import late_s

BIN = Path(sys.executable).parent
SECONDS_MAX = 20.0
NSQD = "-nsqd-http-address=127.0.0.1:9"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "nsqadmin", *arguments], capture_output=True, text=True, timeout=SECONDS_MAX
    )


@pytest.mark.parametrize("flag", ["-version", "--version", "--version=true"])
def test_the_version_is_one_line_that_managers_can_parse(flag: str) -> None:
    result = run(flag)
    assert result.returncode == 0
    assert result.stdout.startswith("nsqadmin v1.3.0 (built w/go1.21.5)")
    assert result.stdout.count("\n") == 1


def test_the_version_needs_nothing_but_itself() -> None:
    script = (
        "import sys; before = set(sys.modules); from penstock.cli.nsqadmin import main;"
        "main(['-version']); print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    loaded = {m for m in result.stdout.splitlines()[-1].split() if "penstock" in m}
    assert loaded == {"penstock", "penstock.cli", "penstock.cli.nsqadmin", "penstock.version"}


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["-nonsense"], 2, "flag provided but not defined: -nonsense"),
        (["-lookupd-tcp-address=x"], 2, "did you mean -lookupd-http-address?"),
        ([], 1, "--nsqd-http-address or --lookupd-http-address required"),
        (
            [NSQD, "-lookupd-http-address=127.0.0.1:9"],
            1,
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (["-nsqd-http-address=nonsense"], 1, '"nonsense" must be host:port'),
        (
            ["-lookupd-http-address=no-such-host.invalid:1"],
            1,
            "failed to resolve --lookupd-http-address (no-such-host.invalid:1)",
        ),
        ([NSQD, "-http-address=192.0.2.1:1"], 1, "listen (192.0.2.1:1) failed"),
        ([NSQD, "-http-client-tls-cert=x"], 1, "--http-client-tls-key must be specified"),
        ([NSQD, "-http-client-tls-root-ca-file=/none"], 1, "failed to build TLS config"),
        ([NSQD, "-nsqd-auth-token-file=/none"], 1, "--nsqd-auth-token-file /none: No such file"),
        ([NSQD, "-allow-config-from-cidr=x"], 1, '--allow-config-from-cidr "x" must be like'),
        ([NSQD, "-notification-http-endpoint=x"], 1, "must begin with http:// or https://"),
        ([NSQD, "-graphite-url=ftp://x"], 1, "must begin with http:// or https://"),
        ([NSQD, "-proxy-graphite"], 1, "--proxy-graphite needs --graphite-url"),
        ([NSQD, "-base-path=/a/../b"], 1, "must be a plain path"),
        ([NSQD, "-sample-interval=1ms"], 2, "sample-interval"),
        ([NSQD, "-dev-static-dir=/none"], 1, "No such file or directory: '/none'"),
    ],
)
def test_a_wrong_start_is_told(arguments: list[str], status: int, text: str) -> None:
    result = run(*arguments)
    assert result.returncode == status, result.stderr
    assert text in result.stderr


def test_options_come_from_a_file_too(tmp_path: Path) -> None:
    config = tmp_path / "nsqadmin.cfg"
    config.write_text('nsqd_http_addresses = ["127.0.0.1:9"]\nadmin_users = ["alice"]\n')
    with Nsqadmin(f"--config={config}") as admin:
        assert admin.get("/config/admin_users").json == ["alice"]


def test_static_files_may_come_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "admin.css").write_text("body{color:red}")
    with Nsqadmin("--nsqd-http-address=127.0.0.1:9", f"--dev-static-dir={tmp_path}") as admin:
        found = re.search(r'href="(/static/[^"]+/admin\.css)"', admin.get("/").text)
        assert found is not None
        assert admin.get(found[1]).text == "body{color:red}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_soon(number: int) -> None:
    with Nsqadmin("--nsqd-http-address=127.0.0.1:9") as admin:
        assert admin.get("/ping").text == "OK"
        begin_s = time.monotonic()
        admin.signal(number)
        assert admin.wait() == 0
        assert time.monotonic() - begin_s < late_s(3)
    assert admin.lines[-1].endswith("NSQADMIN: bye")
    assert "Traceback" not in admin.log
