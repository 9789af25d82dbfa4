"""The commands of docs/log.md, in the order of the page, on real daemons."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tools import PROGRAMS, RUN_SECONDS_MAX
from tests.meta.coverage_table import ROOT
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import wait_for

PAGE = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"(?m)^    (?:\$ )?((?:curl|penstock|nsq_tail) .*)$", PAGE)
EXAMPLE_ID = "015a3185c53e9000"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Nsqlookupd, Nsqd, Nsqd]]:
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with (
            Nsqd(tmp_path / "a", *flags) as nsqd,
            Nsqd(tmp_path / "b", "--node-id=7", *flags) as other,
        ):
            yield lookupd, nsqd, other


def prepare(lookupd: Nsqlookupd, nsqd: Nsqd) -> None:
    """What the page speaks of: two orders that were buried, a dead topic, quotes."""
    for topic in ("orders", "quotes", "orders.email.dead"):
        assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    assert nsqd.post("/channel/create?topic=orders&channel=email").status == 200
    keys = b'{"max_attempts": 1}'
    assert nsqd.http("PUT", "/policy?topic=orders&channel=email", keys).status == 200
    publish(nsqd, "orders", b"1", b"2", b"3")
    publish(nsqd, "orders.email.dead", b"4")
    with Client.of(nsqd).sub("orders", "email", ready=3) as client:
        client.req(client.message())
        client.req(client.message())
        client.fin(client.message())
        wait_for(lambda: nsqd.get("/channel/dead?topic=orders&channel=email").json["count"], 2)
    wait_for(lambda: len(lookupd.get("/lookup?topic=orders").json.get("producers", [])), 1)


def buried(nsqd: Nsqd) -> str:
    """The id of a message that was just buried."""
    keys = b'{"max_attempts": 1}'
    assert nsqd.http("PUT", "/policy?topic=orders&channel=email", keys).status == 200
    publish(nsqd, "orders", b"5")
    with Client.of(nsqd).sub("orders", "email", ready=1) as client:
        client.req(client.message())
        answer = wait_for(
            lambda: nsqd.get("/channel/dead?topic=orders&channel=email").json["messages"], bool
        )
    return str(answer[0]["id"])


def answered_yes(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a terminal at which somebody answers every question with yes."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"yes\n")
        environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-c", command],
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            env=environment,
        )
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.timeout(180)
def test_the_commands_of_the_page_work(nodes: tuple[Nsqlookupd, Nsqd, Nsqd]) -> None:
    lookupd, nsqd, other = nodes
    prepare(lookupd, nsqd)
    places = {
        "10.0.0.2:4151": f"127.0.0.1:{other.http_port}",
        "127.0.0.1:4150": f"127.0.0.1:{nsqd.tcp_port}",
        "127.0.0.1:4151": f"127.0.0.1:{nsqd.http_port}",
        "127.0.0.1:4161": lookupd.http_address,
        "curl ": "curl --silent --show-error --fail-with-body ",
    }
    for shown in COMMANDS:
        if " pipeline " in shown:
            continue  # needs Spark: tests/spark/test_retained.py
        command = shown
        for place, here in places.items():
            command = command.replace(place, here)
        if command.startswith("nsq_tail"):
            command += " -n 1"
        if " drain " in command:
            for topic in nsqd.stats()["topics"]:
                assert nsqd.post(f"/topic/delete?topic={topic['topic_name']}").status == 200
        if EXAMPLE_ID in command:
            command = command.replace(EXAMPLE_ID, buried(nsqd))
        done = answered_yes(command)
        assert done.returncode == 0, (shown, done.stdout, done.stderr)
        if command.startswith("curl"):
            assert "message" not in json.loads(done.stdout or "{}"), (shown, done.stdout)
    assert nsqd.wait(10) == 0


def test_every_feature_has_an_example() -> None:
    assert len(COMMANDS) >= 20
    bare = [
        part.partition("\n")[0]
        for part in re.split(r"(?m)^## ", PAGE)[1:]
        if not re.search(r"(?m)^    \S", part)
    ]
    assert bare == ["Compared with Kafka, JetStream and SQS"]
