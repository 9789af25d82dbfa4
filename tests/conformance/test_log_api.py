"""Reading topics by index over HTTP from a real nsqd, as Spark does (R18)."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.core.batches import scan
from tests.support.daemon import ERROR, Nsqd, Nsqlookupd, Reply
from tests.support.page_cache import forget
from tests.support.timing import late_s
from tests.support.waits import wait_until

# Nothing is synced but for a poll.
LAZY = ("--sync-every=1000000", "--sync-timeout=1h")
SMALL = ("--max-bytes-per-file=20000",)


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "nsqd") as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def ok(reply: Reply) -> Any:
    assert reply.status == 200, reply
    return reply.json


def pull(nsqd: Nsqd, start: str = "earliest", topic: str = "t") -> Any:
    return ok(nsqd.post(f"/channel/pull?topic={topic}&channel=q&start={start}"))


def ends_body(topics: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"topics": topics, **more}).encode()


def ends(nsqd: Nsqd, topics: dict[str, Any], **more: Any) -> Any:
    return ok(nsqd.post("/log/ends", ends_body(topics, **more)))["topics"]


def commit(nsqd: Nsqd, told: Any, index: int, **more: Any) -> Reply:
    topics = {told["topic"]: {"instance": told["instance"], "index": index}}
    body = json.dumps({"channel": "q", "topics": topics, **more})
    return nsqd.post("/channel/commit", body.encode())


def publish(nsqd: Nsqd, *bodies: bytes, topic: str = "t") -> None:
    assert nsqd.post(f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(index, body) of all messages in whole batches."""
    result = scan(data, 0, True)
    assert result.stop == len(data)
    for first, count, start, _end, *_ in result.batches:
        at = start
        for index in range(first, first + count):
            size = 4 + int.from_bytes(data[at : at + 4], "big")
            yield index, data[at + 34 : at + size]
            at += size


def read(
    nsqd: Nsqd, told: Any, start: int, end: int, size_max: int = 1 << 22, raw: bool = False
) -> dict[int, bytes]:
    """Everything in [start, end), by index."""
    found: dict[int, bytes] = {}
    at = start
    while at < end:
        reply = nsqd.get(
            f"/log/read?topic={told['topic']}&instance={told['instance']}"
            f"&start={at}&end={end}&size_max={size_max}&raw={str(raw).lower()}"
        )
        assert reply.status == 200, reply
        next_at = int(reply.headers["X-Penstock-Next"])
        assert next_at > at
        found |= {i: body for i, body in messages(reply.body) if at <= i < end}
        at = next_at
    assert at == end
    return found


def depth(nsqd: Nsqd) -> int:
    found: int = nsqd.channel("t", "q")["depth"]
    return found


def test_a_reader_from_pull_to_commit(nsqd: Nsqd) -> None:
    """R18: what is committed is finished, what is not is the depth."""
    publish(nsqd, *(b"m%d" % i for i in range(100)))
    told = pull(nsqd)
    assert told["node"] == nsqd.get("/info").json["node_uuid"]
    end = ends(nsqd, {"t": {"after": told["low"]}}, channel="q")["t"]["end"]
    assert ok(nsqd.get(f"/log/count?topic=t&start={told['low']}&end={end}")) == {"count": 100}
    for size_max in (0, 1000, 1 << 22):
        found = read(nsqd, told, told["low"], end, size_max)
        assert list(found.values()) == [b"m%d" % i for i in range(100)]
        assert list(found) == list(range(told["low"], end))
    assert depth(nsqd) == 100
    assert ok(commit(nsqd, told, told["low"] + 60, progress={"batch": 1}))["topics"] == {
        "t": {"low": told["low"] + 60}
    }
    stats = nsqd.channel("t", "q")
    assert stats["depth"] == 40 and stats["pull"]["low"] == told["low"] + 60
    assert stats["pull"]["progress"] == {"batch": 1}
    assert 0 <= stats["pull"]["idle_ms"] < 5000
    assert stats["pull"]["lapses_in_ms"] > 167 * 3_600_000
    publish(nsqd, b"x")
    plain = nsqd.post("/channel/create?topic=t&channel=plain")
    assert plain.status == 200 and "pull" not in nsqd.channel("t", "plain")


