"""A topic's journal: what is written when, beside a disk that takes its time."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.engine.catalog.journal import JournalKeeper
from penstock.engine.disk import SLOW_FOR_NS, SLOW_NS, Here
from penstock.storage.journal import Journal
from tests.crash.lossy import LossyFiles

PATH = "/t/journal"


class Work:
    """One thing the disk was asked to do; ``done`` tells the loop."""

    def __init__(self, work: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        self._work = work
        self._done = done

    def run(self, error: BaseException | None = None) -> None:
        result = self._work() if error is None else None
        self._done(result, error)


class World:
    def __init__(self) -> None:
        self.files = LossyFiles()
        self.files.make_folder("/t")
        self.works: list[Work] = []
        self.heard: list[BaseException | None] = []
        self.state = [b"state "]
        self.keeper = JournalKeeper(
            Journal(self.files, PATH), self, lambda: list(self.state), self.heard.append
        )
        self.keeper.open()

    def submit(self, work: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        self.works.append(Work(work, done))

    def next(self) -> Work:
        return self.works.pop(0)

    def content(self) -> bytes:
        return self.files.read(PATH)


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_added_during_a_write_goes_with_the_next(world: World) -> None:
    world.keeper.add(b"a ")
    first = world.keeper.flush()
    world.keeper.add(b"b ")
    second = world.keeper.flush()
    world.keeper.add(b"c ")
    assert world.keeper.flush() is second
    assert len(world.works) == 1
    world.next().run()
    assert first.done and not second.done and world.content() == b"a "
    world.next().run()
    assert second.done and world.content() == b"a b c "


def test_a_slow_sync_does_not_keep_records_from_the_file(world: World) -> None:
    world.keeper.add(b"a ")
    durable = world.keeper.flush(sync=True)
    world.next().run()
    sync = world.next()
    world.keeper.add(b"b ")
    written = world.keeper.flush()
    world.next().run()
    assert written.done and not durable.done
    assert world.content() == b"a b "
    sync.run()
    assert durable.done and durable.error is None


def test_who_comes_during_a_sync_waits_for_the_next(world: World) -> None:
    world.keeper.add(b"a ")
    first = world.keeper.flush(sync=True)
    world.next().run()
    sync = world.next()
    world.keeper.add(b"b ")
    second, third = world.keeper.flush(sync=True), world.keeper.flush(sync=True)
    world.next().run()
    assert not world.works, "one sync at a time"
    sync.run()
    assert first.done and not second.done
    world.next().run()
    assert second.done and third.done and not world.works


def test_a_sync_covers_the_write_that_is_under_way(world: World) -> None:
    world.keeper.add(b"a ")
    world.keeper.flush()
    durable = world.keeper.flush(sync=True)
    assert len(world.works) == 1
    world.next().run()
    world.next().run()
    assert durable.done and world.content() == b"a "


@pytest.mark.parametrize("broken", ["write", "sync"])
def test_after_a_failure_comes_a_whole_snapshot(world: World, broken: str) -> None:
    """R8."""
    world.keeper.add(b"a ")
    durable = world.keeper.flush(sync=True)
    failure = OSError(5, "Input/output error")
    if broken == "sync":
        world.next().run()
    world.next().run(failure)
    assert durable.error is failure and world.heard[-1] is failure and not world.works
    world.keeper.add(b"b ")
    again = world.keeper.flush(sync=True)
    world.next().run()
    assert world.content() == b"state "
    world.next().run()
    assert again.done and again.error is None and world.heard[-1] is None


def test_what_waits_for_a_folder_that_cannot_be_made_fails(world: World) -> None:
    closed = JournalKeeper(Journal(world.files, "/t/other"), world, list, world.heard.append)
    closed.add(b"a ")
    plain, durable = closed.flush(), closed.flush(sync=True)
    assert not world.works
    failure = OSError(28, "No space left on device")
    closed.fail(failure)
    assert plain.error is failure and durable.error is failure


def test_small_writes_are_done_here_while_they_are_quick(world: World) -> None:
    clock = ManualClock()
    here = Here(clock)
    keeper = JournalKeeper(Journal(world.files, PATH), world, list, world.heard.append, world, here)
    keeper.add(b"made ")
    keeper.open()
    world.next().run()  # the first write makes the file
    keeper.add(b"a ")
    assert keeper.flush().done and not world.works
    world.files.fail("append", errno.EIO)
    keeper.add(b"lost ")
    assert isinstance(keeper.flush().error, OSError) and isinstance(world.heard[-1], OSError)
    keeper.flush()
    world.works.clear()


def test_after_slow_work_here_threads_do_it_for_a_while() -> None:
    clock = ManualClock()
    here = Here(clock)
    assert here.run(lambda: clock.advance(SLOW_NS + 1)) == (True, None)
    assert here.run(lambda: None) == (False, None)
    clock.advance(SLOW_FOR_NS)
    assert here.run(lambda: None) == (True, None)
