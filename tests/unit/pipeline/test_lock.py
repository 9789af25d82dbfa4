from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import AlreadyRunningError, PipelineError
from penstock.pipeline import lock as locks
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.lock import LEASE_S, NAME, Lock, Locks, Owner
from penstock.pipeline.spec import DeltaSink, Invalid, ParquetSink, Pipeline, TopicSink
from tests.support.waits import wait_until

HOLD = """
import sys, time
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.lock import NAME, Lock, Owner
Lock(LocalFolder(sys.argv[1]), NAME, Owner.of_this_process("orders")).take()
print("held", flush=True)
time.sleep(60)
"""
HERE = Owner.of_this_process("orders")


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(str(tmp_path / "table"))


def a_lock(folder: LocalFolder, owner: Owner = HERE) -> Lock:
    return Lock(folder, NAME, owner)


@contextmanager
def holding(folder: LocalFolder) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock."""
    command = [sys.executable, "-c", HOLD, folder.uri]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
            process.wait(10)


def taken_by(folder: LocalFolder, **changes: object) -> Lock:
    """A lock that is held by an owner like this process, but for the changes."""
    held = a_lock(folder)
    held.owner = dataclasses.replace(held.owner, **changes)  # type: ignore[arg-type]
    held._beat()
    assert folder.create(NAME, held.owner.to_json())
    return held


def age(folder: LocalFolder, seconds: float) -> None:
    """As if all files of the lock had been written so long ago."""
    then = time.time() - seconds
    for path in folder.root.iterdir():
        os.utime(path, (then, then))


def take_at_once(folder: LocalFolder, count: int) -> tuple[list[Lock], list[str]]:
    """That many starts in one moment: those that own the lock, and what the others were told."""
    together = threading.Barrier(count)
    winners: list[Lock] = []
    refusals: list[str] = []

    def start() -> None:
        lock = a_lock(folder)
        together.wait(10)
        try:
            lock.take()
        except AlreadyRunningError as error:
            refusals.append(str(error))
        else:
            winners.append(lock)

    threads = [threading.Thread(target=start) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return winners, refusals


def test_of_many_starts_in_one_moment_one_wins(folder: LocalFolder) -> None:
    for _ in range(20):
        winners, refusals = take_at_once(folder, 8)
        assert (len(winners), len(refusals)) == (1, 7)
        winners[0].check()
        assert len(list(folder.root.iterdir())) == 2, "lock and heartbeat, nothing is left behind"
        winners[0].release()
        assert not list(folder.root.iterdir())


def test_of_many_that_find_a_dead_owner_one_wins(folder: LocalFolder) -> None:
    for _ in range(20):
        taken_by(folder, boot_id="before")
        winners, refusals = take_at_once(folder, 8)
        assert (len(winners), len(refusals)) == (1, 7)
        winners[0].check()
        winners[0].release()
        assert not list(folder.root.iterdir())


def test_a_second_start_is_told_who_runs_it_and_where(folder: LocalFolder) -> None:
    with holding(folder) as process:
        with pytest.raises(AlreadyRunningError) as caught:
            a_lock(folder).take()
        said = str(caught.value)
        assert f"pipeline orders is already running: process {process.pid} on {HERE.host}" in said
        assert ", since 2" in said and f"{folder.uri}/{NAME}" in said
        # It is not known why a process does not run; while it is there, nobody else writes.
        process.send_signal(signal.SIGSTOP)
        age(folder, LEASE_S + 1)
        with pytest.raises(AlreadyRunningError, match="heartbeat for 31 s; if it hangs, kill it"):
            a_lock(folder).take()


def test_a_killed_process_is_replaced_at_once(folder: LocalFolder) -> None:
    with holding(folder) as process:
        process.kill()
        process.wait(10)
        lock = a_lock(folder)
        lock.take()
        lock.check()
        lock.release()
    assert not list(folder.root.iterdir())


@pytest.mark.parametrize(
    "changes", [{"boot_id": "before"}, {"start_time": HERE.start_time + 1}, {"pid": 2**22 - 1}]
)
def test_an_owner_that_cannot_live_is_replaced_at_once(
    folder: LocalFolder, changes: dict[str, object]
) -> None:
    taken_by(folder, **changes)
    lock = a_lock(folder)
    lock.take()
    lock.release()


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere"},
        {"machine": "0123"},
        {"pid_namespace": "pid:[1]"},
        {"host": "elsewhere", "boot_id": "other"},
    ],
)
def test_an_owner_elsewhere_has_its_lease(folder: LocalFolder, changes: dict[str, object]) -> None:
    other = taken_by(folder, **changes)
    with pytest.raises(AlreadyRunningError):
        a_lock(folder).take()
    age(folder, LEASE_S - 9)
    with pytest.raises(AlreadyRunningError, match=r"heartbeat was 21 s ago; .* start again in 9 s"):
        a_lock(folder).take()
    age(folder, LEASE_S + 1)
    other._beat()
    with pytest.raises(AlreadyRunningError):
        a_lock(folder).take()
    age(folder, LEASE_S + 1)
    lock = a_lock(folder)
    lock.take()
    # The other one comes back.
    with pytest.raises(AlreadyRunningError, match=f"was taken over by process {os.getpid()} on"):
        other.check()
    other.release()
    lock.check()
    lock.release()


def test_a_process_that_proc_hides_has_its_lease(
    folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "start_time_of", lambda pid: 0)
    taken_by(folder)
    with pytest.raises(AlreadyRunningError):
        a_lock(folder).take()
    age(folder, LEASE_S + 1)
    lock = a_lock(folder)
    lock.take()
    lock.release()


def test_a_heartbeat_keeps_a_lock(folder: LocalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 0.02)
    lock = a_lock(folder)
    lock.take()
    age(folder, 1000)
    beat = folder.root / lock._beat_path(lock.owner)
    wait_until(lambda: time.time() - beat.stat().st_mtime <= 5)
    lock.release()


def test_a_folder_that_was_removed_is_noticed_before_a_batch(folder: LocalFolder) -> None:
    lock = a_lock(folder)
    lock.take()
    folder.remove("")
    with pytest.raises(PipelineError, match="is missing: somebody removed the folder") as caught:
        lock.check()
    assert not isinstance(caught.value, AlreadyRunningError)
    lock.release()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"pid": "x", "boot_id": 5, "nonce": null}'])
def test_a_lock_that_cannot_be_read_has_its_lease(folder: LocalFolder, data: bytes) -> None:
    folder.write(NAME, data)
    with pytest.raises(AlreadyRunningError, match="an unknown process"):
        a_lock(folder).take()
    age(folder, LEASE_S + 1)
    lock = a_lock(folder)
    lock.take()
    lock.release()


def test_a_successor_that_died_half_way_stops_nobody(folder: LocalFolder) -> None:
    dead = taken_by(folder, boot_id="before")
    claimer = dataclasses.replace(HERE, pid=2**22 - 1)
    assert folder.create(f"{NAME}.{dead.owner.nonce}.next", claimer.to_json())
    lock = a_lock(folder)
    lock.take()
    lock.check()
    lock.release()
    assert not list(folder.root.iterdir())


def test_all_locks_of_a_run_or_none(tmp_path: Path) -> None:
    pipeline = Pipeline(
        name="orders",
        folder=tmp_path,
        sinks=(ParquetSink(path="b"), DeltaSink(path="a/"), TopicSink(topic="c")),
        invalid=Invalid(path="hdfs://elsewhere/d"),
    )
    assert locks.places_of(pipeline) == [
        (f"{tmp_path}/a", "_penstock/ledger/orders/lock.json"),
        (f"{tmp_path}/b", "_penstock/ledger/orders/lock.json"),
        (f"{tmp_path}/checkpoints/orders.ledger", "lock.json"),
        ("hdfs://elsewhere/d", "_penstock/ledger/orders/lock.json"),
    ]
    pipeline = dataclasses.replace(pipeline, invalid=Invalid())
    first, second = Locks(pipeline), Locks(pipeline)
    beside = LocalFolder(f"{tmp_path}/checkpoints/orders.ledger")
    other = a_lock(beside)
    other.take()
    with pytest.raises(AlreadyRunningError):
        first.take_local()
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and path.parent != beside.root
    ]
    other.release()
    first.take_local()
    with pytest.raises(AlreadyRunningError):
        second.take_local()
    first.check()
    first.release()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_system_without_links_has_locks_too(
    folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    winners, refusals = take_at_once(folder, 8)
    assert (len(winners), len(refusals)) == (1, 7)
    winners[0].release()
