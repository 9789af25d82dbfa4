"""A data path that is removed or replaced under a running nsqd, and who may read what is there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.errors import LockedError
from penstock.storage.files import Files
from penstock.wire import commands
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until


def healthy(nsqd: Nsqd) -> bool:
    return nsqd.get("/ping").status == 200


@pytest.mark.parametrize("removed", ["", "penstock", "penstock/topics", "penstock/deferred"])
def test_a_data_path_that_is_removed_is_noticed_and_publishes_are_refused(
    tmp_path: Path, removed: str
) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        assert nsqd.post("/pub?topic=t", b"one").status == 200
        shutil.rmtree(nsqd.data_path / removed)
        wait_until(lambda: not healthy(nsqd), 10, lambda: nsqd.log)
        assert "was removed or replaced while nsqd was running" in nsqd.get("/ping").text
        assert str(nsqd.data_path / removed).rstrip("/") in nsqd.get("/ping").text
        assert nsqd.post("/pub?topic=t", b"two").status == 503
        assert nsqd.post("/pub?topic=new", b"two").status == 503
        assert nsqd.post("/pub?topic=t&defer=1000", b"two").status == 503
        with nsqd.connect() as raw:
            assert raw.command(commands.pub("t", b"two"))[1].startswith(b"E_PUB_FAILED")
        nsqd.kill()


def test_two_nsqds_do_not_write_to_one_data_path(tmp_path: Path) -> None:
    """The first one, whose folder is gone, leaves the second one's files alone."""
    first, second = Nsqd(tmp_path / "nsqd"), Nsqd(tmp_path / "nsqd")
    with first:
        assert first.post("/pub?topic=old", b"one").status == 200
        shutil.rmtree(first.data_path)
        with second:
            assert second.post("/pub?topic=new", b"one").status == 200
            metadata = (second.data_path / "nsqd.dat").read_bytes()
            assert first.post("/topic/create?topic=other").status != 200
            assert first.post("/topic/delete?topic=old").status != 200
            wait_until(lambda: not healthy(first), 10, lambda: first.log)
            first.kill()
            assert (second.data_path / "nsqd.dat").read_bytes() == metadata
            names = [path.name for path in (second.data_path / "penstock" / "topics").iterdir()]
            assert [name.split("~")[0] for name in names] == ["new"]
            assert healthy(second)
            with second.connect() as raw:
                raw.subscribe("new", "c")
                assert raw.receive().body == b"one"


def test_a_data_path_that_comes_back_is_used_again(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        assert nsqd.post("/pub?topic=t", b"one").status == 200
        nsqd.data_path.rename(tmp_path / "elsewhere")
        wait_until(lambda: not healthy(nsqd), 10, lambda: nsqd.log)
        (tmp_path / "elsewhere").rename(nsqd.data_path)
        wait_until(lambda: healthy(nsqd), 10, lambda: nsqd.log)
        wait_until(lambda: nsqd.post("/pub?topic=t", b"two").status == 200, 10, lambda: nsqd.log)
        assert nsqd.terminate() == 0
        nsqd.start()
        with nsqd.connect() as raw:
            raw.subscribe("t", "c")
            assert [raw.receive().body, raw.receive().body] == [b"one", b"two"]


def test_a_folder_that_is_replaced_while_it_is_locked_is_not_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    real = os.open

    def replaced(path: str, *arguments: int) -> int:
        fd = real(path, *arguments)
        if path == str(folder):
            folder.rename(tmp_path / "old")
            folder.mkdir()
        return fd

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(LockedError, match="replaced"):
        Files().lock(str(folder))


def test_only_its_owner_may_read_what_nsqd_makes(tmp_path: Path) -> None:
    """The data path itself stays as it was given."""
    nsqd = Nsqd(tmp_path / "nsqd")
    nsqd.data_path.mkdir(mode=0o755)
    with nsqd:
        assert nsqd.post("/pub?topic=t", b"one").status == 200
        assert nsqd.post("/pub?topic=t&defer=60000", b"later").status == 200
        for path in nsqd.data_path.rglob("*"):
            expected = 0o700 if path.is_dir() else 0o600
            assert path.stat().st_mode & 0o777 == expected, path
        assert nsqd.data_path.stat().st_mode & 0o777 == 0o755
