"""Patterns (R47): a pull channel is there before the first message of a topic is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.batches import INDEX_MAX
from penstock.wire import commands
from tests.conformance.test_log_api import ok, read
from tests.support.daemon import ERROR, RESPONSE, Nsqd, Nsqlookupd, Reply
from tests.support.staging import ATTEMPT, HttpQuery, plain
from tests.support.timing import late_s

ONE, TWO = "1" * 32, "2" * 32


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "nsqd") as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def left(nsqd: Nsqd, *topics: str, identity: str = ONE, **more: Any) -> Reply:
    """The answer to a pattern of the channel ``archive``."""
    body = {"channel": "archive", "identity": identity, "reader": "me", "topics": topics, **more}
    return nsqd.post("/channel/pattern", json.dumps(body).encode())


def leave(nsqd: Nsqd, *topics: str, **more: Any) -> Any:
    return ok(left(nsqd, *topics, **more))["topics"]


def patterns(nsqd: Nsqd) -> list[Any]:
    return list(ok(nsqd.get("/channel/patterns"))["patterns"])


def pulled(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    told = ok(nsqd.get(f"/log?topic={topic}"))
    return dict(told["pull_channels"])


def stage(nsqd: Nsqd, topic: str) -> None:
    query = HttpQuery(nsqd)
    assert query.put(0, topic, plain(b"a", b"b")).status == 200
    assert query.seal(1, 2).status == 200
    assert query.publish(0, (0, ATTEMPT)).json == {"count": 2, "already": False}


def over_tcp(*parts: bytes) -> Callable[[Nsqd, str], None]:
    def publish(nsqd: Nsqd, topic: str) -> None:
        with nsqd.connect() as raw:
            sent = [part.replace(b"TOPIC", topic.encode()) for part in parts]
            assert raw.command(*sent) == (RESPONSE, b"OK")

    return publish


def over_http(target: str, body: bytes = b"") -> Callable[[Nsqd, str], None]:
    def publish(nsqd: Nsqd, topic: str) -> None:
        assert nsqd.post(f"{target}topic={topic}", body).status == 200

    return publish


WAYS: dict[str, tuple[Callable[[Nsqd, str], None], int]] = {
    "create": (over_http("/topic/create?"), 0),
    "sub": (over_tcp(commands.sub("TOPIC", "fast")), 0),
    "pub": (over_tcp(commands.pub("TOPIC", b"a")), 1),
    "mpub": (over_tcp(commands.mpub("TOPIC", [b"a", b"b"])), 2),
    "dpub": (over_tcp(commands.dpub("TOPIC", 1, b"a")), 1),
    "http.pub": (over_http("/pub?", b"a"), 1),
    "http.mpub": (over_http("/mpub?", b"a\nb\nc"), 3),
    "http.defer": (over_http("/pub?defer=1&", b"a"), 1),
    "staging": (stage, 2),
}


def test_the_channel_is_there_however_a_topic_is_made_and_kill_9_does_not_take_it(
    tmp_path: Path,
) -> None:
    """R47: with an nsqlookupd that knows channels of the topic, and right after the answer."""
    with Nsqlookupd() as lookupd:
        for way in WAYS:
            target = f"topic=orders.{way}"
            assert lookupd.post(f"/topic/create?{target}").status == 200
            assert lookupd.post(f"/channel/create?{target}&channel=known").status == 200
        address = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with Nsqd(tmp_path / "nsqd", address, "--broadcast-address=127.0.0.1") as nsqd:
            assert leave(nsqd, "orders.*") == {}
            firsts = {}
            for way, (make, _) in WAYS.items():
                topic = f"orders.{way}"
                make(nsqd, topic)
                told = ok(nsqd.get(f"/log?topic={topic}"))
                archive = told["pull_channels"]["archive"]
                assert (archive["low"], archive["identity"]) == (told["first"], None), way
                firsts[topic] = told["first"]
            over_http("/pub?", b"last")(nsqd, "orders.last")
            firsts["orders.last"] = pulled(nsqd, "orders.last")["archive"]["low"]
            over_http("/pub?", b"at once")(nsqd, "orders.kill")
            nsqd.kill()
            nsqd.start()
            found = leave(nsqd, "orders.*")
            assert {*found} == {*firsts, "orders.kill"}
            deadline_s = time.monotonic() + late_s(5)
            for way, (_, count) in {**WAYS, "last": (None, 1), "kill": (None, 1)}.items():
                topic = f"orders.{way}"
                low = found[topic]["low"]
                assert low == firsts.get(topic, low)
                while len(whole(nsqd, topic)) < count and time.monotonic() < deadline_s:
                    time.sleep(0.05)
                assert len(whole(nsqd, topic)) == count, way
                if way in WAYS:
                    assert nsqd.channel(topic, "known")["depth"] == count


def whole(nsqd: Nsqd, topic: str) -> dict[int, bytes]:
    """All that the channel may read."""
    body = {"topics": {topic: {}}, "channel": "archive", "identity": ONE}
    told = ok(nsqd.post("/log/ends", json.dumps(body).encode()))["topics"][topic]
    return read(nsqd, {**told, "topic": topic}, told["low"], told["end"])


def test_a_fast_consumer_takes_nothing_from_the_channel(tmp_path: Path) -> None:
    """R47: what a consumer finishes at once is kept, in segments that would be gone."""
    with Nsqd(tmp_path, "--max-bytes-per-file=20000", "--sync-every=1") as nsqd:
        leave(nsqd, "*")
        with nsqd.connect() as raw:
            assert raw.command(commands.sub("new", "fast")) == (RESPONSE, b"OK")
            raw.send(commands.rdy(2500))
            for number in range(20):
                body = b"\n".join(b"%03d %03d" % (number, place) for place in range(200))
                assert nsqd.post("/mpub?topic=new", body).status == 200
                for _ in range(200):
                    raw.send(commands.fin(raw.message().id))
        assert len(whole(nsqd, "new")) == 4000
        assert nsqd.channel("new", "fast")["depth"] == 0
        assert ok(nsqd.get("/log?topic=new"))["whole_from"] == 0


def test_what_matches_and_what_is_left_out(nsqd: Nsqd) -> None:
    assert nsqd.post("/topic/create?topic=orders.before").status == 200
    assert leave(nsqd, "orders.*", "a?", "plain", **{"except": ["orders.retry"]}) == {}
    wanted = ("orders.new", "orders.", "ab", "plain")
    others = ("orders.retry", "orders", "Orders.new", "xorders.new", "a", "abc", "plain2")
    for topic in (*wanted, *others, "orders.x%23ephemeral"):
        assert nsqd.post(f"/pub?topic={topic}", b"a").status == 200
    having = {
        topic["topic_name"]
        for topic in nsqd.stats()["topics"]
        if any(channel["channel_name"] == "archive" for channel in topic["channels"])
    }
    assert having == set(wanted)
    assert set(leave(nsqd, "orders.*", "a?", "plain")) == set(wanted)
    assert set(leave(nsqd, "a*")) == {"ab"}, "of those that have the channel, what matches now"
    body = {"channel": "archive", "identity": ONE, "topics": {"ab": {}}}
    ends = ok(nsqd.post("/log/ends", json.dumps(body).encode()))["topics"]
    assert leave(nsqd, "a*") == ends
    deleted = "/topic/delete?topic=ab&force=true"
    assert nsqd.post(deleted).status == 200
    assert leave(nsqd, "a*") == {}
    assert nsqd.post("/pub?topic=ab", b"a").status == 200
    assert leave(nsqd, "a*")["ab"]["low"] > ends["ab"]["low"], "made again, with the channel"


def test_a_consumer_cannot_subscribe_to_the_channel_of_a_pattern(nsqd: Nsqd) -> None:
    leave(nsqd, "*")
    with nsqd.connect() as raw:
        kind, text = raw.command(commands.sub("new", "archive"))
    assert kind == ERROR and b"pull" in text.lower(), text


def test_a_pattern_has_one_reader_until_it_is_taken_over(nsqd: Nsqd) -> None:
    """R45, R47."""
    leave(nsqd, "a.*")
    other = left(nsqd, "b.*", identity=TWO)
    assert (other.status, other.json["message"], other.json["identity"]) == (
        *(409, "CHANNEL_HAS_READER", ONE),
    )
    assert "channel archive is read by me (identity 1111" in other.json["detail"]
    assert patterns(nsqd)[0]["topics"] == ["a.*"]
    wrong = left(nsqd, "b.*", identity=TWO, take_over="3" * 32)
    assert (wrong.status, wrong.json["message"]) == (409, "TAKE_OVER_REFUSED")
    for _ in range(2):
        leave(nsqd, "b.*", identity=TWO, take_over=ONE)
    assert left(nsqd, "a.*").status == 409
    nsqd.kill()
    nsqd.start()
    (kept,) = patterns(nsqd)
    assert (kept["identity"], kept["topics"]) == (TWO, ["b.*"])
    nobody = {"channel": "x", "identity": TWO, "topics": ["*"], "take_over": ONE}
    reply = nsqd.post("/channel/pattern", json.dumps(nobody).encode())
    assert (reply.status, reply.json["message"]) == (409, "TAKE_OVER_REFUSED")


def test_patterns_are_listed_kept_and_deleted(nsqd: Nsqd) -> None:
    assert "patterns" not in nsqd.stats()
    for made in (True, False):
        assert ok(left(nsqd, "a.*", **{"except": ["a.retry"]}))["made"] is made
    (first,) = patterns(nsqd)
    assert first["idle_ms"] < late_s(10) * 1000 and first["lapses_in_ms"] > 6 * 24 * 3600 * 1000
    fixed = {key: first[key] for key in ("channel", "identity", "reader", "topics", "except")}
    assert fixed == {
        "channel": "archive",
        "identity": ONE,
        "reader": "me",
        "topics": ["a.*"],
        "except": ["a.retry"],
    }
    assert nsqd.post("/pub?topic=a.1", b"x").status == 200
    for end in (nsqd.terminate, nsqd.kill):
        end()
        nsqd.start()
        (again,) = nsqd.stats()["patterns"]
        assert again["since_ms"] == first["since_ms"]
        leave(nsqd, "a.*", **{"except": ["a.retry"]})
    metrics = nsqd.get("/metrics").text
    assert "\npenstock_pull_patterns 1\n" in metrics
    assert nsqd.post("/channel/pattern/delete?channel=archive").status == 200
    assert patterns(nsqd) == [] and "patterns" not in nsqd.stats()
    gone = nsqd.post("/channel/pattern/delete?channel=archive")
    assert (gone.status, gone.json["message"]) == (404, "PATTERN_NOT_FOUND")
    assert nsqd.post("/pub?topic=a.2", b"x").status == 200
    assert pulled(nsqd, "a.2") == {}
    assert set(pulled(nsqd, "a.1")) == {"archive"}, "channels that are there stay"
    nsqd.kill()
    nsqd.start()
    assert patterns(nsqd) == []


def test_a_pattern_lapses_without_its_reader_and_polls_renew_it(tmp_path: Path) -> None:
    with Nsqd(tmp_path, "--pull-channel-lapse=1s") as nsqd:
        leave(nsqd, "a.*")
        assert nsqd.post("/pub?topic=a.1", b"x").status == 200
        poll = {"channel": "archive", "identity": ONE, "topics": {"a.1": {"after": INDEX_MAX}}}
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s:
            # One that waits, too: nobody lapses while its reader waits for an answer.
            waiting = json.dumps({**poll, "wait_ms": 1900}).encode()
            assert nsqd.post("/log/ends", waiting).status == 200
        assert len(patterns(nsqd)) == 1
        deadline_s = time.monotonic() + late_s(20)
        while patterns(nsqd) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert patterns(nsqd) == []
        assert "the pattern of me (identity 1111" in nsqd.log and "lapsed" in nsqd.log
        assert "\npenstock_pull_pattern_lapses_total 1\n" in nsqd.get("/metrics").text
        leave(nsqd, "b.*", identity=TWO)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"channel": ""}, "INVALID_CHANNEL"),
        ({"channel": "a b"}, "INVALID_CHANNEL"),
        ({"channel": 1}, "INVALID_CHANNEL"),
        ({"channel": "c#ephemeral"}, "EPHEMERAL_CHANNEL"),
        ({"identity": None}, "MISSING_IDENTITY"),
        ({"identity": "X" * 32}, "INVALID_IDENTITY"),
        ({"identity": ["1" * 32]}, "INVALID_IDENTITY"),
        ({"reader": 7}, "INVALID_READER"),
        ({"topics": "a*"}, "INVALID_TOPICS"),
        ({"topics": []}, "INVALID_TOPICS"),
        ({"topics": None}, "INVALID_TOPICS"),
        ({"topics": ["a", 1]}, "INVALID_TOPICS"),
        ({"topics": ["[ab]*"]}, "INVALID_TOPICS"),
        ({"topics": ["a*#ephemeral"]}, "INVALID_TOPICS"),
        ({"topics": ["*" * 65]}, "INVALID_TOPICS"),
        ({"topics": ["a\n"]}, "INVALID_TOPICS"),
        ({"except": ["a*"]}, "INVALID_EXCEPT"),
        ({"except": {"a": 1}}, "INVALID_EXCEPT"),
        ({"take_over": "x"}, "INVALID_TAKE_OVER"),
    ],
)
def test_a_pattern_that_is_wrong_is_refused(
    module_nsqd: Nsqd, change: dict[str, Any], code: str
) -> None:
    body = {"channel": "archive", "identity": ONE, "topics": ["*"], **change}
    reply = module_nsqd.post("/channel/pattern", json.dumps(body).encode())
    assert (reply.status, reply.json["message"]) == (400, code)
    assert patterns(module_nsqd) == []


@pytest.fixture(scope="module")
def module_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("nsqd")) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 10_000])
def test_a_body_that_is_no_pattern_is_refused(module_nsqd: Nsqd, body: bytes) -> None:
    assert module_nsqd.post("/channel/pattern", body).json["message"] == "INVALID_BODY"


def test_roles_may_do_what_they_should(tmp_path: Path) -> None:
    """R47: a reader leaves patterns, and takes none over; only an admin deletes them."""
    tokens = tmp_path / "tokens"
    tokens.write_text("read reader-token\nadmin admin-token\npublish publish-token\n")
    body = {"channel": "archive", "identity": ONE, "topics": ["*"]}
    with Nsqd(tmp_path / "data", f"--http-auth-token-file={tokens}") as nsqd:

        def ask(who: str, method: str, target: str, **more: Any) -> int:
            data = json.dumps({**body, **more}).encode()
            headers = {"Authorization": f"Bearer {who}-token"}
            return nsqd.http(method, target, data, headers).status

        assert ask("publish", "POST", "/channel/pattern") == 403
        assert ask("reader", "POST", "/channel/pattern") == 200
        assert ask("reader", "GET", "/channel/patterns") == 200
        assert ask("reader", "POST", "/channel/pattern", identity=TWO, take_over=ONE) == 403
        assert ask("admin", "POST", "/channel/pattern", identity=TWO, take_over=ONE) == 200
        assert ask("reader", "POST", "/channel/pattern/delete?channel=archive") == 403
        assert ask("admin", "POST", "/channel/pattern/delete?channel=archive") == 200


def test_damage_to_the_patterns_is_told_and_costs_what_is_in_them(nsqd: Nsqd) -> None:
    """One copy is enough; without both the reader leaves its pattern again."""
    leave(nsqd, "a.*")
    files = [nsqd.data_path / "penstock/patterns.json", nsqd.data_path / "penstock.patterns.json"]
    nsqd.terminate()
    files[0].write_bytes(files[0].read_bytes().replace(b"a.*", b"b.*"))
    nsqd.start()
    assert [each["topics"] for each in patterns(nsqd)] == [["a.*"]]
    (record,) = nsqd.get("/damage").json["records"]
    assert record["kind"] == "metadata" and "fails its checksum" in record["text"]
    assert nsqd.post("/damage/clear").status == 200
    nsqd.terminate()
    assert files[0].read_bytes() == files[1].read_bytes()
    files[0].unlink()
    files[1].write_bytes(b"")
    nsqd.start()
    assert patterns(nsqd) == []
    (record,) = nsqd.get("/damage").json["records"]
    assert "patterns.json is missing" in record["text"] and "get no channel" in record["text"]
    leave(nsqd, "a.*")
    nsqd.terminate()
    later = json.loads(files[0].read_bytes()) | {"format": 2}
    files[0].write_text(json.dumps(later))
    with pytest.raises(AssertionError, match=r"written by a later version \(format 2\)"):
        nsqd.start()
    assert json.loads(files[0].read_bytes()) == later
