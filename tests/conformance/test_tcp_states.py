"""Every command in every state of a client's connection, against a real nsqd.

The table is tests/meta/tcp_states.py.  Each command is followed by each other one: the reply to
the second shows the state to which the first led.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.meta.tcp_states import ANSWERS, COMMANDS, GREETED, GUARDED, PUBLISHES, TABLE, Row, row
from tests.support.auth_server import AuthServer, entry, reply
from tests.support.certificates import Pki
from tests.support.daemon import ERROR, RESPONSE, Nsqd, Raw

NO_ID = b"0" * 16
SECRET = b"s3cret"
POWERLESS = b"powerless"


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def identify(**fields: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


BYTES = {
    "IDENTIFY": identify(client_id="c"),
    "IDENTIFY, TLS": identify(feature_negotiation=True, tls_v1=True),
    "AUTH": b"AUTH\n" + sized(SECRET),
    "AUTH, refused": b"AUTH\n" + sized(b"wrong"),
    "AUTH, nothing is allowed": b"AUTH\n" + sized(POWERLESS),
    "SUB": b"SUB ok-sub c#ephemeral\n",
    "SUB, not allowed": b"SUB nope c\n",
    "RDY": b"RDY 0\n",
    "FIN": b"FIN " + NO_ID + b"\n",
    "REQ": b"REQ " + NO_ID + b" 0\n",
    "TOUCH": b"TOUCH " + NO_ID + b"\n",
    "CLS": b"CLS\n",
    "NOP": b"NOP\n",
    "PUB": b"PUB ok-pub\n" + sized(b"x"),
    "PUB, not allowed": b"PUB nope\n" + sized(b"x"),
    "MPUB": b"MPUB ok-pub\n" + sized(struct.pack(">i", 1) + sized(b"x")),
    "MPUB, not allowed": b"MPUB nope\n" + sized(struct.pack(">i", 1) + sized(b"x")),
    "DPUB": b"DPUB ok-pub 0\n" + sized(b"x"),
    "DPUB, not allowed": b"DPUB nope 0\n" + sized(b"x"),
    "unknown command": b"WAT\n",
    "line of 16 KiB": b"x" * 16384,
}
# What a client sends to get into a state.
WAYS = {
    "TLS_REQUIRED": [],
    "AUTH_REQUIRED": [],
    "INIT": [],
    "AUTHORIZED": ["AUTH"],
    "SUBSCRIBED": ["SUB"],
    "CLOSING": ["SUB", "CLS"],
}
AUTH_STATES = ("AUTH_REQUIRED", "AUTHORIZED")


class Connect:
    """Makes clients in a state."""

    def __init__(self, plain: Nsqd, nsqds: dict[str, Nsqd]) -> None:
        self.plain = plain
        self._nsqds = nsqds

    def __call__(self, state: str) -> Raw:
        nsqd = self._nsqds.get(state, self.plain)
        raw = Raw(socket.create_connection(("127.0.0.1", nsqd.tcp_port), 10))
        if state == "MAGIC":
            return raw
        raw.send(b"  V2")
        for event in WAYS[state]:
            raw.send(BYTES[event])
            assert raw.frame()[0] == RESPONSE
        return raw


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def connect(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """One nsqd for each kind of settings that a state needs."""
    path = tmp_path_factory.mktemp
    tls = pki.options()
    with (
        AuthServer({SECRET.decode(): reply(entry("^ok.*$")), POWERLESS.decode(): reply()}) as auth,
        Nsqd(path("plain"), *tls) as plain,
        Nsqd(path("tls"), *tls, "--tls-required=true") as encrypted,
        Nsqd(path("auth"), *tls, f"--auth-http-address={auth.address}") as guarded,
    ):
        yield Connect(plain, {"TLS_REQUIRED": encrypted} | dict.fromkeys(AUTH_STATES, guarded))


def expect(raw: Raw, found: Row) -> None:
    if found.reply:
        kind, text = raw.frame()
        before, dots, after = found.reply.partition("...")
        matches = text.decode().startswith(before) and text.decode().endswith(after)
        assert matches if dots else text.decode() == found.reply, (found, text)
        assert kind == (ERROR if found.reply.startswith("E_") else RESPONSE), found
    if found.after in ("LINGERING", "CLOSED"):
        assert raw.closed(), found


@pytest.mark.parametrize("state", GREETED)
def test_every_command_gets_the_reply_of_the_table(connect: Connect, state: str) -> None:
    events = [each.event for each in TABLE if each.state == state and each.event in BYTES]
    assert set(COMMANDS) <= set(events)
    for event in events:
        first = row(state, event)
        with connect(state).sock as sock:
            raw = Raw(sock)
            raw.send(BYTES[event])
            expect(raw, first)


@pytest.mark.parametrize("state", GREETED)
def test_every_command_leads_to_the_state_of_the_table(connect: Connect, state: str) -> None:
    for event in COMMANDS:
        first = row(state, event)
        if first.after not in GREETED:
            continue
        for probe in COMMANDS:
            with connect(state).sock as sock:
                raw = Raw(sock)
                raw.send(BYTES[event] + BYTES[probe])
                expect(raw, first)
                expect(raw, row(first.after, probe))


@pytest.mark.parametrize("state", ["SUBSCRIBED", "CLOSING"])
@pytest.mark.parametrize("command", PUBLISHES)
def test_a_consumer_publishes_only_to_topics_that_are_allowed(
    connect: Connect, state: str, command: str
) -> None:
    with connect("AUTHORIZED").sock as sock:
        raw = Raw(sock)
        for event in WAYS[state]:
            raw.send(BYTES[event])
            assert raw.frame()[0] == RESPONSE
        raw.send(BYTES[f"{command}, not allowed"])
        expect(raw, row(state, f"{command}, not allowed{GUARDED}"))


@pytest.mark.parametrize("state", ["SUBSCRIBED", "CLOSING"])
@pytest.mark.parametrize("command", ANSWERS)
def test_messages_in_flight_are_answered_without_a_reply(
    connect: Connect, state: str, command: str
) -> None:
    found = row(state, f"{command}, in flight")
    with connect("INIT").sock as sock:
        raw = Raw(sock)
        topic = f"flight-{state}-{command}".encode()
        raw.send(b"PUB %s\n" % topic + sized(b"x") + b"SUB %s c\nRDY 1\n" % topic)
        assert [raw.frame()[1] for _ in range(2)] == [b"OK", b"OK"]
        id = raw.message().id
        if state == "CLOSING":
            raw.send(BYTES["CLS"])
            assert raw.frame() == (RESPONSE, b"CLOSE_WAIT")
        raw.send(b"RDY 0\n" + command.encode() + b" " + id + b" 0" * (command == "REQ") + b"\n")
        assert (found.reply, found.after) == ("", state)
        raw.send(BYTES["SUB"])
        expect(raw, row(found.after, "SUB"))


@pytest.mark.parametrize("state", GREETED)
def test_a_client_that_closes_its_side_gets_what_it_is_owed(connect: Connect, state: str) -> None:
    assert row(state, "end of stream").after == "ENDING"
    with connect(state).sock as sock:
        raw = Raw(sock)
        owed = state in ("INIT", "AUTHORIZED", "SUBSCRIBED", "CLOSING")
        raw.send(BYTES["PUB"] if owed else BYTES["IDENTIFY"])
        sock.shutdown(socket.SHUT_WR)
        assert raw.frame() == (RESPONSE, b"OK")
        assert raw.closed()


@pytest.mark.parametrize("state", GREETED)
def test_a_body_that_ends_early_is_an_error(connect: Connect, state: str) -> None:
    command = "PUB" if state in ("SUBSCRIBED", "CLOSING") else "IDENTIFY"
    with connect(state).sock as sock:
        raw = Raw(sock)
        raw.send(BYTES[command][:-1])
        sock.shutdown(socket.SHUT_WR)
        expect(raw, row(state, "end of stream in a body"))


def test_before_the_magic_nothing_else_is_taken(connect: Connect) -> None:
    for data in [b"  V1", *(BYTES[command] for command in COMMANDS)]:
        with connect("MAGIC").sock as sock:
            raw = Raw(sock)
            raw.send(data)
            expect(raw, row("MAGIC", "anything else"))
    with connect("MAGIC").sock as sock:
        sock.sendall(b"  V")
        sock.shutdown(socket.SHUT_WR)
        assert Raw(sock).closed()


@pytest.mark.parametrize("state", ["INIT", "TLS_REQUIRED", "AUTH_REQUIRED", "AUTHORIZED"])
def test_during_the_handshake_nothing_else_is_taken(connect: Connect, state: str) -> None:
    for command in COMMANDS:
        with connect(state).sock as sock:
            raw = Raw(sock)
            raw.send(BYTES["IDENTIFY, TLS"])
            expect(raw, row(state, "IDENTIFY, TLS"))
            raw.send(BYTES[command])
            sock.shutdown(socket.SHUT_WR)
            expect(raw, row("UPGRADING", "anything else"))


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("INIT", "handshake done"),
        ("TLS_REQUIRED", "handshake done"),
        ("AUTH_REQUIRED", "handshake done, with --auth-http-address"),
        ("AUTHORIZED", "handshake done, AUTH was sent before"),
    ],
)
def test_after_the_handshake_all_commands_are_taken(
    connect: Connect, pki: Pki, state: str, event: str
) -> None:
    found = row("UPGRADING", event)
    for command in COMMANDS:
        plain = connect(state)
        plain.send(BYTES["IDENTIFY, TLS"])
        expect(plain, row(state, "IDENTIFY, TLS"))
        with pki.client_context().wrap_socket(plain.sock, server_hostname="localhost") as sock:
            raw = Raw(sock)
            expect(raw, found)
            raw.send(BYTES[command])
            over_tls = f"{command}, over TLS"
            known = any(each.event == over_tls for each in TABLE)
            expect(raw, row(found.after, over_tls if known else command))


@pytest.mark.parametrize("state", ["SUBSCRIBED", "CLOSING"])
def test_a_client_of_a_channel_that_is_deleted_is_closed(connect: Connect, state: str) -> None:
    with connect(state).sock as sock:
        target = "/channel/delete?topic=ok-sub&channel=c%23ephemeral"
        assert connect.plain.post(target).status == 200
        expect(Raw(sock), row(state, "the channel is deleted"))
        # A closed socket would be reset by the first of these.
        for _ in range(3):
            sock.sendall(BYTES["NOP"])


def test_after_an_error_nothing_is_answered(connect: Connect) -> None:
    for command in COMMANDS:
        with connect("INIT").sock as sock:
            raw = Raw(sock)
            raw.send(BYTES["unknown command"] + BYTES[command])
            expect(raw, row("INIT", "unknown command"))
            found = row("LINGERING", "anything")
            assert (found.reply, found.after) == ("", "LINGERING")
