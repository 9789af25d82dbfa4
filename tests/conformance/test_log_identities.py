"""A pull channel has one reader (R45), over the HTTP API of a real nsqd."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.log_reader import LogReader
from tests.support.daemon import Nsqd, Reply
from tests.support.waits import eventually

SMALL = ("--max-bytes-per-file=20000",)
MOMENT_S = 0.5  # after which a commit has survived kill -9


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "nsqd", *SMALL) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def publish(nsqd: Nsqd, count: int, size: int = 10, topic: str = "t") -> None:
    bodies = [b"%d" % i + b"x" * size for i in range(count)]
    assert nsqd.post(f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200


def refusals(nsqd: Nsqd, reason: str) -> int:
    for line in nsqd.get("/metrics").text.splitlines():
        if line.startswith(f'penstock_pull_refusals_total{{reason="{reason}"}}'):
            return int(float(line.split()[1]))
    raise AssertionError(reason)


def bound(nsqd: Nsqd, name: str | None = None) -> LogReader:
    """A reader that has committed its place."""
    reader = LogReader(nsqd, name=name)
    assert reader.pull().status == 200
    assert reader.commit(reader.told["low"]).status == 200
    return reader


def assert_refused(reply: Reply, reader: LogReader, code: str = "CHANNEL_HAS_READER") -> None:
    told = reply.json
    assert (reply.status, told["message"]) == (409, code), reply
    assert told["identity"] == reader.identity and str(reader.identity) in told["detail"]
    assert (told["topic"], told["channel"]) == ("t", "q")
    assert abs(told["since_ms"] / 1000 - time.time()) < 600


# Binding


def test_a_channel_is_bound_by_the_first_commit_and_not_before(nsqd: Nsqd) -> None:
    """R45: a query that is killed in its first batch starts again without help."""
    publish(nsqd, 10)
    first, again = LogReader(nsqd), LogReader(nsqd, name="again")
    for reader in (first, again):  # the second one is the first, made anew after a kill
        assert reader.pull().json["identity"] is None
        end = reader.ends().json["topics"]["t"]["end"]
        assert reader.read(reader.told["low"], end).status == 200
    assert again.commit(again.told["low"]).status == 200
    assert again.pull().json["identity"] == again.identity
    for reply in first.all_calls(again.told).values():
        assert_refused(reply, again)
    for reply in again.all_calls(again.told).values():
        assert reply.status == 200
    assert refusals(nsqd, "reader") == 4
    nsqd.wait_for_log(f"topic=t channel=q: bound to again .identity {again.identity}")
    nsqd.wait_for_log(f"topic=t channel=q: refused identity {first.identity}")


def test_calls_without_an_identity_work_until_the_channel_is_bound(nsqd: Nsqd) -> None:
    publish(nsqd, 10)
    older = LogReader(nsqd, None)
    older.pull()
    for reply in older.all_calls(older.told).values():
        assert reply.status == 200
    assert older.pull().json["identity"] is None
    reader = bound(nsqd)
    for reply in older.all_calls(reader.told).values():
        assert_refused(reply, reader)
    # Whoever does not name the channel reads as before.
    told = reader.told
    target = f"/log/read?topic=t&instance={told['instance']}&start={told['low']}&end={told['end']}"
    assert nsqd.get(target).status == 200
    assert nsqd.post("/log/ends", b'{"topics":{"t":{}}}').status == 200


def test_a_refused_commit_moves_none_of_its_topics(nsqd: Nsqd) -> None:
    publish(nsqd, 10)
    publish(nsqd, 10, topic="free")
    mine = bound(nsqd)
    other, free = LogReader(nsqd), LogReader(nsqd, topic="free")
    free.pull()
    topics = {
        reader.topic: {"instance": reader.told["instance"], "index": reader.told["end"]}
        for reader in (free, mine)
    }
    body = {"channel": "q", "identity": other.identity, "topics": topics}
    assert nsqd.post("/channel/commit", json.dumps(body).encode()).status == 409
    assert free.pull().json["low"] < free.told["end"] and free.told["identity"] is None
    assert mine.pull().json["low"] < mine.told["end"]


@pytest.mark.parametrize("kill", [True, False])
def test_a_binding_survives_the_end_of_nsqd(nsqd: Nsqd, kill: bool) -> None:
    publish(nsqd, 10)
    reader = bound(nsqd, name="pipeline archive on host7, pid 4711")
    since_ms = nsqd.channel("t", "q")["pull"]["reader_since_ms"]
    for _ in range(2):
        if kill:
            time.sleep(MOMENT_S)
            nsqd.kill()
            nsqd.start()
        else:
            nsqd.restart()
        for reply in LogReader(nsqd).all_calls(reader.told).values():
            assert_refused(reply, reader)
            assert "archive on host7, pid 4711" in reply.json["detail"]
            assert reply.json["since_ms"] == since_ms
        assert reader.pull().status == 200


def test_everybody_sees_who_reads_a_channel(nsqd: Nsqd) -> None:
    publish(nsqd, 3)
    reader = bound(nsqd, name="pipeline archive on host7, pid 4711")
    LogReader(nsqd, None, channel="free").pull()
    nsqd.post("/channel/create?topic=t&channel=plain")
    nsqd.post("/channel/pause?topic=t&channel=free")
    log = nsqd.get("/log?topic=t").json
    assert log["channels"] == ["free", "plain", "q"]
    since_ms, low = log["pull_channels"]["q"].pop("since_ms"), reader.told["low"]
    assert log["pull_channels"] == {
        "free": {"low": low, "identity": None, "reader": None, "since_ms": None, "paused": True},
        "q": {"low": low, "identity": reader.identity, "reader": reader.name, "paused": False},
    }
    pull = nsqd.channel("t", "q")["pull"]
    assert (pull["identity"], pull["reader"]) == (reader.identity, reader.name)
    assert pull["reader_since_ms"] == since_ms
    free = nsqd.channel("t", "free")["pull"]
    assert (free["identity"], free["reader"], free["reader_since_ms"]) == (None, None, None)
    told = LogReader(nsqd, None, channel="free").pull().json
    assert told["paused"] and {"low", "first", "whole_from", "end"} <= told.keys()
    told = reader.ends().json["topics"]["t"]
    assert not told["paused"] and {"low", "first", "whole_from", "end"} <= told.keys()


def test_the_name_of_a_reader_follows_it_and_is_cut(nsqd: Nsqd) -> None:
    """A query that is started elsewhere is the same reader."""
    publish(nsqd, 3)
    reader = bound(nsqd)

    def shown() -> str:
        name: str = nsqd.channel("t", "q")["pull"]["reader"]
        return name

    assert shown() == ""
    assert "a reader without a name" in LogReader(nsqd).pull().json["detail"]
    since_ms = nsqd.channel("t", "q")["pull"]["reader_since_ms"]
    for name, wanted in [
        ("on host1, pid 1", "on host1, pid 1"),
        ("ü" * 200, "ü" * 127),
        ("two\nlines\x00 \ud800", "two lines ?"),
        ("on host2, pid 7", "on host2, pid 7"),
    ]:
        reader.name = name
        assert reader.commit(reader.told["low"]).status == 200
        assert shown() == wanted
    time.sleep(MOMENT_S)
    nsqd.kill()
    nsqd.start()
    assert shown() == "on host2, pid 7"
    assert nsqd.channel("t", "q")["pull"]["reader_since_ms"] == since_ms


@pytest.mark.parametrize("identity", ["", "1", "g" * 32, "A" * 32, "0" * 31, "0" * 33, "0" * 5000])
def test_an_identity_is_32_lower_case_hex_digits(nsqd: Nsqd, identity: str) -> None:
    publish(nsqd, 1)
    right = LogReader(nsqd)
    right.pull()
    wrong = LogReader(nsqd)
    wrong.identity = identity
    for reply in wrong.all_calls(right.told).values():
        assert (reply.status, reply.json["message"]) == (400, "INVALID_IDENTITY")
        assert "32 lower-case hex digits" in reply.json["detail"]
    reply = right.pull(take_over=identity)
    assert (reply.status, reply.json["message"]) == (400, "INVALID_TAKE_OVER")


@pytest.mark.parametrize(
    ("more", "code"),
    [({"identity": 5}, "INVALID_IDENTITY"), ({"reader": 5}, "INVALID_READER")],
)
def test_fields_of_another_type_are_refused(nsqd: Nsqd, more: Any, code: str) -> None:
    reader = LogReader(nsqd)
    reader.pull()
    topics = {"t": {"instance": reader.told["instance"], "index": 0}}
    body = json.dumps({"channel": "q", "topics": topics, **more}).encode()
    reply = nsqd.post("/channel/commit", body)
    assert (reply.status, reply.json["message"]) == (400, code)


# Taking over


def test_a_take_over_works_once_and_is_durable_before_its_answer(nsqd: Nsqd) -> None:
    publish(nsqd, 10)
    old = bound(nsqd)
    new, late, stranger = LogReader(nsqd), LogReader(nsqd), LogReader(nsqd)
    assert_refused(new.pull(take_over=stranger.identity), old, "TAKE_OVER_REFUSED")
    assert new.pull(take_over=old.identity).json["identity"] == new.identity
    nsqd.kill()
    nsqd.start()
    for reply in old.all_calls(new.told).values():
        assert_refused(reply, new)
    assert new.pull(take_over=old.identity).status == 200, "again: nothing happens"
    assert_refused(late.pull(take_over=old.identity), new, "TAKE_OVER_REFUSED")
    assert_refused(late.pull(), new)
    for reply in new.all_calls(new.told).values():
        assert reply.status == 200
    assert refusals(nsqd, "take_over") == 1


def test_what_has_no_reader_is_not_taken_over(nsqd: Nsqd) -> None:
    publish(nsqd, 1)
    reader, nobody = LogReader(nsqd), "0" * 32
    for topic, status, code in [
        ("t", 404, "CHANNEL_NOT_FOUND"),
        ("none", 404, "TOPIC_NOT_FOUND"),
    ]:
        reader.topic = topic
        reply = reader.pull(take_over=nobody)
        assert (reply.status, reply.json["message"]) == (status, code)
    assert (
        nsqd.get("/log?topic=none").status == 404
        and nsqd.get("/log?topic=t").json["channels"] == []
    )
    reader.topic = "t"
    reader.pull()
    reply = reader.pull(take_over=nobody)
    assert (reply.status, reply.json["message"]) == (409, "TAKE_OVER_REFUSED")
    assert reply.json["identity"] is None and "not bound to a reader" in reply.json["detail"]
    reply = LogReader(nsqd, None).pull(take_over=nobody)
    assert (reply.status, reply.json["message"]) == (400, "MISSING_ARG_IDENTITY")
    nsqd.post("/channel/create?topic=t&channel=plain")
    reply = LogReader(nsqd, channel="plain").pull(take_over=nobody)
    assert (reply.status, reply.json["message"]) == (409, "NOT_A_PULL_CHANNEL")


def test_taking_over_needs_the_role_admin(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read reader-token\nadmin admin-token\n")
    with Nsqd(tmp_path / "nsqd", f"--http-auth-token-file={tokens}") as nsqd:
        admin = LogReader(nsqd, token="admin-token")
        assert admin.pull().status == 200
        old = LogReader(nsqd, token="reader-token")
        assert [reply.status for reply in old.all_calls(admin.told).values()] == [200] * 4
        new = LogReader(nsqd, token="reader-token")
        reply = new.pull(take_over=old.identity)
        assert (reply.status, reply.json["message"]) == (403, "FORBIDDEN")
        assert old.pull().status == 200
        assert admin.pull(take_over=old.identity).status == 200
        assert old.pull().status == 409


def test_long_polls_are_answered_when_the_reader_changes(nsqd: Nsqd) -> None:
    """By the first commit, and by a take-over; the reader's own go on."""
    publish(nsqd, 10)
    one, two, older = LogReader(nsqd), LogReader(nsqd), LogReader(nsqd, None)
    for reader in (one, two, older):
        assert reader.pull().status == 200
    end = one.told["end"]
    with ThreadPoolExecutor(8) as pool:

        def waiting(reader: LogReader) -> Any:
            return pool.submit(reader.ends, end, 20_000)

        def polls() -> int:
            found = [
                line.split()[1]
                for line in nsqd.get("/metrics").text.splitlines()
                if line.startswith("penstock_log_polls ")
            ]
            return int(float(found[0]))

        asked = [waiting(reader) for reader in (one, two, older)]
        assert eventually(lambda: polls() == 3)
        assert one.commit(one.told["low"]).status == 200
        for poll in asked[1:]:
            assert_refused(poll.result(10), one)
        assert polls() == 1
        assert two.pull(take_over=one.identity).status == 200
        assert_refused(asked[0].result(10), two)
        mine = waiting(two)
        assert eventually(lambda: polls() == 1)
        threading.Timer(0.1, publish, (nsqd, 1)).start()
        assert mine.result(10).json["topics"]["t"]["end"] == end + 1


