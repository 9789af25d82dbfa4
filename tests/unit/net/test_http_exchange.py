"""Answers that wait, and large ones: who is told when a peer goes, and when they are sent."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from pathlib import Path

import pytest

from penstock.core.ticket import Ticket
from penstock.net.http_message import Pending, Request, Response, text_response
from penstock.net.http_router import Route, Router
from penstock.net.http_server import HttpLimits
from penstock.page_cache import FileSlice
from tests.support.certificates import Pki
from tests.support.page_cache import must_forget, needs_cachestat
from tests.support.waits import wait_until
from tests.unit.net.harness import SECONDS_MAX, Harness

PIECE = bytes(range(256)) * 4096
ASK = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n"


class Handlers:
    """/wait answers when it is hurried; /large and /later send pieces."""

    def __init__(self) -> None:
        self.hurried = threading.Event()
        self.done = threading.Semaphore(0)
        self.later: list[Ticket] = []
        self.router = Router()
        self.router.add("GET", "/wait", Route(self.wait))
        self.router.add("GET", "/large", Route(self.large))
        self.router.add("GET", "/later", Route(self.wait_large))

    def wait(self, request: Request) -> Pending:
        ticket = Ticket()

        def hurry() -> None:
            self.hurried.set()
            ticket.settle()

        return Pending(ticket, lambda _: text_response("now"), hurry)

    def large(self, request: Request) -> Response:
        pieces = [PIECE, memoryview(PIECE)[100:], b"end"]
        return Response(200, b"", (), pieces, self.done.release)

    def wait_large(self, request: Request) -> Pending:
        ticket = Ticket()
        self.later.append(ticket)
        return Pending(ticket, lambda _: self.large(request))

    def sent(self, seconds: float = SECONDS_MAX) -> bool:
        return self.done.acquire(timeout=seconds)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def test_a_peer_that_is_gone_is_not_waited_for(handlers: Handlers) -> None:
    with Harness(handlers.router) as harness:
        with harness.connect() as raw:
            raw.send(ASK % b"wait")
            assert raw.silent(0.05) and not handlers.hurried.is_set()
        assert handlers.hurried.wait(SECONDS_MAX)


def test_a_peer_that_closed_only_its_side_is_answered_at_once(handlers: Handlers) -> None:
    with Harness(handlers.router) as harness, harness.connect() as raw:
        raw.send(ASK % b"wait")
        raw.sock.shutdown(socket.SHUT_WR)
        assert raw.answer()[2] == b"now"
        assert raw.closed()


def test_pieces_arrive_in_order_and_are_done(handlers: Handlers) -> None:
    with Harness(handlers.router) as harness, harness.connect() as raw:
        raw.send(ASK % b"large" + ASK % b"large" + ASK % b"nothing")
        for _ in range(2):
            status, headers, body = raw.answer()
            assert (status, body) == (200, PIECE + PIECE[100:] + b"end")
            assert headers["content-length"] == str(len(body))
            assert handlers.sent()
        assert raw.answer()[0] == 404
        assert not handlers.sent(0.05)


def test_pieces_are_not_done_before_the_peer_takes_them(handlers: Handlers) -> None:
    with Harness(handlers.router) as harness, harness.connect() as raw:
        raw.send(ASK % b"large" * 40)
        count = 0
        while handlers.sent(0.3):
            count += 1
        assert count < 40, "40 MiB do not fit a socket"
        for _ in range(40):
            raw.answer()
        for _ in range(40 - count):
            assert handlers.sent()
        assert not handlers.sent(0.05)


def test_pieces_nobody_takes_are_done_when_the_peer_goes(handlers: Handlers) -> None:
    with Harness(handlers.router) as harness:
        with harness.connect() as raw:
            raw.send(ASK % b"large" * 40)
            count = 0
            while handlers.sent(0.3):
                count += 1
        # Those that were being written; the others had not begun.
        assert handlers.sent()
        while handlers.sent(0.3):
            count += 1
        assert count < 39


def test_pieces_made_after_the_peer_went_are_done(handlers: Handlers) -> None:
    with Harness(handlers.router) as harness:
        with harness.connect() as raw:
            raw.send(ASK % b"wait" + ASK % b"later")
            assert raw.silent(0.05)
        assert handlers.hurried.wait(SECONDS_MAX)
        (ticket,) = handlers.later
        harness.on_loop(lambda: None)
        harness.on_loop(ticket.settle)
        assert handlers.sent()


def test_pieces_behind_an_answer_that_waits_are_done_when_the_peer_stalls(
    handlers: Handlers,
) -> None:
    limits = HttpLimits(write_timeout_s=0.2, idle_timeout_s=1.0)
    with Harness(handlers.router, limits) as harness, harness.connect() as raw:
        raw.send(ASK % b"large" * 40)
        assert handlers.sent()
        count = 1
        wait_until(lambda: harness.on_loop(lambda: not harness.server.connections))
        while handlers.sent(0.1):
            count += 1
        assert count < 40


# Parts of files


FILE_SIZE = 8 << 20
OFFSET = 1000


class FileHandlers(Handlers):
    """/file sends all of a file but its first bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.data = os.urandom(FILE_SIZE)
        self.said_size = FILE_SIZE - OFFSET
        path.write_bytes(self.data)
        self.router.add("GET", "/file", Route(self.file))

    def file(self, request: Request) -> Response:
        file_slice = FileSlice(os.open(self.path, os.O_RDONLY), OFFSET, self.said_size)

        def done() -> None:
            file_slice.close()
            self.done.release()

        return Response(200, b"", (), (), done, file_slice)


