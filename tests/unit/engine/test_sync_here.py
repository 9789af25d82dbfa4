"""With --sync-every=1 the loop syncs the only topic of a turn (R9)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from penstock.storage.files import Files
from tests.support.engine import Client, Engine


class QuickFiles(Files):
    """Syncs on the loop whenever it is asked to; ``error_count`` of them fail."""

    def __init__(self) -> None:
        super().__init__()
        self.here_count = 0
        self.error_count = 0

    def sync_here(self, path: str) -> bool:
        if self.error_count:
            self.error_count -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.sync(path)
        self.here_count += 1
        return True


def started(folder: Path) -> tuple[Engine, QuickFiles]:
    files = QuickFiles()
    engine = Engine(files, root=str(folder), sync_every=1)
    for topic in ("a", "b"):
        for _ in range(2):  # the first write and sync are done by a thread
            assert engine.publish(topic, b"first") is None
    files.here_count = 0
    return engine, files


def test_a_lone_topic_is_synced_in_its_turn(tmp_path: Path) -> None:
    engine, files = started(tmp_path)
    client = Client(engine, "a", "c", ready_count=10)
    for number in range(5):
        assert engine.publish("a", b"%d" % number) is None
        log = engine.topic("a").log
        assert log.synced_end == log.end
    assert files.here_count == 5
    assert [each.body for each in client.take()][-5:] == [b"%d" % n for n in range(5)]


def test_two_topics_of_one_turn_are_synced_by_threads(tmp_path: Path) -> None:
    engine, files = started(tmp_path)
    tickets = [engine.topic(name).publish([b"x"]) for name in ("a", "b")]
    engine.settle()
    assert [ticket.error for ticket in tickets] == [None, None]
    assert files.here_count == 0
    for name in ("a", "b"):
        log = engine.topic(name).log
        assert log.synced_end == log.end


def test_a_sync_that_fails_on_the_loop_is_made_good_in_a_new_file(tmp_path: Path) -> None:
    """R8: the batch is written again before its publisher is answered."""
    engine, files = started(tmp_path)
    before = len(engine.topic("a").log.segments())
    files.error_count = 1
    assert engine.publish("a", b"moved") is None
    log = engine.topic("a").log
    assert len(log.segments()) == before + 1
    assert log.synced_end == log.end
    assert engine.publish("a", b"after") is None
    assert sorted(engine.logged("a").values()) == [b"after", b"first", b"first", b"moved"]
