"""What an operator sees of a real nsqd: latency, statsd, /metrics, /debug, the log."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.nsqd.policy_metrics import CHANNEL_COUNTS, TOPIC_COUNTS
from tests.support.client import Client
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import wait_until

REPOSITORY = Path(__file__).parents[2]
NAMES = ("orders", "orders.eu-1_x", "temporary#ephemeral")


class StatsdListener:
    """A statsd that keeps its packets."""

    def __init__(self, port: int = 0) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", port))
        self.sock.settimeout(10)
        self.address = f"127.0.0.1:{self.sock.getsockname()[1]}"

    def __enter__(self) -> StatsdListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def push(self, last: str = "mem.gc_runs") -> list[bytes]:
        """The packets up to the one that ends a push."""
        packets: list[bytes] = []
        while not packets or f"{last}:".encode() not in packets[-1]:
            packets.append(self.sock.recv(65536))
        return packets


def values_of(packets: list[bytes], prefix: str = "") -> dict[str, str]:
    """Keys without their prefix, and what stands behind the colon."""
    lines = b"".join(packets).decode().splitlines()
    assert all(line.startswith(prefix) for line in lines), lines
    pairs = [line.removeprefix(prefix).split(":") for line in lines]
    assert len(dict(pairs)) == len(pairs), "no key twice"
    return dict(pairs)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    flags = ("0.5", "1.0,0.99")
    options = [f"--e2e-processing-latency-percentile={flag}" for flag in flags]
    options.append("--enable-experiment=topology-aware-consumption")
    with Nsqd(tmp_path_factory.mktemp("watching"), *options) as daemon:
        yield daemon


# End-to-end latency


def test_latency_is_measured_from_publish_to_finish(nsqd: Nsqd) -> None:
    with Client.of(nsqd) as client:
        client.sub("timed", "c", ready=10)
        client.pub("timed", b"a")
        message = client.message()
        quiet = nsqd.channel("timed", "c")["e2e_processing_latency"]
        time.sleep(0.05)
        client.fin(message)
        wait_until(lambda: nsqd.channel("timed", "c")["e2e_processing_latency"]["count"] == 1)
        assert quiet == {
            "count": 0,
            "percentiles": [{"quantile": q, "value": 0} for q in (1, 0.99, 0.5)],
        }
        (topic,) = nsqd.stats("&topic=timed")["topics"]
        told = topic["channels"][0]["e2e_processing_latency"]
        assert told == topic["e2e_processing_latency"], "a topic merges its channels"
        assert [entry["quantile"] for entry in told["percentiles"]] == [1, 0.99, 0.5]
        assert all(0.05e9 <= entry["value"] < 5e9 for entry in told["percentiles"])
        text = nsqd.get("/stats?topic=timed").text
        lines = re.findall(r"msgs: 1 +e2e%: (.*)", text)
        assert len(lines) == 2
        assert all(re.fullmatch(r"(\d+\.\d(ms|s)(, |$)){3}", line) for line in lines), lines


# statsd


def test_statsd_gets_nsqds_keys(tmp_path: Path) -> None:
    with StatsdListener() as statsd:
        options = (
            f"--statsd-address={statsd.address}",
            "--statsd-interval=1s",
            "--statsd-udp-packet-size=200",
            "--e2e-processing-latency-percentile=0.99",
            "--broadcast-address=10.0.0.1",
            "--broadcast-http-port=4151",
        )
        with Nsqd(tmp_path, *options) as nsqd, Client.of(nsqd) as client:
            prefix = "nsq.10_0_0_1_4151."
            assert nsqd.get("/config/statsd_prefix").text == prefix
            client.sub("t#ephemeral", "c.1", ready=10)
            client.pub("t#ephemeral", b"abc")
            client.fin(client.message())
            pushes = [statsd.push(), statsd.push(), statsd.push()]
            assert max(map(len, itertools.chain(*pushes))) <= 200
            assert all(packet.endswith(b"\n") for packet in itertools.chain(*pushes))
            told = [values_of(push, prefix) for push in pushes]
            topic, channel = "topic.t#ephemeral.", "topic.t#ephemeral.channel.c.1."
            latency = "e2e_processing_latency_99"
            names = (
                *("message_count", "depth", "backend_depth", "in_flight_count"),
                *("deferred_count", "requeue_count", "timeout_count", "clients", latency),
            )
            memory = (
                *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
                *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"),
                "gc_runs",
            )
            assert list(told[-1]) == [
                *(topic + name for name in ("message_count", "message_bytes")),
                *(topic + name for name in ("depth", "backend_depth", latency)),
                *(channel + name for name in names),
                *(f"mem.{name}" for name in memory),
            ]
            sums = [
                sum(int(push.get(key, "0|").split("|")[0]) for push in told)
                for key in (f"{topic}message_count", f"{channel}message_count")
            ]
            assert sums == [1, 1], "counters are differences"
            assert told[-1][f"{channel}clients"] == "1|g"
            assert int(told[-1][channel + latency].removesuffix("|g")) > 0


def test_a_statsd_that_is_away_is_told_once_and_found_again(tmp_path: Path) -> None:
    with StatsdListener() as listener:
        address, port = listener.address, listener.sock.getsockname()[1]
    options = (
        f"--statsd-address={address}",
        "--statsd-interval=200ms",
        "--statsd-udp-packet-size=100",
        "--statsd-prefix=",
    )
    with Nsqd(tmp_path, *options) as nsqd:
        nsqd.wait_for_log("statsd=.*: cannot push: ")
        time.sleep(0.6)
        assert len(re.findall("cannot push", nsqd.log)) == 1
        with StatsdListener(port) as statsd:
            statsd.push()
            told = values_of(statsd.push())
            assert "mem.heap_objects" in told, "an empty prefix stays empty"
            nsqd.wait_for_log("statsd=.*: pushing works again")


def test_a_statsd_with_a_name_nobody_knows_does_no_harm(tmp_path: Path) -> None:
    options = ("--statsd-address=no.such.host.invalid:8125", "--statsd-interval=100ms")
    with Nsqd(tmp_path, *options) as nsqd:
        nsqd.wait_for_log("statsd=no.such.host.invalid:8125: cannot push: ")
        assert nsqd.get("/ping").text == "OK"
        assert nsqd.terminate() == 0


# Prometheus


def families(nsqd: Nsqd) -> dict[str, Metric]:
    reply = nsqd.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = list(text_string_to_metric_families(reply.text))
    assert len({family.name for family in found}) == len(found), "a family stands together"
    for family in found:
        assert family.name.startswith("penstock_")
        assert family.documentation and family.type != "unknown", family
    return {family.name: family for family in found}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    (sample,) = [
        sample
        for sample in found[name].samples
        if sample.name in (name, f"{name}_total", f"{name}_count") and sample.labels == labels
    ]
    return float(sample.value)


def test_metrics_are_read_by_the_official_parser(nsqd: Nsqd) -> None:
    with Client.of(nsqd) as client, Client.of(nsqd) as other:
        for name in NAMES:
            nsqd.post(f"/topic/create?topic={name.replace('#', '%23')}")
        client.sub(NAMES[0], "c.1#ephemeral", ready=2)
        other.sub(NAMES[2], "c", ready=1)
        for _ in range(4):
            client.pub(NAMES[0], b"abc")
        first, second = client.message(), client.message()
        client.fin(first)
        client.req(second)
        wait_until(lambda: nsqd.channel(NAMES[0], "c.1%23ephemeral")["requeue_count"] == 1)
        found = families(nsqd)
        assert {s.labels["topic"] for s in found["penstock_topic_depth"].samples} >= set(NAMES)
        assert {s.labels["topic"] for s in found["penstock_log_bytes"].samples} >= set(NAMES[:2])
        where = {"topic": NAMES[0], "channel": "c.1#ephemeral"}
        assert value(found, "penstock_channel_messages", **where) == 4
        assert value(found, "penstock_channel_finishes", **where) == 1
        assert value(found, "penstock_channel_requeues", **where) == 1
        assert value(found, "penstock_channel_clients", **where) == 1
        assert value(found, "penstock_channel_in_flight", **where) == 2
        assert value(found, "penstock_channel_deliveries", **where) == 4
        assert value(found, "penstock_topic_message_bytes", topic=NAMES[0]) == 12
        assert value(found, "penstock_clients") == 2
        assert value(found, "penstock_healthy") == 1
        assert value(found, "penstock_tcp_commands") >= 9
        commands = value(found, "penstock_tcp_commands")
        quantiles = [s.labels["quantile"] for s in found["penstock_topic_latency_seconds"].samples]
        assert set(quantiles) == {"1.0", "0.99", "0.5"}
    wait_until(lambda: value(families(nsqd), "penstock_clients") == 0)
    assert value(families(nsqd), "penstock_tcp_commands") >= commands, "a counter never falls"


def test_metrics_show_the_process_its_disk_and_what_is_deferred(nsqd: Nsqd) -> None:
    with Client.of(nsqd) as client:
        client.dpub("later", 3_600_000, b"x")
        client.dpub("later", 10, b"x")
        wait_until(lambda: nsqd.stats("&topic=later")["topics"][0]["depth"] == 1)
        found = families(nsqd)
        assert value(found, "penstock_deferred_pending") == 1
        assert value(found, "penstock_topic_deferred", topic="later") == 1
        assert value(found, "penstock_deferred_slots") >= 1
        assert value(found, "penstock_deferred_lateness_seconds") >= 1
        assert value(found, "penstock_log_segments", topic="later") == 1
        assert value(found, "penstock_log_bytes", topic="later") > 0
        assert value(found, "penstock_reserve_held") == 1
        assert value(found, "penstock_open_files") > 5
        assert value(found, "penstock_resident_memory_bytes") > 1e6
        assert value(found, "penstock_cpu_seconds") > 0
        assert value(found, "penstock_http_requests", status="200") > 0
        assert abs(value(found, "penstock_start_time_seconds") - time.time()) < 600
        wait_until(lambda: value(families(nsqd), "penstock_sync_duration_seconds") >= 1)
        wait_until(lambda: value(families(nsqd), "penstock_loop_lag_seconds") >= 2)


def test_every_metric_is_documented_and_every_panel_of_the_dashboard_has_one(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    names = {
        name + "_total" if family.type == "counter" else name
        for name, family in families(nsqd).items()
    }
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    # Also those of nsqlookupd, which has a page of its own.
    with Nsqlookupd() as lookupd:
        names |= set(re.findall(r"(?m)^(penstock_\w+)", lookupd.get("/metrics").text))
    documented = set(re.findall(r"`(penstock_\w+)`", page))
    assert names ^ (documented & names) == set(), "every metric is in docs/operations.md"
    assert documented <= names, "and nothing else is"
    rules = (REPOSITORY / "examples" / "prometheus" / "penstock.rules.yml").read_text()
    shown = page[page.index("Suggested alerts:") :].split("```yaml\n")[1].split("```")[0]
    assert textwrap.dedent(rules.partition("rules:\n")[2]) == shown
    alerts = {name.removesuffix("_bucket") for name in re.findall(r"\bpenstock_\w+", page)}
    assert alerts <= names
    dashboard = json.loads((REPOSITORY / "examples" / "grafana" / "penstock.json").read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    shown = {name.removesuffix("_bucket") for name in re.findall(r"\bpenstock_\w+", str(queries))}
    assert len(shown) > 25 and shown <= names
    counts = {counted.name for counted in (*TOPIC_COUNTS, *CHANNEL_COUNTS)}
    assert counts <= shown, "the dashboard has what policies did"
    more = (REPOSITORY / "examples" / "prometheus" / "policies.rules.yml").read_text()
    assert set(re.findall(r"\bpenstock_\w+", more)) <= names
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


# /debug


def test_debug_pages_are_text(nsqd: Nsqd) -> None:
    pages = {
        "": "goroutine",
        "goroutine": "MainThread",
        "heap": "builtins.dict",
        "cmdline": "nsqd\0--data-path=",
        "threadcreate": "threads: ",
        "symbol": "num_symbols: 1",
        "block": "loop",
    }
    for page, part in pages.items():
        reply = nsqd.get(f"/debug/pprof/{page}")
        assert (reply.status, reply.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert part in reply.text, page
    assert nsqd.post("/debug/pprof/symbol").status == 200
    assert nsqd.get("/debug/pprof").headers["Location"] == "/debug/pprof/"


def test_a_profile_is_taken_while_the_loop_goes_on(nsqd: Nsqd) -> None:
    replies = []
    thread = threading.Thread(
        target=lambda: replies.append(nsqd.get("/debug/pprof/profile?seconds=1.5"))
    )
    thread.start()
    wait_until(lambda: " debug\n" in nsqd.get("/debug/pprof/threadcreate").text)
    busy = nsqd.get("/debug/pprof/profile?seconds=1")
    assert busy.status == 500 and "already in use" in busy.text
    assert nsqd.get("/ping").text == "OK"
    thread.join(10)
    (profile,) = replies
    lines = profile.text.splitlines()
    assert profile.status == 200 and lines
    assert all(re.fullmatch(r"\S+(;\S+)* \d+", line) for line in lines), lines
    for wrong in ("0", "61", "x", "nan", "-1"):
        assert nsqd.get(f"/debug/pprof/profile?seconds={wrong}").status == 400


def test_two_debug_calls_always_answer_500_as_nsqd_does(nsqd: Nsqd) -> None:
    for method, target in (("PUT", "setblockrate?rate=100"), ("POST", "freememory")):
        reply = nsqd.http(method, f"/debug/{target}")
        assert (reply.status, reply.json) == (500, {"message": "INTERNAL_ERROR"})
    reply = nsqd.http("PUT", "/debug/setblockrate?rate=many")
    assert (reply.status, reply.text) == (
        400,
        'invalid block rate : strconv.Atoi: parsing "many": invalid syntax',
    )


# Topology


def test_consumers_of_the_zone_come_first(tmp_path: Path) -> None:
    options = (
        "--enable-experiment=topology-aware-consumption",
        "--topology-zone=z1",
        "--topology-region=r1",
    )
    places = {"zone": ("z1", "r1"), "region": ("z2", "r1"), "other": ("z3", "r2")}
    with Nsqd(tmp_path, *options) as nsqd, Client.of(nsqd) as silent:
        clients = {
            name: Client.of(nsqd, topology_zone=zone, topology_region=region)
            for name, (zone, region) in places.items()
        }
        for client in (*clients.values(), silent):
            client.sub("t", "c", ready=10)
        for _ in range(22):
            silent.pub("t", b"x")
        wait_until(lambda: nsqd.channel("t", "c")["in_flight_count"] == 22)
        channel = nsqd.channel("t", "c")
        assert channel["zone_local_msg_count"] == 10
        assert channel["region_local_msg_count"] == 10
        assert channel["global_msg_count"] == 2
        found = families(nsqd)
        where = {"topic": "t", "channel": "c", "locality": "zone"}
        assert value(found, "penstock_channel_local_deliveries", **where) == 10
        for client in clients.values():
            client.close()
        wait_until(lambda: nsqd.channel("t", "c")["client_count"] == 1)
        channel = nsqd.channel("t", "c")
        assert channel["zone_local_msg_count"] == 10, "what was sent stays counted"


# Options that change, and the log


def test_sighup_reads_the_config_file_again(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text('log_level = "info"\n')
    with Nsqd(tmp_path / "data", f"--config={config}") as nsqd:
        config.write_text('log_level = "debug"\nmax_rdy_count = 5\n')
        nsqd.signal(signal.SIGHUP)
        nsqd.wait_for_log("SIGHUP: max_rdy_count needs a restart")
        assert nsqd.get("/config/log_level").json == 1
        assert nsqd.get("/config/max_rdy_count").json == 2500
        config.write_text("log_level = 7\n")
        nsqd.signal(signal.SIGHUP)
        nsqd.wait_for_log("ERROR: SIGHUP: nothing changed: ")
        assert nsqd.get("/config/log_level").json == 1


def test_the_log_level_is_changed_over_http(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        assert nsqd.http("PUT", "/config/log_level", b"DEBUG").json == 1
        with Client.of(nsqd):
            nsqd.wait_for_log("DEBUG: client=.*: connected")
        addresses = nsqd.http("PUT", "/config/nsqlookupd_tcp_addresses", b"[]")
        assert (addresses.status, addresses.json) == (200, [])


def test_json_logs_are_one_object_a_line(tmp_path: Path) -> None:
    with Nsqd(tmp_path, "--log-format=json", "--log-level=debug") as nsqd:
        with Client.of(nsqd) as client:
            client.sub("t", "c", ready=1)
        nsqd.post("/topic/create?topic=u%0A")
        nsqd.wait_for_log("INVALID|400")
        assert nsqd.terminate() == 0
        lines = [json.loads(line) for line in nsqd.lines]
        assert len(lines) > 5
        for line in lines:
            assert list(line) == ["time", "level", "program", "text"]
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:\d\d", line["time"])
