"""What outlives the process, and how it begins and ends.

Rows of the seed notes: S1-3 (sampling), S2-1, S4-5, A-3, A-4.  Rules: R6, R11, R16.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.bodies import numbered
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.processes import state
from tests.support.timing import late_s
from tests.support.waits import eventually, wait_until


def test_a_restart_keeps_what_the_channels_knew(nsqd: Nsqd) -> None:
    """R11, S2-1, A-4: depth, finishes, attempts, and delays with what is left of them."""
    publish(nsqd, "t", *numbered(20))
    with Client.of(nsqd).sub("t", "c", ready=10) as client, Client.of(nsqd) as producer:
        taken = client.messages(10)
        client.fin(*taken[:3])
        client.rdy(25)  # room for what waits, and so for what comes behind it
        for _ in range(3):
            client.req(taken[3])
            while (message := client.message()).id != taken[3].id:
                pass
        assert message.attempts == 4
        client.rdy(0)
        # Long enough to be still deferred after the restart.
        delay_s = late_s(2.5)
        client.req(taken[4], round(delay_s * 1000))
        producer.dpub("t", round(delay_s * 1000), b"deferred")
        deferred_s = time.time()
        client.settle()
        nsqd.restart()
    known = {message.id: message for message in taken[3:]}
    with Client.of(nsqd) as client:
        client.sub("t", "c", ready=100)
        # Slots are read in the background after the start.
        assert eventually(lambda: nsqd.channel("t", "c")["deferred_count"] == 2, late_s())
        came = client.messages(16, timeout_s=late_s(1.5))
        assert not {m.body for m in came} & {taken[4].body, b"deferred"}
        assert {m.body for m in came}.isdisjoint(m.body for m in taken[:3])
        attempts = {message.id: message.attempts for message in came}
        assert attempts[taken[3].id] == 5
        assert all(attempts[message.id] == 2 for message in taken[5:])
        assert all(m.timestamp_ns == known[m.id].timestamp_ns for m in came if m.id in known)
        client.fin(*came)
        rest = client.finish_all(2)
        assert -0.1 < time.time() - deferred_s - delay_s < late_s()
        assert {(m.body, m.attempts) for m in rest} == {(taken[4].body, 2), (b"deferred", 1)}
        client.settle()
        assert client.quiet(0.2)


def test_attempts_are_kept_also_where_a_lost_client_s_messages_wait(tmp_path: Path) -> None:
    """R11, with NSQ's way of treating lost clients: the end of nsqd is not their timeout."""
    with Nsqd(tmp_path, "--requeue-on-disconnect=false") as nsqd:
        publish(nsqd, "t", *numbered(10))
        with Client.of(nsqd).sub("t", "c", ready=5) as client:
            taken = {message.id for message in client.messages(5)}
            nsqd.restart()
        with Client.of(nsqd).sub("t", "c", ready=10) as client:
            came = client.messages(10, timeout_s=late_s(2))
            assert all(m.attempts == (2 if m.id in taken else 1) for m in came)


def test_a_restart_keeps_pauses(nsqd: Nsqd) -> None:
    """S4-5: a paused topic goes on buffering, a paused channel goes on waiting."""
    for name in ("topic", "channel"):
        nsqd.post(f"/topic/create?topic={name}")
        nsqd.post(f"/channel/create?topic={name}&channel=c")
    nsqd.post("/topic/pause?topic=topic")
    nsqd.post("/channel/pause?topic=channel&channel=c")
    for name in ("topic", "channel"):
        publish(nsqd, name, *numbered(5))
    nsqd.restart()
    for name in ("topic", "channel"):
        publish(nsqd, name, *numbered(5, 5))
    assert nsqd.stats("&topic=topic")["topics"][0]["depth"] == 10
    assert nsqd.stats("&topic=topic")["topics"][0]["paused"]
    assert nsqd.channel("channel", "c")["paused"]
    with (
        Client.of(nsqd).sub("topic", "c", ready=100) as of_topic,
        Client.of(nsqd).sub("channel", "c", ready=100) as of_channel,
    ):
        assert of_topic.quiet(0.2) and of_channel.quiet(0.1)
        nsqd.post("/topic/unpause?topic=topic")
        nsqd.post("/channel/unpause?topic=channel&channel=c")
        for client in (of_topic, of_channel):
            assert sorted(m.body for m in client.finish_all(10)) == numbered(10)


