"""Connections as such: pipelining, unix sockets, peers that send nonsense.

Rows of the seed notes: S4-8.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.bodies import numbered
from tests.support.client import Client
from tests.support.daemon import START_SECONDS_MAX, Nsqd
from tests.support.waits import eventually


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("connections")) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


# Pipelining


def test_pipelined_publishes_are_answered_in_order(nsqd: Nsqd) -> None:
    """Several producers, several topics and kinds of publish on each connection."""
    topics = [f"pipe-{number}" for number in range(5)]
    consumers = [Client.of(nsqd).sub(topic, "c", ready=2500) for topic in topics]

    def produce(producer_number: int) -> None:
        with Client.of(nsqd) as producer:
            parts: list[bytes] = []
            for number in range(100):
                for topic in topics:
                    body = b"%d-%d" % (producer_number, number)
                    if number % 3 == 0:
                        parts.append(commands.mpub(topic, [body + b"-a", body + b"-b"]))
                    elif number % 3 == 1:
                        parts.append(commands.dpub(topic, number, body))
                    else:
                        parts.append(commands.pub(topic, body))
                    if number % 7 == 0:
                        parts.append(commands.NOP)
            producer.send(*parts, commands.pub("b@d", b"x"))
            publish_count = sum(part != commands.NOP for part in parts)
            for _ in range(publish_count):
                assert producer.reply().text == b"OK"
            assert producer.error() == 'E_BAD_TOPIC PUB topic name "b@d" is not valid'
            producer.wait_closed()

    with ThreadPoolExecutor(4) as pool:
        for outcome in [pool.submit(produce, number) for number in range(4)]:
            outcome.result(30)
    expected = 4 * (34 * 2 + 66)
    for consumer in consumers:
        bodies = [message.body for message in consumer.finish_all(expected)]
        assert len(set(bodies)) == expected
        assert consumer.quiet(0.02)
        consumer.close()


def test_what_was_published_before_a_fatal_error_counts(nsqd: Nsqd) -> None:
    with Client.of(nsqd) as producer:
        producer.send(commands.pub("before", b"kept"), b"NONSENSE\n", commands.pub("before", b"x"))
        assert producer.reply().text == b"OK"
        assert producer.error() == "E_INVALID invalid command NONSENSE"
        producer.wait_closed()
    with Client.of(nsqd).sub("before", "c", ready=10) as client:
        assert client.message().body == b"kept"
        assert client.quiet(0.2)


def test_a_consumer_may_publish(nsqd: Nsqd) -> None:
    """Also while it is closing; replies and messages share the connection."""
    with Client.of(nsqd).sub("both", "c", ready=10) as client:
        client.pub("both", *numbered(5))
        taken = client.messages(5)
        client.begin_close()
        client.pub("both", b"late")
        client.fin(*taken)
        client.settle()
    with Client.of(nsqd).sub("both", "c", ready=10) as client:
        assert client.message().body == b"late"


def test_replies_are_read_after_half_a_close(nsqd: Nsqd) -> None:
    """A producer that says it sends no more still learns how its publishes went."""
    with Client.of(nsqd) as producer:
        producer.send(*(commands.pub("half", body) for body in numbered(50)))
        producer.sock.shutdown(socket.SHUT_WR)
        for _ in range(50):
            assert producer.reply().text == b"OK"
        producer.wait_closed()


# Unix sockets


class UnixNsqd(Nsqd):
    """Listens on ``<data path>/tcp.sock``; HTTP stays on a port."""

    @property
    def socket_path(self) -> str:
        return str(self.data_path / "tcp.sock")

    def command(self) -> list[str]:
        return [
            f"--tcp-address={self.socket_path}" if part.startswith("--tcp-address=") else part
            for part in super().command()
        ]

    def _listening_port(self, kind: str) -> int:
        if kind == "HTTP":
            return super()._listening_port(kind)
        self.wait_for_log(f"TCP: listening on {re.escape(self.socket_path)}", START_SECONDS_MAX)
        return 0


def test_a_unix_socket_serves_as_tcp_does(tmp_path: Path) -> None:
    """Also again after a kill, which leaves the socket's file behind."""
    with UnixNsqd(tmp_path) as nsqd:
        with Client(nsqd.socket_path) as producer:
            producer.identify(client_id="p")
            producer.mpub("unix", numbered(100))
            producer.dpub("unix", 10, b"deferred")
        nsqd.kill()
        nsqd.start()
        with Client(nsqd.socket_path).sub("unix", "c", ready=200) as client:
            bodies = {message.body for message in client.finish_all(101)}
            assert bodies == {*numbered(100), b"deferred"}
            client.settle()
            shown = nsqd.channel("unix", "c")["clients"][0]
            assert shown["finish_count"] == 101
        assert nsqd.terminate() == 0