# What is missing


def missing_below(reply: Reply) -> int | None:
    assert reply.status == 200, reply
    header = reply.headers["X-Penstock-Missing-Below"]
    return None if header is None else int(header)


def let_go(nsqd: Nsqd, end: int) -> None:
    """Wait until what lies below ``end`` is removed."""
    assert eventually(lambda: nsqd.get("/log?topic=t").json["whole_from"] >= end)


def filled(nsqd: Nsqd) -> tuple[LogReader, int, int]:
    """A bound reader, and the first and the end of a hundred messages that it has not committed."""
    reader = LogReader(nsqd)
    reader.pull()
    publish(nsqd, 100, 500)
    low = reader.told["low"]
    end: int = reader.ends(low + 99, 10_000).json["topics"]["t"]["end"]
    assert reader.commit(low).status == 200
    assert missing_below(reader.read(low, end)) is None
    return reader, low, end


def test_a_read_says_what_an_emptied_channel_let_go(nsqd: Nsqd) -> None:
    reader, low, end = filled(nsqd)
    assert nsqd.post("/channel/empty?topic=t&channel=q&force=true").status == 200
    let_go(nsqd, end)
    for _ in range(2):
        reply = reader.read(low, end)
        assert missing_below(reply) == end and reply.body == b""
        assert missing_below(reader.read(end - 1, end)) == end
        assert missing_below(reader.read(end, end)) is None
        nsqd.restart()
    publish(nsqd, 1)
    end = reader.ends(end, 10_000).json["topics"]["t"]["end"]
    assert missing_below(reader.read(end - 1, end)) is None