def test_sigterm_with_clients_and_a_backlog_ends_in_seconds(nsqd: Nsqd) -> None:
    """Exit status 0, the port refuses, connections are closed, the backlog is there again."""
    body = bytes(200)
    with Client.of(nsqd) as producer:
        for _ in range(100):
            producer.mpub("t", [body] * 2000)
        consumers = [Client.of(nsqd).sub("t", "c", ready=100) for _ in range(20)]
        for consumer in consumers:
            consumer.messages(100)
        began_s = time.monotonic()
        assert nsqd.terminate() == 0
        assert time.monotonic() - began_s < late_s(5)
        for client in (producer, *consumers):
            client.wait_closed()
            client.close()
    with pytest.raises(ConnectionRefusedError):
        Client.of(nsqd)
    began_s = time.monotonic()
    nsqd.start()
    assert time.monotonic() - began_s < late_s(5)
    assert nsqd.channel("t", "c")["depth"] == 200_000


def test_sigterm_amid_publishing_keeps_what_was_answered(nsqd: Nsqd) -> None:
    """Each publish is answered OK and kept, or refused; the connection's end says nothing."""
    answered = 0
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    with Client.of(nsqd) as producer:
        producer.pub("t", *numbered(100))
        for at in range(100, 60_000, 100):
            try:
                producer.send(*(commands.pub("t", body) for body in numbered(100, at)))
            except OSError:
                break
            if at == 1000:
                nsqd.signal(signal.SIGTERM)
        while producer.closed_s is None:
            try:
                reply = producer.reply(5.0)
            except AssertionError:
                break
            if reply.error:
                assert reply.text == b"E_PUB_FAILED PUB failed exiting"
                break
            answered += 1
    assert nsqd.wait() == 0
    nsqd.start()
    depth = nsqd.channel("t", "c")["depth"]
    assert depth >= 100 + answered
    with Client.of(nsqd).sub("t", "c", ready=2500) as client:
        bodies = [message.body for message in client.finish_all(depth)]
        assert sorted(bodies, key=int) == numbered(depth)


def test_sigint_ends_as_sigterm_does(nsqd: Nsqd) -> None:
    nsqd.signal(signal.SIGINT)
    assert nsqd.wait() == 0


def test_a_stopped_process_goes_on_where_it_was(nsqd: Nsqd) -> None:
    """SIGSTOP and SIGCONT, as SIGTSTP from a terminal."""
    with Client.of(nsqd).sub("t", "c", ready=10) as client, Client.of(nsqd) as producer:
        nsqd.signal(signal.SIGTSTP)
        nsqd.signal(signal.SIGSTOP)  # the kernel drops SIGTSTP if no shell could continue it
        wait_until(lambda: state(nsqd.pid) == "T")
        nsqd.signal(signal.SIGCONT)
        producer.pub("t", b"m")
        assert client.message().body == b"m"


def test_a_kill_loses_nothing_that_was_answered(nsqd: Nsqd) -> None:
    """A-3.  Then a start at once on the same ports and data path, again and again."""
    expected: set[bytes] = set()
    for turn in range(4):
        with Client.of(nsqd) as producer, Client.of(nsqd) as reader:
            bodies = numbered(500, 1000 * turn)
            producer.mpub("t", bodies)
            producer.pub("t", b"plain-%d" % turn)
            producer.dpub("t", 100, b"deferred-%d" % turn)
            expected |= {*bodies, b"plain-%d" % turn, b"deferred-%d" % turn}
            reader.sub("t", "c", ready=50)
            reader.messages(50)
            assert nsqd.kill() == -signal.SIGKILL
        nsqd.start()
    with Client.of(nsqd).sub("t", "c", ready=2500) as client:
        bodies = [message.body for message in client.finish_all(len(expected))]
        assert set(bodies) == expected and len(bodies) == len(expected)
        assert client.quiet(0.2)
        client.settle()


