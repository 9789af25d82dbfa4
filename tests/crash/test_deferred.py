"""Deferred messages through every crash point: never lost, never twice, never early (R16)."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed, LossyFiles
from tests.support.deferred_harness import HOUR, MINUTE, SECOND, World


def play(world: World, answered: set[bytes]) -> None:
    """A life of a queue with every kind of write in it; ends early when the machine stops."""

    def defer(delay_ns: int, body: bytes) -> None:
        ticket = world.defer(delay_ns, body)
        ticket.add(lambda settled: None if settled.error else answered.add(body))

    for i in range(6):
        defer(SECOND * (i + 1), b"near %d" % i)
        defer(2 * HOUR + i, b"far %d" % i)
    world.queue.writer.flush()
    world.disk.drain()
    for _ in range(3):
        world.clock.advance(2 * SECOND)
        world.fire()
        world.queue.writer.syncing.sync()
        world.disk.drain()
        world.checkpoint()
        world.forget_origins()
    defer(MINUTE, b"late")
    world.queue.writer.flush()
    world.disk.drain()
    world.clock.advance(2 * HOUR)
    world.fire()
    world.checkpoint()
    world.forget_origins()


def finish(world: World) -> None:
    """Let the time pass and the queue come to its end."""
    for _ in range(8):
        world.clock.advance(HOUR)
        world.fire()
        world.checkpoint()
        world.forget_origins()
        world.queue.check()


def steps(sync_every: int) -> int:
    world = World(sync_every=sync_every)
    play(world, set())
    return world.files.step_count


@pytest.mark.parametrize("mode", [KEEP, LOSE, PREFIX, HOLES])
@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_crash_at_any_step_loses_nothing_answered_and_doubles_nothing(
    mode: str, sync_every: int
) -> None:
    """R16, A-3, D-1, D-2, D-3: what was answered is fired exactly once.

    Killed, everything answered counts; in a power cut, what was answered after its sync.
    """
    for crash_at in range(World().files.step_count, steps(sync_every) + 1):
        files = LossyFiles()
        world = World(files, sync_every=sync_every)
        files.crash_at = crash_at
        answered: set[bytes] = set()
        with suppress(Crashed):
            play(world, answered)
        world.restart(mode, seed=crash_at)
        finish(world)
        bodies = world.bodies
        assert len(bodies) == len(set(bodies)), f"twice, crash at {crash_at}"
        if mode == KEEP or sync_every == 1:
            missing = answered - set(bodies)
            assert not missing, f"lost {missing}, crash at {crash_at}"
        assert world.damages == [], f"called damaged, crash at {crash_at}"
        assert len(world.queue.table.files) == 0, f"left over, crash at {crash_at}"
        assert [name for name in world.file_names() if not name.endswith(".corrupt")] == []


def test_what_was_synced_in_the_background_survives_a_power_cut() -> None:
    """D-1: --sync-timeout bounds what a power cut can take."""
    world = World()
    world.put(SECOND, b"synced")
    world.queue.writer.syncing.sync()
    world.disk.drain()
    world.put(SECOND, b"not synced")
    world.restart(LOSE)
    world.clock.advance(SECOND)
    assert world.fire() == [b"synced"]


def test_a_log_that_lost_its_tail_gets_the_messages_again() -> None:
    """R16: a checkpoint is never ahead of the logs it stands for."""
    world = World(sync_every=1)
    world.put(SECOND, b"x")
    world.clock.advance(SECOND)
    world.fire()
    world.restart(LOSE)
    assert world.bodies == []
    assert world.fire() == [b"x"]


def test_ordinals_of_a_lost_tail_are_not_given_again() -> None:
    """A log that kept a message fired from a lost record must not hide a new record."""
    world = World()
    world.put(SECOND, b"first")
    world.queue.writer.syncing.sync()
    world.disk.drain()
    world.put(SECOND, b"fired and lost")
    world.clock.advance(SECOND)
    world.fire()
    for logged in world.log:
        logged.synced = True
    world.restart(LOSE)
    world.clock.step_wall(-SECOND)
    world.put(SECOND, b"new")
    world.restart(KEEP)
    world.clock.advance(SECOND)
    assert world.fire() == [b"new"]
