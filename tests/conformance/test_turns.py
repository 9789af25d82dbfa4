"""One client's commands take turns with everybody else's, and all of them are executed in order."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.conformance.test_connections import UnixNsqd
from tests.support.bodies import numbered
from tests.support.certificates import Pki
from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.secure_client import SecureClient
from tests.support.waits import eventually

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("turns"), *pki.options()) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


class Bystander:
    """Publishes one message after the other while entered, each after the OK of the last."""

    def __init__(self, nsqd: Nsqd) -> None:
        self.count = 0
        self._client = Client.of(nsqd)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Bystander:
        self._client.pub("bystander", b"first")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(60)
        self._client.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._client.pub("bystander", b"x")
            self.count += 1


def new_topics() -> list[bytes]:
    return [commands.pub(f"new-{number}", b"x") for number in range(2000)]


def different_hours() -> list[bytes]:
    return [commands.dpub("hours", (number + 1) * HOUR_MS, b"x") for number in range(4000)]


def identifies() -> list[bytes]:
    return [commands.identify({"feature_negotiation": True})] * 6000


def failures() -> list[bytes]:
    return [commands.fin(b"%016x" % number) for number in range(40_000)]


@pytest.mark.parametrize("flood", [new_topics, different_hours, identifies, failures])
def test_a_flood_of_commands_does_not_stop_the_others(
    tmp_path: Path, flood: Callable[[], list[bytes]]
) -> None:
    """Counted rather than timed: a busy machine makes everybody wait.

    Executed in one go, a packet lets another client publish two or three messages; in turns, a
    hundred.
    """
    parts = flood()
    with Nsqd(tmp_path) as nsqd, Client.of(nsqd) as client, Bystander(nsqd) as bystander:
        if flood is failures:
            client.sub("failures", "c")
        before = bystander.count
        client.send(*parts)
        replies = [client.reply() for _ in parts]
        served = bystander.count - before
        assert all(reply.error == (flood is failures) for reply in replies)
        assert served >= 20


def fin_id(number: int) -> bytes:
    return b"%016x" % number


def test_commands_and_replies_keep_their_order(nsqd: Nsqd) -> None:
    """Of publishes to old and new topics, deferred ones and commands that fail."""
    count = 1500
    with Client.of(nsqd).sub("order-sub", "c", ready=1) as client:
        parts: list[bytes] = []
        for number in range(count):
            parts.append(commands.pub("order", b"%d" % number))
            parts.append(commands.fin(fin_id(number)))
            parts.append(commands.pub(f"order-new-{number % 300}", b"x"))
            parts.append(commands.dpub("order-late", HOUR_MS * (1 + number % 50), b"x"))
            parts.append(commands.touch(fin_id(number)))
        client.send(*parts, b"NONSENSE\n", commands.pub("order", b"never"))
        for number in range(count):
            assert client.reply().text == b"OK"
            assert client.error().startswith(f"E_FIN_FAILED FIN {number:016x} ")
            assert client.reply().text == b"OK"
            assert client.reply().text == b"OK"
            assert client.error().startswith(f"E_TOUCH_FAILED TOUCH {number:016x} ")
        assert client.error() == "E_INVALID invalid command NONSENSE"
        client.wait_closed()
    with Client.of(nsqd).sub("order", "c", ready=2500) as client:
        assert [message.body for message in client.finish_all(count)] == numbered(count)
        assert client.quiet(0.02)


def test_a_half_close_waits_for_all_turns(nsqd: Nsqd) -> None:
    with Client.of(nsqd) as client:
        client.send(*(commands.pub(f"half-{number}", b"x") for number in range(1000)))
        client.sock.shutdown(socket.SHUT_WR)
        for _ in range(1000):
            assert client.reply().text == b"OK"
        client.wait_closed()


def depth_sum(nsqd: Nsqd, prefix: str) -> int:
    topics = nsqd.stats("&include_clients=false&include_mem=false")["topics"]
    return sum(topic["depth"] for topic in topics if topic["topic_name"].startswith(prefix))


@pytest.mark.parametrize("kind", ["clear", "tls", "snappy", "deflate"])
def test_a_client_may_close_right_after_sending(nsqd: Nsqd, pki: Pki, kind: str) -> None:
    """All it sent is executed, though what it is answered reaches nobody.

    It is one window full: of more, a kernel drops what it has not sent when the first reply meets
    the closed connection.
    """
    parts = [commands.pub(f"close-{kind}-{number % 500}", b"x") for number in range(2000)]
    if kind == "clear":
        client: Client = Client.of(nsqd, heartbeat_interval=-1)
    else:
        context = pki.client_context() if kind == "tls" else None
        fields = {} if kind == "tls" else {kind: True}
        client = SecureClient.of(nsqd, context, heartbeat_interval=-1, **fields)
    client.send(*parts)
    client.close()
    assert eventually(lambda: depth_sum(nsqd, f"close-{kind}-") == len(parts))


def test_a_client_of_a_unix_socket_may_send_any_number_and_close(tmp_path: Path) -> None:
    """There all that was sent is received."""
    with UnixNsqd(tmp_path) as nsqd:
        client = Client(nsqd.socket_path)
        client.send(*(commands.pub(f"unix-{number % 100}", b"x") for number in range(100_000)))
        client.close()
        assert eventually(lambda: depth_sum(nsqd, "unix-") == 100_000)


def test_deferred_publishes_of_a_client_that_closed_are_all_kept(nsqd: Nsqd) -> None:
    with Client.of(nsqd) as client:
        client.send(*(commands.dpub("gone", (n + 1) * HOUR_MS, b"x") for n in range(1500)))
    assert eventually(
        lambda: nsqd.stats("&topic=gone")["topics"] and deferred_count(nsqd, "gone") == 1500
    )


def deferred_count(nsqd: Nsqd, topic: str) -> int:
    name = f'penstock_topic_deferred{{topic="{topic}"}} '
    lines = [line for line in nsqd.get("/metrics").text.splitlines() if line.startswith(name)]
    return int(lines[0].removeprefix(name))


def test_finishes_of_a_client_that_closed_count(nsqd: Nsqd) -> None:
    """In more than one slice, behind new topics."""
    topic, count = "finished", 2000
    with Client.of(nsqd) as producer:
        producer.mpub(topic, numbered(count))
    with Client.of(nsqd).sub(topic, "c", ready=2500) as client:
        messages = client.messages(count)
        client.send(
            *(commands.pub(f"finished-{number}", b"x") for number in range(300)),
            *(commands.fin(message.id) for message in messages),
        )

    def finished() -> bool:
        channel = nsqd.channel(topic, "c")
        return not channel["clients"] and channel["depth"] + channel["in_flight_count"] == 0

    assert eventually(finished)