def test_a_read_says_what_an_emptied_topic_let_go(nsqd: Nsqd) -> None:
    reader = bound(nsqd)
    low = reader.told["low"]
    nsqd.post("/topic/pause?topic=t")
    publish(nsqd, 100, 500)
    end = nsqd.get("/log?topic=t").json["end"]
    assert nsqd.post("/topic/empty?topic=t&force=true").status == 200
    nsqd.post("/topic/unpause?topic=t")
    let_go(nsqd, end)
    assert missing_below(reader.read(low, end)) == end


def test_nothing_is_missing_that_another_channel_keeps(nsqd: Nsqd) -> None:
    reader, low, end = filled(nsqd)
    # Made at the same place, since the topic was without channels before.
    other = LogReader(nsqd, channel="other")
    assert other.pull(low).json["low"] == low
    assert nsqd.post("/channel/empty?topic=t&channel=q&force=true").status == 200
    assert reader.pull().json["low"] == end
    publish(nsqd, 100, 500)  # whoever lets go would do it with these
    reply = reader.read(low, end)
    assert missing_below(reply) is None and reply.body != b""
    assert other.commit(end).status == 200
    let_go(nsqd, end)
    assert missing_below(reader.read(low, end)) == end
    assert missing_below(other.read(end, end + 1)) is None


