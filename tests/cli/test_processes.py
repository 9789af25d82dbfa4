"""`nsqd --processes N`: several nsqds as one command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.nodes import node_flags, numbered
from penstock.cli.nsqd import flag_table
from penstock.client import sync
from penstock.engine.options import Options
from penstock.errors import OptionError
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.processes import children, gone
from tests.support.waits import eventually

pytestmark = pytest.mark.timeout(110)


def nodes(count: int, **given: Any) -> list[Options]:
    """The options with which the nodes of a command line would run."""
    options = Options(processes=count, **given)
    return [flag_table().parse(own, {}).options for own in node_flags(options)]


def wait_for_all(nsqd: Nsqd) -> None:
    for node in (0, 1):
        nsqd.wait_for_log(rf"^\[nsqd-{node}\] .* HTTP: listening on ")


def test_each_node_has_its_own_ports_folder_and_id() -> None:
    first, second = nodes(2, data_path="/d", node_id=1023, broadcast_tcp_port=5000)
    assert (first.tcp_address, first.http_address) == ("0.0.0.0:4150", "0.0.0.0:4151")
    assert (second.tcp_address, second.http_address) == ("0.0.0.0:4250", "0.0.0.0:4251")
    assert second.https_address == "0.0.0.0:4252"
    assert (first.data_path, second.data_path) == ("/d/node-0", "/d/node-1")
    assert (first.node_id, second.node_id) == (1023, 0)
    assert (second.broadcast_tcp_port, second.broadcast_http_port) == (5100, 0)
    assert (first.processes, second.processes) == (1, 1)
    assert first.log_prefix == "[nsqd-0] "


def test_port_0_no_address_and_sockets() -> None:
    [_, second] = nodes(2, tcp_address="[::1]:0", http_address="")
    assert (second.tcp_address, second.http_address) == ("[::1]:0", "")
    assert [node.tcp_address for node in nodes(2, tcp_address="/s")] == ["/s", "/s.1"]
    assert numbered("", 1) == "-1"


def test_nodes_never_meet_nsqlookupd_or_one_another() -> None:
    ports = [
        int(address.rpartition(":")[2])
        for node in nodes(256)
        for address in (node.tcp_address, node.http_address, node.https_address)
    ]
    assert len(set(ports)) == len(ports)
    assert not {4160, 4161, 4170, 4171} & set(ports)
    with pytest.raises(OptionError, match=r"node 1 would also listen on 0\.0\.0\.0:4250"):
        nodes(2, http_address="0.0.0.0:4250")
    with pytest.raises(OptionError, match="node 1 would need port 65600"):
        nodes(2, http_address="0.0.0.0:65500")


@pytest.mark.parametrize("rest", [[], ["--"], ["--", "-x"], ["word", "--sync-every=1"]])
def test_what_follows_the_flags_is_left_out(rest: list[str]) -> None:
    flags = ["--log-prefix", "--", "-processes=2"]
    assert flag_table().flags_of([*flags, *rest]) == flags


def test_nodes_register_one_by_one_and_a_dead_one_comes_back(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        options = ("--processes=2", f"--lookupd-tcp-address={lookupd.tcp_address}")
        with Nsqd(tmp_path, *options, "--broadcast-address=127.0.0.1") as nsqd:
            wait_for_all(nsqd)

            def found() -> list[Any]:
                producers: list[Any] = lookupd.get("/nodes").json["producers"]
                return producers

            assert eventually(lambda: len(found()) == 2)
            for number, node in enumerate(found()):
                with sync.Producer(f"127.0.0.1:{node['tcp_port']}") as producer:
                    producer.publish("t", b"%d" % number)
            before = children(nsqd.pid)
            assert len(before) == 2
            os.kill(before[0], signal.SIGKILL)
            nsqd.wait_for_log(r"node=\d: ended by SIGKILL, restarting in 0.25 s")
            assert eventually(lambda: len(children(nsqd.pid)) == 2 == len(found()))
            bodies = set()
            with sync.Consumer(
                "t", "ch", lookupd_http_addresses=lookupd.http_address, max_in_flight=2
            ) as consumer:
                for message in consumer:
                    bodies.add(message.body)
                    message.finish()
                    if len(bodies) == 2:
                        break
            after = children(nsqd.pid)
            nsqd.signal(signal.SIGINT)
            assert nsqd.wait() == 0
            assert gone([*before, *after])
    assert bodies == {b"0", b"1"}
    assert len(re.findall("NSQ: bye", nsqd.log)) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"node-0", "node-1"}


def test_a_drained_node_is_not_started_again(tmp_path: Path) -> None:
    with Nsqd(tmp_path, "--processes=2") as nsqd:
        wait_for_all(nsqd)
        for line in [line for line in nsqd.lines if " HTTP: listening on " in line]:
            port = int(line.rpartition(":")[2])
            request = urllib.request.Request(f"http://127.0.0.1:{port}/drain", method="POST")
            with urllib.request.urlopen(request, timeout=10) as reply:
                assert reply.status == 200
            nsqd.wait_for_log("NSQ: drained: nothing is left")
        assert nsqd.wait(20) == 0
    assert "restarting" not in nsqd.log
    assert nsqd.log.count("NSQ: drained") == 2
    assert "is not started again; the others continue" in nsqd.log
    assert "ended, as the last one" in nsqd.log


def test_sighup_reaches_each_and_kill_9_leaves_nothing_running(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text('log_level = "info"')
    with Nsqd(tmp_path, "--processes=2", f"--config={config}") as nsqd:
        wait_for_all(nsqd)
        config.write_text('log_level = "debug"')
        nsqd.signal(signal.SIGHUP)
        for node in (0, 1):
            nsqd.wait_for_log(rf"^\[nsqd-{node}\] .* SIGHUP: log_level is debug now")
        assert nsqd.post("/pub?topic=t", b"kept").text == "OK"
        pids = children(nsqd.pid)
        nsqd.kill()
        assert gone(pids)
    assert len(re.findall("NSQ: bye", nsqd.log)) == 2
    assert len(list(tmp_path.glob("node-*/penstock/topics/t~*"))) == 1


def test_a_node_that_cannot_start_ends_all_of_them(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as other:
        nsqd = Nsqd(tmp_path / "several", "--processes=2")
        nsqd.data_path.mkdir()
        nsqd.http_port = other.http_port
        done = subprocess.run(
            [*nsqd.command(), *nsqd.options], capture_output=True, text=True, timeout=20
        )
    assert done.returncode == 1
    assert f"listen (127.0.0.1:{other.http_port}) failed" in done.stderr
    assert "FATAL: node=0: could not start" in done.stderr
    assert done.stderr.endswith("NSQ: bye\n")


def test_messages_of_another_number_of_nodes_are_not_forgotten(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        pass
    with pytest.raises(AssertionError, match="contains the messages of a single nsqd"):
        Nsqd(tmp_path, "--processes=2").start()
    for name in ("node-0", "node-1", "node-2"):
        (tmp_path / "several" / name).mkdir(parents=True)
    with Nsqd(tmp_path / "several") as nsqd:
        nsqd.wait_for_log("WARNING: no node serves node-0, node-1, node-2 of ")
    (tmp_path / "several" / "nsqd.dat").rename(tmp_path / "nsqd.dat.old")
    with pytest.raises(AssertionError, match="contains the messages of a single nsqd"):
        Nsqd(tmp_path / "several", "--processes=2").start()
