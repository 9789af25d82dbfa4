"""`penstock up` as a process: one log, one Ctrl-C, nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Self

import pytest

from penstock.cli.up import SECOND_SIGNAL_S
from penstock.client import sync
from tests.support.daemon import Daemon
from tests.support.processes import children, command_line, gone
from tests.support.waits import wait_until

pytestmark = pytest.mark.timeout(110)

PENSTOCK = str(Path(sys.executable).parent / "penstock")
ANY_PORTS = [
    *("--nsqd-tcp-port=0", "--nsqd-http-port=0"),
    *("--lookupd-tcp-port=0", "--lookupd-http-port=0", "--admin-http-port=0"),
]


class Up(Daemon):
    """Its standard output is read in place of standard error, which goes there too."""

    def __init__(self, data_path: Path, *options: str) -> None:
        super().__init__(*ANY_PORTS, f"--data-path={data_path}", *options)

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", 'exec "$0" "$@" 1>&2', PENSTOCK, "up"]

    def start(self, *options: str) -> Self:
        super().start(*options)
        self.wait_for_log("^up .*all programs are up")
        return self

    def address(self, name: str, kind: str) -> str:
        """As it was told at the end of the start."""
        return self.wait_for_log(rf"^up +\| {name} .*\b{kind} (?:http://)?([\d.]+:\d+)")[1]


def test_messages_go_through_and_ctrl_c_stops_all_in_reverse_order(tmp_path: Path) -> None:
    with Up(tmp_path / "new" / "data") as up:
        with urllib.request.urlopen(
            f"http://{up.address('nsqd', 'HTTP')}/pub?topic=greetings", b"hello", timeout=10
        ) as reply:
            assert reply.read() == b"OK"
        lookupd = up.address("nsqlookupd", "HTTP")
        with sync.Consumer("greetings", "ch", lookupd_http_addresses=lookupd) as consumer:
            message = next(iter(consumer))
            assert message.body == b"hello"
            message.finish()
        admin = up.wait_for_log(r"^up .*nsqadmin: (http://\S+)")[1]
        with urllib.request.urlopen(f"{admin}/api/topics/greetings", timeout=10) as reply:
            assert b'"message_count":1' in reply.read()
        parts = children(up.pid)
        assert len(parts) == 3
        up.signal(signal.SIGINT)
        assert up.wait() == 0
        assert gone(parts)
    assert all(re.match(r"(nsqlookupd|nsqd|nsqadmin|up) +\| ", line) for line in up.lines), up.log
    assert "\x1b" not in up.log
    ends = [line.split()[0] for line in up.lines if line.endswith(": bye")]
    assert ends == ["nsqadmin", "nsqd", "nsqlookupd"]
    assert (tmp_path / "new" / "data" / "nsqd.dat").exists()


def test_a_second_ctrl_c_kills_what_does_not_end(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        parts = children(up.pid)
        [nsqd] = [pid for pid in parts if " nsqd " in command_line(pid)]
        os.kill(nsqd, signal.SIGSTOP)
        up.signal(signal.SIGINT)
        up.wait_for_log("^up .*stopping; press Ctrl-C again to kill")
        time.sleep(SECOND_SIGNAL_S + 0.1)
        assert up.running
        up.signal(signal.SIGINT)
        assert up.wait() == 0
        assert gone(parts)


def test_a_part_that_dies_ends_the_rest(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        parts = children(up.pid)
        [nsqd] = [pid for pid in parts if " nsqd " in command_line(pid)]
        os.kill(nsqd, signal.SIGKILL)
        assert up.wait() == 1
        assert gone(parts)
    assert up.lines[-1] == "penstock up: nsqd ended by SIGKILL"
    assert any("NSQLOOKUPD: bye" in line for line in up.lines)


def test_kill_9_leaves_nothing_running(tmp_path: Path) -> None:
    with Up(tmp_path, "--processes=2") as up:
        parts = children(up.pid)
        assert len(parts) == 5  # nsqlookupd, nsqd and its two nodes, nsqadmin
        up.kill()
        assert gone(parts)


def test_a_second_one_is_told_what_is_in_the_way(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        port = up.address("nsqlookupd", "TCP").rpartition(":")[2]
        for options, text in (
            ([f"--data-path={tmp_path}"], f"cannot flock directory {tmp_path} "),
            ([f"--lookupd-tcp-port={port}"], f"listen (127.0.0.1:{port}) failed"),
        ):
            done = subprocess.run(
                [PENSTOCK, "up", *ANY_PORTS, f"--data-path={tmp_path}", *options],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 1
            assert text in done.stderr
            assert "is another one running?" in done.stderr
            assert done.stderr.count("\n") == 1
        assert up.running


def test_a_data_path_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [PENSTOCK, "up", f"--data-path={tmp_path / 'file'}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "File exists" in done.stderr


def test_a_terminal_gets_colours_and_its_end_stops_all(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    up = subprocess.Popen(
        [PENSTOCK, "up", *ANY_PORTS, f"--data-path={tmp_path}"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={key: value for key, value in os.environ.items() if key != "NO_COLOR"},
    )
    os.close(theirs)
    try:
        seen = b""
        while b"all programs are up" not in seen:
            seen += os.read(ours, 65536)
        assert b"\x1b[36mnsqlookupd |\x1b[0m " in seen
        parts = children(up.pid)
        os.close(ours)
        # Its next line cannot be written.  A new connection to nsqlookupd makes one.
        address = re.search(rb"nsqlookupd  TCP ([\d.]+):(\d+)", seen)
        assert address is not None
        with socket.create_connection((address[1], int(address[2])), 10):
            assert up.wait(60) == 0
        assert gone(parts)
    finally:
        up.kill()
        up.wait(10)


def test_a_channel_made_later_gets_what_was_published_before(tmp_path: Path) -> None:
    """Also though a reader by index, such as the archive's, was the topic's first channel."""
    with Up(tmp_path / "data") as up:
        nsqd = f"http://{up.address('nsqd', 'HTTP')}"
        pattern = {"channel": "archive", "identity": "1f" * 16, "topics": ["*"]}
        asked(f"{nsqd}/channel/pattern", json.dumps(pattern).encode())
        asked(f"{nsqd}/pub?topic=greetings", b"first")
        asked(f"{nsqd}/pub?topic=greetings", b"second")
        [topic] = json.loads(asked(f"{nsqd}/stats?format=json"))["topics"]
        assert [channel["channel_name"] for channel in topic["channels"]] == ["archive"]
        for channel in ("one", "two"):
            with sync.Consumer(
                "greetings", channel, nsqd_tcp_addresses=up.address("nsqd", "TCP"), max_in_flight=2
            ) as consumer:
                assert bodies_of(consumer, 2) == [b"first", b"second"]
        assert (tmp_path / "data" / "policy.toml").read_text().startswith("# Policies of the nsqd")


def test_the_policy_file_belongs_to_the_user(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('[[policy]]\ntopic = "mine"\nretain = "5m"\n')
    with Up(tmp_path) as up:
        nsqd = f"http://{up.address('nsqd', 'HTTP')}"
        for topic in ("mine", "other"):
            asked(f"{nsqd}/topic/create?topic={topic}", b"")
        values = [
            json.loads(asked(f"{nsqd}/policy?topic={topic}"))["policy"]["retain"]["value"]
            for topic in ("mine", "other")
        ]
        assert values == ["5m", "0"]


def test_the_demo_has_poison_that_is_buried_and_can_be_kicked(tmp_path: Path) -> None:
    with Up(tmp_path, "--demo") as up:
        nsqd = f"http://{up.address('nsqd', 'HTTP')}"
        up.wait_for_log(r"^up .*reading orders on the channel billing")
        up.wait_for_log(r"topic=orders channel=billing: created")
        asked(f"{nsqd}/pub?topic=orders", b"poison")
        where = "topic=orders&channel=billing"

        def dead() -> list[dict[str, object]]:
            found: list[dict[str, object]] = json.loads(asked(f"{nsqd}/channel/dead?{where}"))[
                "messages"
            ]
            return [message for message in found if message["body"] == "cG9pc29u"]

        wait_until(lambda: dead(), why=lambda: up.log)
        [message] = dead()
        assert (message["reason"], message["attempts"]) == ("attempts", 3)
        kick = json.dumps({"ids": [message["id"]]}).encode()
        assert json.loads(asked(f"{nsqd}/channel/kick?{where}", kick))["kicked"] == 1
        wait_until(lambda: len(dead()) == 1, why=lambda: up.log)
        first = "attempt 1: b'poison' is not JSON"
        wait_until(lambda: up.log.count(first) == 2, why=lambda: up.log)


def asked(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, body, timeout=10) as reply:
        assert reply.status == 200
        answer: bytes = reply.read()
        return answer


def bodies_of(consumer: sync.Consumer, count: int) -> list[bytes]:
    bodies = []
    for message in consumer:
        bodies.append(message.body)
        message.finish()
        if len(bodies) == count:
            break
    return sorted(bodies)
