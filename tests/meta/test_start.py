"""What a start of nsqd loads: every module more makes every start longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Few nsqds ever need one of these; where they are imported a comment says why it is there.
LATE = [
    "penstock.cli.nodes",
    "penstock.nsqd.auth",
    "penstock.net.debug_pages",
    "penstock.net.http_client",
    "penstock.nsqd.lookup_peer",
    "penstock.nsqd.lookupds",
    "penstock.nsqd.statsd",
    "penstock.storage.diskqueue",
    "penstock.wire.authorization",
    "penstock.wire.lookup",
    # None is cheap, and each was, or might be, loaded for one line.
    "difflib",
    "email",
    "http.client",
    "multiprocessing",
    "pickle",
    "platform",
    "re2",
    "tomllib",
    "tracemalloc",
    "urllib.request",
    "uuid",
]
NSQD = "from penstock.cli.nsqd import main; main()"
FLAGS = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules of an nsqd that was started a second time on its data path."""
    path = tmp_path_factory.mktemp("data")
    start(path)
    return start(path)


def start(path: Path) -> set[str]:
    """Start nsqd and end it when it listens; return the modules that Python says it loads."""
    arguments = [sys.executable, "-X", "importtime", "-c", NSQD, f"--data-path={path}", *FLAGS]
    modules = set()
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as nsqd:
        assert nsqd.stderr is not None
        for line in nsqd.stderr:
            if match := re.match(r"import time: .*\| +(\S+)$", line):
                modules.add(match[1])
            elif "HTTP: listening" in line:
                nsqd.terminate()
    assert nsqd.returncode == 0
    return modules


def test_a_start_loads_the_daemon(loaded: set[str]) -> None:
    assert {"penstock.nsqd.daemon", "penstock.engine.broker"} <= loaded


@pytest.mark.parametrize("module", LATE)
def test_a_plain_start_does_not_load(loaded: set[str], module: str) -> None:
    assert module not in loaded
