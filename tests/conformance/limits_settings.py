"""Trials of further limits of nsqd: what clients may ask for, and what operators look at."""

from __future__ import annotations

import json
import signal
import time

import pytest

from penstock.wire import commands
from tests.support.auth_server import AuthServer, entry, reply
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.limits import Daemons, trial, tried_by


@trial("The delay of a requeue", "1h")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd("--max-req-timeout=300ms")
    with Client.of(nsqd).sub("requeued", "c", ready=1) as client:
        publish(nsqd, "requeued", b"x")
        client.req(client.message(), delay_ms=3_600_000)
        begin_s = time.monotonic()
        assert client.message().attempts == 2
        assert time.monotonic() - begin_s < 20, "clamped"


@trial("The output buffer of a client", "64 KiB, 25ms to 30s")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    Client.of(nsqd, output_buffer_size=65_536, output_buffer_timeout=30_000).close()
    for field in ({"output_buffer_size": 65_537}, {"output_buffer_timeout": 30_001}):
        with nsqd.connect() as raw:
            raw.send(commands.identify(field))
            assert raw.frame()[1].startswith(b"E_BAD_BODY IDENTIFY output buffer")


@trial("Consumers of a channel", "any number")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd("--max-channel-consumers=2")
    two = Client.of(nsqd).sub("crowded", "c"), Client.of(nsqd).sub("crowded", "c")
    with two[0], two[1], Client.of(nsqd) as third:
        third.send(commands.sub("crowded", "c"))
        assert third.error().startswith("E_SUB_FAILED")


@trial("Rules of a policy file", "10,000, in 4 MiB")
def _(daemons: Daemons) -> None:
    path = daemons.folder("policies") / "policies.toml"
    path.write_text("[[policy]]\nmax_messages = 5\n" * 10_000)
    nsqd = daemons.nsqd(f"--policy-file={path}")
    rule = "[[policy]]\nmax_messages = 5\n"
    for text, told in (
        (rule * 10_001, "10001 rules, over 10000"),
        ("#" * ((4 << 20) + 1), "more than 4 MiB"),
    ):
        path.write_text(text)
        nsqd.signal(signal.SIGHUP)
        nsqd.wait_for_log(f"policies stay as they were: .*{told}")
    assert nsqd.get("/stats?format=json&policies=true").json["policy_file"]["rules"] == 10_000


@trial("The body of a policy", "16 KiB")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    nsqd.post("/topic/create?topic=ruled")
    target, body = "/policy?topic=ruled", b'{"max_messages":5}'
    assert nsqd.http("PUT", target, body.ljust(16 * 1024)).status == 200
    assert nsqd.http("PUT", target, body.ljust(16 * 1024 + 1)).status == 413


@trial("Messages of one peek", "100, with 64 KiB of each body")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    nsqd.post("/topic/create?topic=peeked")
    nsqd.post("/channel/create?topic=peeked&channel=c")
    target = "/channel/peek?topic=peeked&channel=c"
    assert nsqd.get(f"{target}&count=100&size_max=65536").status == 200
    assert nsqd.get(f"{target}&count=101").status == 400
    assert nsqd.get(f"{target}&size_max=65537").status == 400


@trial("Progress report of a reader by index", "8 KiB, 16 levels")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    made = nsqd.post("/channel/pull?topic=reported&channel=c").json
    topics = {"reported": {"instance": made["instance"], "index": made["low"]}}

    def commit(progress: object) -> int:
        asked = {"channel": "c", "topics": topics, "progress": progress}
        return nsqd.post("/channel/commit", json.dumps(asked).encode()).status

    deep: dict[str, object] = {}
    for _ in range(20):
        deep = {"d": deep}
    assert commit({"text": "x" * 8_000}) == 200
    assert commit({"text": "x" * 8_192}) == 400
    assert commit(deep) == 400


@trial("A profile", "60 s")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    assert nsqd.get("/debug/pprof/profile?seconds=0.1").status == 200
    assert nsqd.get("/debug/pprof/profile?seconds=61").status == 400


@trial("A response of an auth server", "1 MiB, 10,000 authorizations")
def _(daemons: Daemons) -> None:
    many = reply(*[entry("^no$", (), ())] * 10_001)
    grants = {"good": reply(entry()), "many": many, "long": reply(entry("x" * (1 << 20)))}
    with AuthServer(grants=grants) as server:
        nsqd = Nsqd(daemons.folder("auth"), f"--auth-http-address={server.address}")
        with nsqd:
            for secret, answer in (
                ("good", b'{"identity"'),
                ("many", b"E_AUTH"),
                ("long", b"E_AUTH"),
            ):
                with nsqd.connect() as raw:
                    raw.send(commands.auth(secret.encode()))
                    assert raw.frame()[1].startswith(answer), secret


@trial("A token of the HTTP API", "8 to 512 characters")
def _(daemons: Daemons) -> None:
    folder = daemons.folder("tokens")
    for size, good in ((7, False), (8, True), (512, True), (513, False)):
        (folder / "file").write_text(f"admin {'x' * size}\n")
        nsqd = Nsqd(folder / "data", f"--http-auth-token-file={folder}/file")
        if good:
            nsqd.start()
            nsqd.stop()
        else:
            with pytest.raises(AssertionError, match="a token of 8 to 512"):
                nsqd.start()


tried_by(
    "Data decompressed in one turn",
    "256 KiB",
    "tests.conformance.test_compression:test_a_bomb_does_not_hold_the_others",
)
tried_by(
    "Records of damage that are kept",
    "500",
    "tests.unit.engine.test_damage:test_reports_are_bounded",
)