def test_raw_reads_find_what_others_do(tmp_path: Path) -> None:
    """R18, R9: also of segments that are new, old, or not in memory."""
    with Nsqd(tmp_path, "--max-bytes-per-file=100000") as nsqd:
        told = pull(nsqd)
        wanted = [b"m%d" % i + b"x" * 300 for i in range(3000)]
        for start in range(0, 3000, 50):
            publish(nsqd, *wanted[start : start + 50])
        end = ends(nsqd, {"t": {"after": told["low"] + 2999}}, wait_ms=5000)["t"]["end"]
        for size_max in (1, 50_000, 1 << 22):
            assert list(read(nsqd, told, told["low"], end, size_max, raw=True).values()) == wanted
        middle = told["low"] + 1234
        assert list(read(nsqd, told, middle, middle + 5, raw=True).values()) == wanted[1234:1239]
        nsqd.restart()
        for path in sorted(tmp_path.rglob("*.log")):
            forget(path)
        for _ in range(2):
            assert list(read(nsqd, told, told["low"], end, raw=True).values()) == wanted


def test_sub_is_refused(nsqd: Nsqd) -> None:
    pull(nsqd)
    with nsqd.connect() as raw:
        kind, text = raw.command(b"SUB t q\n")
        assert kind == ERROR
        assert text == b"E_SUB_FAILED SUB failed t:q is a pull channel, read over HTTP"
        assert raw.closed()
    with nsqd.connect() as raw:
        assert raw.command(b"SUB t other\n") == (0, b"OK")
        reply = nsqd.post("/channel/pull?topic=t&channel=other")
        assert (reply.status, reply.json) == (409, {"message": "CHANNEL_IN_USE"})


def test_channel_and_low_survive_kill_9(nsqd: Nsqd) -> None:
    """R18, R6: the channel from its answer on, its low after a moment."""
    publish(nsqd, *(b"m%d" % i for i in range(10)))
    told = pull(nsqd)
    nsqd.kill()
    nsqd.start()
    again = pull(nsqd, "latest")
    assert (again["low"], again["instance"], again["made"]) == (
        told["low"],
        told["instance"],
        False,
    )
    assert again["node"] == told["node"] and depth(nsqd) == 10
    assert commit(nsqd, told, told["low"] + 4).status == 200
    time.sleep(0.5)
    nsqd.kill()
    nsqd.start()
    assert pull(nsqd)["low"] == told["low"] + 4 and depth(nsqd) == 6
    nsqd.restart()
    assert pull(nsqd)["low"] == told["low"] + 4 and depth(nsqd) == 6
    # The reader goes on where it was: over the gap that the restarts left (R1).
    publish(nsqd, b"after")
    end = ends(nsqd, {"t": {"after": told["end"]}}, channel="q", wait_ms=5000)["t"]["end"]
    assert list(read(nsqd, told, told["end"], end).values()) in ([b"after"], [])
    log = ok(nsqd.get("/log?topic=t"))
    assert log["end"] - told["low"] > 11 and depth(nsqd) == 7
    end = ends(nsqd, {"t": {"after": log["end"] - 1}}, wait_ms=5000)["t"]["end"]
    assert list(read(nsqd, told, told["low"] + 4, end).values()) == [
        *(b"m%d" % i for i in range(4, 10)),
        b"after",
    ]


def test_ranges_end_at_the_synced_end_and_a_poll_moves_it(tmp_path: Path) -> None:
    """R18."""
    with Nsqd(tmp_path, *LAZY) as nsqd:
        told = pull(nsqd)
        publish(nsqd, b"a", b"b")
        log = ok(nsqd.get("/log?topic=t"))
        assert (log["end"], log["synced_end"]) == (told["end"] + 2, told["end"])
        assert ends(nsqd, {"t": {"after": told["end"]}})["t"]["end"] == told["end"]
        target = f"/log/read?topic=t&instance={told['instance']}&start={log['first']}"
        reply = nsqd.get(f"{target}&end={log['end'] + 1}")
        assert (reply.status, reply.json) == (400, {"message": "INVALID_RANGE"})
        found = ends(nsqd, {"t": {"after": told["end"]}}, wait_ms=10_000)["t"]
        assert found["end"] == log["end"]
        assert nsqd.get(f"{target}&end={log['end']}").status == 200
        # What was read is there after a kill, at the same place, and is read again at once: that
        # it was synced is perhaps not known any more.
        before = read(nsqd, told, log["first"], log["end"])
        nsqd.kill()
        nsqd.start()
        assert read(nsqd, told, log["first"], log["end"]) == before


