"""The seam to the disk's threads: whatever a work raises is an error to whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.engine.catalog.saved_file import SavedFile
from penstock.engine.disk import Lane, run
from penstock.nsqd.disk_threads import ThreadDisk
from tests.support.engine import HOUR, SECOND, Engine

WORSE = [SystemExit("thread"), KeyboardInterrupt(), GeneratorExit(), BaseException("odd")]


def fail(error: BaseException) -> None:
    raise error


def test_the_outcome_of_a_work_is_a_result_or_an_exception() -> None:
    assert run(lambda: 7) == (7, None)
    own = ValueError("own")
    assert run(lambda: fail(own)) == (None, own)


@pytest.mark.parametrize("error", WORSE, ids=lambda error: type(error).__name__)
def test_what_is_no_exception_becomes_one(error: BaseException) -> None:
    result, failure = run(lambda: fail(error))
    assert result is None and isinstance(failure, OSError)
    assert type(error).__name__ in str(failure)


@pytest.mark.parametrize("lane", [False, True])
def test_a_thread_survives_it_and_tells_the_loop(lane: bool) -> None:
    async def submit() -> list[tuple[Any, Any]]:
        threads = ThreadDisk(asyncio.get_running_loop())
        disk = Lane(threads, 1) if lane else threads
        outcomes: list[tuple[Any, Any]] = []
        done = asyncio.Event()
        disk.submit(lambda: fail(SystemExit(3)), lambda *outcome: outcomes.append(outcome))

        def last(result: int | None, error: Exception | None) -> None:
            outcomes.append((result, error))
            done.set()

        disk.submit(lambda: 5, last)
        await asyncio.wait_for(done.wait(), 10)
        while len(outcomes) < 2:
            await asyncio.sleep(0)
        threads.close()
        return outcomes

    outcomes = asyncio.run(submit())
    assert (5, None) in outcomes
    ((_, error),) = [outcome for outcome in outcomes if outcome != (5, None)]
    assert isinstance(error, OSError)


# Every kind of ticket that a disk thread settles: never as success.


class Broken:
    """Lets the files of an engine raise ``error`` where a name ends with ``suffix``."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files = engine.files
        self._monkeypatch = monkeypatch

    def breaks(self, call: str, suffix: str, error: BaseException) -> None:
        real: Callable[..., Any] = getattr(self._files, call)

        def broken(path: str, *arguments: Any, **named: Any) -> Any:
            if path.endswith(suffix):
                raise error
            return real(path, *arguments, **named)

        self._monkeypatch.setattr(self._files, call, broken)


@pytest.fixture
def engine() -> Engine:
    return Engine(sync_every=1)


@pytest.fixture
def broken(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Broken:
    return Broken(engine, monkeypatch)


@pytest.mark.parametrize("error", WORSE, ids=lambda error: type(error).__name__)
def test_nsqd_dat_is_not_saved(engine: Engine, broken: Broken, error: BaseException) -> None:
    broken.breaks("write_new", "nsqd.dat", error)
    assert isinstance(engine.done(engine.components.registry.save_all()), OSError)
    assert engine.components.health.problem is not None


def test_a_saved_file_is_tried_again_after_it(engine: Engine) -> None:
    errors: list[BaseException] = [SystemExit()]

    def write() -> None:
        if errors:
            raise errors.pop()

    saved = SavedFile(engine.components.context, engine.components.health, "x.json", lambda: write)
    assert isinstance(engine.done(saved.save()), OSError)
    again = saved.saved()
    assert engine.done(again) is None and engine.components.health.problem is None


@pytest.mark.parametrize("error", WORSE, ids=lambda error: type(error).__name__)
def test_a_deferred_publish_is_not_accepted(
    engine: Engine, broken: Broken, error: BaseException
) -> None:
    assert engine.publish("t", b"x") is None
    broken.breaks("append", ".slot", error)
    assert isinstance(engine.defer("t", HOUR, b"late"), OSError)
    assert engine.components.deferred.tallies.total == 0


@pytest.mark.parametrize("error", WORSE, ids=lambda error: type(error).__name__)
def test_the_end_of_the_deferred_queue_is_not_clean(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    engine = Engine()
    assert engine.defer("t", HOUR, b"late") is None
    Broken(engine, monkeypatch).breaks("sync", ".slot", error)
    assert isinstance(
        engine.done(engine.components.deferred.finish(engine.components.damage.save)), OSError
    )


@pytest.mark.parametrize("error", WORSE, ids=lambda error: type(error).__name__)
def test_a_publish_a_channel_and_a_journal_are_not_stored(
    engine: Engine, broken: Broken, error: BaseException
) -> None:
    topic, created = engine.broker.create_topic("t")
    assert engine.done(created) is None
    broken.breaks("append", ".log", error)
    broken.breaks("append", "/journal", error)
    assert isinstance(engine.done(topic.publish([b"x"])), OSError)
    assert isinstance(engine.done(topic.create_channel("c")[1]), OSError)
    engine.advance(SECOND)
    assert topic.message_count == 0
