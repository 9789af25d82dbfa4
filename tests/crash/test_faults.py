"""The tool that makes a real nsqd's disk fail does so, and stops."""

from __future__ import annotations

import errno
from pathlib import Path

from tests.support.faults import FaultyNsqd
from tests.support.waits import eventually


def test_a_real_nsqd_fails_on_command_and_recovers(tmp_path: Path) -> None:
    with FaultyNsqd(tmp_path / "nsqd") as nsqd:
        assert nsqd.post("/pub?topic=t", b"one").status == 200
        nsqd.fault("*.log", errno.EIO, "append")
        assert nsqd.post("/pub?topic=t", b"two").status == 503
        assert nsqd.get("/ping").status == 500
        nsqd.heal()
        assert eventually(lambda: nsqd.get("/ping").status == 200)
        assert nsqd.post("/pub?topic=t", b"three").status == 200


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_missing(tmp_path: Path) -> None:
    with FaultyNsqd(tmp_path / "nsqd") as nsqd:
        uuid = nsqd.get("/info").json["node_uuid"]
        nsqd.terminate()
        nsqd.fault("*/node.json", errno.EACCES, "exists")
        try:
            nsqd.start()
        except AssertionError:
            assert "Permission denied" in nsqd.log
        else:
            raise AssertionError("started without knowing who it is")
        nsqd.heal()
        nsqd.start()
        assert nsqd.get("/info").json["node_uuid"] == uuid