def test_a_channel_that_is_made_again_too_late_says_so_until_its_reader_is_past(
    nsqd: Nsqd,
) -> None:
    reader, low, end = filled(nsqd)
    assert nsqd.post("/channel/create?topic=t&channel=plain").status == 200
    assert nsqd.post("/channel/delete?topic=t&channel=q&force=true").status == 200
    let_go(nsqd, end)
    told = reader.pull(low).json
    assert told["made"] and told["low"] == low and told["whole_from"] >= end
    for _ in range(2):
        assert missing_below(reader.read(low, end)) == told["whole_from"]
        nsqd.restart()
    assert reader.commit(told["whole_from"]).status == 200
    assert missing_below(reader.read(told["whole_from"], told["whole_from"])) is None
    # A new reader that takes what there is misses nothing.
    fresh = LogReader(nsqd, channel="fresh")
    at = fresh.pull("earliest").json["low"]
    assert missing_below(fresh.read(at, at)) is None


def test_a_read_without_a_channel_goes_by_the_log(nsqd: Nsqd) -> None:
    reader, low, end = filled(nsqd)
    target = f"/log/read?topic=t&instance={reader.told['instance']}&start={low}&end={end}"
    assert missing_below(nsqd.get(target)) is None
    assert reader.commit(end).status == 200
    let_go(nsqd, end)
    assert missing_below(nsqd.get(target)) == nsqd.get("/log?topic=t").json["whole_from"]


# Counting


