"""`penstock dead` over two nodes: list, kick, move and discard what failed there."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tools import PROGRAMS, RUN_SECONDS_MAX, Tool, run_tool
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.waits import eventually

Pair = tuple[Nsqd, Nsqd]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("dead")
    with Nsqd(folder / "a") as first, Nsqd(folder / "b", "--node-id=7") as second:
        yield first, second


def poison(nsqd: Nsqd, topic: str, *bodies: bytes) -> list[str]:
    """Messages that fail once, which is too often; their ids."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    place = f"/policy?topic={topic}&channel=c"
    assert nsqd.http("PUT", place, b'{"max_attempts": 1}').status == 200
    publish(nsqd, topic, *bodies)
    with Client.of(nsqd).sub(topic, "c", ready=2500) as client:
        messages = client.messages(len(bodies))
        for message in messages:
            client.req(message)
        eventually(lambda: buried(nsqd, topic) == len(bodies))
    return [message.id.decode() for message in messages]


def buried(nsqd: Nsqd, topic: str) -> int:
    return int(nsqd.get(f"/channel/dead?topic={topic}&channel=c&count=1").json["count"])


def dead(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return run_tool("penstock", "dead", *arguments, stdin=stdin)


def place(topic: str, *nsqds: Nsqd) -> list[str]:
    nodes = [f"--nsqd-http-address={address(nsqd)}" for nsqd in nsqds]
    return [*nodes, f"--topic={topic}", "--channel=c"]


def address(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.http_port}"


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stdout.decode().splitlines()


def test_messages_of_all_nodes_are_listed(pair: Pair) -> None:
    first, second = pair
    ids = poison(first, "listed", b"a" * 200, b"\x00b") + poison(second, "listed", b"c")
    done = dead("list", *place("listed", *pair))
    assert done.returncode == 0, done.stderr
    told = lines(done)
    assert [line.split()[:4] for line in told] == [
        [address(nsqd), id, "reason=attempts", "attempts=1"]
        for nsqd, id in zip((first, first, second), ids, strict=True)
    ]
    assert told[0].endswith("body=200:'" + "a" * 60 + "'...") and told[1].endswith(r"'\x00b'")
    assert lines(dead("list", *place("listed", *pair), "--reason=bury")) == []
    some = dead("list", *place("listed", *pair), "--count=2", "--json")
    assert [json.loads(line)["id"] for line in lines(some)] == ids[:2]
    assert json.loads(lines(some)[0])["node"] == address(first)
    few = dead("list", *place("listed", *pair), "--count=1")
    assert b"1 of " in few.stderr


def test_pages_follow_each_other(pair: Pair) -> None:
    ids = poison(pair[0], "pages", *[b"%d" % i for i in range(2100)])
    done = dead("list", *place("pages", pair[0]), "--count=3000", "--body-size=0")
    assert [line.split()[1] for line in lines(done)] == ids
    assert len(lines(dead("list", *place("pages", pair[0])))) == 100


def test_messages_are_kicked_by_id_by_count_and_all(pair: Pair) -> None:
    first, second = pair
    ids = poison(first, "kicked", b"1", b"2", b"3") + poison(second, "kicked", b"4", b"5")
    done = dead("kick", *place("kicked", *pair), ids[1], ids[3])
    assert lines(done) == [
        f"{address(first)}: kicked 1, 2 buried",
        f"{address(second)}: kicked 1, 1 buried",
    ]
    with Client.of(first).sub("kicked", "c", ready=1) as client:
        assert client.finish_all(1)[0].attempts == 1
    assert lines(dead("kick", *place("kicked", *pair), "--count=1")) == [
        f"{address(first)}: kicked 1, 1 buried"
    ]
    done = dead("kick", *place("kicked", *pair), "--json")
    assert [json.loads(line)["kicked"] for line in lines(done)] == [1, 1]
    assert buried(first, "kicked") == buried(second, "kicked") == 0


def test_messages_are_moved_to_a_topic(pair: Pair) -> None:
    first, second = pair
    poison(first, "moved", b"1", b"2")
    poison(second, "moved", b"3")
    done = dead("move", *place("moved", *pair), "--to=moved.away")
    assert done.returncode == 0, done.stderr
    assert lines(done) == [
        f"{address(first)}: moved 2, 0 buried",
        f"{address(second)}: moved 1, 0 buried",
    ]
    with Client.of(first).sub("moved.away", "c", ready=5) as client:
        assert [message.body for message in client.finish_all(2)] == [b"1", b"2"]


def test_a_rate_is_passed_on(pair: Pair) -> None:
    poison(pair[0], "rated", *[b"%d" % i for i in range(20)])
    done = dead("kick", *place("rated", pair[0]), "--rate=1000")
    assert lines(done)[0].startswith(f"{address(pair[0])}: kicking 20, ")
    eventually(lambda: buried(pair[0], "rated") == 0)


def test_what_runs_at_a_rate_is_stopped(pair: Pair) -> None:
    poison(pair[0], "stopped", *[b"%d" % i for i in range(30)])
    where = "/channel/dead?topic=stopped&channel=c"
    for action, flag in (("kick", []), ("move", ["--to=elsewhere"]), ("discard", ["--yes"])):
        done = dead(action, *place("stopped", pair[0]), "--rate=1", *flag)
        assert done.returncode == 0, done.stderr
        done = dead(action, *place("stopped", pair[0]), "--stop")
        assert re.search(r": (kicked|moved|discarded) [1-9]\d*, \d+ buried$", lines(done)[0])
        assert eventually(lambda: "running" not in pair[0].get(where).json)
    assert 15 < buried(pair[0], "stopped") < 28


@pytest.mark.parametrize("count", [3, 1000])
def test_a_reader_that_leaves_is_no_traceback(pair: Pair, count: int) -> None:
    """As with `| head`; little output is written at the end only."""
    topic = f"many{count}"
    poison(pair[0], topic, *[b"x" * 60] * count)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [str(PROGRAMS / "penstock"), "dead", "list", *place(topic, pair[0]), "--count=1000"],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=RUN_SECONDS_MAX,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_nothing_is_discarded_without_a_yes(pair: Pair) -> None:
    poison(pair[0], "lost", b"1", b"2")
    done = dead("discard", *place("lost", pair[0]))
    assert done.returncode == 1 and b"--yes is required" in done.stderr
    assert buried(pair[0], "lost") == 2
    done = dead("discard", *place("lost", pair[0]), "--yes")
    assert lines(done) == [f"{address(pair[0])}: discarded 2, 0 buried"]


@pytest.mark.parametrize("arguments", ["dead kick", "policy set retain=1h", "drain a:1", "seek"])
def test_help_is_printed_after_other_arguments_too(arguments: str) -> None:
    program = " ".join(arguments.split()[:1])
    for flag in ("-h", "--help"):
        done = run_tool("penstock", *arguments.split(), flag)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(f"Usage: penstock {program}".encode())
        assert b"Exit status:" in done.stdout


def test_ctrl_c_at_the_question_discards_nothing(pair: Pair, tmp_path: Path) -> None:
    poison(pair[0], "asked", b"1")
    ours, theirs = pty.openpty()
    with Tool(
        tmp_path, "penstock", "dead", "discard", *place("asked", pair[0]), stdin=theirs
    ) as tool:
        tool.until(lambda: "Discard 1 messages" in tool.log)
        tool.send(signal.SIGINT)
        assert tool.wait() == 1
        assert tool.log.endswith("nothing was discarded\n")
    os.close(ours)
    os.close(theirs)
    assert buried(pair[0], "asked") == 1


def test_a_move_that_fails_tells_what_is_left(pair: Pair) -> None:
    first, _ = pair
    poison(first, "part", b"1", b"2")
    publish(first, "part.full", b"x")
    first.http("PUT", "/policy?topic=part.full", b'{"max_messages": 1}')
    done = dead("move", *place("part", first), "--to=part.full")
    assert done.returncode == 1
    assert lines(done) == [f"{address(first)}: moved 0, 2 buried"]
    assert done.stderr.endswith(b": TOPIC_FULL: topic is full (max_messages)\n")


def test_who_may_not_kick_is_told_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("admin admin-token-0\nread read-token-00\n")
    (tmp_path / "reader").write_text("read-token-00\n")
    with Nsqd(tmp_path / "a", f"--http-auth-token-file={tmp_path / 'tokens'}") as nsqd:
        admin = {"Authorization": "Bearer admin-token-0"}
        for path in ("/topic/create?topic=guarded", "/channel/create?topic=guarded&channel=c"):
            assert nsqd.http("POST", path, headers=admin).status == 200
        token = f"--nsqd-auth-token-file={tmp_path / 'reader'}"
        done = dead("kick", *place("guarded", nsqd), token)
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr == f"{address(nsqd)}: FORBIDDEN\n".encode()


def test_an_id_that_is_not_buried_is_told(pair: Pair) -> None:
    known = poison(pair[0], "unknown", b"1")
    done = dead("kick", *place("unknown", *pair), *known, "0" * 16)
    assert done.returncode == 1 and b"1 of 2 ids are not buried there" in done.stderr
    assert lines(done) == [f"{address(pair[0])}: kicked 1, 0 buried"]


def test_a_node_that_fails_is_told_and_the_others_do_it(pair: Pair) -> None:
    poison(pair[0], "half", b"1")
    nodes = ["--nsqd-http-address=127.0.0.1:1", *place("half", pair[0])]
    done = dead("kick", *nodes)
    assert done.returncode == 1 and b"127.0.0.1:1: " in done.stderr
    assert lines(done) == [f"{address(pair[0])}: kicked 1, 0 buried"]


def test_a_channel_that_exists_on_one_node_only_is_no_failure(pair: Pair) -> None:
    poison(pair[0], "single", b"1")
    done = dead("kick", *place("single", *pair))
    assert done.returncode == 0 and len(lines(done)) == 1
    done = dead("kick", *place("nowhere", *pair))
    assert done.returncode == 1 and done.stderr.count(b"TOPIC_NOT_FOUND") == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Usage: penstock dead"),
        (["bury"], "Usage: penstock dead"),
        (["list"], "required"),
        (["list", "--nsqd-http-address=x:1"], "--topic is required"),
        (["list", "--nsqd-http-address=x:1", "--topic=t"], "--channel is required"),
        (["list", "--nsqd-http-address=x:1", "--topic=t", "--channel=c", "id"], "unexpected"),
        (["kick", "--nsqd-http-address=x:1", "--topic=t", "--channel=c", "id"], "not the id"),
        (["kick", "--nsqd-http-address=x:1", "--topic=t", "--channel=no no"], "not a valid name"),
        (["kick", "--nsqd-http-address=x:1", "--topic=t", "--channel=c", "--to=x"], "for move"),
        (["kick", "--nsqd-http-address=x:1", "--topic=t", "--channel=c", "--reason=x"], "one of"),
        (["kick", "--nsqd-http-address=x:1", "--topic=t", "--channel=c", "--count=-1"], "count"),
        (["move", "--nsqd-http-address=x:1", "--topic=t", "--channel=c"], "--to must be"),
        (["move", "--nsqd-http-address=x:1", "--topic=t", "--channel=c", "--to=t"], "another"),
        (["list", "--nsqd-http-address=x:1", "--topic=t", "--channel=c", "--stop"], "--stop is"),
        (
            ["kick", "--nsqd-http-address=x:1", "--topic=t", "--channel=c", "--stop", "--rate=1"],
            "-",
        ),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], told: str) -> None:
    done = dead(*arguments)
    # Flags that do not fit together are an error of the tool, as in NSQ's tools.
    status = 2 if told.startswith("Usage") or "--count=-1" in arguments else 1
    assert done.returncode == status and told in done.stderr.decode(), done.stderr
