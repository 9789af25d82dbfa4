"""The examples run as they stand, and the guide's table of options is the true one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.guide import GUIDE, table
from tests.support.daemon import Nsqd

EXAMPLES = Path(__file__).parents[2] / "examples"
OUTPUT = {
    "hello.py": "hello, Ada\nhello, Grace\nhello, Barbara\n",
    "iterate.py": "sum: 55\n",
    "batches.py": "published: 20000\ninserted: 20000\n",
    "retries.py": "given up: 1\n",
    "script.py": "at once\nin a second\n",
    "several.py": "finished 100\n",
}


def test_every_example_of_the_client_is_run() -> None:
    client = {p.name for p in EXAMPLES.glob("*.py") if "from penstock" in p.read_text()}
    assert client == set(OUTPUT)
    assert all(f"../examples/{name}" in GUIDE.read_text() for name in OUTPUT)


@pytest.mark.parametrize("name", OUTPUT)
def test_an_example_runs(nsqd: Nsqd, name: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, f"127.0.0.1:{nsqd.tcp_port}"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    assert OUTPUT[name] in done.stdout


def test_the_table_of_options_is_current() -> None:
    assert table() in GUIDE.read_text(), "run: python -m tests.clients.guide"