def test_finishes_are_remembered_over_a_kill(nsqd: Nsqd) -> None:
    """Those of the last moment excepted: the journal is written a few times a second."""
    publish(nsqd, "t", *numbered(1000))
    with Client.of(nsqd).sub("t", "c", ready=500) as client:
        finished = client.messages(500)
        client.fin(*finished)
        client.rdy(0)
        client.settle()
        held = client.arrived(late_s(0.8))
        nsqd.kill()
    nsqd.start()
    assert nsqd.channel("t", "c")["depth"] == 500
    with Client.of(nsqd).sub("t", "c", ready=2000) as client:
        bodies = {message.body for message in client.finish_all(500)}
        assert bodies.isdisjoint(message.body for message in finished)
        assert {message.body for message in held} <= bodies


def test_a_data_path_belongs_to_one_nsqd(nsqd: Nsqd) -> None:
    """The second one exits with nsqd's own words, and the first goes on."""
    second = Nsqd(nsqd.data_path)
    ended = subprocess.run(second.command(), capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    words = (
        "failed to lock data-path: cannot flock directory "
        f"{nsqd.data_path} - resource temporarily unavailable "
        "(possibly in use by another instance of nsqd)"
    )
    assert words in ended.stderr
    publish(nsqd, "t", b"m")


def test_a_port_in_use_ends_the_start(nsqd: Nsqd, tmp_path: Path) -> None:
    second = Nsqd(tmp_path / "other")
    second.data_path.mkdir()
    second.tcp_port = nsqd.tcp_port
    ended = subprocess.run(second.command(), capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    assert re.search(rf"listen \(127\.0\.0\.1:{nsqd.tcp_port}\) failed", ended.stderr)


def test_without_a_data_path_the_current_folder_is_used(tmp_path: Path) -> None:
    class Here(Nsqd):
        def command(self) -> list[str]:
            program, _, *rest = super().command()
            return ["env", "-C", str(self.data_path), program, *rest]

    with Here(tmp_path) as nsqd:
        publish(nsqd, "t", b"m")
    assert (tmp_path / "nsqd.dat").exists()


def test_sampling_as_scan_brings_everything_back_too(tmp_path: Path) -> None:
    """S1: timeouts, requeues with a delay and deferred publishes over many channels."""
    options = ("--queue-scan=sample", "--queue-scan-refresh-interval=300ms")
    channel_count = 40
    with Nsqd(tmp_path, *options) as nsqd:
        clients = [
            Client.of(nsqd, msg_timeout=1000).sub("t", f"c{number}", ready=10)
            for number in range(channel_count)
        ]
        with Client.of(nsqd) as producer:
            producer.pub("t", b"timeout", b"requeue")
            producer.dpub("t", 500, b"deferred")
            began_s = time.monotonic()
        for client in clients:
            for message in client.messages(2):
                if message.body == b"requeue":
                    client.req(message, 700)
        came: list[set[tuple[bytes, int]]] = [set() for _ in clients]
        limit_s = late_s(6)
        while sum(map(len, came)) < 3 * channel_count and time.monotonic() < began_s + limit_s:
            for client, seen in zip(clients, came, strict=True):
                taken = client.arrived(0.001)
                client.fin(*taken)
                seen |= {(message.body, message.attempts) for message in taken}
        expected = {(b"deferred", 1), (b"requeue", 2), (b"timeout", 2)}
        assert all(seen == expected for seen in came)
        assert 0.98 < time.monotonic() - began_s < limit_s
        assert eventually(lambda: nsqd.channel("t", "c0")["in_flight_count"] == 0)
        assert nsqd.channel("t", "c0")["timeout_count"] == 1
        for client in clients:
            client.close()
        assert nsqd.terminate() == 0
