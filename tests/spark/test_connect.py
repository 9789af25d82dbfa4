"""Spark Connect: what classic Spark does with the source, through a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.connect_client import SOURCE
from tests.spark.topics import address, publish
from tests.support.daemon import Nsqd

SECONDS_MAX = 150


@pytest.mark.timeout(SECONDS_MAX + 30)
def test_a_connect_session_reads_writes_and_streams(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "nsqd") as nsqd:
        publish(nsqd, SOURCE, b"a", b"b", b"c")
        child = subprocess.run(
            [sys.executable, "-m", "tests.spark.connect_client", str(tmp_path), address(nsqd)],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        found = json.loads(child.stdout.splitlines()[-1])
        assert "topik" in found.pop("error")
        assert found == {
            "session": "pyspark.sql.connect.session",
            "read": ["a", "b", "c"],
            "written": ["one", "two"],
            "counted": 3,
            "ended": True,
            "copied": ["a", "b", "c"],
        }
        channel = nsqd.channel(SOURCE, "copy")
        assert channel["depth"] == 0
        assert channel["pull"]["progress"]["name"] == "copy"
