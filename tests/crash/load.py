"""Producers and consumers that survive the death of their nsqd, and a ledger of what they saw.

Everything that is judged later goes into the ledger with the wall-clock time at which this side
knew of it: a publish when its OK was read, a delivery when it was read, a FIN or REQ when it was
sent.  Every body is published once and is unique, so a body stands for a message.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.wire import commands
from tests.support.daemon import ERROR, MESSAGE, Nsqd, Raw

RECONNECT_S = 0.01
READ_TIMEOUT_S = 0.2


@dataclass(frozen=True, slots=True)
class Published:
    """An acknowledged publish; ``due_ns`` is the earliest time it may be delivered, or 0."""

    topic: str
    acked_ns: int
    due_ns: int


@dataclass(frozen=True, slots=True)
class Delivered:
    id: bytes
    attempts: int
    at_ns: int


@dataclass(slots=True)
class Answered:
    """A FIN (``delay_ns`` None) or a REQ: chosen when its message came, given when it was sent."""

    at_ns: int
    delay_ns: int | None
    given_ns: int = 0


class Ledger:
    """What the clients know; appended to by many threads, judged when they have stopped."""

    def __init__(self) -> None:
        self.acked: dict[bytes, Published] = {}
        self.sent: set[bytes] = set()
        self.refused: list[bytes] = []
        self.full: set[bytes] = set()  # refused at a topic's bound
        self.delivered: dict[tuple[str, str], dict[bytes, list[Delivered]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.answered: dict[tuple[str, str], dict[bytes, list[Answered]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.kills_ns: list[int] = []
        self.failures: list[BaseException] = []

    def acked_of(self, topic: str) -> set[bytes]:
        return {body for body, known in self.acked.copy().items() if known.topic == topic}

    def missing(self, topic: str, channel: str) -> set[bytes]:
        """Acknowledged and not delivered so far."""
        return self.acked_of(topic) - set(self.delivered[topic, channel])

    def finished(self, topic: str, channel: str) -> set[bytes]:
        """A FIN was sent for these."""
        answered = self.answered[topic, channel].copy()
        return {body for body, given in answered.items() if any(a.delay_ns is None for a in given)}

    # Judging

    def killed_between(self, start_ns: int, end_ns: int) -> bool:
        return any(start_ns <= kill_ns <= end_ns for kill_ns in self.kills_ns)

    def check_ids(self) -> None:
        """One id a body and one body an id, over all lives and channels of a topic (R1, R16)."""
        ids: dict[tuple[str, bytes], bytes] = {}
        bodies: dict[tuple[str, bytes], bytes] = {}
        for (topic, _), messages in self.delivered.items():
            for body, deliveries in messages.items():
                for delivery in deliveries:
                    assert ids.setdefault((topic, body), delivery.id) == delivery.id, body
                    assert bodies.setdefault((topic, delivery.id), body) == body, delivery.id

    def check_invented(self) -> None:
        for (topic, _), messages in self.delivered.items():
            assert set(messages) <= self.sent, (topic, set(messages) - self.sent)

    def check_full(self) -> None:
        """What was refused at a bound was not stored (R20)."""
        for messages in self.delivered.values():
            assert not self.full & set(messages)

    def check_early(self) -> None:
        """No deferred publish before its time (R16, D-5)."""
        for messages in self.delivered.values():
            for body, deliveries in messages.items():
                known = self.acked.get(body)
                if known is not None and known.due_ns:
                    early_ns = known.due_ns - min(d.at_ns for d in deliveries)
                    assert early_ns <= 0, (body, early_ns / 1e6)

    def check_answers(self, window_ns: int) -> None:
        """What was answered longer than ``window_ns`` before a kill stays answered.

        After a FIN nothing comes, after a REQ nothing before its delay.
        """
        for key, answers in self.answered.items():
            for body, given in answers.items():
                deliveries = self.delivered[key][body]
                for answer in given:
                    end_ns = answer.at_ns + (answer.delay_ns or 0)
                    for delivery in deliveries:
                        if delivery.at_ns <= answer.at_ns:
                            continue
                        if answer.delay_ns is not None and delivery.at_ns >= end_ns:
                            continue
                        assert self.killed_between(
                            answer.at_ns - window_ns, answer.given_ns + window_ns
                        ), (key, body, answer, deliveries, self.kills_ns)


@dataclass
class Mix:
    """How a producer publishes: weights of the commands, and the delays of DPUB.

    ``http`` is the share of all that goes over HTTP.
    """

    topics: list[str]
    pub: int = 4
    mpub: int = 2
    dpub: int = 3
    http: float = 0.2
    mpub_count: int = 20
    delay_ms: tuple[int, int] = (1, 1500)
    body_size: int = 60
    pause_s: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)


class Client(threading.Thread):
    """A connection that is made again whenever it is lost."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.nsqd = nsqd
        self.ledger = ledger
        self.stop = stop

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                with suppress(OSError, EOFError), self._connect() as raw:
                    self.talk(raw)
                time.sleep(RECONNECT_S)
        except BaseException as failure:
            self.ledger.failures.append(failure)
            raise

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.nsqd.tcp_port), 5.0)
        sock.sendall(commands.MAGIC_V2)
        return sock

    def talk(self, sock: socket.socket) -> None:
        raise NotImplementedError


