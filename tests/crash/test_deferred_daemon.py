"""Damaged files of deferred messages under real nsqds: log, /metrics, /stats, /damage and /ping."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from penstock.storage.slot_counts import unpack_counts
from penstock.wire import commands
from tests.crash.test_bad_days import refused
from tests.support.daemon import Nsqd, Reply
from tests.support.faults import FaultyNsqd
from tests.support.waits import wait_until

COUNT = 200
RECORD_SIZE = 56 + 1 + 64
HOUR_MS = 3_600_000


def folder(nsqd: Nsqd) -> Path:
    return nsqd.data_path / "penstock" / "deferred"


def counts(nsqd: Nsqd) -> Path:
    return nsqd.data_path / "penstock" / "deferred.counts"


def stated_count(nsqd: Nsqd) -> int:
    path = counts(nsqd)
    stated = unpack_counts(path.read_bytes(), str(path))
    return sum(count.record_count for count in stated.counts.values())


def publish(nsqd: Nsqd, delay_ms: int = 2 * HOUR_MS, count: int = COUNT) -> Path:
    """Defer messages, wait until they are synced and counted; returns the largest slot file."""
    with nsqd.connect() as raw:
        raw.subscribe("t", "a", 0)
    with nsqd.connect() as raw:
        for number in range(count):
            body = b"%03d" % number + b"." * 61
            assert raw.command(commands.dpub("t", delay_ms, body))[1] == b"OK"
    wait_until(lambda: stated_count(nsqd) == count, why="the counts are written")
    return max(folder(nsqd).glob("*.slot"), key=lambda path: path.stat().st_size)


def counted(nsqd: Nsqd) -> int:
    """How many deferred messages there are, once they are counted."""
    wait_until(lambda: nsqd.get("/deferred").json["counted"], why="slots are read")
    total: int = nsqd.get("/deferred").json["total"]
    return total


def errors(nsqd: Nsqd) -> list[str]:
    return [line for line in nsqd.lines if "ERROR" in line or "WARNING" in line]


def lose_record(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40 + 50 * RECORD_SIZE + 20] ^= 4
    path.write_bytes(data)


def lose_to_zeros(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40 + 10 * RECORD_SIZE : 40 + 30 * RECORD_SIZE] = bytes(20 * RECORD_SIZE)
    path.write_bytes(data)


def lose_to_zeros_at_the_end(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40 + 190 * RECORD_SIZE :] = bytes(10 * RECORD_SIZE)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 40 + 114 * RECORD_SIZE])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def damage_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lose_record, 1),
        (lose_to_zeros, 20),
        (lose_to_zeros_at_the_end, 10),
        (cut, 86),
        (empty, 200),
        (remove, 200),
        (damage_header, 0),
    ],
)
def test_damage_to_a_slot_file_shows_everywhere(
    tmp_path: Path, damage: Callable[[Path], None], lost: int
) -> None:
    """D-15: file and count in the log, /metrics, /stats and /damage; /ping stays OK."""
    nsqd = Nsqd(tmp_path / "nsqd", "--sync-timeout=100ms")
    with nsqd:
        slot = publish(nsqd)
        assert sum(1 for _ in folder(nsqd).glob("*.slot")) == 1, "the hour changed: run again"
        nsqd.kill()
        damage(slot)
        noted_ns = counts(nsqd).stat().st_mtime_ns
        nsqd.start()
        assert counted(nsqd) == COUNT - lost
        wait_until(lambda: bool(nsqd.get("/damage").json["records"]), why="it is reported")
        (record,) = nsqd.get("/damage").json["records"]
        assert (record["kind"], record["path"], record["messages"]) == ("deferred", str(slot), lost)
        assert f"{lost} of 200 messages are lost" in record["text"]
        wait_until(lambda: errors(nsqd), why="it is logged")
        (line,) = errors(nsqd)
        assert "ERROR" in line and str(slot) in line
        assert nsqd.metric('penstock_damage_total{kind="deferred"}') == 1
        assert nsqd.metric('penstock_damage_messages_total{kind="deferred"}') == lost
        assert nsqd.metric("penstock_deferred_corrupt_total") >= max(1, lost)
        assert nsqd.stats()["damage"]["messages"] == lost
        assert nsqd.get("/ping").text == "OK"
        assert bool(list(folder(nsqd).glob("*.corrupt"))) == (damage not in (empty, remove))
        wait_until(lambda: stated_count(nsqd) == COUNT - lost, why="the counts are right again")
        wait_until(lambda: counts(nsqd).stat().st_mtime_ns > noted_ns, why="the report is noted")
        nsqd.kill()
        nsqd.start()
        assert counted(nsqd) == COUNT - lost
        assert errors(nsqd) == [], "told once"
        assert nsqd.stats()["damage"]["messages"] == lost, "and kept"


def test_a_missing_folder_of_slots_is_told(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd", "--sync-timeout=100ms")
    with nsqd:
        slot = publish(nsqd)
        nsqd.kill()
        slot.unlink()
        folder(nsqd).rmdir()
        nsqd.start()
        nsqd.wait_for_log(rf"ERROR.*{slot.name}: missing; 200 of 200 messages are lost")
        assert nsqd.get("/ping").text == "OK" and nsqd.stats()["damage"]["messages"] == 200


def test_damaged_missing_and_cut_checkpoints_are_told(tmp_path: Path) -> None:
    """At least once: what was delivered may come again, and that is said; nothing is lost."""
    nsqd = Nsqd(tmp_path / "nsqd", "--sync-timeout=100ms")
    with nsqd:
        for damage in ("flip", "cut", "remove"):
            publish_and_checkpoint(nsqd)
            nsqd.kill()
            (fired,) = folder(nsqd).glob("*.fired")
            data = bytearray(fired.read_bytes())
            if damage == "flip":
                data[20] ^= 1
            if damage == "cut":
                del data[-5:]
            fired.write_bytes(data)
            if damage == "remove":
                fired.unlink()
            nsqd.start()
            nsqd.wait_for_log(rf"ERROR.*{fired.name}: .*up to \d+ messages may be delivered again")
            assert counted(nsqd) >= 1 and nsqd.get("/ping").text == "OK"
            assert bool(list(folder(nsqd).glob("*.fired*.corrupt"))) == (damage != "remove")
            nsqd.terminate()
            for path in folder(nsqd).iterdir():
                path.unlink()
            counts(nsqd).unlink()
            nsqd.start()


def publish_and_checkpoint(nsqd: Nsqd) -> None:
    """Two messages in one slot: one is delivered and checkpointed, one is due later."""
    left_ms = int((60 - time.time() % 60) * 1000)
    # Both must be due in the same minute, this one or the next.
    delays_ms = (1, left_ms - 1000) if left_ms > 5000 else (left_ms + 100, left_ms + 50_000)
    for delay_ms in delays_ms:
        with nsqd.connect() as raw:
            assert raw.command(commands.dpub("t", delay_ms, b"x"))[1] == b"OK"

    def checkpointed() -> bool:
        path = counts(nsqd)
        stated = unpack_counts(path.read_bytes(), str(path)).counts.values()
        return any(count.fired_count and count.record_count == 2 for count in stated)

    wait_until(checkpointed, why="the first one is checkpointed")


def test_a_slot_of_a_later_version_refuses_the_start(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd", "--sync-timeout=100ms")
    with nsqd:
        slot = publish(nsqd, count=3)
        nsqd.kill()
        good = slot.read_bytes()
        later = bytearray(good)
        later[13] = 9
        later[8:12] = google_crc32c.value(bytes(later[12:40])).to_bytes(4, "big")
        slot.write_bytes(later)
        fatal = refused(nsqd.data_path)
        assert f"{slot}: written by a later version (format 9)" in fatal
        assert slot.read_bytes() == later
        slot.write_bytes(good)
        nsqd.start()
        assert counted(nsqd) == 3 and errors(nsqd) == []


def unhealthy(nsqd: Nsqd, text: str) -> Reply:
    wait_until(lambda: nsqd.get("/ping").status == 500, why="health says so")
    reply = nsqd.get("/ping")
    assert text in reply.text and text in nsqd.stats()["health"], reply
    assert nsqd.metric("penstock_healthy") == 0
    return reply


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("when", ["at start", "when due"])
def test_a_slot_that_cannot_be_read_shows_in_health_and_is_read_later(
    tmp_path: Path, code: int, when: str
) -> None:
    """Never taken for damage; nothing is renamed or removed; all of it is delivered."""
    nsqd = FaultyNsqd(tmp_path / "nsqd", "--sync-timeout=100ms")
    with nsqd:
        slot = publish(nsqd, delay_ms=1500, count=20)
        if when == "at start":
            nsqd.kill()
        nsqd.fault("*/deferred/*", code, "pread", "read", "size")
        if when == "at start":
            nsqd.start()
        assert str(folder(nsqd)) in unhealthy(nsqd, "/deferred/").text
        assert slot.exists() and nsqd.get("/damage").json["records"] == []
        assert sum("/deferred/" in line for line in errors(nsqd)) <= 4, "told once a file"
        nsqd.heal()
        with nsqd.connect() as raw:
            raw.subscribe("t", "a", 100)
            assert len({raw.receive().body for _ in range(20)}) == 20
        wait_until(lambda: nsqd.get("/ping").text == "OK", why="health is good again")
        assert nsqd.get("/damage").json["records"] == []
        assert not list(folder(nsqd).glob("*.corrupt"))


def test_a_folder_in_the_place_of_a_slot_is_not_taken_for_damage(tmp_path: Path) -> None:
    """A file that cannot be opened, on a real disk, as root too."""
    nsqd = Nsqd(tmp_path / "nsqd", "--sync-timeout=100ms")
    with nsqd:
        slot = publish(nsqd, count=20)
        nsqd.kill()
        slot.rename(tmp_path / "away")
        slot.mkdir()
        nsqd.start()
        unhealthy(nsqd, str(slot))
        assert nsqd.get("/damage").json["records"] == []
        slot.rmdir()
        (tmp_path / "away").rename(slot)
        wait_until(lambda: nsqd.get("/ping").text == "OK", why="health is good again")
        assert counted(nsqd) == 20 and nsqd.get("/damage").json["records"] == []


def test_a_healthy_kill_or_stop_leaves_nothing_to_tell(tmp_path: Path) -> None:
    """A warning means something."""
    nsqd = Nsqd(tmp_path / "nsqd", "--sync-timeout=100ms")
    with nsqd:
        publish(nsqd, count=20)
        with nsqd.connect() as raw:
            for delay_ms in (1, 300, 61_000, HOUR_MS):
                assert raw.command(commands.dpub("t", delay_ms, b"x"))[1] == b"OK"
        for _ in range(3):
            nsqd.kill()
            nsqd.start()
            assert counted(nsqd) in (22, 23, 24)
            assert errors(nsqd) == [] and "damage" not in nsqd.stats()
        nsqd.restart()
        assert counted(nsqd) == 22 and errors(nsqd) == []


def test_thousands_of_slots_in_one_packet_do_not_hold_others_up(tmp_path: Path) -> None:
    """R9: files are made elsewhere, a few at once; the loop and the descriptors go on."""
    count = 8700
    hours = [(i + 2) * HOUR_MS for i in range(count)]
    packet = b"".join(commands.dpub("t", delay_ms, b"x") for delay_ms in hours)
    with Nsqd(tmp_path / "nsqd") as nsqd, nsqd.connect() as raw:
        assert raw.command(commands.dpub("t", HOUR_MS, b"x"))[1] == b"OK"
        begun_s = time.monotonic()
        sender = threading.Thread(target=raw.send, args=(packet,))
        sender.start()
        longest_s = 0.0
        answered = 0
        while answered < count:
            started_s = time.monotonic()
            assert nsqd.get("/ping").status == 200
            longest_s = max(longest_s, time.monotonic() - started_s)
            while answered < count and not raw.silent(0.001):
                assert raw.frame()[1] == b"OK"
                answered += 1
                if answered % 100 == 0:
                    break
        sender.join()
        # On a busy machine everything takes longer; one answer took half of all before.
        assert longest_s < max(0.5, (time.monotonic() - begun_s) / 4)
        assert nsqd.metric("penstock_open_files") < 320
        assert len(list(folder(nsqd).glob("*.slot"))) >= count