def test_many_ranges_are_counted_at_once(nsqd: Nsqd) -> None:
    publish(nsqd, 10)
    publish(nsqd, 5, topic="u")
    t, u = (nsqd.get(f"/log?topic={topic}").json for topic in "tu")
    nsqd.post("/topic/create?topic=e%23ephemeral")

    def ask(*ranges: tuple[str, str, int, int]) -> Reply:
        keys = ("topic", "instance", "start", "end")
        body = {"ranges": [dict(zip(keys, told, strict=True)) for told in ranges]}
        return nsqd.post("/log/counts", json.dumps(body).encode())

    first, end = t["first"], t["end"]
    reply = ask(
        ("t", t["instance"], 0, end),
        ("t", t["instance"], first + 2, first + 5),
        ("t", t["instance"], first, (1 << 54) - 1),
        ("t", t["instance"], end, end),
        ("u", u["instance"], u["first"], u["end"]),
        ("u", t["instance"], u["first"], u["end"]),
        ("none", t["instance"], 0, 1),
        ("e#ephemeral", t["instance"], 0, 1),
    )
    assert reply.status == 200 and reply.json["node"] == t["node"]
    assert reply.json["counts"] == [10, 3, 10, 0, 5, None, None, None]
    assert len(ask(*[("t", t["instance"], 0, end)] * 1024).json["counts"]) == 1024
    for wrong, code in [
        ([("t", t["instance"], 0, 1)] * 1025, "INVALID_RANGES"),
        ([], "INVALID_RANGES"),
        ([("t t", t["instance"], 0, 1)], "INVALID_RANGES"),
        ([("t", "1", 0, 1)], "INVALID_INSTANCE"),
        ([("t", t["instance"], -1, 1)], "INVALID_INDEX"),
        ([("t", t["instance"], 0, 1 << 60)], "INVALID_INDEX"),
        ([("t", t["instance"], 2, 1)], "INVALID_RANGE"),
    ]:
        reply = ask(*wrong)
        assert (reply.status, reply.json["message"]) == (400, code), wrong
    for body in (b"", b"[]", b"{}", b'{"ranges": 5}', b'{"ranges": [5]}'):
        assert nsqd.post("/log/counts", body).status == 400


# The guard


GUARDED = [
    ("/channel/empty?topic=t&channel=q", "emptied"),
    ("/channel/delete?topic=t&channel=q", "deleted"),
    ("/topic/empty?topic=t", "emptied"),
    ("/topic/delete?topic=t", "deleted"),
]


@pytest.mark.parametrize(("target", "done"), GUARDED)
@pytest.mark.parametrize("named", [True, False])
def test_what_removes_messages_under_a_reader_needs_force(
    nsqd: Nsqd, target: str, done: str, named: bool
) -> None:
    """R45: also while the channel is not bound yet."""
    publish(nsqd, 10)
    reader = LogReader(nsqd, name="pipeline archive on host7")
    reader.pull()
    if named:
        assert reader.commit(reader.told["low"]).status == 200
    wanted = "pipeline archive on host7" if named else "not bound to a reader yet"
    for force in ("", "&force=false"):
        reply = nsqd.post(target + force)
        assert (reply.status, reply.json["message"]) == (409, "PULL_CHANNEL")
        detail = reply.json["detail"]
        assert wanted in detail and f"With force=true it is {done} anyway" in detail
        (told,) = reply.json["readers"]
        assert told["channel"] == "q" and reply.json["topic"] == "t"
        assert told["identity"] == (reader.identity if named else None)
    reply = nsqd.post(f"{target}&force=yes")
    assert (reply.status, reply.json["message"]) == (400, "INVALID_FORCE")
    assert nsqd.channel("t", "q")["depth"] == 10
    assert refusals(nsqd, "guard") == 2
    assert nsqd.post(f"{target}&force=true").status == 200
    log = nsqd.get("/log?topic=t")
    if target.startswith("/topic/delete"):
        assert log.status == 404
    elif "delete" in target:
        assert log.json["channels"] == []
    elif "channel" in target:
        assert nsqd.channel("t", "q")["depth"] == 0
    else:
        assert nsqd.channel("t", "q")["depth"] == 10, "as with every channel: not what it has"


@pytest.mark.parametrize(("target", "_"), GUARDED)
@pytest.mark.parametrize("force", ["", "&force=1"])
def test_topics_and_channels_without_readers_are_emptied_and_deleted_as_before(
    nsqd: Nsqd, target: str, _: str, force: str
) -> None:
    publish(nsqd, 10)
    assert nsqd.post("/channel/create?topic=t&channel=q").status == 200
    LogReader(nsqd, topic="u").pull()
    reply = nsqd.post(target + force)
    assert (reply.status, reply.body) == (200, b"")


def test_a_guard_names_a_few_readers_of_many(nsqd: Nsqd) -> None:
    for number in range(8):
        LogReader(nsqd, channel=f"q{number}").pull()
    reply = nsqd.post("/topic/delete?topic=t")
    assert reply.status == 409 and "and 3 more" in reply.json["detail"]
    assert [told["channel"] for told in reply.json["readers"]] == [f"q{i}" for i in range(5)]
    # A plain channel of the topic is nobody else's.
    nsqd.post("/channel/create?topic=t&channel=plain")
    assert nsqd.post("/channel/empty?topic=t&channel=plain").status == 200
    assert nsqd.post("/channel/delete?topic=t&channel=plain").status == 200
