"""Writes and syncs by threads, with something between the engine and its files (R9)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.core.ticket import Ticket
from penstock.errors import UncutError
from penstock.storage.files import Files
from tests.support.engine import MS, Client, Engine


class DelayingFiles(Files):
    """Records each write and sync that a thread would do, and does it when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: ManualClock | None = None  # each write takes 30 ms of it
        self.seen: list[tuple[str, bytes]] = []
        self.held: list[Callable[[], None]] = []
        self.failure: Exception | None = None

    def append(self, path: str, parts: Sequence[bytes], offset: int = -1) -> int:
        if self.clock is not None:
            self.clock.advance(30 * MS)
        return super().append(path, parts, offset)

    def start_append(
        self, path: str, parts: list[bytes], offset: int, done: Callable[[Exception | None], object]
    ) -> bool:
        def later() -> None:
            if self.failure is None:
                self.append(path, parts, offset)
            done(self.failure)

        self.seen.append(("write", b"".join(parts)))
        self.held.append(later)
        return True

    def start_sync(self, path: str, done: Callable[[OSError | None], object]) -> bool:
        def later() -> None:
            self.sync(path)
            done(None)

        self.seen.append(("sync", b""))
        self.held.append(later)
        return True

    def release(self) -> None:
        self.held.pop(0)()


def started(folder: Path, **options: int) -> tuple[Engine, DelayingFiles]:
    """The first write, by a Python thread, was slow, and so the next ones are done by a thread."""
    files = DelayingFiles()
    engine = Engine(files, root=str(folder), **options)
    files.clock = engine.clock
    assert engine.publish("t", b"first") is None
    assert not files.seen
    return engine, files


def publish(engine: Engine, body: bytes) -> Ticket:
    ticket = engine.topic("t").publish([body])
    engine.settle()
    return ticket


def test_a_write_is_answered_when_it_has_ended(tmp_path: Path) -> None:
    engine, files = started(tmp_path)
    client = Client(engine, "t", "c", ready_count=10)
    engine.settle()
    client.take()
    one, two = publish(engine, b"one"), publish(engine, b"two")
    assert not one.done and not two.done and not client.take()
    assert [kind for kind, _ in files.seen] == ["write"], "one write at a time"
    files.release()
    engine.settle()
    assert one.done and not two.done
    assert [message.body for message in client.take()] == [b"one"]
    files.release()
    engine.settle()
    assert two.done and [message.body for message in client.take()] == [b"two"]
    path = next(tmp_path.rglob("*.log"))
    written = b"".join(data for kind, data in files.seen if kind == "write")
    assert path.read_bytes().endswith(written), "all that was written was seen"


def test_an_answer_after_a_sync_waits_for_both(tmp_path: Path) -> None:
    engine, files = started(tmp_path, sync_every=1)
    ticket = publish(engine, b"one")
    files.release()
    engine.settle()
    assert not ticket.done and [kind for kind, _ in files.seen] == ["write", "sync"]
    files.release()
    engine.settle()
    assert ticket.done and ticket.error is None
    log = engine.topic("t").log
    assert log.synced_end == log.end


def test_a_write_that_fails_is_told_and_the_next_one_is_tried(tmp_path: Path) -> None:
    engine, files = started(tmp_path)
    failed = publish(engine, b"lost")
    files.failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    files.release()
    engine.settle()
    assert isinstance(failed.error, OSError)
    files.failure = None
    kept = publish(engine, b"kept")
    files.release()
    engine.settle()
    assert kept.error is None
    assert sorted(engine.logged("t").values()) == [b"first", b"kept"]


def test_after_bytes_that_could_not_be_cut_off_a_new_file_is_begun(tmp_path: Path) -> None:
    engine, files = started(tmp_path)
    failed = publish(engine, b"lost")
    files.failure = UncutError("cutting back")
    files.release()
    engine.settle()
    assert isinstance(failed.error, UncutError)
    files.failure = None
    assert engine.publish("t", b"kept") is None
    assert len(engine.topic("t").log.segments()) == 2
    assert sorted(engine.logged("t").values()) == [b"first", b"kept"]


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_sync_waits_for_the_write_that_is_under_way(tmp_path: Path, sync_every: int) -> None:
    engine, files = started(tmp_path, sync_every=sync_every)
    written = publish(engine, b"one")
    synced = engine.topic("t").sync_log()
    while files.held:
        files.release()
        engine.settle()
    assert written.done and synced.done and synced.error is None
