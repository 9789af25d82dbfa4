"""Nodes and nsqlookupds that answer anything: a failing node at worst, and every page is shown."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.admin.cluster import Nsqadmin
from tests.support.daemon import Nsqd
from tests.support.endpoint import Answer, Endpoint, HttpRequest
from tests.support.waits import wait_for
from tests.unit.admin.test_sample import HOSTILE_NUMBERS, channel, stats, topic

JSON = "application/json"
PAGES = ("", "/topics", "/topics/t", "/topics/t/c", "/nodes", "/lookup", "/deferred", "/pipelines")


class Node(Endpoint):
    """A nsqd that says of itself what a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.say(stats(topic("t", channel("c"))))
        self.deferred: Any = {"total": 0, "topics": []}
        self.raw: bytes | None = None  # in place of /stats

    def say(self, stats: Any) -> None:
        self._said = json.dumps(stats).encode()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def respond(self, request: HttpRequest) -> Answer:
        if request.path == "/info":
            info = {"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": "h"}
            info |= {"http_port": self.port, "tcp_port": 1, "node_uuid": "u"}
            return 200, json.dumps(info).encode(), JSON
        if request.path == "/deferred":
            return 200, json.dumps(self.deferred).encode(), JSON
        return 200, self._said if self.raw is None else self.raw, JSON


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("nsqd")
    with Nsqd(path, "--broadcast-address=127.0.0.1") as running:
        running.post("/topic/create?topic=good")
        running.post("/channel/create?topic=good&channel=c")
        yield running


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as running:
        yield running


@pytest.fixture(scope="module")
def admin(nsqd: Nsqd, node: Node) -> Iterator[Nsqadmin]:
    with Nsqadmin(
        f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}", f"--nsqd-http-address={node.address}"
    ) as running:
        yield running


def sampled(admin: Nsqadmin) -> None:
    """Wait for a sample that was begun after now."""
    number = admin.view("/counter")["sample"]["number"]
    wait_for(lambda: admin.view("/counter")["sample"]["number"], lambda n: n > number + 1, 60)


def hostile_numbers() -> list[Any]:
    names = [name for name, value in channel("c").items() if type(value) is int]
    return [
        stats(topic("t", channel("c", **dict.fromkeys(names, number)), depth=number))
        for number in HOSTILE_NUMBERS
    ]


HOSTILE_STATS: list[Callable[[], Any]] = [
    lambda: stats(topic("\ud800", channel("c"))),
    lambda: stats(topic("t", channel("\udfff"))),
    lambda: stats(topic("t" * 5000)),
    lambda: stats(topic("t", channel("c")), version="\ud800" * 100_000, health="x" * 100_000),
    lambda: stats(topic("t", channel("c", clients=5))),
    lambda: stats(topic("t", channel("c", clients=[5, None]))),
    lambda: stats(
        topic("t", channel("c", clients=[{"connect_ts": 10**300, "state": [[[]]], "tls": 5}]))
    ),
    lambda: stats(topic("t", channel("c", client_count=1, clients=[{"connect_ts": -(1 << 62)}]))),
    lambda: stats(topic("t", channel("c", pull=5))),
    lambda: stats(topic("t", channel("c", pull={"progress": [1], "idle_ms": 1 << 70}))),
    lambda: stats(
        topic(
            "t",
            channel(
                "c",
                pull={
                    "idle_ms": 1,
                    "lapses_in_ms": None,
                    "progress_time": 1 << 62,
                    "progress": {
                        "query": 5,
                        "name": "\ud800",
                        "state": "x" * 10_000,
                        "batch": 1e300,
                        "rows": -1,
                        "input_rate": "x",
                        "sink": {"a": 1},
                        "error": "e" * 10**5,
                        "at_ms": 10**30,
                    },
                },
            ),
        )
    ),
    lambda: stats(
        topic("t", channel("c", e2e_processing_latency={"percentiles": [{"quantile": "x"}]}))
    ),
    lambda: stats(
        topic(
            "t",
            e2e_processing_latency={"percentiles": [{"quantile": 0.5, "value": 1e300}] * 1000},
        )
    ),
    lambda: stats(topic("t", channel("c")), memory={"heap_in_use_bytes": 10**300, "x": "y"}),
    lambda: stats(topic("t", channel("c")), start_time=10**300),
    lambda: stats(topic("t", channel("c")), start_time=(1 << 63) - 1),
    lambda: stats(*(topic(f"t{n}", channel("c")) for n in range(200))),
    list,
    lambda: None,
]


def test_nothing_that_nodes_say_makes_a_page_fail(nsqd: Nsqd) -> None:
    """All of them at once: each is shown as failing or with what it says, and so are the others."""
    said = [*hostile_numbers(), *(hostile() for hostile in HOSTILE_STATS)]
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node()) for _ in said]
        for node, answer in zip(nodes, said, strict=True):
            node.say(answer)
            node.deferred = {
                "topics": [{"topic_name": "t", "due": [{"start": 1 << 80, "count": 1}]}]
            }
        flags = [f"--nsqd-http-address={node.address}" for node in nodes]
        admin = stack.enter_context(
            Nsqadmin(f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}", *flags)
        )
        sampled(admin)
        check_pages(admin, nodes)
        for node in nodes:
            node.say(stats(topic("t", channel("c", depth=3))))
        # Also not later: what a chart of the last hour holds was in a sample once.
        wait_for(lambda: admin.view("/nodes")["warnings"], lambda warnings: not warnings)
        check_pages(admin, nodes)
        assert admin.view("/topics/t")["topic"]["depth"] == 3 * len(nodes)