# Nonsense


def garbage(chance: random.Random) -> bytes:
    """Bytes that no client sends: noise, and commands that noise was done to."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randint(1, 2000))
    parts = [
        commands.identify({"heartbeat_interval": chance.randint(-5, 70000)}),
        commands.sub("victim", "other"),
        commands.rdy(chance.randint(0, 3000)),
        commands.pub("noise", chance.randbytes(20)),
        commands.mpub("noise", [b"a", b"bb"]),
        commands.dpub("noise", chance.randint(0, 10), b"d"),
        commands.fin(b"%016x" % chance.getrandbits(64)),
        commands.req(chance.randbytes(16), 0),
        commands.touch(b"short"),
        b"MPUB noise\n" + chance.randbytes(8),
        b"PUB noise\n\xff\xff\xff\xff",
        b"AUTH\n\x7f\xff\xff\xff",
        b"x" * chance.randint(1, 40000),
        b"\n",
        commands.CLS,
    ]
    data = bytearray(b"".join(chance.sample(parts, chance.randint(1, len(parts)))))
    for _ in range(chance.randint(0, 3)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randint(1, len(data))])


def throw(nsqd: Nsqd, chance: random.Random) -> None:
    """Send garbage and go, in the rudest way."""
    with socket.create_connection(("127.0.0.1", nsqd.tcp_port), 5) as sock:
        magic = b"" if chance.random() < 0.1 else commands.MAGIC_V2
        try:
            sock.sendall(magic + garbage(chance))
            if chance.random() < 0.5:
                sock.settimeout(0.02)
                sock.recv(4096)
        except OSError:
            return


def test_garbage_hurts_nobody_else(nsqd: Nsqd) -> None:
    """Messages go through unharmed while 4 peers send nonsense."""
    stopped = threading.Event()

    def annoy(seed: int) -> None:
        chance = random.Random(seed)
        while not stopped.is_set():
            throw(nsqd, chance)

    peers = [threading.Thread(target=annoy, args=(seed,), daemon=True) for seed in range(4)]
    with Client.of(nsqd).sub("victim", "c", ready=100) as client, Client.of(nsqd) as producer:
        for peer in peers:
            peer.start()
        deadline_s = time.monotonic() + 3
        try:
            for turn in range(300):
                producer.mpub("victim", numbered(10, 10 * turn))
                taken = client.finish_all(10)
                assert {message.body for message in taken} == set(numbered(10, 10 * turn))
                assert {message.attempts for message in taken} == {1}
                if time.monotonic() > deadline_s:
                    break
        finally:
            stopped.set()
            for peer in peers:
                peer.join(10)
        assert client.quiet(0.1)
    assert nsqd.get("/ping").text == "OK"
    assert eventually(lambda: not nsqd.stats()["producers"])


def test_a_half_open_greeting_hurts_nobody(nsqd: Nsqd) -> None:
    """Connections that say nothing, or less than the magic."""
    idle = [socket.create_connection(("127.0.0.1", nsqd.tcp_port), 5) for _ in range(50)]
    for sock in idle[:25]:
        sock.sendall(b"  ")
    with Client.of(nsqd) as producer:
        producer.pub("greeting", b"m")
    for sock in idle:
        sock.close()
