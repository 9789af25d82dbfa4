"""The table of an HTTP connection's states, and connections that go through it in any order."""

from __future__ import annotations

import ast
import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.ticket import Ticket
from penstock.net import http_connection, http_file, http_reader
from penstock.net.body_budget import BodyBudget
from penstock.net.http_connection import HttpConnection
from penstock.net.http_heads import KnownHeads
from penstock.net.http_message import Pending, Request, Response, text_response
from penstock.net.http_reader import ReadLimits, RequestReader
from penstock.net.http_router import Route, Router
from penstock.net.http_server import HttpServer
from penstock.net.http_states import BETWEEN, IN_BODY, NO_FILE, SERVING, TABLE, Event, State
from penstock.page_cache import FileSlice
from tests.meta.connections import GROUPS
from tests.support.waits import until
from tests.unit.net.harness import Harness, get, post, request
from tests.unit.net.test_http_server import Application

MODULES = (http_connection, http_reader, http_file)
FIELDS = {"_life", "_input", "_output", "_state", "state"}
LATER = 1000.0
FAILED = "an HTTP connection failed"


# The table


def test_every_state_has_a_row_and_leads_into_its_own_group() -> None:
    assert set(TABLE) == set(State)
    assert [state for _, states in GROUPS for state in states] == list(State)
    for _, states in GROUPS:
        for state in states:
            assert set(TABLE[state].values()) <= set(states), state


def test_every_state_is_reached_from_the_first_of_its_group() -> None:
    for _, (first, *others) in GROUPS:
        reached = [first]
        for state in reached:
            reached += [after for after in TABLE[state].values() if after not in reached]
        assert set(reached) == {first, *others}


def test_every_event_leads_somewhere() -> None:
    assert {event for row in TABLE.values() for event in row} == set(Event)


def test_states_change_through_the_table_only() -> None:
    """What is assigned is a name for the first state, or a look-up in the table."""
    found = 0
    for module in MODULES:
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and any(
                    isinstance(t, ast.Attribute) and t.attr in FIELDS for t in node.targets
                ):
                    found += 1
                    text = ast.unparse(node.value)
                    first = function.name == "__init__" and text.startswith(("State.", "_"))
                    assert first or text.startswith("TABLE[self."), (module.__name__, text)
    assert found > 20


# Connections


