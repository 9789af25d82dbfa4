"""Limits of open files: taken as far as they go, and survived when they are reached."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

from penstock.cli.usage import open_file_count
from tests.support.client import Client
from tests.support.daemon import LimitedNsqd
from tests.support.waits import eventually


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    with LimitedNsqd(tmp_path, 64, 2000) as nsqd:
        assert resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE) == (2000, 2000)
        assert "open files" not in nsqd.log


def test_descriptors_do_not_run_out(tmp_path: Path) -> None:
    """Silent connections leave for others, and never take the place of files."""
    with LimitedNsqd(tmp_path, 64, 64) as nsqd:
        nsqd.wait_for_log("WARNING: open files: the limit is 64")
        with Client.of(nsqd).sub("kept", "c", ready=10) as consumer, Client.of(nsqd) as producer:
            producer.pub("kept", b"before")
            address = ("127.0.0.1", nsqd.tcp_port)
            crowd = [socket.create_connection(address, 5) for _ in range(100)]
            for number in range(30):
                producer.pub(f"new-{number}", b"m")
                assert open_file_count(nsqd.pid) < 64
            producer.pub("kept", b"meanwhile")
            assert {m.body for m in consumer.finish_all(2)} == {b"before", b"meanwhile"}
            assert nsqd.get("/ping").text == "OK"
            assert nsqd.post("/pub?topic=new", b"meanwhile").text == "OK"
            for sock in crowd:
                sock.close()
            assert eventually(lambda: open_file_count(nsqd.pid) < 50)
            assert nsqd.post("/pub?topic=new", b"after").text == "OK"
        assert nsqd.terminate() == 0, nsqd.log
        assert "Traceback" not in nsqd.log