def check_pages(admin: Nsqadmin, nodes: list[Node]) -> None:
    paths = [*PAGES, "/topics/good", "/topics/good/c", "/counter"]
    paths += [f"/nodes/{node.address}" for node in nodes]
    for path in paths:
        for before in ("", "/api/view"):
            assert admin.get(before + path or "/").status == 200, before + path
    for path in ("/api/nodes", "/api/topics", "/api/topics/t", "/api/topics/t/c", "/api/counter"):
        assert admin.get(path).status == 200, path
    for node in nodes[::10]:
        assert admin.get(f"/api/nodes/{node.address}").status in (200, 404, 502)
    states = [row["state"] for row in admin.view("/nodes")["nodes"]]
    assert "ok" in states
    assert "Traceback" not in admin.log


def test_a_node_with_hostile_numbers_is_a_failing_one(admin: Nsqadmin, node: Node) -> None:
    node.say(stats(topic("t", channel("c", depth=1e39))))
    sampled(admin)
    rows = {row["node"]: row for row in admin.view("/nodes")["nodes"]}
    assert rows[node.address]["state"] == "down"
    assert "invalid" in rows[node.address]["error"]
    assert sorted(row["state"] for row in rows.values()) == ["down", "ok"]
    node.say(stats(topic("t", channel("c"))))


def memory_size(pid: int) -> int:
    """Most that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


LARGE: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"[" + b"[]," * 19_000_000 + b"[]]",
    "topics of lists": lambda: (
        b'{"version":"1","health":"OK","topics":[' + b"[]," * 19_000_000 + b"[]]}"
    ),
    "more than is taken": lambda: b'"' + b"x" * (65 << 20) + b'"',
    "deep": lambda: b"[" * 30_000_000,
    "one text": lambda: json.dumps(stats(topic("t"), version="v" * (50 << 20))).encode(),
    "numbers": lambda: b"[" + b"1," * 1_900_000 + b"1]",
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_node_that_answers_too_much_fails_and_stops_nobody(
    admin: Nsqadmin, node: Node, kind: str
) -> None:
    waits: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            began_s = time.monotonic()
            assert admin.get("/ping").status == 200
            waits.append(time.monotonic() - began_s)
            time.sleep(0.01)

    looking = threading.Thread(target=look)
    node.raw = LARGE[kind]()
    looking.start()
    try:
        sampled(admin)
        view = admin.view("/nodes")
    finally:
        done.set()
        looking.join(30)
        node.raw = None
    states = {row["node"]: row["state"] for row in view["nodes"]}
    if kind == "one text":
        assert states[node.address] == "unhealthy" or states[node.address] == "ok"
    else:
        assert states[node.address] == "down", view["warnings"]
    assert sum(state == "ok" for state in states.values()) >= 1
    assert admin.get("/topics/good").status == 200
    # 57 MB of lists were 7 s of silence on an idle machine.
    assert max(waits) < 3.0, sorted(waits)[-5:]
    assert memory_size(admin.pid) < 700 << 20


@pytest.mark.parametrize("path", ["/topics", "/nodes"])
@pytest.mark.parametrize(
    "body",
    [b"[" + b"[]," * 15_000_000 + b"[]]", b'{"topics":["' + b"x" * (15 << 20) + b'"]}', b"5", b""],
    ids=["lists", "one name", "a number", "nothing"],
)
def test_an_nsqlookupd_that_answers_anything_hides_nobody(
    nsqd: Nsqd, path: str, body: bytes
) -> None:
    producer = {
        "broadcast_address": "127.0.0.1",
        "hostname": "h",
        "http_port": nsqd.http_port,
        "tcp_port": 1,
        "version": "1.3.0",
        "topics": ["good"],
        "tombstones": [False],
    }
    good = {"/topics": {"topics": ["good"]}, "/nodes": {"producers": [producer]}}

    class Lookupd(Endpoint):
        hostile = False

        def respond(self, request: HttpRequest) -> Answer:
            if self.hostile and request.path == path:
                return 200, body, JSON
            return 200, json.dumps(good.get(request.path, {"channels": []})).encode(), JSON

    with Lookupd() as honest, Lookupd() as other:
        other.hostile = True
        with Nsqadmin(
            f"--lookupd-http-address=127.0.0.1:{honest.port}",
            f"--lookupd-http-address=127.0.0.1:{other.port}",
        ) as admin:
            view = admin.view("/nodes")
            assert [row["state"] for row in view["nodes"]] == ["ok"]
            for page in ("/", "/topics", "/topics/good", "/lookup"):
                assert admin.get(page).status == 200
            assert "Traceback" not in admin.log