@pytest.fixture
def files(tmp_path: Path) -> FileHandlers:
    return FileHandlers(tmp_path / "file")


@needs_cachestat
def test_files_arrive_whole_and_in_order(files: FileHandlers) -> None:
    with Harness(files.router) as harness, harness.connect() as raw:
        raw.send(ASK % b"file" + ASK % b"nothing" + ASK % b"file" + ASK % b"large")
        assert raw.answer()[2] == files.data[OFFSET:] and files.sent()
        assert raw.answer()[0] == 404
        status, headers, body = raw.answer()
        assert (status, body) == (200, files.data[OFFSET:]) and files.sent()
        assert headers["content-length"] == str(len(body))
        assert raw.answer()[2] == PIECE + PIECE[100:] + b"end" and files.sent()
        raw.send(ASK % b"nothing")
        assert raw.answer()[0] == 404
        assert not files.sent(0.05)


@needs_cachestat
def test_a_connection_that_is_not_kept_closes_behind_a_file(files: FileHandlers) -> None:
    with Harness(files.router) as harness, harness.connect() as raw:
        raw.send(b"GET /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert raw.answer()[2] == files.data[OFFSET:]
        assert raw.closed() and files.sent()


@needs_cachestat
def test_a_peer_that_closed_only_its_side_gets_its_file(files: FileHandlers) -> None:
    with Harness(files.router) as harness, harness.connect() as raw:
        raw.send(ASK % b"file")
        raw.sock.shutdown(socket.SHUT_WR)
        assert raw.answer()[2] == files.data[OFFSET:]
        assert raw.closed() and files.sent()


def test_files_are_encrypted_like_anything_else(files: FileHandlers, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    with Harness(files.router) as harness:
        listen = harness.server.listen("127.0.0.1", 0, pki.server_context())
        port: int = harness.wait(listen)[1]
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=SECONDS_MAX, context=pki.client_context()
        )
        for _ in range(2):
            connection.request("GET", "/file")
            assert connection.getresponse().read() == files.data[OFFSET:] and files.sent()
        connection.close()


@needs_cachestat
def test_what_is_not_in_memory_any_more_is_fetched(files: FileHandlers) -> None:
    must_forget(files.path)
    with Harness(files.router) as harness, harness.connect() as raw:
        raw.send(ASK % b"file")
        assert raw.answer()[2] == files.data[OFFSET:] and files.sent()


@needs_cachestat
def test_a_file_that_became_shorter_breaks_the_connection(files: FileHandlers) -> None:
    os.truncate(files.path, FILE_SIZE // 2)
    with Harness(files.router) as harness, harness.connect() as raw:
        raw.send(ASK % b"file")
        with pytest.raises((EOFError, ConnectionResetError)):
            raw.answer()
        assert files.sent()


@needs_cachestat
def test_a_file_nobody_takes_is_done_when_the_peer_goes(files: FileHandlers) -> None:
    with Harness(files.router) as harness:
        with harness.connect() as raw:
            raw.send(ASK % b"file" * 3)
            assert not files.sent(0.3), "8 MiB do not fit a socket"
        assert files.sent()
        assert harness.on_loop(lambda: len(harness.server.connections)) == 0
        assert not files.sent(0.05), "the others had not begun"


@needs_cachestat
def test_a_file_nobody_takes_is_done_when_the_peer_stalls(files: FileHandlers) -> None:
    limits = HttpLimits(write_timeout_s=0.2, idle_timeout_s=1.0)
    with Harness(files.router, limits) as harness, harness.connect() as raw:
        raw.send(ASK % b"file")
        assert files.sent()
        assert harness.on_loop(lambda: len(harness.server.connections)) == 0
