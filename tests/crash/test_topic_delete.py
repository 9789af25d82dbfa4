"""Deleting topics of a real nsqd whose disk fails, and which is killed on the way."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.crash.test_restart import folder_of
from tests.support.faults import FaultyNsqd
from tests.support.waits import wait_until


def publish(nsqd: FaultyNsqd, *bodies: bytes) -> None:
    for body in bodies:
        assert nsqd.post("/pub?topic=t", body).status == 200


def test_a_delete_whose_rename_fails_leaves_the_topic_and_is_told(tmp_path: Path) -> None:
    """What is deferred afterwards survives kill -9: it belongs to the same instance."""
    nsqd = FaultyNsqd(tmp_path / "nsqd")
    with nsqd:
        with nsqd.connect() as raw:
            raw.subscribe("t", "c", 1)
            publish(nsqd, b"one", b"two")
            folder = folder_of(nsqd, "t")
            nsqd.fault("*/t~*", errno.EIO, "rename")
            assert nsqd.post("/topic/delete?topic=t").status == 500
            nsqd.wait_for_log(r"ERROR.*topic=t: not deleted.*Input/output error")
            nsqd.heal()
            message = raw.receive()
            assert message.body == b"one", "consumers stay"
            raw.send(commands.fin(message.id))
            assert raw.receive().body == b"two"
        for body in (b"a", b"b", b"c"):
            assert nsqd.post("/pub?topic=t&defer=1500", body).status == 200
        nsqd.kill()
        nsqd.start()
        assert folder_of(nsqd, "t") == folder
        assert "ERROR" not in nsqd.log and "damage" not in nsqd.stats()
        with nsqd.connect() as raw:
            raw.subscribe("t", "c")
            bodies = set()
            while not bodies >= {b"two", b"a", b"b", b"c"}:
                message = raw.receive()
                bodies.add(message.body)
                raw.send(commands.fin(message.id))
        assert nsqd.post("/topic/delete?topic=t").status == 200
        assert nsqd.stats()["topics"] == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_topic_can_be_deleted_without_room_for_a_new_file(tmp_path: Path, code: int) -> None:
    """As when a file system has no inodes left; a kill does not bring it back."""
    nsqd = FaultyNsqd(tmp_path / "nsqd")
    with nsqd:
        publish(nsqd, b"one")
        folder = folder_of(nsqd, "t")
        nsqd.fault("*/nsqd.dat", code, "write_new")
        assert nsqd.post("/topic/delete?topic=t").status == 200
        assert nsqd.stats()["topics"] == [] and not folder.exists()
        assert nsqd.post("/topic/pause?topic=t").status == 404
        nsqd.kill()
        assert json.loads((nsqd.data_path / "nsqd.dat").read_text())["topics"], "as it was"
        nsqd.heal()
        nsqd.start()
        assert nsqd.stats()["topics"] == []
        left = nsqd.data_path / "penstock" / "topics"
        wait_until(lambda: not list(left.iterdir()), 10, lambda: f"{list(left.iterdir())}")
        assert not json.loads((nsqd.data_path / "nsqd.dat").read_text())["topics"]


def test_what_does_not_fit_on_the_disk_is_answered_with_a_clear_error(tmp_path: Path) -> None:
    nsqd = FaultyNsqd(tmp_path / "nsqd")
    with nsqd:
        publish(nsqd, b"one")
        nsqd.fault("*/t~*", errno.ENOSPC, "rename")
        reply = nsqd.post("/topic/delete?topic=t")
        assert reply.status == 503 and reply.json == {"message": "DISK_FULL"}
        nsqd.heal()
        assert nsqd.post("/topic/delete?topic=t").status == 200
