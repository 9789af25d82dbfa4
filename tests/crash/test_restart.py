"""What a restart keeps: delays, attempts, existence, stragglers; and how long it takes.

A real nsqd where time is part of the question, the engine with a manual clock where borders are.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.crash.lossy import KEEP
from tests.support.daemon import Nsqd
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine
from tests.support.waits import wait_until

LATE_S = 0.6  # a busy machine


def end(nsqd: Nsqd, how: str) -> None:
    if how == "kill":
        nsqd.kill()
    else:
        assert nsqd.terminate() == 0


def folder_of(nsqd: Nsqd, topic: str) -> Path:
    (folder,) = (nsqd.data_path / "penstock" / "topics").glob(f"{topic}~*")
    return folder


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_deferred_messages_keep_their_remaining_delay(tmp_path: Path, how: str) -> None:
    """A-4, S2-1, S2-2, D-13: some fall due while nsqd is down, some after; all channels get all."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        for channel in ("a", "b"):
            with nsqd.connect() as raw:
                raw.subscribe("t", channel, 0)
        due_s: dict[bytes, float] = {}
        with nsqd.connect() as raw:
            for delay_ms in (200, 700, 1500, 1501, 2000, 2500):
                body = b"%d" % delay_ms
                due_s[body] = time.time() + delay_ms / 1000
                assert raw.command(commands.dpub("t", delay_ms, body))[1] == b"OK"
        end(nsqd, how)
        time.sleep(0.8)
        nsqd.start()
        started_s = time.time()
        with nsqd.connect() as one, nsqd.connect() as other:
            one.subscribe("t", "a")
            other.subscribe("t", "b")
            for raw in (one, other):
                seen = {}
                for _ in due_s:
                    body = raw.receive().body
                    seen[body] = time.time()
                assert seen.keys() == due_s.keys()
                assert raw.silent(0.2), "more than was published"
                if raw is one:
                    for body, at_s in seen.items():
                        assert at_s >= due_s[body], (body, due_s[body] - at_s)
                        assert at_s < max(due_s[body], started_s) + LATE_S, body


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_requeue_keeps_its_delay_and_attempts(tmp_path: Path, how: str) -> None:
    """R11, S4-7: REQ with a delay survives, with the attempts so far."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        with nsqd.connect() as raw:
            raw.subscribe("t", "c")
            assert nsqd.post("/pub?topic=t", b"again").status == 200
            for attempts in (1, 2):
                message = raw.receive()
                assert message.attempts == attempts
                if attempts == 1:
                    raw.send(commands.req(message.id, 0))
            due_s = time.time() + 2.5
            raw.send(commands.req(message.id, 2500))
            time.sleep(0.5)  # the journal has it
            end(nsqd, how)
        nsqd.start()
        started_s = time.time()
        # Unless starting took all of the delay.
        assert nsqd.channel("t", "c")["deferred_count"] == 1 or time.time() > due_s
        with nsqd.connect() as raw:
            raw.subscribe("t", "c")
            message = raw.receive()
            assert due_s <= time.time() < max(due_s, started_s) + LATE_S
            assert (message.body, message.attempts) == (b"again", 3)


def test_a_large_backlog_opens_quickly(tmp_path: Path) -> None:
    """R3: start-up reads tails, not logs.  Here 400,000 messages, killed; 4 million in bench."""
    nsqd = Nsqd(tmp_path / "nsqd", "--max-bytes-per-file=16000000")
    count, per_batch = 400_000, 2000
    with nsqd:
        with nsqd.connect() as raw:
            raw.subscribe("t", "c", 0)
        with nsqd.connect() as raw:
            command = commands.mpub("t", [bytes(200)] * per_batch)
            for _ in range(count // per_batch):
                assert raw.command(command)[1] == b"OK"
        nsqd.kill()
        before_s = time.monotonic()
        nsqd.start()
        assert nsqd.get("/ping").status == 200
        assert time.monotonic() - before_s < 2.0
        assert nsqd.channel("t", "c")["depth"] == count


def test_a_straggler_does_not_hold_old_segments(tmp_path: Path) -> None:
    """R5: one unfinished message moves to a side file, its segment goes; a restart delivers it."""
    nsqd = Nsqd(tmp_path / "nsqd", "--max-bytes-per-file=200000", "--msg-timeout=10m")
    with nsqd:
        with nsqd.connect() as raw:
            raw.subscribe("t", "c", 2500)
            with nsqd.connect() as producer:
                for number in range(20):
                    bodies = [b"%d-%d" % (number, at) + bytes(1000) for at in range(100)]
                    assert producer.command(commands.mpub("t", bodies))[1] == b"OK"
            for _ in range(2000):
                message = raw.receive()
                if message.body.startswith(b"3-50\0"):
                    stuck = message
                else:
                    raw.send(commands.fin(message.id))
            folder = folder_of(nsqd, "t")
            wait_until(lambda: _size(folder) < 450_000, 15, lambda: f"{_sizes(folder)}")
            assert list(folder.glob("*.side"))
            time.sleep(0.3)
            nsqd.kill()
        nsqd.start()
        with nsqd.connect() as raw:
            raw.subscribe("t", "c")
            message = raw.receive()
            assert (message.id, message.body) == (stuck.id, stuck.body)
            raw.send(commands.fin(message.id))
            assert raw.silent(0.5), "what was finished came back"
        assert nsqd.channel("t", "c")["depth"] == 0


@pytest.mark.parametrize("options", [(), ("--max-bytes-per-file=500000",)])
def test_the_disk_is_given_back_when_everything_is_finished(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """R5: no retention by default; deferred messages' slots go too (R16)."""
    nsqd = Nsqd(tmp_path / "nsqd", *options)
    count = 10_000
    with nsqd:
        with nsqd.connect() as raw, nsqd.connect() as producer:
            raw.subscribe("t", "c", 2500)
            for _ in range(count // 1000):
                assert producer.command(commands.mpub("t", [bytes(1000)] * 1000))[1] == b"OK"
            for _ in range(200):
                assert producer.command(commands.dpub("t", 300, bytes(1000)))[1] == b"OK"
            folder = folder_of(nsqd, "t")
            assert _size(folder) > 9_000_000
            for _ in range(count + 200):
                raw.send(commands.fin(raw.receive().id))
            deferred = nsqd.data_path / "penstock" / "deferred"
            wait_until(lambda: _size(folder) < 1_500_000, 10, lambda: f"{_sizes(folder)}")
        nsqd.restart()
        # The slot of this minute goes when it is over; the logs that it pins go with it.
        assert _size(folder) < 1_500_000 and _size(deferred) < 300_000


def _sizes(folder: Path) -> dict[str, int]:
    found = {}
    for path in folder.iterdir():
        try:
            found[path.name] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def _size(folder: Path) -> int:
    return sum(_sizes(folder).values())


@pytest.mark.parametrize("border_ns", [MINUTE, HOUR], ids=["minute", "hour"])
@pytest.mark.parametrize("restart_ms", [0, 900, 1000, 1001, 2500])
def test_no_message_is_lost_or_early_at_the_border_of_a_slot(
    border_ns: int, restart_ms: int
) -> None:
    """A-5, D-5, D-6, D-7, D-18: delays of 0 to 2 s around a border, with a kill on the way."""
    engine = Engine(seed=restart_ms + 1)
    wall_ns = engine.clock.wall_ns()
    engine.clock.advance(border_ns - wall_ns % border_ns - SECOND)
    Client(engine, "t", "a").close()
    start_ns = engine.clock.wall_ns()
    due_ns: dict[bytes, int] = {}
    for delay_ms in range(1, 2002, 40):
        body = b"%d" % delay_ms
        due_ns[body] = start_ns + delay_ms * MS
        assert engine.defer("t", delay_ms * MS, body) is None
    for delay_ms in (999, 1000, 1001):
        body = b"edge%d" % delay_ms
        due_ns[body] = start_ns + delay_ms * MS
        assert engine.defer("t", delay_ms * MS, body) is None
    engine.advance(restart_ms * MS)
    engine.crash(KEEP)
    engine.start()
    restarted_ns = engine.clock.wall_ns()
    client = Client(engine, "t", "a", ready_count=2500)
    engine.advance(3 * SECOND)
    seen = client.take()
    assert sorted(received.body for received in seen) == sorted(due_ns)
    for received in seen:
        at_ns = max(due_ns[received.body], restarted_ns)
        assert at_ns <= received.wall_ns <= at_ns + 2 * MS, received


def test_slots_that_were_slept_through_are_worked_off_in_order() -> None:
    """D-8: a suspended machine, or a long stall, skips many slots; all are due at once."""
    engine = Engine(seed=3)
    client = Client(engine, "t", "a", ready_count=2500)
    for number in range(100):
        assert engine.defer("t", number * MINUTE + SECOND, b"%d" % number) is None
    engine.sleep(100 * MINUTE)
    engine.advance(SECOND)
    assert [received.body for received in client.take()] == [b"%d" % n for n in range(100)]