def test_a_poll_waits_for_the_first_message(nsqd: Nsqd) -> None:
    told = pull(nsqd)
    known = {"t": {"after": told["end"], "instance": told["instance"]}}
    began_s = time.monotonic()
    assert ends(nsqd, known, wait_ms=300)["t"]["end"] == told["end"]
    assert 0.25 < time.monotonic() - began_s < late_s(3)
    threading.Timer(0.2, publish, (nsqd, b"a")).start()
    began_s = time.monotonic()
    assert ends(nsqd, known, channel="q", wait_ms=30_000)["t"]["end"] == told["end"] + 1
    assert 0.15 < time.monotonic() - began_s < late_s(3)


def test_many_polls_at_once_are_answered_by_one_publish(nsqd: Nsqd) -> None:
    told = pull(nsqd)
    known = {"t": {"after": told["end"]}}
    count = 100
    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(ends, nsqd, known, wait_ms=30_000) for _ in range(count)]
        wait_until(lambda: nsqd.metric("penstock_log_polls") == count)
        publish(nsqd, b"a")
        assert {one.result(10)["t"]["end"] for one in asked} == {told["end"] + 1}
    assert nsqd.metric("penstock_log_polls") == 0


def test_a_connection_that_closes_frees_its_poll(nsqd: Nsqd) -> None:
    known = ends_body({"t": {"after": pull(nsqd)["end"]}}, wait_ms=30_000)
    request = b"POST /log/ends HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(known)
    socks = [socket.create_connection(("127.0.0.1", nsqd.http_port), 10) for _ in range(20)]
    for sock in socks:
        sock.sendall(request + known)
    wait_until(lambda: nsqd.metric("penstock_log_polls") == 20)
    for place, sock in enumerate(socks):
        if place % 2:  # half of them without a goodbye
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    wait_until(lambda: nsqd.metric("penstock_log_polls") == 0)


def test_what_is_deleted_ends_the_wait(nsqd: Nsqd) -> None:
    told = pull(nsqd)
    known = {"t": {"after": told["end"]}}
    with ThreadPoolExecutor(2) as pool:
        of_channel = pool.submit(
            nsqd.post, "/log/ends", ends_body(known, channel="q", wait_ms=30_000)
        )
        of_topic = pool.submit(nsqd.post, "/log/ends", ends_body(known, wait_ms=30_000))
        wait_until(lambda: nsqd.metric("penstock_log_polls") == 2)
        assert nsqd.post("/channel/delete?topic=t&channel=q&force=true").status == 200
        gone = {"message": "CHANNEL_NOT_FOUND", "topic": "t", "channel": "q"}
        assert (of_channel.result(5).status, of_channel.result().json) == (404, gone)
        assert nsqd.post("/topic/delete?topic=t").status == 200
        assert of_topic.result(5).json["topics"] == {"t": None}
    assert (commit(nsqd, told, 5).status, nsqd.get("/log?topic=t").status) == (404, 404)
    # A topic of that name is another one.
    again = pull(nsqd)
    assert again["instance"] != told["instance"] and again["low"] >= told["end"]
    assert commit(nsqd, told, told["end"]).json["message"] == "INSTANCE_CHANGED"


def test_the_end_of_the_daemon_answers_polls_at_once(nsqd: Nsqd) -> None:
    told = pull(nsqd)
    body = ends_body({"t": {"after": told["end"]}}, channel="q", wait_ms=30_000)
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(nsqd.post, "/log/ends", body) for _ in range(20)]
        wait_until(lambda: nsqd.metric("penstock_log_polls") == 20)
        began_s = time.monotonic()
        assert nsqd.terminate() == 0
        assert time.monotonic() - began_s < late_s(3)
        assert {one.result(5).status for one in asked} == {200}


