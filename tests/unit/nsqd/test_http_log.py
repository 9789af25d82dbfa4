"""Reading by index over HTTP: the handlers on a broker without sockets (R18)."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from penstock.core.batches import INDEX_MAX, scan
from penstock.engine.pull import polls
from penstock.net.http_message import HttpError, Pending, Request, Response
from penstock.net.http_router import Router
from penstock.nsqd.http_log import LogApi
from tests.support.engine import MS, SECOND, Client, Engine

Answer = tuple[int, Any]


class Reader:
    """Asks the routes of an engine."""

    def __init__(self, **options: Any) -> None:
        self.engine = Engine(**options)
        self._router = Router()
        LogApi(self.engine.components).add_routes(self._router)

    def begin(self, method: str, target: str, body: object = b"") -> Response | Pending:
        path, _, query = target.partition("?")
        request = Request(method, path, query.encode())
        request.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        route, _ = self._router.resolve(method, path)
        try:
            return route.handler(request)
        except HttpError as error:
            return error.response()

    def end(self, result: Response | Pending) -> Response:
        self.engine.settle()
        if isinstance(result, Response):
            return result
        assert result.ticket.done, "not answered"
        try:
            return result.then(result.ticket)
        except HttpError as error:
            return error.response()

    def get(self, target: str) -> Answer:
        return shown(self.end(self.begin("GET", target)))

    def post(self, target: str, body: object = b"") -> Answer:
        return shown(self.end(self.begin("POST", target, body)))

    def pull(self, more: str = "") -> dict[str, Any]:
        status, answer = self.post(f"/channel/pull?topic=t&channel=q{more}")
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    def ends(self, topics: object, **more: object) -> Answer:
        return self.post("/log/ends", {"topics": topics, **more})

    def read(self, start: int, end: int, more: str = "") -> Response:
        instance = f"{self.engine.topic('t').instance:016x}"
        target = f"/log/read?topic=t&instance={instance}&start={start}&end={end}{more}"
        return self.end(self.begin("GET", target))

    @property
    def commit_body(self) -> dict[str, Any]:
        topic = self.engine.topic("t")
        told = {"instance": f"{topic.instance:016x}", "index": topic.end}
        return {"channel": "q", "topics": {"t": told}}


def shown(response: Response) -> Answer:
    return response.status, json.loads(response.body)


def header(response: Response, name: str) -> str:
    lines = dict(line.split(": ", 1) for line in response.head.decode().splitlines()[1:])
    return lines[name]


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_what_a_log_tells_of_itself(reader: Reader) -> None:
    engine = reader.engine
    engine.publish("t", b"a", b"b")
    engine.advance(3 * SECOND)
    topic = engine.topic("t")
    assert reader.get("/log?topic=t") == (
        200,
        {
            "node": engine.components.identity.uuid,
            "topic": "t",
            "instance": f"{topic.instance:016x}",
            "first": topic.log.first,
            "whole_from": 0,
            "end": topic.log.first + 2,
            "synced_end": topic.log.first + 2,
            "released": topic.log.first,
            "message_count": 2,
            "channels": [],
            "pull_channels": {},
        },
    )


def test_the_synced_end_is_not_the_end(reader: Reader) -> None:
    reader.engine.publish("t", b"a")
    _, told = reader.get("/log?topic=t")
    assert told["synced_end"] == told["end"] - 1


@pytest.mark.parametrize(
    "target",
    ["/log?", "/log/seek?timestamp=1&", "/log/count?start=0&end=1&", "/log/read?start=0&end=1&"],
)
def test_a_topic_must_be_there_and_have_a_log(reader: Reader, target: str) -> None:
    reader.engine.broker.create_topic("t#ephemeral")
    assert reader.get(target) == (400, {"message": "MISSING_ARG_TOPIC"})
    assert reader.get(target + "topic=x") == (404, {"message": "TOPIC_NOT_FOUND", "topic": "x"})
    refused = {"message": "EPHEMERAL_TOPIC", "topic": "t#ephemeral"}
    assert reader.get(target + "topic=t%23ephemeral") == (400, refused)


BAD_NUMBERS = ["", "-1", "+1", "1.5", "1e3", "x", "0x10", " 1", str(INDEX_MAX + 1), "9" * 30]


@pytest.mark.parametrize("bad", BAD_NUMBERS)
def test_numbers_of_a_query_are_judged(reader: Reader, bad: str) -> None:
    reader.pull()
    instance = f"{reader.engine.topic('t').instance:016x}"
    for target, code in (
        (f"/log/seek?topic=t&timestamp={bad.replace(str(INDEX_MAX + 1), '-7')}", "TIMESTAMP"),
        (f"/log/count?topic=t&start={bad}&end=1", "START"),
        (f"/log/count?topic=t&start=1&end={bad}", "END"),
        (f"/log/read?topic=t&instance={instance}&start={bad}&end=1", "START"),
        (f"/log/read?topic=t&instance={instance}&start=1&end={bad}", "END"),
        (f"/log/read?topic=t&instance={instance}&start=1&end=1&size_max={bad}", "SIZE_MAX"),
        (f"/log/read?topic=t&instance={instance}&start=1&end=1&raw={bad}", "RAW"),
    ):
        # "+" and " " are one in a query.
        assert reader.get(target.replace("+", "%2B")) == (400, {"message": f"INVALID_{code}"})
    target = f"/channel/pull?topic=t&channel=new&start={bad.replace('+', '%2B')}"
    assert reader.post(target) == (400, {"message": "INVALID_START"})
    assert "new" not in reader.engine.topic("t").channels


def test_seek_finds_the_first_message_of_a_time(reader: Reader) -> None:
    engine = reader.engine
    times = []
    for _ in range(5):
        times.append(engine.clock.wall_ns())
        engine.publish("t", b"a", b"b")
        engine.advance(SECOND)
    first = engine.topic("t").log.first
    for place, time_ns in enumerate(times):
        found = {"index": first + 2 * place}
        assert reader.get(f"/log/seek?topic=t&timestamp={time_ns}") == (200, found)
        assert reader.get(f"/log/seek?topic=t&timestamp={time_ns - MS}") == (200, found)
    late = engine.clock.wall_ns() + 1
    assert reader.get(f"/log/seek?topic=t&timestamp={late}") == (200, {"index": first + 10})
    assert reader.get("/log/seek?topic=t&timestamp=0") == (200, {"index": first})


def test_counts_leave_gaps_out(reader: Reader) -> None:
    """R1, R18."""
    reader.engine.publish("t", b"a", b"b", b"c")
    reader.engine.crash()
    reader.engine.start()
    LogApi(reader.engine.components).add_routes(router := Router())
    reader._router = router
    reader.engine.publish("t", b"d")
    topic = reader.engine.topic("t")
    first, end = topic.log.first, topic.end
    assert end - first > 1000
    assert reader.get(f"/log/count?topic=t&start={first + 1}&end={end}") == (200, {"count": 3})
    assert reader.get(f"/log/count?topic=t&start=0&end={INDEX_MAX}") == (200, {"count": 4})
    assert reader.get("/log/count?topic=t&start=2&end=1") == (400, {"message": "INVALID_RANGE"})


# Reading


def test_a_range_is_read_as_batches(reader: Reader) -> None:
    reader.engine.publish("t", b"a", b"b")
    reader.engine.publish("t", b"c")
    told = reader.pull("&start=earliest")
    answer = reader.read(told["low"], told["end"])
    assert answer.status == 200 and answer.done is not None
    assert header(answer, "Content-Type") == "application/octet-stream"
    assert header(answer, "X-Penstock-Next") == str(told["end"])
    data = b"".join(answer.pieces)
    assert header(answer, "Content-Length") == str(len(data))
    assert [batch[:2] for batch in scan(data, 0, True).batches] == [
        (told["low"], 2),
        (told["low"] + 2, 1),
    ]


def test_a_read_goes_on_where_the_last_one_ended(reader: Reader) -> None:
    for _ in range(10):
        reader.engine.publish("t", b"a", b"b")
    told = reader.pull("&start=earliest")
    at, batches = told["low"], []
    while at < told["end"]:
        answer = reader.read(at, told["end"], "&size_max=0")
        batches += scan(b"".join(answer.pieces), 0, True).batches
        at = int(header(answer, "X-Penstock-Next"))
    assert [batch[0] for batch in batches] == list(range(told["low"], told["end"], 2))


def test_ranges_end_at_the_synced_end(reader: Reader) -> None:
    """R18: what is asked for beyond it is synced first."""
    reader.pull()
    reader.engine.advance(5 * MS)
    reader.engine.publish("t", b"a")
    topic = reader.engine.topic("t")
    assert topic.log.synced_end < topic.end
    assert reader.read(topic.log.first, topic.end).status == 200
    assert topic.log.synced_end == topic.end
    for start, end in ((5, 4), (0, topic.end + 1)):
        assert shown(reader.read(start, end)) == (400, {"message": "INVALID_RANGE"})


def test_a_range_that_cannot_be_synced_is_not_read(reader: Reader) -> None:
    told = reader.pull()
    reader.engine.advance(5 * MS)
    reader.engine.publish("t", b"a")
    topic = reader.engine.topic("t")
    reader.engine.disk.submit = lambda work, done: None  # type: ignore[method-assign]
    target = f"/log/read?topic=t&instance={told['instance']}&start={told['end']}&end={topic.end}"
    pending = reader.begin("GET", target)
    reader.engine.advance(6 * SECOND)
    assert shown(reader.end(pending)) == (503, {"message": "NOT_SYNCED"})


def test_a_read_names_the_instance(reader: Reader) -> None:
    reader.pull()
    for instance, status, code in (
        ("0" * 16, 409, "INSTANCE_CHANGED"),
        ("", 400, "INVALID_INSTANCE"),
        ("xyz", 400, "INVALID_INSTANCE"),
        ("A" * 16, 400, "INVALID_INSTANCE"),
        ("0" * 17, 400, "INVALID_INSTANCE"),
    ):
        target = f"/log/read?topic=t&instance={instance}&start=0&end=0"
        assert reader.get(target) == (status, {"message": code})
    assert reader.get("/log/read?topic=t&start=0&end=0")[1] == {"message": "MISSING_ARG_INSTANCE"}


def test_a_read_may_name_its_channel(reader: Reader) -> None:
    reader.pull()
    reader.engine.topic("t").create_channel("plain")
    channel = reader.engine.topic("t").channels["q"]
    reader.engine.advance(SECOND)
    assert reader.read(0, 0, "&channel=q").status == 200
    assert channel.pull is not None and channel.pull["idle_ms"] == 0
    about = {"topic": "t", "channel": "x"}
    assert shown(reader.read(0, 0, "&channel=x")) == (
        404,
        {"message": "CHANNEL_NOT_FOUND", **about},
    )
    assert reader.read(0, 0, "&channel=plain").status == 409


def test_a_topic_deleted_under_a_read_is_told(reader: Reader) -> None:
    reader.engine.publish("t", b"a")
    told = reader.pull("&start=earliest")
    instance = told["instance"]
    pending = reader.begin(
        "GET", f"/log/read?topic=t&instance={instance}&start={told['low']}&end={told['end']}"
    )
    reader.engine.broker.delete_topic("t")
    assert reader.end(pending).status == 404
    assert reader.engine.components.reads._held_size == 0


# Waiting


def test_ends_of_several_topics(reader: Reader) -> None:
    reader.engine.publish("t", b"a")
    told = reader.pull("&start=earliest")
    status, answer = reader.ends({"t": {}, "unknown": {}})
    wanted = {key: told[key] for key in ("instance", "first", "whole_from", "end")}
    assert status == 200 and answer["topics"] == {"t": wanted, "unknown": None}
    assert answer["node"] == reader.engine.components.identity.uuid
    _, answer = reader.ends({"t": {}}, channel="q")
    assert answer["topics"]["t"] == {**wanted, "low": told["low"], "paused": False}


def test_a_poll_waits_and_is_answered(reader: Reader) -> None:
    told = reader.pull()
    known = {"t": {"after": told["end"], "instance": told["instance"]}}
    pending = reader.begin("POST", "/log/ends", {"topics": known, "wait_ms": 30000})
    reader.engine.advance(SECOND)
    assert isinstance(pending, Pending) and not pending.ticket.done
    reader.engine.publish("t", b"a")
    _, answer = shown(reader.end(pending))
    assert answer["topics"]["t"]["end"] == told["end"] + 1


def test_a_poll_is_hurried_when_its_peer_is_gone(reader: Reader) -> None:
    told = reader.pull()
    known = {"t": {"after": told["end"]}}
    pending = reader.begin("POST", "/log/ends", {"topics": known, "wait_ms": 30000})
    assert isinstance(pending, Pending) and pending.hurry is not None
    pending.hurry()
    assert pending.ticket.done and reader.engine.components.polls.waiting_count == 0


def test_a_poll_for_a_channel_that_goes_is_told_so(reader: Reader) -> None:
    told = reader.pull()
    body = {"topics": {"t": {"after": told["end"]}}, "channel": "q", "wait_ms": 30000}
    pending = reader.begin("POST", "/log/ends", body)
    reader.engine.topic("t").delete_channel("q")
    gone = {"message": "CHANNEL_NOT_FOUND", "topic": "t", "channel": "q"}
    assert shown(reader.end(pending)) == (404, gone)
    assert reader.post("/log/ends", body) == (404, gone)
    reader.engine.topic("t").create_channel("q")
    assert reader.post("/log/ends", body)[0] == 409


def test_of_too_many_who_wait_the_longest_waiting_is_answered(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "POLL_COUNT_MAX", 2)
    end = reader.pull()["end"]
    body = {"topics": {"t": {"after": end}}, "wait_ms": 9000}
    pending = []
    for _ in range(4):
        begun = reader.begin("POST", "/log/ends", body)
        assert isinstance(begun, Pending)
        pending.append(begun)
    assert [each.ticket.done for each in pending] == [True, True, False, False]
    status, told = shown(pending[0].then(pending[0].ticket))
    assert (status, told["topics"]["t"]["end"]) == (200, end)


BAD_BODIES: list[tuple[object, str]] = [
    (b"", "INVALID_BODY"),
    (b"{", "INVALID_BODY"),
    (b"\xff", "INVALID_BODY"),
    (b"[" * 100_000, "INVALID_BODY"),
    (b'{"topics":{"t":{"after":NaN}}}', "INVALID_BODY"),
    (b'{"topics":{"t":{"after":' + b"9" * 5000 + b"}}}", "INVALID_BODY"),
    ([], "INVALID_BODY"),
    (None, "INVALID_BODY"),
    ({}, "INVALID_TOPICS"),
    ({"topics": []}, "INVALID_TOPICS"),
    ({"topics": {}}, "INVALID_TOPICS"),
    ({"topics": {"t": 5}}, "INVALID_TOPICS"),
    ({"topics": {"t!": {}}}, "INVALID_TOPICS"),
    ({"topics": {f"t{i}": {} for i in range(1025)}}, "INVALID_TOPICS"),
    ({"topics": {"t": {"after": "5"}}}, "INVALID_INDEX"),
    ({"topics": {"t": {"after": True}}}, "INVALID_INDEX"),
    ({"topics": {"t": {"after": 5.0}}}, "INVALID_INDEX"),
    ({"topics": {"t": {"after": -1}}}, "INVALID_INDEX"),
    ({"topics": {"t": {"after": INDEX_MAX + 1}}}, "INVALID_INDEX"),
    ({"topics": {"t": {"instance": 5}}}, "INVALID_INSTANCE"),
    ({"topics": {"t": {"instance": "5"}}}, "INVALID_INSTANCE"),
    ({"topics": {"t": {}}, "channel": 5}, "INVALID_CHANNEL"),
    ({"topics": {"t": {}}, "channel": "a b"}, "INVALID_CHANNEL"),
    ({"topics": {"t": {}}, "wait_ms": -1}, "INVALID_WAIT_MS"),
    ({"topics": {"t": {}}, "wait_ms": 30001}, "INVALID_WAIT_MS"),
    ({"topics": {"t": {}}, "wait_ms": 1.5}, "INVALID_WAIT_MS"),
    ({"topics": {"t": {}}, "wait_ms": True}, "INVALID_WAIT_MS"),
    ({"topics": {"t": {}}, "wait_ms": None}, "INVALID_WAIT_MS"),
]


@pytest.mark.parametrize(("body", "code"), BAD_BODIES)
def test_the_body_of_ends_is_judged(reader: Reader, body: object, code: str) -> None:
    reader.pull()
    assert reader.post("/log/ends", body) == (400, {"message": code})


def test_ends_of_an_ephemeral_topic_are_refused(reader: Reader) -> None:
    refused = {"message": "EPHEMERAL_TOPIC", "topic": "t#ephemeral"}
    assert reader.ends({"t#ephemeral": {}}) == (400, refused)


# Pull channels


def test_pulling_makes_topic_and_channel(reader: Reader) -> None:
    told = reader.pull()
    topic = reader.engine.topic("t")
    assert told == {
        "node": reader.engine.components.identity.uuid,
        "topic": "t",
        "channel": "q",
        "instance": f"{topic.instance:016x}",
        "first": topic.end,
        "whole_from": 0,
        "low": topic.end,
        "paused": False,
        "end": topic.end,
        "identity": None,
        "made": True,
    }
    assert reader.pull("&start=latest") == told | {"made": False}


def test_without_a_start_it_begins_with_what_the_topic_holds(reader: Reader) -> None:
    reader.engine.publish("t", b"a", b"b")
    told = reader.pull()
    assert (told["low"], told["end"]) == (told["first"], told["first"] + 2)
    assert reader.engine.topic("t").channels["q"].depth == 2


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("topic=t", "MISSING_ARG_CHANNEL"),
        ("channel=c", "MISSING_ARG_TOPIC"),
        ("topic=t!&channel=c", "INVALID_ARG_TOPIC"),
        ("topic=t&channel=c!", "INVALID_ARG_CHANNEL"),
        ("topic=t%23ephemeral&channel=c", "EPHEMERAL_TOPIC"),
        ("topic=t&channel=c%23ephemeral", "EPHEMERAL_CHANNEL"),
        ("topic=t&channel=c&start=yesterday", "INVALID_START"),
        ("topic=t&channel=c&start=5", "INVALID_START"),
    ],
)
def test_what_pull_refuses(reader: Reader, target: str, code: str) -> None:
    assert reader.post(f"/channel/pull?{target}") == (400, {"message": code})
    assert reader.engine.broker.topics == {}


def test_a_start_beyond_the_end_is_refused(reader: Reader) -> None:
    reader.engine.publish("t", b"a")
    end = reader.engine.topic("t").end
    refused = (400, {"message": "INVALID_START"})
    assert reader.post(f"/channel/pull?topic=t&channel=q&start={end + 1}") == refused
    assert reader.pull(f"&start={end}")["low"] == end
    assert reader.post("/channel/pull?topic=t&channel=old&start=7")[1]["low"] == 7


def test_a_channel_in_use_is_not_pulled(reader: Reader) -> None:
    client = Client(reader.engine, "t", "q", 1)
    target = "/channel/pull?topic=t&channel=q"
    assert reader.post(target) == (409, {"message": "CHANNEL_IN_USE"})
    client.close()
    assert reader.post(target) == (409, {"message": "CHANNEL_IN_USE"})
    assert reader.pull("&force=true")["made"] is False


def test_a_commit_moves_the_low_and_tells_the_progress(reader: Reader) -> None:
    reader.engine.publish("t", b"a", b"b")
    told = reader.pull("&start=earliest")
    body = reader.commit_body | {"progress": {"batch": 7, "rate": 1.5, "name": "ä<"}}
    answer = {"node": told["node"], "topics": {"t": {"low": told["end"]}}}
    assert reader.post("/channel/commit", body) == (200, answer)
    pull = reader.engine.topic("t").channels["q"].pull
    assert pull is not None and pull["low"] == told["end"]
    assert pull["progress"] == body["progress"]
    assert pull["progress_time"] == reader.engine.clock.wall_ns()


def test_a_commit_is_all_or_nothing(reader: Reader) -> None:
    reader.engine.publish("t", b"a")
    low = reader.pull("&start=earliest")["low"]
    reader.engine.broker.create_topic("u")[0].create_channel("q")
    good = reader.commit_body["topics"]["t"]
    for name, told, status, code in (
        ("x", good, 404, "TOPIC_NOT_FOUND"),
        ("u", good, 409, "NOT_A_PULL_CHANNEL"),
    ):
        body = {"channel": "q", "topics": {"t": good, name: told}}
        answer = reader.post("/channel/commit", body)
        assert answer[0] == status and answer[1]["message"] == code and answer[1]["topic"] == name
    other = {"channel": "q", "topics": {"t": good | {"instance": "0" * 16}}}
    assert reader.post("/channel/commit", other) == (
        409,
        {"message": "INSTANCE_CHANGED", "topic": "t"},
    )
    missing = reader.commit_body | {"channel": "x"}
    assert reader.post("/channel/commit", missing) == (
        404,
        {"message": "CHANNEL_NOT_FOUND", "topic": "t", "channel": "x"},
    )
    assert reader.pull()["low"] == low


DEEP: Any = {}
for _ in range(20):
    DEEP = {"d": [DEEP]}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"channel": None}, "INVALID_CHANNEL"),
        ({"topics": {"t": {"index": 5}}}, "INVALID_INSTANCE"),
        ({"topics": {"t": {"instance": "0" * 16}}}, "INVALID_INDEX"),
        ({"topics": {"t": {"instance": "0" * 16, "index": -1}}}, "INVALID_INDEX"),
        ({"topics": {"t": {"instance": "0" * 16, "index": "1"}}}, "INVALID_INDEX"),
        ({"topics": {"t": []}}, "INVALID_TOPICS"),
        ({"progress": 5}, "INVALID_PROGRESS"),
        ({"progress": {"x": "y" * 8192}}, "INVALID_PROGRESS"),
        ({"progress": DEEP}, "INVALID_PROGRESS"),
    ],
)
def test_the_body_of_a_commit_is_judged(reader: Reader, change: dict[str, Any], code: str) -> None:
    reader.pull()
    body = reader.commit_body | change
    assert reader.post("/channel/commit", body) == (400, {"message": code})


ONE, TWO = "1" * 32, "2" * 32


@pytest.mark.parametrize("call", ["pull", "read"])
def test_who_is_replaced_while_it_waits_for_its_answer_is_refused(
    reader: Reader, call: str
) -> None:
    """R45: the old reader gets nothing more, whatever it had asked for before."""
    reader.engine.publish("t", b"a")
    reader.pull(f"&start=earliest&identity={ONE}")
    assert reader.post("/channel/commit", reader.commit_body | {"identity": ONE})[0] == 200
    topic = reader.engine.topic("t")
    targets = {
        "pull": ("POST", f"/channel/pull?topic=t&channel=q&identity={ONE}"),
        "read": (
            "GET",
            f"/log/read?topic=t&instance={topic.instance:016x}&start={topic.log.first}"
            f"&end={topic.end}&channel=q&identity={ONE}",
        ),
    }
    waiting = reader.begin(*targets[call])
    assert isinstance(waiting, Pending)
    over = reader.begin("POST", f"/channel/pull?topic=t&channel=q&identity={TWO}&take_over={ONE}")
    status, answer = shown(reader.end(waiting))
    assert (status, answer["message"], answer["identity"]) == (409, "CHANNEL_HAS_READER", TWO)
    assert shown(reader.end(over))[1]["identity"] == TWO
    assert reader.engine.components.reads._held_size == 0, "what was read is let go of"


def test_a_take_over_on_a_failing_disk_is_no_answer(reader: Reader) -> None:
    reader.pull(f"&identity={ONE}")
    assert reader.post("/channel/commit", reader.commit_body | {"identity": ONE})[0] == 200
    reader.engine.advance(3 * SECOND)
    reader.engine.files.fail("append", errno.EIO)
    target = f"/channel/pull?topic=t&channel=q&identity={TWO}&take_over={ONE}"
    assert reader.post(target) == (500, {"message": "INTERNAL_ERROR"})
    assert reader.post(target)[1]["identity"] == TWO


def test_nothing_is_made_while_the_daemon_ends(reader: Reader) -> None:
    reader.engine.components.refuse_all()
    refused = (503, {"message": "EXITING"})
    assert reader.post("/channel/pull?topic=t&channel=q") == refused


def test_a_poll_outlives_many_syncs_of_others(reader: Reader) -> None:
    told = reader.pull()
    known = {"t": {"after": told["end"] + 50, "instance": told["instance"]}}
    pending = reader.begin("POST", "/log/ends", {"topics": known, "wait_ms": 30000})
    for _ in range(50):
        reader.engine.publish("t", b"a")
        reader.engine.advance(10 * MS)
    assert isinstance(pending, Pending) and not pending.ticket.done
    reader.engine.publish("t", b"a")
    reader.engine.advance(10 * MS)
    assert shown(reader.end(pending))[1]["topics"]["t"]["end"] == told["end"] + 51