class FakeTransport:
    """What a connection needs of asyncio; checks that it is not misused."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.written = b""
        self.reading = True
        self.closing = False
        self.eof = False
        self.unsent = 0

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self.sock, "peername": ("127.0.0.1", 1)}.get(name)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        assert not self.eof or not data
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closing = True

    abort = close


class OtherOwner:
    """Takes up the whole budget for bodies."""

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def end_body(self, *, late: bool) -> None: ...


class Peer:
    """One connection and all that can happen to it."""

    def __init__(self, file_fd: int) -> None:
        self.tickets: list[Ticket] = []
        self.file_fd = file_fd
        router = Router()
        router.add("POST", "/echo", Route(self.echo, body_size_max=100))
        router.add("POST", "/later", Route(self.later, body_size_max=100))
        router.add("GET", "/file", Route(self.file))
        self.server = HttpServer(router, bodies=BodyBudget(20))
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.transport = FakeTransport(self.near)
        self.connection = HttpConnection(self.server)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.other = OtherOwner()
        self.blocked = self.eof = self.lost = self.drained = False

    def echo(self, request: Request) -> Response:
        return text_response("echo")

    def later(self, request: Request) -> Pending:
        self.tickets.append(Ticket())
        return Pending(self.tickets[-1], lambda _: text_response("later"))

    def file(self, request: Request) -> Response:
        size = 0 if request.raw_query else os.fstat(self.file_fd).st_size
        file_slice = FileSlice(self.file_fd, 0, size)
        return Response(200, b"", done=lambda: None, file=file_slice)

    def close(self) -> None:
        self.lose()
        self.near.close()
        self.far.close()

    # Each returns whether it could happen.

    def send(self, data: bytes) -> bool:
        if self.lost or self.eof or not self.transport.reading or self.transport.closing:
            return False
        self.connection.data_received(data)
        return True

    def end(self) -> bool:
        # Over TLS it may come after we closed.
        if self.lost or self.eof or not self.transport.reading:
            return False
        self.eof = True
        if not self.connection.eof_received():
            self.transport.close()
        return True

    def block(self) -> bool:
        if self.lost or self.blocked or self.connection._output is not State.CLEAR:
            return False
        self.blocked, self.transport.unsent = True, 1
        self.connection.pause_writing()
        return True

    def unblock(self) -> bool:
        if self.lost or not self.blocked:
            return False
        self.blocked, self.transport.unsent = False, 0
        self.connection.resume_writing()
        return True

    def settle(self) -> bool:
        for ticket in self.tickets:
            if not ticket.done:
                ticket.settle()
                return True
        return False

    def settle_all(self) -> bool:
        while self.settle():
            pass
        return True

    def take(self) -> bool:
        """Read what a file sent."""
        try:
            while self.far.recv(1 << 20):
                pass
        except BlockingIOError:
            pass
        return True

    def squeeze(self) -> bool:
        self.server.bodies.note(self.other, 1000, 1000, 0.0)
        return True

    def relax(self) -> bool:
        self.server.bodies.forget(self.other, 0.0)
        return True

    def drain(self) -> bool:
        if self.drained or self.lost:
            return False
        self.drained = self.server.closing = True
        self.connection.drain()
        return True

    def expire(self) -> bool:
        self.server.now_s += LATER
        self.connection.expire(self.server.now_s)
        self.server.bodies.sweep(self.server.now_s)
        return True

    def lose(self) -> bool:
        if self.lost:
            return False
        self.lost = True
        self.connection.connection_lost(None)
        return True

    def check(self) -> None:
        connection = self.connection
        if not self.lost and not self.transport.closing:
            assert self.transport.reading is (connection._input is State.READING)
        assert (connection._life is State.CLOSED) is self.lost
        assert (connection._output is State.BLOCKED) is (self.blocked and not self.lost)
        assert (connection._sending is not None) is (connection._output not in NO_FILE)
        if connection._life not in SERVING:
            assert not connection._busy() or connection._sending is not None
        if connection._reader.state in (*BETWEEN, *IN_BODY):
            assert connection._reader.body_left >= 0


CHUNKS = ("Transfer-Encoding: chunked", "Expect: 100-continue")
TOO_BIG = request("POST", "/echo", b"x" * 50, "Content-Length: 5000")
PACKETS = {
    "echo": post("/echo", b"hello"),
    "echo, last": post("/echo", b"hello", "Connection: close"),
    "later": post("/later", b"hello"),
    "file": get("/file"),
    "empty file": get("/file?empty"),
    "file, last": get("/file", "Connection: close"),
    "head": b"POST /echo HTTP/1.1\r\nHost: x\r\n",
    "rest of the head": b"Content-Length: 30\r\n\r\n",
    "half a body": b"x" * 15,
    "expect": request("POST", "/echo", b"", "Content-Length: 30", "Expect: 100-continue"),
    "expect chunks": request("POST", "/echo", b"", *CHUNKS),
    "expect chunks, last": request("POST", "/echo", b"", *CHUNKS, "Connection: close"),
    "no chunks": b"0\r\n\r\n",
    "too big": TOO_BIG,
    "nonsense": b"\x00\x01\r\n\r\n",
    "many": post("/later", b"hello") * 70,
    "many, the last too big": post("/later", b"hello") * 64 + post("/echo", b"hello") + TOO_BIG,
}
STEPS: dict[str, Callable[[Peer], bool]] = {
    **{name: lambda peer, data=data: peer.send(data) for name, data in PACKETS.items()},  # type: ignore[misc]
    "eof": Peer.end,
    "block": Peer.block,
    "unblock": Peer.unblock,
    "settle": Peer.settle,
    "settle all": Peer.settle_all,
    "take": Peer.take,
    "squeeze": Peer.squeeze,
    "relax": Peer.relax,
    "drain": Peer.drain,
    "expire": Peer.expire,
    "lost": Peer.lose,
}


async def play(steps: list[str], file_fd: int, take_s: float = 0.0) -> None:
    """A state that does not follow from the table is a KeyError, here or in the loop."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    peer = Peer(file_fd)
    try:
        for step in steps:
            STEPS[step](peer)
            peer.check()
            await asyncio.sleep(take_s if step == "take" else 0)
            peer.check()
            assert not errors
    finally:
        peer.close()


@pytest.fixture(scope="module")
def file_fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("file") / "large"
    path.write_bytes(bytes(2 << 20))
    with path.open("rb") as file:
        yield file.fileno()


@settings(deadline=None, max_examples=400)
@given(steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=25))
@example(steps=["head", "drain", "eof", "lost"])
@example(steps=["file", "eof", "drain", "take", "take"])
def test_whatever_happens_follows_from_the_table(file_fd: int, steps: list[str]) -> None:
    asyncio.run(play(steps, file_fd))