def test_committed_segments_go_and_the_log_says_from_where_it_is_whole(tmp_path: Path) -> None:
    """R5, R18."""
    with Nsqd(tmp_path, *SMALL) as nsqd:
        told = pull(nsqd)
        for _ in range(100):
            publish(nsqd, *([b"x" * 200] * 10))
        log = ok(nsqd.get("/log?topic=t"))
        assert (log["message_count"], log["whole_from"], log["first"]) == (1000, 0, told["low"])
        index = told["low"] + 700
        assert commit(nsqd, told, index).status == 200
        wait_until(lambda: ok(nsqd.get("/log?topic=t"))["message_count"] < 500)
        log = ok(nsqd.get("/log?topic=t"))
        assert told["low"] < log["whole_from"] == log["first"] <= index and depth(nsqd) == 300
        # What is gone is simply not there; what is not committed is.
        end = ends(nsqd, {"t": {"after": log["end"] - 1}}, wait_ms=5000)["t"]["end"]
        found = read(nsqd, told, told["low"], end)
        assert list(found) == list(range(log["first"], end))
        nsqd.kill()
        nsqd.start()
        again = ok(nsqd.get("/log?topic=t"))
        assert again["whole_from"] >= log["whole_from"] and depth(nsqd) == 300
        assert commit(nsqd, told, again["end"]).status == 200
        wait_until(lambda: ok(nsqd.get("/log?topic=t"))["message_count"] == 0)
        nsqd.kill()
        nsqd.start()
        last = pull(nsqd)
        assert last["whole_from"] <= last["low"] <= last["end"]


def test_a_time_is_found_in_the_log(nsqd: Nsqd) -> None:
    pull(nsqd)
    marks = []
    for _ in range(5):
        marks.append((time.time_ns(), ok(nsqd.get("/log?topic=t"))["end"]))
        publish(nsqd, b"a", b"b")
        time.sleep(0.01)
    for time_ns, index in marks:
        assert ok(nsqd.get(f"/log/seek?topic=t&timestamp={time_ns}")) == {"index": index}
    end = marks[-1][1] + 2
    assert ok(nsqd.get(f"/log/seek?topic=t&timestamp={time.time_ns()}")) == {"index": end}


def test_a_paused_topic_and_a_paused_channel_hold_a_reader(nsqd: Nsqd) -> None:
    """R2."""
    told = pull(nsqd)
    known = {"t": {"after": told["end"]}}
    assert nsqd.post("/topic/pause?topic=t").status == 200
    publish(nsqd, b"a")
    assert ends(nsqd, known, channel="q", wait_ms=100)["t"]["end"] == told["end"]
    assert ends(nsqd, known, wait_ms=5000)["t"]["end"] == told["end"] + 1
    assert nsqd.post("/channel/pause?topic=t&channel=q").status == 200
    assert nsqd.post("/topic/unpause?topic=t").status == 200
    assert ends(nsqd, known, channel="q", wait_ms=100)["t"]["end"] == told["end"]
    assert nsqd.post("/channel/unpause?topic=t&channel=q").status == 200
    assert ends(nsqd, known, channel="q", wait_ms=5000)["t"]["end"] == told["end"] + 1
    assert nsqd.post("/channel/empty?topic=t&channel=q&force=true").status == 200
    assert depth(nsqd) == 0


def test_a_channel_without_its_reader_lapses(tmp_path: Path) -> None:
    """R18: deleted, logged, counted, and told to a reader that comes back."""
    with Nsqd(tmp_path, "--pull-channel-lapse=2s") as nsqd:
        told = pull(nsqd)
        publish(nsqd, b"a")
        for _ in range(6):
            time.sleep(0.5)
            assert commit(nsqd, told, told["low"]).status == 200
        nsqd.wait_for_log(r"topic=t channel=q: lapsed by time after \d+ s .* 1 messages")
        assert nsqd.stats("&topic=t")["topics"][0]["channels"] == []
        assert nsqd.metric('penstock_pull_channel_lapses_total{cause="time"}') == 1
        assert commit(nsqd, told, told["low"]).json["message"] == "CHANNEL_NOT_FOUND"
        # It may come back where it was, and sees whether something is missing.
        again = pull(nsqd, str(told["low"]))
        assert again["made"] and again["low"] == told["low"] >= again["whole_from"]


