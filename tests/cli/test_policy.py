"""`penstock policy` over two nodes: what they have, where they differ, which one failed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tools import run_tool
from tests.support.certificates import Pki
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.endpoint import Endpoint
from tests.support.waits import eventually

Pair = tuple[Nsqd, Nsqd]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("policy")
    rules = folder / "p.toml"
    rules.write_text('[[policy]]\ntopic = "orders"\nretain = "1h"\n')
    with (
        Nsqd(folder / "a", f"--policy-file={rules}") as first,
        Nsqd(folder / "b", "--node-id=7") as second,
    ):
        for nsqd in (first, second):
            nsqd.post("/topic/create?topic=orders")
            nsqd.post("/channel/create?topic=orders&channel=email")
        yield first, second


def address(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.http_port}"


def policy(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return run_tool("penstock", "policy", *arguments)


def flags(*nsqds: Nsqd) -> list[str]:
    return [f"--nsqd-http-address={address(nsqd)}" for nsqd in nsqds]


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return [" ".join(line.split()) for line in done.stdout.decode().splitlines()]


def test_values_are_set_shown_and_unset_on_all_nodes(pair: Pair) -> None:
    place = [*flags(*pair), "--topic=orders", "--channel", "email"]
    done = policy("set", *place, "max_attempts=5", "on_max_attempts=bury")
    assert done.returncode == 0, done.stderr
    assert lines(done) == [
        "topic=orders channel=email",
        "max_attempts 5 set",
        "on_max_attempts bury set",
    ]
    shown = lines(policy("show", *place))
    assert "max_attempts 5 set" in shown and "channel_lapse 0 default" in shown
    for nsqd in pair:
        found = nsqd.get("/policy?topic=orders&channel=email").json["policy"]
        assert found["max_attempts"] == {"value": 5, "origin": "set"}
    done = policy("unset", "max_attempts", *place, "on_max_attempts")
    assert lines(done)[1:] == ["max_attempts 0 default", "on_max_attempts bury default"]


def test_differences_between_nodes_are_shown(pair: Pair) -> None:
    first, second = map(address, pair)
    done = policy("show", *flags(*pair), "--topic=orders")
    assert done.returncode == 0
    told = lines(done)
    at = next(n for n, line in enumerate(told) if line.startswith("retain 1h"))
    assert told[at].startswith("retain 1h file: ") and told[at].endswith(f"3 on {first}")
    assert told[at + 1] == f"0 default on {second}"
    assert told[at + 2] == "retain_bytes 0 default"
    both = json.loads(policy("show", *flags(*pair), "--topic=orders", "--json").stdout)
    assert both["nodes"][second]["retain"] == {"value": "0", "origin": "default"}


def test_without_a_topic_all_policies_are_shown(pair: Pair) -> None:
    first, second = map(address, pair)
    assert lines(policy("show", *flags(*pair))) == [
        "topic=orders",
        f"retain=1h on {first}",
        f"- on {second}",
    ]
    assert lines(policy("show", *flags(pair[1]))) == ["no topic or channel has a policy"]


def test_a_node_that_failed_is_named_and_is_a_failure(pair: Pair) -> None:
    gone = "127.0.0.1:1"
    place = [*flags(pair[0]), f"--nsqd-http-address={gone}", "--topic=orders"]
    done = policy("set", *place, "max_bytes=10GB")
    assert done.returncode == 1
    assert lines(done) == ["topic=orders", "max_bytes 10GB set"]
    assert gone in done.stderr.decode() and "Traceback" not in done.stderr.decode()
    assert policy("unset", *flags(*pair), "--topic=orders", "max_bytes").returncode == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["retain=7"], "INVALID_VALUE: retain must be a duration"),
        (["retian=7d"], "INVALID_KEY: 'retian' is not a key of policies; did you mean retain?"),
        (["max_attempts=5"], "INVALID_KEY: max_attempts is not a key of topics"),
    ],
)
def test_what_the_nodes_refuse_is_told(pair: Pair, words: list[str], error: str) -> None:
    done = policy("set", *flags(*pair), "--topic=orders", *words)
    assert done.returncode == 1 and done.stdout == b""
    told = done.stderr.decode().splitlines()
    assert [line.partition(": ")[0] for line in told] == [address(nsqd) for nsqd in pair]
    assert all(error in line for line in told)
    assert policy("show", *flags(*pair), "--topic=none").stderr.count(b"TOPIC_NOT_FOUND") == 2


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ([], 2, "Usage: penstock policy show|set|unset"),
        (["drop"], 2, "Usage: penstock policy show|set|unset"),
        (["show", "--tpic=a"], 2, "did you mean -topic?"),
        (["show"], 1, "--nsqd-http-address or --lookupd-http-address required"),
        (["show", "--nsqd-http-address=a:1", "--lookupd-http-address=b:1"], 1, "not both"),
        (["show", "--nsqd-http-address=a:1", "--channel=c"], 1, "--channel needs --topic"),
        (["show", "--nsqd-http-address=a:1", "x"], 1, 'unexpected argument "x"'),
        (["set", "--nsqd-http-address=a:1", "retain=1h"], 1, "--topic is required"),
        (["set", "--nsqd-http-address=a:1", "--topic=t"], 1, "set needs at least one key"),
        (["set", "--nsqd-http-address=a:1", "--topic=t", "retain"], 1, "must be key=value"),
        (["set", "--nsqd-http-address=a:1", "--topic=t", "a=1", "a=2"], 1, "a is given twice"),
        (["unset", "--nsqd-http-address=a:1", "--topic=t", "a=1"], 1, "a key without a value"),
        (["show", "--nsqd-http-address=a:1", "--http-client-tls-cert=c"], 1, "go together"),
    ],
)
def test_a_wrong_command_line_is_told(arguments: list[str], status: int, error: str) -> None:
    done = policy(*arguments)
    assert (done.returncode, done.stdout) == (status, b"")
    assert error in done.stderr.decode(), done.stderr.decode()


def test_nodes_are_found_with_nsqlookupd_and_the_token_goes_to_nsqds_only(
    tmp_path: Path, pki: Pki
) -> None:
    (tmp_path / "tokens").write_text("admin admin-token-0\nread read-token-00\n")
    (tmp_path / "reader").write_text("read-token-00\n")
    with (
        Nsqlookupd() as lookupd,
        Nsqd(
            tmp_path / "a",
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
            f"--http-auth-token-file={tmp_path / 'tokens'}",
            *pki.options(),
            "--tls-required=true",
        ),
    ):
        eventually(lambda: lookupd.get("/nodes").json["producers"])
        place = [f"--lookupd-http-address={lookupd.http_address}"]
        trust = f"--http-client-tls-root-ca-file={pki.ca}"
        token = f"--nsqd-auth-token-file={tmp_path / 'tokens'}"
        assert policy("show", *place, "--topic=orders").returncode == 1
        done = policy("show", *place, trust, token)
        assert (done.returncode, lines(done)) == (0, ["no topic or channel has a policy"])
        reader = policy("show", *place, trust, f"--nsqd-auth-token-file={tmp_path / 'reader'}")
        assert reader.returncode == 1 and b"FORBIDDEN" in reader.stderr
        assert b"UNAUTHORIZED" in policy("show", *place, trust).stderr


@pytest.mark.parametrize(
    ("status", "body", "exit_status"),
    [
        (200, b"", 0),
        (200, b"[]", 0),
        (200, b'{"policy":{"retain":5,"x":{"value":{"a":[1]},"origin":7}}}', 0),
        (200, b'{"topics":[{"topic_name":"t","policy":[],"channels":5}]}', 0),
        (200, b"<html>", 1),
        (200, b"[" * 100_000, 1),
        (500, b"", 1),
        (404, b'{"message":{"a":1}}', 1),
    ],
    ids=range(8),
)
def test_a_node_that_answers_nonsense_does_no_harm(
    status: int, body: bytes, exit_status: int
) -> None:
    with Endpoint(status, body) as endpoint:
        for place in ([], ["--topic=t"]):
            done = policy("show", f"--nsqd-http-address=127.0.0.1:{endpoint.port}", *place)
            assert done.returncode == exit_status, (done.stdout, done.stderr)
            assert b"Traceback" not in done.stderr and len(done.stderr) < 2000