# Sequences that together take every step of the table.
WAYS = [
    "echo / eof / lost",
    "head / rest of the head / half a body / half a body / drain / lost",
    "later / eof / drain / settle",
    "later / drain / eof / settle / lost",
    "expect / half a body / half a body / echo, last / lost",
    "later / expect / half a body / half a body / settle / settle",
    "expect / lost",
    "too big / eof / lost",
    "nonsense / lost",
    "head / nonsense",
    "later / too big / settle / lost",
    "later / too big / eof / settle / lost",
    "later / too big / drain / settle / lost",
    "later / eof / settle / lost",
    "echo, last / eof / lost",
    "later / expect chunks / no chunks / settle",
    "later / expect chunks, last / no chunks / settle",
    "later / expect / expire",
    "head / expire",
    "block / lost",
    "block / unblock / block / lost",
    "many / settle / settle / lost",
    "many / many / settle / settle / settle / settle / settle / settle / settle / settle",
    "squeeze / head / rest of the head / half a body / relax / half a body",
    "squeeze / head / rest of the head / half a body / expire",
    "squeeze / block / echo / half a body / relax / unblock",
    "block / many / squeeze / unblock / settle all / settle all",
    "block / too big / unblock",
    "squeeze / many, the last too big / block / settle all / unblock",
    "later / drain / lost",
    "file / " + "take / " * 60 + "echo",
    "file, last / " + "take / " * 60 + "lost",
    "file / take / take / lost",
    "file / take / take / take / take / lost",
    "file, last / lost",
    "empty file / take / take",
]


class Recorded(dict[Event, State]):
    """A row of the table that remembers what was taken from it."""

    def __init__(self, state: State, taken: set[tuple[State, Event]]) -> None:
        super().__init__(TABLE[state])
        self._state = state
        self._taken = taken

    def __getitem__(self, event: Event) -> State:
        self._taken.add((self._state, event))
        return super().__getitem__(event)


def test_all_of_the_table_is_used(file_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[State, Event]] = set()
    table = {state: Recorded(state, taken) for state in State}
    for module in MODULES:
        monkeypatch.setattr(module, "TABLE", table)
    monkeypatch.setattr(http_file, "FETCH_S", 0.001)
    for way in WAYS:
        cached = itertools.cycle([False, True, True])
        monkeypatch.setattr(http_file, "is_cached", lambda *_, cached=cached: next(cached))
        asyncio.run(play(way.split(" / "), file_fd, take_s=0.002))
    _ = RequestReader(Router(), ReadLimits(), KnownHeads(), "").give_up(408)  # at any time
    rows = [(state, event) for state in State for event in TABLE[state]]
    missing = [f"{s.name} {e.name}" for s, e in rows if (s, e) not in taken]
    assert not missing, missing


def test_a_connection_that_was_held_is_read_again_once_it_keeps_nothing(file_fd: int) -> None:
    async def run() -> None:
        peer = Peer(file_fd)
        for step in ("squeeze", "many", "settle", "settle all", "settle all"):
            STEPS[step](peer)
        # On a busy machine a slice of time ends early, and another turn executes what is left.
        await until(lambda: STEPS["settle all"](peer) and peer.transport.reading, 10)
        assert peer.send(PACKETS["echo"]), "the socket is read"
        await until(lambda: peer.transport.written.endswith(b"echo"))
        peer.close()

    asyncio.run(run())


def test_an_event_that_the_table_does_not_have_ends_the_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistake of ours costs one connection, also when the broker settles its ticket."""
    app = Application()
    for state, event in ((State.BODY, Event.EXPECT), (State.OPEN, Event.CLOSE)):
        left = {key: after for key, after in TABLE[state].items() if key is not event}
        monkeypatch.setitem(TABLE, state, left)
    with Harness(app.router) as harness, harness.connect() as other:
        with harness.connect() as raw:
            raw.send(PACKETS["expect"])
            assert raw.closed()
        with harness.connect() as raw:
            raw.send(post("/later", b"x", "Connection: close"))
            other.send(post("/later", b"y"))
            while len(app.tickets) < 2:
                pass
            for ticket in app.tickets:
                harness.on_loop(ticket.settle)
            assert raw.answer()[0] == 200 and raw.closed()
            assert other.answer()[2] == b"y None"
        assert [context["message"] for context in harness.errors] == [FAILED] * 2
        harness.errors.clear()
