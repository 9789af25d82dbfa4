"""Runs transcripts.txt against a real nsqd, three ways.

    steps      each command in a packet of its own
    bytewise   each byte in a packet of its own
    packet     everything a client can send without having seen an id in one packet

What the client sees must not differ.
"""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.auth_server import AuthServer, entry, reply
from tests.support.certificates import Pki
from tests.support.daemon import ERROR, RESPONSE, Nsqd, Raw

SILENCE_SECONDS = 0.03
KINDS = {"response": RESPONSE, "error": ERROR}
# What comes in its own time; what is sent after it is not moved before it.
WAITED_FOR = ("message", 'response "_heartbeat_"')
MODES = ("steps", "bytewise", "packet")


@dataclass
class Step:
    """One line: who, what, and the text behind it."""

    line: int
    who: str
    verb: str
    text: str


@dataclass
class Case:
    name: str
    options: tuple[str, ...] = ()
    steps: list[Step] = field(default_factory=list)


def read_cases(path: Path) -> list[Case]:
    cases: list[Case] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "case":
            cases.append(Case(rest))
        elif word == "options":
            cases[-1].options = tuple(rest.split())
        else:
            verb, _, text = rest.partition(" ")
            assert verb in (">", "<", "eof", "silent", "closed"), f"line {number}: {line}"
            cases[-1].steps.append(Step(number, word, verb, text))
    return cases


CASES = read_cases(Path(__file__).with_name("transcripts.txt"))
_numbers = itertools.count(1)


class Play:
    """One case on one nsqd."""

    def __init__(self, nsqd: Nsqd, mode: str) -> None:
        self._nsqd = nsqd
        self._mode = mode
        self._clients: dict[str, Raw] = {}
        self._topic = f"topic-{next(_numbers):04d}"
        self._id = b""

    def run(self, case: Case) -> None:
        steps = gather(case.steps) if self._mode == "packet" else case.steps
        try:
            for step in steps:
                try:
                    self._step(step)
                except (AssertionError, OSError, EOFError) as error:
                    raise AssertionError(f"transcripts.txt:{step.line}: {error!r}") from error
        finally:
            for client in self._clients.values():
                client.sock.close()

    def _step(self, step: Step) -> None:
        client = self._client(step.who)
        if step.verb == ">":
            data = self._bytes(step.text)
            if self._mode == "bytewise":
                client.send_bytewise(data)
            else:
                client.send(data)
        elif step.verb == "eof":
            client.sock.shutdown(socket.SHUT_WR)
        elif step.verb == "silent":
            assert client.silent(SILENCE_SECONDS), client.sock.recv(65536)
        elif step.verb == "closed":
            assert client.closed(), "more arrived, or the connection stays open"
        else:
            self._expect(client, step.text)

    def _expect(self, client: Raw, text: str) -> None:
        kind, _, rest = text.partition(" ")
        if kind == "message":
            attempts, _, body = rest.partition(" ")
            message = client.message()
            assert (message.attempts, message.body) == (int(attempts), self._bytes(body))
            assert re.fullmatch(rb"[0-9a-f]{16}", message.id)
            assert message.timestamp_ns > 1_700_000_000 * 10**9
            self._id = message.id
            return
        if rest.endswith(" or closed"):
            rest = rest.removesuffix(" or closed")
            if client.sock.recv(1, socket.MSG_PEEK) == b"":
                return
        assert client.frame() == (KINDS[kind], self._bytes(rest))

    def _client(self, who: str) -> Raw:
        if who not in self._clients:
            address = ("127.0.0.1", self._nsqd.tcp_port)
            self._clients[who] = Raw(socket.create_connection(address, 10))
        return self._clients[who]

    def _bytes(self, expression: str) -> bytes:
        text: str = eval(expression, {"__builtins__": {}})
        raw = text.encode("latin-1")
        return raw.replace(b"{t}", self._topic.encode()).replace(b"{id}", self._id)


def gather(steps: list[Step]) -> list[Step]:
    """Move what a client sends forward to its first sending, as far as no id is needed.

    The other clients' steps and what the ids come from keep their places.
    """
    gathered: list[Step] = []
    packets: dict[str, Step] = {}
    for step in steps:
        if step.verb == ">" and "{id}" not in step.text and step.who in packets:
            packet = packets[step.who]
            packet.text = f"({packet.text}) + ({step.text})"
            continue
        if step.verb == ">":
            step = Step(step.line, step.who, step.verb, step.text)
            packets[step.who] = step
        elif step.verb in ("eof", "silent") or step.text.startswith(WAITED_FOR):
            packets.pop(step.who, None)
        gathered.append(step)
    return gathered


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, ...], Nsqd]]:
    """One nsqd for each set of options."""
    pki = Pki(tmp_path_factory.mktemp("pki"))
    running: dict[tuple[str, ...], Nsqd] = {}
    with AuthServer({"s3cret": reply(entry("^ok.*$"), entry("^read$"))}) as auth:
        for options in {case.options for case in CASES}:
            given = [flag.replace("{auth}", auth.address) for flag in options if flag != "{tls}"]
            if "{tls}" in options:
                given += pki.options()
            running[options] = Nsqd(tmp_path_factory.mktemp("nsqd"), *given).start()
        yield running
        for nsqd in running.values():
            nsqd.stop()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_transcript(daemons: dict[tuple[str, ...], Nsqd], case: Case, mode: str) -> None:
    Play(daemons[case.options], mode).run(case)


def test_every_captured_exchange_is_in_the_transcripts() -> None:
    rows = {int(row) for case in CASES for row in re.findall(r"\[(\d+)\]", case.name)}
    assert rows == set(range(1, 51))