class Producer(Client):
    """Publishes one command after another, each answered before the next."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, name: str, mix: Mix, seed: int) -> None:
        super().__init__(nsqd, ledger, mix.stop)
        self.label = name
        self.mix = mix
        self.random = random.Random(seed)
        self.count = 0

    def talk(self, sock: socket.socket) -> None:
        raw = Raw(sock, 5.0)
        web = http.client.HTTPConnection("127.0.0.1", self.nsqd.http_port, timeout=5.0)
        try:
            while not self.stop.is_set():
                self._publish(raw, web)
                if self.mix.pause_s:
                    time.sleep(self.mix.pause_s)
        except http.client.HTTPException as error:
            raise EOFError(str(error)) from error
        finally:
            web.close()

    def _body(self) -> bytes:
        self.count += 1
        body = f"{self.label}-{self.count}-".encode()
        body += b"x" * self.random.randrange(self.mix.body_size)
        self.ledger.sent.add(body)
        return body

    def _publish(self, raw: Raw, web: http.client.HTTPConnection) -> None:
        mix = self.mix
        topic = self.random.choice(mix.topics)
        kind = self.random.choices(("PUB", "MPUB", "DPUB"), (mix.pub, mix.mpub, mix.dpub))[0]
        bodies = [self._body()]
        delay_ms = due_ns = 0
        if kind == "MPUB":
            bodies += [self._body() for _ in range(self.random.randrange(mix.mpub_count))]
        elif kind == "DPUB":
            delay_ms = self.random.randint(*mix.delay_ms)
            due_ns = time.time_ns() + delay_ms * 1_000_000
        ask = self._post if self.random.random() < mix.http else self._command
        reply = ask(raw, web, kind, topic, bodies, delay_ms)
        if b"topic is full" in reply or b"TOPIC_FULL" in reply:
            self.ledger.full.update(bodies)
            return
        if reply != b"OK":
            self.ledger.refused.append(reply)
            raise EOFError(reply)
        now_ns = time.time_ns()
        for body in bodies:
            self.ledger.acked[body] = Published(topic, now_ns, due_ns)

    def _command(
        self,
        raw: Raw,
        _web: http.client.HTTPConnection,
        kind: str,
        topic: str,
        bodies: list[bytes],
        delay_ms: int,
    ) -> bytes:
        if kind == "PUB":
            command = commands.pub(topic, bodies[0])
        elif kind == "MPUB":
            command = commands.mpub(topic, bodies)
        else:
            command = commands.dpub(topic, delay_ms, bodies[0])
        kind_of_reply, reply = raw.command(command)
        assert reply == b"OK" or (kind_of_reply == ERROR and b"_FAILED" in reply), reply
        return reply

    def _post(
        self,
        _raw: Raw,
        web: http.client.HTTPConnection,
        kind: str,
        topic: str,
        bodies: list[bytes],
        delay_ms: int,
    ) -> bytes:
        if kind == "MPUB":
            web.request("POST", f"/mpub?topic={topic}&binary=true", commands.multi(bodies))
        else:
            defer = f"&defer={delay_ms}" if delay_ms else ""
            web.request("POST", f"/pub?topic={topic}{defer}", bodies[0])
        return web.getresponse().read()


# What to do with a message: "FIN", a REQ delay in ms, "TOUCH", or None to leave it to its timeout.
Choice = Callable[[random.Random], str | int | None]


def finish_all(_: random.Random) -> str:
    return "FIN"


def mostly_finish(chance: random.Random) -> str | int | None:
    number = chance.random()
    if number < 0.8:
        return "FIN"
    if number < 0.88:
        return 0
    if number < 0.96:
        return chance.randint(50, 600)
    if number < 0.975:
        return "TOUCH"
    return None if number < 0.985 else "FIN"


class Consumer(Client):
    """Reads everything it is sent and answers as ``choose`` says."""

    def __init__(
        self,
        nsqd: Nsqd,
        ledger: Ledger,
        topic: str,
        channel: str,
        stop: threading.Event,
        choose: Choice = mostly_finish,
        ready_count: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(nsqd, ledger, stop)
        self.key = (topic, channel)
        self.choose = choose
        self.ready_count = ready_count
        self.random = random.Random(seed)
        self.giving: list[Answered] = []

    def talk(self, sock: socket.socket) -> None:
        sock.settimeout(5.0)
        sock.sendall(
            commands.identify({"msg_timeout": 1000, "output_buffer_timeout": 25})
            + commands.sub(*self.key)
            + commands.rdy(self.ready_count)
        )
        sock.settimeout(READ_TIMEOUT_S)
        buffer = b""
        while not self.stop.is_set():
            try:
                chunk = sock.recv(1 << 16)
            except TimeoutError:
                continue
            if not chunk:
                return
            buffer += chunk
            answers: list[bytes] = []
            used = 0
            for kind, data, end in _frames(buffer):
                used = end
                if kind == MESSAGE:
                    answers.append(self._take(data))
                elif data == b"_heartbeat_":
                    answers.append(commands.NOP)
                elif kind == ERROR:
                    assert b"_FAILED" in data, data
            buffer = buffer[used:]
            try:
                sock.sendall(b"".join(answers))
            finally:
                self._gave()

    def _take(self, data: bytes) -> bytes:
        _, attempts, id = struct.unpack_from(">qH16s", data)
        body = data[26:]
        now_ns = time.time_ns()
        self.ledger.delivered[self.key][body].append(Delivered(id, attempts, now_ns))
        choice = self.choose(self.random)
        if choice is None:
            return b""
        if choice == "TOUCH":
            return commands.touch(id)
        delay_ms = None if choice == "FIN" else int(choice)
        delay_ns = None if delay_ms is None else delay_ms * 1_000_000
        answer = Answered(now_ns, delay_ns)
        self.ledger.answered[self.key][body].append(answer)
        self.giving.append(answer)
        return commands.fin(id) if delay_ms is None else commands.req(id, delay_ms)

    def _gave(self) -> None:
        now_ns = time.time_ns()
        for answer in self.giving:
            answer.given_ns = now_ns
        self.giving.clear()


def _frames(buffer: bytes) -> Iterator[tuple[int, bytes, int]]:
    """(type, data, offset behind it) of each whole frame."""
    at = 0
    while at + 8 <= len(buffer):
        size, kind = struct.unpack_from(">iI", buffer, at)
        if at + 4 + size > len(buffer):
            return
        yield kind, buffer[at + 8 : at + 4 + size], at + 4 + size
        at += 4 + size
