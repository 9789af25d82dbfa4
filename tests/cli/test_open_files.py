"""Limits of open files: taken as far as they go, and survived when they are reached."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

from penstock.cli.usage import open_file_count
from tests.client import Client, eventually
from tests.daemon import Nsqd


class LimitedNsqd(Nsqd):
    """An nsqd that is given a soft and a hard limit of open files."""

    def __init__(self, data_path: Path, soft: int, hard: int) -> None:
        super().__init__(data_path)
        self.limits = f"ulimit -Sn {soft} && ulimit -Hn {hard}"

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", f'{self.limits} && exec "$@"', "sh", *super().command()]


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    with LimitedNsqd(tmp_path, 64, 2000) as nsqd:
        assert resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE) == (2000, 2000)
        assert "open files" not in nsqd.log


def test_running_out_of_descriptors_is_survived(tmp_path: Path) -> None:
    """Connections beyond the limit are dropped; those that are there go on, others come later."""
    with LimitedNsqd(tmp_path, 64, 64) as nsqd:
        nsqd.wait_for_log("WARNING: open files: the limit is 64")
        with Client.of(nsqd).sub("kept", "c", ready=10) as consumer, Client.of(nsqd) as producer:
            producer.pub("kept", b"before")
            address = ("127.0.0.1", nsqd.tcp_port)
            crowd = [socket.create_connection(address, 5) for _ in range(100)]
            assert eventually(lambda: open_file_count(nsqd.pid) >= 60)
            producer.pub("kept", b"meanwhile")
            assert {m.body for m in consumer.finish_all(2)} == {b"before", b"meanwhile"}
            for sock in crowd:
                sock.close()
            assert eventually(lambda: open_file_count(nsqd.pid) < 40)
            assert eventually(lambda: nsqd.get("/ping").text == "OK")
            assert nsqd.post("/pub?topic=new", b"after").text == "OK"
        assert nsqd.terminate() == 0
        assert "Traceback" not in nsqd.log