def test_a_pull_channel_is_known_to_nsqlookupd_and_made_on_new_nodes(tmp_path: Path) -> None:
    """R18: so that none of a new node's messages is missed."""
    with Nsqlookupd() as lookupd:
        options = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "a", *options) as one, Nsqd(tmp_path / "b", *options) as two:
            pull(one)
            wait_until(lambda: "q" in lookupd.get("/channels?topic=t").json["channels"])
            publish(two, b"first", b"second")
            told = pull(two, "latest")
            assert not told["made"] and depth(two) == 2
            assert list(read(two, told, told["low"], told["end"]).values()) == [
                b"first",
                b"second",
            ]


def test_the_role_read_reads_and_does_nothing_else(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read reader-token\npublish publish-token\nadmin admin-token\n")
    routes = [
        ("POST", "/channel/pull?topic=t&channel=q"),
        ("GET", "/log?topic=t"),
        ("GET", "/log/seek?topic=t&timestamp=1"),
        ("GET", "/log/count?topic=t&start=0&end=0"),
        ("GET", "/log/read?topic=t&instance=0&start=0&end=0"),
        ("POST", "/log/ends"),
        ("POST", "/log/counts"),
        ("POST", "/channel/commit"),
    ]
    with Nsqd(tmp_path / "nsqd", f"--http-auth-token-file={tokens}") as nsqd:

        def status(method: str, target: str, token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return nsqd.http(method, target, None, headers).status

        assert status("POST", "/topic/create?topic=t", "admin-token") == 200
        for route in routes:
            assert status(*route, "") == 401
            assert status(*route, "publish-token") == 403
            assert status(*route, "reader-token") in (200, 400)
            assert status(*route, "admin-token") in (200, 400)
        for route in [
            ("POST", "/pub?topic=t"),
            ("GET", "/stats"),
            ("POST", "/channel/delete?topic=t&channel=q"),
            ("POST", "/topic/create?topic=t"),
        ]:
            assert status(*route, "reader-token") == 403
        assert status("GET", "/info", "reader-token") == 200


def test_a_reader_makes_no_topic_and_takes_no_channel_over(tmp_path: Path) -> None:
    """What belongs to consumers is theirs, whoever asks, over restarts too."""
    tokens = tmp_path / "tokens"
    tokens.write_text("read reader-token\nadmin admin-token\n")
    with Nsqd(tmp_path / "nsqd", f"--http-auth-token-file={tokens}") as nsqd:

        def ask(target: str, role: str) -> tuple[int, Any]:
            reply = nsqd.http("POST", target, b"m", {"Authorization": f"Bearer {role}-token"})
            return reply.status, json.loads(reply.body) if reply.body[:1] == b"{" else reply.body

        def channels() -> list[str]:
            header = {"Authorization": "Bearer admin-token"}
            told = nsqd.http("GET", "/stats?format=json&topic=t", None, header).json
            return [
                f"{channel['channel_name']} {channel['depth']}" + " pulled" * ("pull" in channel)
                for channel in told["topics"][0]["channels"]
            ]

        pull = "/channel/pull?topic=t&channel"
        assert ask(f"{pull}=c", "reader") == (404, {"message": "TOPIC_NOT_FOUND", "topic": "t"})
        assert ask("/channel/pull?topic=t%23ephemeral&channel=c", "reader")[0] == 400
        assert ask("/log/ends", "reader")[0] == 400
        assert (
            nsqd.http(
                "GET", "/stats?format=json", None, {"Authorization": "Bearer admin-token"}
            ).json["topics"]
            == []
        ), "no topic was made"
        assert ask("/topic/create?topic=t", "admin")[0] == 200
        assert ask("/channel/create?topic=t&channel=made", "admin")[0] == 200
        with nsqd.connect() as raw:
            assert raw.command(b"SUB t subscribed\n") == (0, b"OK")
        assert ask("/pub?topic=t", "admin") == (200, b"OK")
        for _ in range(2):
            for name in ("made", "subscribed"):
                for role in ("reader", "admin"):
                    refusal = (409, {"message": "CHANNEL_IN_USE"})
                    assert ask(f"{pull}={name}", role) == refusal
                    assert ask(f"{pull}={name}&start=latest", role) == refusal
                forbidden = (403, {"message": "FORBIDDEN"})
                assert ask(f"{pull}={name}&force=true", "reader") == forbidden
            assert channels() == ["made 1", "subscribed 1"]
            nsqd.kill()
            nsqd.start()
        assert ask(f"{pull}=made&force=yes", "admin") == (400, {"message": "INVALID_FORCE"})
        status, told = ask(f"{pull}=made&force=true", "admin")
        assert status == 200 and not told["made"]
        assert ask(f"{pull}=own&start=earliest", "reader")[0] == 200
        assert sorted(channels()) == ["made 1 pulled", "own 1 pulled", "subscribed 1"]
        place = {"t": {"instance": told["instance"], "index": told["end"]}}
        body = json.dumps({"channel": "own", "topics": place}).encode()
        reply = nsqd.http("POST", "/channel/commit", body, {"Authorization": "Bearer reader-token"})
        assert reply.status == 200
        assert sorted(channels()) == ["made 1 pulled", "own 0 pulled", "subscribed 1"]


def test_a_channel_that_nsqlookupd_named_is_a_readers_until_somebody_uses_it(
    tmp_path: Path,
) -> None:
    """R18: also after kill -9; a subscription makes it a consumers' channel for good."""
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        for name in ("q", "c"):
            assert lookupd.post(f"/channel/create?topic=t&channel={name}").status == 200
        with Nsqd(tmp_path, *flags) as nsqd:
            lookupd_knows = lambda: lookupd.get("/nodes").json["producers"]  # noqa: E731
            wait_until(lookupd_knows)
            publish(nsqd, b"first")
            wait_until(lambda: len(nsqd.stats("&topic=t")["topics"][0]["channels"]) == 2)
            nsqd.kill()
            nsqd.start()
            with nsqd.connect() as raw:
                assert raw.command(b"SUB t c\n") == (0, b"OK")
            nsqd.kill()
            nsqd.start()
            refused = nsqd.post("/channel/pull?topic=t&channel=c")
            assert (refused.status, refused.json) == (409, {"message": "CHANNEL_IN_USE"})
            assert not pull(nsqd)["made"] and depth(nsqd) == 1


def test_reading_leaves_the_loop_to_others(nsqd: Nsqd) -> None:
    """R9: the disk is read on a thread."""
    told = pull(nsqd)
    for _ in range(20):
        publish(nsqd, *([b"x" * 1000] * 2000))
    end = ends(nsqd, {"t": {"after": told["end"] + 39_999}}, wait_ms=10_000)["t"]["end"]
    stop = threading.Event()

    counts = [0, 0]

    def read_on(reader: int) -> None:
        while not stop.is_set():
            counts[reader] += len(read(nsqd, told, told["low"], end, 16 << 20))

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(read_on, reader) for reader in range(2)]
        times: list[float] = []
        deadline_s = time.monotonic() + 60
        while len(times) < 100 or (min(counts) < 40_000 and time.monotonic() < deadline_s):
            began_s = time.perf_counter()
            assert nsqd.post("/pub?topic=other", b"x").status == 200
            times.append(time.perf_counter() - began_s)
        stop.set()
        for one in asked:
            one.result(60)
    assert min(counts) >= 40_000
    assert sorted(times)[len(times) * 95 // 100] < late_s(0.25)
    os.kill(nsqd.pid, signal.SIGTERM)
    assert nsqd.wait() == 0


def test_readers_that_come_every_second_are_not_logged(nsqd: Nsqd) -> None:
    """In `make run` they were seven lines of ten."""
    publish(nsqd, b"one")
    told = pull(nsqd)
    for index in range(3):
        pull(nsqd)
        assert commit(nsqd, told, index).status in (200, 409)
    ends(nsqd, {"t": {"index": 0}})
    assert nsqd.post("/topic/create?topic=u").status == 200
    nsqd.wait_for_log("POST /topic/create")
    for path in ("/channel/pull", "/channel/commit", "/log/"):
        assert path not in nsqd.log
