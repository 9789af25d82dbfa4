"""nsq_to_http as a process, with real HTTP servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.cli.tools import Tool, finished, prepare, source
from tests.support.bodies import numbered
from tests.support.daemon import Nsqd

CHANNEL = "nsq_to_http"
FAST = ("--consumer-opt=default_requeue_delay,10ms", "--consumer-opt=backoff_multiplier,5ms")


class Server(ThreadingHTTPServer):
    """Keeps what it is sent; ``statuses`` are its next answers, 200 after that."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.received: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.statuses: list[int] = []
        self.connections = 0
        self.requests_max = 0  # of a connection, which is then closed without a word; 0: any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def bodies(self) -> list[bytes]:
        return sorted(body for _, _, body, _ in list(self.received))


class Receiver(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1
        self.count = 0

    def do_POST(self) -> None:
        self.count += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.received.append((self.command, self.path, body, dict(self.headers)))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        if status == 307:
            self.send_header("Location", "/moved")
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.close_connection = self.count == self.server.requests_max

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()


def start(nsqd: Nsqd, tmp_path: Path, *flags: str) -> Tool:
    return Tool(tmp_path, "nsq_to_http", "--topic=t", source(nsqd), *FAST, *flags)


def test_messages_are_posted_and_then_finished(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, *numbered(250))
    flags = ("--header=X-Mine: a: b", "--content-type=text/x", "--mode=round-robin")
    with serving() as server, start(nsqd, tmp_path, f"--post={server.url}/in?a,b", *flags) as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        tool.until(lambda: "[aggregate]: finished 250 - 99th: " in tool.log)
        assert tool.terminate() == 0
        assert server.bodies == sorted(numbered(250))
        method, path, _, headers = server.received[0]
    assert (method, path) == ("POST", "/in?a,b")
    assert headers["User-Agent"] == "nsq_to_http v1.3.0"
    assert (headers["Content-Type"], headers["X-Mine"]) == ("text/x", "a: b")


def test_get_puts_the_message_into_the_address(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, b"a b&c/\xff%s")
    with serving() as server, start(nsqd, tmp_path, f"--get={server.url}/?q=%s&x=1") as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        assert tool.terminate() == 0
        assert [path for _, path, _, _ in server.received] == ["/?q=a+b%26c%2F%FF%25s&x=1"]


def test_a_refused_message_comes_again_and_redirects_are_followed(
    nsqd: Nsqd, tmp_path: Path
) -> None:
    prepare(nsqd, "t", CHANNEL, b"body")
    with serving() as server:
        server.statuses = [500, 307, 201]
        with start(nsqd, tmp_path, f"--post={server.url}/") as tool:
            tool.until(lambda: finished(nsqd, "t", CHANNEL))
            assert tool.terminate() == 0
            assert "responded 500" in tool.log
        seen = [(path, body) for _, path, body, _ in server.received]
    assert seen == [("/", b"body"), ("/", b"body"), ("/moved", b"body")]


def test_a_dead_server_is_left_out_and_other_modes_send_to_all(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, *numbered(20))
    with serving() as one, serving() as two:
        addresses = ("--post=http://127.0.0.1:1/", f"--post={one.url}/")
        with start(nsqd, tmp_path, *addresses) as tool:
            tool.until(lambda: finished(nsqd, "t", CHANNEL))
            assert tool.terminate() == 0
        assert one.bodies == sorted(numbered(20))
        prepare(nsqd, "t", CHANNEL, *numbered(20, 20))
        addresses = (f"--post={one.url}/", f"--post={two.url}/", "--mode=multicast")
        with start(nsqd, tmp_path, *addresses) as tool:
            tool.until(lambda: finished(nsqd, "t", CHANNEL))
            assert tool.terminate() == 0
        assert one.bodies == sorted(numbered(40))
        assert two.bodies == sorted(numbered(20, 20))


def test_connections_stay_open_between_messages(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, *numbered(500))
    with serving() as server:
        with start(nsqd, tmp_path, f"--post={server.url}/", "--n=4") as tool:
            tool.until(lambda: finished(nsqd, "t", CHANNEL))
            assert tool.terminate() == 0
        assert server.bodies == sorted(numbered(500))
        assert server.connections <= 4


def test_a_server_that_closes_connections_loses_nothing(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, *numbered(500))
    with serving() as server:
        server.requests_max = 7
        with start(nsqd, tmp_path, f"--post={server.url}/", "--n=4") as tool:
            tool.until(lambda: finished(nsqd, "t", CHANNEL))
            assert tool.terminate() == 0
            # Sent again on another connection: nothing failed, nobody backed off.
            assert "failed" not in tool.log
        assert set(server.bodies) == set(numbered(500))
        assert server.connections >= 500 // 7


def test_a_sample_is_sent_and_everything_finished(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, *numbered(300))
    with serving() as server:
        flags = (f"--post={server.url}/", "--sample=0.3", "--mode=epsilon-greedy")
        with start(nsqd, tmp_path, *flags) as tool:
            tool.until(lambda: finished(nsqd, "t", CHANNEL))
            assert tool.terminate() == 0
        assert 30 < len(server.received) < 170
