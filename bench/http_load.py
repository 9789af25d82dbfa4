"""Publishing over HTTP: keep-alive connections that each wait for the response, in one process.

As in `penstock.cli.load_workers`, the generator shares its cores with the server, so it is cheap: a
request is encoded once, and a response is checked only for completeness.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass

SILENCE_SECONDS_MAX = 30.0
# Every response to /pub and /mpub ends so, with Content-Length: 2.
ANSWER_END = b"\r\n\r\nOK"


@dataclass(frozen=True)
class Sent:
    requests: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def request(target: str, body: bytes) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def post(port: int, raw: bytes, *, requests: int, connections: int) -> Sent:
    """Send ``raw`` repeatedly over ``connections`` until ``requests`` have a response."""
    peers = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(connections)]
    poll = select.epoll()
    by_fd = {peer.fileno(): peer for peer in peers}
    waiting = dict.fromkeys(by_fd, b"")
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.settimeout(SILENCE_SECONDS_MAX)
        poll.register(peer.fileno(), select.EPOLLIN)
    started_s = time.perf_counter()
    for peer in peers:
        peer.sendall(raw)
    done = 0
    left = requests - len(peers)
    while done < requests:
        events = poll.poll(SILENCE_SECONDS_MAX)
        if not events:
            raise TimeoutError(f"no response for {SILENCE_SECONDS_MAX:.0f} s")
        for fd, _ in events:
            answer = waiting[fd] + by_fd[fd].recv(65536)
            if not answer.endswith(ANSWER_END):
                _check(answer)
                waiting[fd] = answer
                continue
            waiting[fd] = b""
            done += 1
            if left > 0:
                left -= 1
                by_fd[fd].sendall(raw)
    seconds = time.perf_counter() - started_s
    for peer in peers:
        peer.close()
    return Sent(requests, seconds)


def _check(answer: bytes) -> None:
    """Raise ConnectionError unless the response is only incomplete."""
    if not answer:
        raise ConnectionError("the server closed the connection")
    if b"\r\n" in answer and b" 200 " not in answer.partition(b"\r\n")[0]:
        raise ConnectionError(f"response {answer[:200]!r}")
