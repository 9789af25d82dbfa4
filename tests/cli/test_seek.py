"""`penstock seek` over two nodes, and --since of the tools (R22, R23)."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tools import PROGRAMS, Tool, run_tool, source
from tests.support.daemon import Nsqd
from tests.support.waits import eventually

Pair = tuple[Nsqd, Nsqd]
PLACE = ["--topic=orders", "--channel=email"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """The channel has skipped everything; another one keeps it."""
    with Nsqd(tmp_path / "a") as first, Nsqd(tmp_path / "b", "--node-id=7") as second:
        for nsqd in (first, second):
            nsqd.post("/topic/create?topic=orders")
            nsqd.post("/channel/create?topic=orders&channel=keeper")
            nsqd.post("/mpub?topic=orders", b"a\nb\nc")
            nsqd.post("/channel/create?topic=orders&channel=email")
        yield first, second


def flags(*nsqds: Nsqd) -> list[str]:
    return [f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}" for nsqd in nsqds]


def seek(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return run_tool("penstock", "seek", *arguments)


def depths(pair: Pair) -> list[int]:
    return [nsqd.channel("orders", "email")["depth"] for nsqd in pair]


def test_a_seek_is_shown_and_done_on_all_nodes(pair: Pair) -> None:
    done = seek(*flags(*pair), *PLACE, "--to=-1h", "--dry-run")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.decode().splitlines()]
    assert rows[0][0] == "node" and len(rows) == 3
    assert all(row[-1] == "yes" for row in rows[1:])
    assert depths(pair) == [0, 0]
    done = seek(*flags(*pair), *PLACE, "--to=earliest", "--yes")
    assert done.returncode == 0 and done.stdout.endswith(b"done on 2 of 2 nodes\n"), done.stderr
    assert depths(pair) == [3, 3]
    done = seek(*flags(*pair), *PLACE, "--to=latest", "--yes", "--json")
    nodes = json.loads(done.stdout)["nodes"]
    assert [node["messages"] for node in nodes.values()] == [0, 0]
    assert depths(pair) == [0, 0]


def test_nothing_is_changed_unless_all_nodes_agree(pair: Pair) -> None:
    """Rule 1, and what is wrong is told by node."""
    first, second = pair
    second.post("/channel/delete?topic=orders&channel=email")
    done = seek(*flags(*pair), *PLACE, "--to=earliest", "--yes")
    assert done.returncode == 1
    assert f"127.0.0.1:{second.http_port}: CHANNEL_NOT_FOUND" in done.stderr.decode()
    assert b"nothing was changed; to leave nodes out, name the others" in done.stderr
    assert first.channel("orders", "email")["depth"] == 0


def test_it_asks_before_it_does(pair: Pair) -> None:
    done = seek(*flags(*pair), *PLACE, "--to=earliest")
    assert done.returncode == 1 and b"--yes is required" in done.stderr
    for answer, status, left in ((b"n\n", 1, [0, 0]), (b"\n", 1, [0, 0]), (b"y\n", 0, [3, 3])):
        theirs, ours = pty.openpty()
        command = [str(PROGRAMS / "penstock"), "seek", *flags(*pair), *PLACE, "--to=earliest"]
        process = subprocess.Popen(command, stdin=ours, stderr=subprocess.PIPE)
        os.close(ours)
        os.write(theirs, answer)
        _, told = process.communicate(timeout=40)
        os.close(theirs)
        assert (process.returncode, depths(pair)) == (status, left), told
        assert b"on 2 nodes? 6 messages will be queued" in told


def test_ctrl_c_at_the_question_changes_nothing(pair: Pair, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with Tool(
        tmp_path, "penstock", "seek", *flags(*pair), *PLACE, "--to=earliest", stdin=theirs
    ) as tool:
        tool.until(lambda: "6 messages will be queued" in tool.log)
        tool.send(signal.SIGINT)
        assert tool.wait() == 1
        assert tool.log.endswith("nothing was changed\n")
    os.close(ours)
    os.close(theirs)
    assert depths(pair) == [0, 0]


def test_where_messages_are_missing_it_needs_partial(tmp_path: Path) -> None:
    with Nsqd(tmp_path, "--max-bytes-per-file=1000") as nsqd:
        nsqd.post("/topic/create?topic=orders")
        nsqd.post("/channel/create?topic=orders&channel=email")
        for _ in range(30):
            nsqd.post("/pub?topic=orders", bytes(200))
        nsqd.post("/channel/empty?topic=orders&channel=email")
        assert eventually(lambda: nsqd.get("/log?topic=orders").json["message_count"] < 10)
        nsqd.post("/pub?topic=orders", b"new")
        done = seek(*flags(nsqd), *PLACE, "--to=-1h", "--yes")
        assert done.returncode == 1 and b"were removed on" in done.stderr
        assert done.stdout.split()[-1] == b"no"
        done = seek(*flags(nsqd), *PLACE, "--to=-1h", "--yes", "--partial")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["--topic=orders", "--channel=email"], "--to must be"),
        ([*PLACE, "--to=queued"], "--to must be"),
        ([*PLACE, "--to=tomorrow"], "--to must be"),
        (["--topic=orders", "--to=latest"], "--channel is required"),
        ([*PLACE, "--to=index:3", "--nsqd-http-address=b:1"], "an index belongs to one node"),
    ],
)
def test_wrong_flags_are_refused(wrong: list[str], text: str) -> None:
    done = seek("--nsqd-http-address=a:1", *wrong)
    assert done.returncode in (1, 2) and text in done.stderr.decode()


def in_flight(nsqd: Nsqd, channel: str) -> int:
    topics = nsqd.stats(f"&topic=orders&channel={channel}")["topics"]
    return sum(each["in_flight_count"] for topic in topics for each in topic["channels"])


def test_tools_read_the_past_with_since(pair: Pair, tmp_path: Path) -> None:
    """R23: nsq_tail through an ephemeral channel, nsq_to_file through one of its own."""
    first, _ = pair
    done = run_tool("nsq_tail", source(first), "--topic=orders", "--since=1h", "-n", "3")
    assert done.stdout == b"a\nb\nc\n", done.stderr
    done = run_tool("nsq_tail", source(first), "--topic=orders", "--since=earliest", "-n", "2")
    assert done.stdout == b"a\nb\n", done.stderr
    done = run_tool("nsq_tail", source(first), "--topic=orders", "--since=yesterday", "-n", "2")
    assert done.returncode == 2 and b"flag -since" in done.stderr
    out = tmp_path / "out"
    flags_ = ["--topic=orders", "--channel=file", "--since=2020-01-01T00:00:00Z"]
    with Tool(tmp_path, "nsq_to_file", source(first), *flags_, f"--output-dir={out}") as tool:
        assert eventually(lambda: in_flight(first, "file") == 3)
        # In flight may also be what the tool has not received yet, and a file is there before
        # what is written to it.
        tool.until(lambda: out.exists() and written(out) == b"a\nb\nc\n")
        assert tool.terminate() == 0
    assert written(out) == b"a\nb\nc\n"


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())
