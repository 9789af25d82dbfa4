"""`penstock drain` on real nodes: its lines and its exit status."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tools import Tool, run_tool
from tests.support.daemon import Nsqd
from tests.support.endpoint import Endpoint
from tests.support.waits import wait_until


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "a") as daemon:
        daemon.post("/topic/create?topic=orders")
        daemon.post("/channel/create?topic=orders&channel=email")
        daemon.post("/pub?topic=orders", b"0")
        yield daemon


def drain(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return run_tool("penstock", "drain", *arguments)


def address(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.http_port}"


def test_a_drain_is_begun_shown_and_cancelled(nsqd: Nsqd) -> None:
    node = address(nsqd)
    done = drain(node, "--status")
    assert (done.returncode, done.stdout.decode()) == (0, f"{node}: off\n")
    done = drain(node)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == [
        f"{node}: draining: 1 messages left in 1 topics (1 queued)",
        "    topic=orders channel=email: the channel has no consumers",
    ]
    shown = json.loads(drain("--status", "--json", node).stdout)
    assert shown[node]["state"] == "draining"
    done = drain("--cancel", node)
    assert (done.returncode, done.stdout.decode()) == (0, f"{node}: off\n")
    assert nsqd.post("/pub?topic=orders", b"1").status == 200


def test_wait_ends_with_the_node(nsqd: Nsqd, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "b") as other:
        nsqd.post("/pub?topic=orders&defer=3600000", b"later")
        with nsqd.connect() as consumer:
            consumer.subscribe("orders", "email")
            consumer.send(b"FIN " + consumer.receive().id + b"\n")
            done = drain(address(nsqd), "--wait", f"--to={address(other)}")
            assert done.returncode == 0, done.stderr
        assert nsqd.wait(10) == 0
        lines = done.stdout.decode().splitlines()
        assert lines[-2].startswith(f"{address(nsqd)}: drained; 1 handed over to")
        assert lines[-1] == f"{address(nsqd)}: ended"
        assert other.stats()["topics"][0]["deferred_count"] == 1


def test_wait_fails_when_the_drain_is_cancelled(nsqd: Nsqd) -> None:
    program = subprocess.Popen(
        [str(Path(sys.executable).parent / "penstock"), "drain", address(nsqd), "--wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: nsqd.get("/drain").json["state"] == "draining")
    assert nsqd.http("DELETE", "/drain").status == 200
    _, errors = program.communicate(timeout=30)
    assert program.returncode == 1
    assert errors.decode() == f"{address(nsqd)}: the drain was cancelled\n"


def test_wait_says_what_is_blocked_and_prints_json(nsqd: Nsqd, tmp_path: Path) -> None:
    nsqd.post("/pub?topic=orders&defer=3600000", b"later")
    for flag in ("--log-level=info", "--json"):
        with Tool(tmp_path / flag, "penstock", "drain", address(nsqd), "--wait", flag) as tool:
            tool.until(lambda: tool.output.count(b"no consumers") == 1)
            first = tool.output.decode().splitlines()[0]
            nsqd.http("DELETE", "/drain")
            assert tool.wait() == 1
        if flag == "--json":
            assert json.loads(first)[address(nsqd)]["blocked_count"] == 1
        else:
            assert re.search(
                r"\(1 queued, 1 deferred, the last is due by 20\S*T\d\d:\d\dZ\)$", first
            )
        assert tool.log == f"{address(nsqd)}: the drain was cancelled\n"


def test_a_node_without_drains_is_told() -> None:
    """As NSQ's nsqd answers."""
    with Endpoint(404, b'{"message":"NOT_FOUND"}') as endpoint:
        done = drain(f"127.0.0.1:{endpoint.port}")
    assert done.returncode == 1
    assert b"cannot do this: it is NSQ's own nsqd, or an earlier version" in done.stderr


def test_a_node_that_is_started_again_at_once_was_drained(nsqd: Nsqd, tmp_path: Path) -> None:
    nsqd.post("/topic/delete?topic=orders")
    with Tool(tmp_path, "penstock", "drain", address(nsqd), "--wait") as tool:
        tool.until(lambda: b": drained" in tool.output)
        time.sleep(0.3)  # it asks for the start time
        tool.send(signal.SIGSTOP)
        assert nsqd.wait(10) == 0
        nsqd.start()
        tool.send(signal.SIGCONT)
        assert tool.wait() == 0, tool.log
        assert tool.output.decode().endswith(f"{address(nsqd)}: ended, and was started again\n")


def test_waiting_for_a_node_that_is_not_drained_fails(nsqd: Nsqd) -> None:
    done = drain(address(nsqd), "--status", "--wait")
    assert done.returncode == 1
    assert done.stderr.decode() == f"{address(nsqd)}: it is not being drained\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "needs a node"),
        (["h:1", "--status", "--cancel"], "use one of"),
        (["h:1", "--wait", "--cancel"], "use one of"),
        (["h:1", "--status", "--to=h:2"], "--to begins a drain"),
        (["h:1", "--lookupd-http-address=h:2"], "name the nodes"),
        (["h:1", "--nonsense"], "nonsense"),
        (["h"], '"h" is not the address of a node: host:port'),
        (["h:x", "--status"], '"h:x" is not the address of a node: host:port'),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], text: str) -> None:
    done = drain(*arguments)
    assert done.returncode in (1, 2)
    assert text in done.stderr.decode()


def test_a_node_that_does_not_answer_and_one_that_refuses_are_named(nsqd: Nsqd) -> None:
    done = drain("127.0.0.1:1", address(nsqd), "--to=nowhere")
    assert done.returncode == 1
    errors = done.stderr.decode()
    assert "127.0.0.1:1: " in errors
    assert f"{address(nsqd)}: INVALID_TO: to must be host:port" in errors


def test_messages_and_the_version_name_the_command() -> None:
    version = run_tool("penstock", "drain", "-version")
    assert version.stdout.startswith(b"penstock drain v")
    failed = run_tool("penstock", "drain", "-cancel")
    assert failed.returncode == 1 and failed.stderr.startswith(b"[penstock drain] ")
