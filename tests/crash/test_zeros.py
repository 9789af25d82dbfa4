"""Zeros ahead of the end of a log, in a real nsqd with --sync-every=1 (R3)."""

from __future__ import annotations

from pathlib import Path

from penstock.wire import commands
from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

BODY = bytes(range(256)) * 16
COUNT = 60


def test_a_kill_leaves_zeros_that_the_next_start_cuts_off(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "nsqd", "--sync-every=1") as nsqd:
        publish(nsqd, COUNT)
        wait_until(lambda: zeros_of(nsqd) > 0, why="no zeros ahead of the end")
        metric = 'penstock_log_bytes{topic="t"}'
        wait_until(lambda: nsqd.metric(metric) == segment(nsqd).stat().st_size)
        nsqd.kill()
        assert zeros_of(nsqd) > 0
        nsqd.start()
        assert zeros_of(nsqd) == 0
        assert "torn" not in nsqd.log and "corrupt" not in nsqd.log
        publish(nsqd, COUNT)
        wait_until(lambda: zeros_of(nsqd) > 0)
        with Client.of(nsqd) as client:
            client.sub("t", "c", ready=2 * COUNT)
            assert {client.message().body for _ in range(2 * COUNT)} == {BODY}
    assert all(zeros_in(path) == 0 for path in segments(nsqd))


def test_without_syncs_nothing_is_written_ahead(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "nsqd") as nsqd:
        publish(nsqd, COUNT)
        assert zeros_of(nsqd) == 0


def publish(nsqd: Nsqd, count: int) -> None:
    with Client.of(nsqd) as client:
        for _ in range(count):
            client.command(commands.pub("t", BODY))


def segments(nsqd: Nsqd) -> list[Path]:
    return sorted(nsqd.data_path.rglob("*.log"))


def segment(nsqd: Nsqd) -> Path:
    return segments(nsqd)[-1]


def zeros_of(nsqd: Nsqd) -> int:
    return zeros_in(segment(nsqd))


def zeros_in(path: Path) -> int:
    """How many zeros a file ends with; a footer ends with seven."""
    data = path.read_bytes()
    return max(0, len(data) - len(data.rstrip(b"\0")) - 7)
