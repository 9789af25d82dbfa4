"""Damaged, cut, emptied and missing files of deferred messages: each is told, with what it cost.

Every byte and every cut of small files, in memory; test_deferred_daemon.py has real processes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import google_crc32c
import pytest

from penstock.errors import StorageError
from penstock.storage.slots import HEADER_SIZE, pack_header, slot_name
from tests.crash.lossy import KEEP, LossyFiles
from tests.support.deferred_harness import FOLDER, HOUR, MINUTE, SECOND, World

COUNTS = f"{FOLDER}.counts"
NEAR = [b"near %d" % i for i in range(4)]
FAR = [b"far %d" % i for i in range(3)]


def lived(sync_every: int = 2500) -> World:
    """Seven messages in two slots, all synced; one is fired and checkpointed, one only fired."""
    world = World(sync_every=sync_every)
    for i, body in enumerate(NEAR):
        world.put((i + 1) * SECOND, body)
    for body in FAR:
        world.put(3 * HOUR, body)
    world.queue.writer.syncing.sync()
    world.disk.drain()
    world.clock.advance(SECOND)
    world.fire()
    world.checkpoint()
    world.forget_origins()
    world.clock.advance(SECOND)
    world.fire()
    return world


def near_and_far(world: World) -> tuple[str, str]:
    near, far = [name for name in world.file_names() if name.endswith(".slot")]
    return f"{FOLDER}/{near}", f"{FOLDER}/{far}"


def fired_of(slot: str) -> str:
    return slot.replace(".slot", ".fired")


def live_on(world: World) -> list[bytes]:
    """Start again, let all time pass; returns what was delivered from the beginning."""
    world.files.crash(KEEP)
    world.start()
    for _ in range(6):
        world.fire()
        world.queue.writer.syncing.sync()
        world.disk.drain()
        world.checkpoint()
        world.clock.advance(HOUR)
    world.queue.check()
    assert len(world.queue.table.files) == 0 and world.failing == {}
    left = [name for name in world.file_names() if not name.endswith(".corrupt")]
    assert left == [], "left over"
    assert len(world.files.read(COUNTS)) % 80 == 0
    return world.bodies


def changes(data: bytes) -> Iterator[tuple[str, Callable[[bytearray], None]]]:
    """Every flipped bit, cut and run of zeros, one byte apart."""

    def flip(at: int) -> Callable[[bytearray], None]:
        return lambda data: data.__setitem__(at, data[at] ^ (1 << at % 8))

    def cut(at: int) -> Callable[[bytearray], None]:
        return lambda data: data.__delitem__(slice(at, None))

    def zeros(at: int) -> Callable[[bytearray], None]:
        return lambda data: data.__setitem__(slice(at, None), bytes(len(data) - at))

    for at in range(len(data)):
        yield f"bit flipped at {at}", flip(at)
        yield f"cut at {at}", cut(at)
        if any(data[at:]):
            yield f"zeros from {at}", zeros(at)


@pytest.mark.parametrize("sync_every", [1, 2500])
@pytest.mark.parametrize("which", [0, 1], ids=["near", "far"])
def test_every_damage_to_a_slot_file_is_told_with_what_it_cost(which: int, sync_every: int) -> None:
    """D-15: what is not delivered is reported, to the message, and the rest is delivered."""
    before = lived(sync_every)
    path = near_and_far(before)[which]
    whole = before.files.read(path)
    # Nobody reads the bodies of messages that were delivered before the restart.
    delivered = {whole.index(body) + i for body in before.bodies if body in whole for i in range(6)}
    for what, change in changes(whole):
        world = lived(sync_every)
        world.files.edit(path, change)
        bodies = live_on(world)
        assert len(bodies) == len(set(bodies)), f"twice, {what}"
        lost = {*NEAR, *FAR} - set(bodies)
        if not lost and what.startswith("bit") and int(what.split()[-1]) in delivered:
            continue
        assert world.damages, f"not told, {what}"
        assert all(path in text and where == path for text, where, _ in world.damages), what
        assert world.lost_count == len(lost), f"{what}: {world.damages}"
        assert world.queue.table.corrupt_count >= 1, what
        if world.files.exists(path) or "cut at 0" not in what:
            assert any(name.endswith(".corrupt") for name in world.file_names()), what


@pytest.mark.parametrize("which", [0, 1], ids=["near", "far"])
def test_a_missing_slot_file_is_told_with_the_messages_in_it(which: int) -> None:
    world = lived()
    path = near_and_far(world)[which]
    world.files.unlink(path)
    bodies = live_on(world)
    expected = NEAR[:2] + FAR if which == 0 else NEAR
    assert sorted(bodies) == sorted(expected)
    ((text, where, lost),) = world.damages
    assert where == path and lost == 2 + which
    assert f"{path}: missing; {lost} of {4 - which} messages are lost" in text
    if which == 0:
        kept = f"{fired_of(path)}.corrupt"
        assert kept in text and world.files.exists(kept)
    world.damages.clear()
    world.restart()
    assert world.damages == [], "told once"


def test_a_missing_folder_is_told_for_every_slot_that_was_in_it() -> None:
    world = lived()
    world.files.remove_tree(FOLDER)
    assert sorted(live_on(world)) == NEAR[:2]
    # Without the checkpoints nobody knows that one of the two in the log is another one.
    assert world.lost_count == 6 and len(world.damages) == 2


def test_every_damage_to_checkpoints_is_told_and_loses_nothing() -> None:
    """At least once: what was delivered may come again, and that is said."""
    before = lived()
    path = fired_of(near_and_far(before)[0])
    for what, change in changes(before.files.read(path)):
        world = lived()
        world.files.edit(path, change)
        bodies = live_on(world)
        assert set(bodies) == {*NEAR, *FAR}, f"lost, {what}"
        assert len(bodies) <= len(NEAR) + len(FAR) + 1, f"more than that again, {what}"
        ((text, where, lost),) = world.damages
        assert where == path and lost == 0, what
        assert "up to 1 messages may be delivered again" in text, f"{what}: {text}"
        assert ("copied to" in text) == (what != "cut at 0"), what


def test_missing_checkpoints_are_told() -> None:
    world = lived()
    path = fired_of(near_and_far(world)[0])
    world.files.unlink(path)
    bodies = live_on(world)
    assert sorted(bodies) == sorted([*NEAR, *FAR, NEAR[0]])
    ((text, where, lost),) = world.damages
    assert where == path and lost == 0 and "missing" in text
    assert "up to 1 messages may be delivered again" in text


def test_checkpoints_without_their_slot_are_what_a_removal_left_behind() -> None:
    """The slot was finished: nothing is missing, and nothing is told."""
    world = lived()
    far = near_and_far(world)[1]
    world.clock.advance(4 * HOUR)
    world.fire()
    world.files.faults.add(f"{COUNTS}*", errno.ENOSPC)
    world.checkpoint()
    world.files.faults.heal()
    assert world.files.exists(fired_of(far)) and not world.files.exists(far)
    assert sorted(live_on(world)) == sorted([*NEAR, *FAR])
    assert world.damages == []


def test_every_damage_to_the_counts_is_told_and_costs_no_message() -> None:
    before = lived()
    whole = before.files.read(COUNTS)
    for what, change in changes(whole):
        world = lived()
        world.files.edit(COUNTS, change)
        assert sorted(live_on(world)) == sorted([*NEAR, *FAR]), what
        assert world.lost_count == 0, what
        # The entries after those it was made with may be what a power cut left of them.
        at = int(what.rpartition(" ")[2])
        told = [where for _, where, _ in world.damages]
        if at < 14 or (at < HEADER_SIZE and "zeros" not in what):
            assert told == [COUNTS], what
        else:
            assert told in ([COUNTS], []), what


def test_every_damage_to_counts_that_were_written_whole_is_told() -> None:
    """A start writes them whole, so that no part of them can be missing unnoticed."""
    before = lived()
    before.restart()
    whole = before.files.read(COUNTS)
    assert len(whole) == 3 * 80
    for what, change in changes(whole):
        world = lived()
        world.restart()
        world.files.edit(COUNTS, change)
        assert sorted(live_on(world)) == sorted([*NEAR, *FAR]), what
        assert [where for _, where, _ in world.damages] == [COUNTS], what


def test_missing_counts_are_told() -> None:
    world = lived()
    world.files.unlink(COUNTS)
    assert sorted(live_on(world)) == sorted([*NEAR, *FAR])
    ((text, where, lost),) = world.damages
    assert where == COUNTS and lost == 0 and "missing" in text


def test_damage_to_a_slot_is_told_though_the_counts_are_gone() -> None:
    """Nobody can say how many messages were lost; that there is damage can be seen."""
    world = lived()
    path = near_and_far(world)[1]
    world.files.unlink(COUNTS)
    world.files.edit(
        path, lambda data: data.__setitem__(HEADER_SIZE + 5, data[HEADER_SIZE + 5] ^ 1)
    )
    assert sorted(live_on(world)) == sorted([*NEAR, *FAR[1:]])
    assert [where for _, where, _ in world.damages] == [COUNTS, path]
    assert world.damages[1][2] is None


def test_a_later_version_of_the_counts_refuses_the_start_untouched() -> None:
    world = lived()
    data = bytearray(world.files.read(COUNTS))
    data[13] = 9
    data[8:12] = google_crc32c.value(bytes(data[12:80])).to_bytes(4, "big")
    world.files.put(COUNTS, bytes(data))
    world.files.crash(KEEP)
    with pytest.raises(StorageError, match=r"deferred.counts: .*later version \(format 9\)"):
        world.start()
    assert world.files.read(COUNTS) == bytes(data)


# The version before


def without_counts(world: World) -> None:
    """The files as a version wrote them that knew no counts."""
    world.files.unlink(COUNTS)
    for file in world.file_names():
        name = slot_name(file)
        if name is not None and file.endswith(".slot"):
            header = pack_header(name, counted=False)
            assert header[14:16] == b"\0\0"
            world.files.edit(f"{FOLDER}/{file}", lambda data, new=header: _put(data, new))


def _put(data: bytearray, new: bytes) -> None:
    data[: len(new)] = new


def test_slots_without_counts_are_not_called_damaged_and_get_them() -> None:
    """What the formats of the version before cannot tell is no damage."""
    world = lived()
    near, far = near_and_far(world)
    without_counts(world)
    world.restart()
    world.fire()
    world.queue.writer.syncing.sync()
    world.disk.drain()
    assert world.damages == [] and world.file_names() != []
    world.files.edit(far, lambda data: data.__delitem__(slice(-10, None)))
    world.restart()
    assert sorted(live_on(world)) == sorted([*NEAR, *FAR[:2]])
    assert [(where, lost) for _, where, lost in world.damages] == [(far, 1)]
    assert near != far


def test_a_slot_of_the_version_before_in_bytes() -> None:
    """Two messages for topic1, due a second apart; the first is fired and checkpointed."""
    world = World()
    name = "1800000000000-60000-00000001"
    world.files.put(
        f"{FOLDER}/{name}.slot",
        bytes.fromhex(
            "50454e5354534c543bbb8fc300010000000001a3185c5000000000000000ea601ad2748000000001"
            "50534431605b1d27000000438a3ea1500000000006000000000000000000000118fae27693b40000"
            "18fae276cf4eca000000000000000001746f706963316669727374"
            "50534431c5b85fb7000000447afd94280000000106000000000000000000000118fae27693b40000"
            "18fae2770ae994000000000000000002746f706963317365636f6e64"
        ),
    )
    world.files.put(
        f"{FOLDER}/{name}.fired",
        bytes.fromhex("505346316573d8fa00000001000000000000000000000001"),
    )
    world.restart()
    world.clock.advance(3 * SECOND)
    assert world.fire() == [b"second"]
    assert world.damages == []
    assert world.file_names() == [f"{name}.fired", f"{name}.slot"]


# Disks that fail to read


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENFILE])
def test_what_cannot_be_read_is_tried_again_and_is_never_damage(code: int) -> None:
    """Growing pauses; health says so while it lasts; nothing is renamed or removed."""
    world = lived()
    near, far = near_and_far(world)
    names = world.file_names()
    world.files.crash(KEEP)
    world.files.faults.add(near, code)
    world.files.faults.add(fired_of(near), code)
    world.start()
    world.clock.advance(2 * SECOND)
    pauses = []
    for _ in range(12):
        assert world.fire() == []
        assert near in world.failing and far not in world.failing
        pauses.append(world.queue.next_due_ns - world.now_ns)
        world.clock.advance(pauses[-1])
    assert pauses == sorted(pauses) and pauses[0] <= SECOND and pauses[-1] >= 4 * SECOND
    assert world.file_names() == names and world.damages == []
    world.files.faults.heal()
    assert sorted(live_on(world)) == sorted([*NEAR, *FAR])
    assert world.damages == []


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_counts_that_cannot_be_read_are_left_alone_until_they_can(code: int) -> None:
    world = lived()
    near, far = near_and_far(world)
    whole = world.files.read(COUNTS)
    world.files.crash(KEEP)
    world.files.faults.add(f"{COUNTS}*", code)
    world.files.unlink(far)
    world.start()
    world.clock.advance(4 * HOUR)
    world.put(SECOND, b"new")
    world.fire()
    world.checkpoint()
    assert list(world.failing) == ["deferred.counts"] and world.damages == []
    world.files.faults.heal()
    assert world.files.read(COUNTS) == whole
    world.checkpoint()
    assert world.failing == {}
    ((text, where, lost),) = world.damages
    assert where == far and lost == 3 and "missing" in text
    assert sorted(live_on(world)) == sorted([*NEAR, b"new"])
    assert near != far and len(world.damages) == 1


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_publish_does_not_fail_because_of_the_counts(sync_every: int) -> None:
    """Its record is durable; health says that the counts cannot be written, until they can."""
    world = World(sync_every=sync_every)
    world.files.faults.add(f"{COUNTS}*", errno.EIO)
    world.put(SECOND, b"kept")
    world.queue.writer.syncing.sync()
    world.disk.drain()
    assert list(world.failing) == ["deferred.counts"]
    world.files.faults.heal()
    world.checkpoint()
    assert world.failing == {}
    (path,) = [f"{FOLDER}/{name}" for name in world.file_names()]
    world.files.unlink(path)
    live_on(world)
    assert [(where, lost) for _, where, lost in world.damages] == [(path, 1)]


# While it runs


def test_a_slot_file_that_is_removed_while_nsqd_runs_is_told() -> None:
    world = lived()
    near, far = near_and_far(world)
    world.files.unlink(far)
    world.files.cold = True
    world.files.unlink(near)
    world.clock.advance(4 * HOUR)
    assert world.fire() == []
    world.checkpoint()
    assert {where: lost for _, where, lost in world.damages} == {near: 2, far: 3}
    world.checkpoint()
    assert len(world.queue.table.files) == 0
    world.damages.clear()
    assert sorted(live_on(world)) == sorted(NEAR[:2])
    assert world.damages == [], "told once"


@pytest.mark.parametrize("size", [0, 40, 100, 150])
def test_a_slot_file_that_is_cut_while_nsqd_runs_is_told(size: int) -> None:
    world = lived()
    far = near_and_far(world)[1]
    world.files.truncate(far, size)
    bodies = len(world.bodies)
    world.clock.advance(4 * HOUR)
    world.fire()
    assert len(world.bodies) - bodies + world.lost_count == 2 + len(FAR)
    assert [where for _, where, _ in world.damages] == [far]


def test_a_folder_that_is_away_is_not_taken_for_missing_files() -> None:
    """Whoever unmounts a disk gets everything back when it is there again."""
    world = lived()
    far = near_and_far(world)[1]
    world.files.rename(FOLDER, "/data/away")
    world.clock.advance(4 * HOUR)
    assert world.fire() == []
    assert far in world.failing and world.damages == []
    world.files.rename("/data/away", FOLDER)
    world.clock.advance(10 * SECOND)
    assert sorted(world.fire()) == sorted([*NEAR[2:], *FAR])
    assert world.damages == [] and world.failing == {}


def test_what_was_never_synced_may_be_gone_without_being_damage() -> None:
    """A power cut takes it; so whoever removes it by hand is not told either."""
    world = World()
    world.put(MINUTE, b"unsynced")
    (path,) = [f"{FOLDER}/{name}" for name in world.file_names()]
    world.files.unlink(path)
    live_on(world)
    assert world.damages == []


def test_one_sync_of_the_counts_serves_all_who_wait() -> None:
    """--sync-every=1: one more sync for a turn, however many slots it wrote to."""
    files = LossyFiles()
    world = World(files, sync_every=1)
    tickets = [world.defer(hour * HOUR) for hour in range(2, 50)]
    files.trace.clear()
    world.flush()
    assert all(ticket.done for ticket in tickets)
    syncs = [line for line in files.trace if line.startswith("sync ")]
    assert len(syncs) <= 48 + 4
    assert sum(line.startswith("sync_folder") for line in files.trace) <= 4
