"""Damaged files and wrong folders: a clear error, and the rest goes on.

Real nsqd processes; test_bad_disks.py has the engine on disks that fail when told.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.crash.test_restart import folder_of
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

# Starting


def refused(data_path: Path) -> str:
    """What nsqd logs when it will not start on ``data_path``."""
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "nsqd"),
            f"--data-path={data_path}",
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
        ],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    (fatal,) = [line for line in done.stderr.splitlines() if "FATAL" in line]
    return fatal


def test_a_missing_data_path_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in refused(tmp_path / "nowhere")


def test_a_file_as_data_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert str(tmp_path / "file") in refused(tmp_path / "file")


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Permissions do not stop root, a read-only mount does."""
    if os.geteuid():
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    bind = ["mount", "--bind", str(folder), str(folder)]
    if subprocess.run(bind, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_a_read_only_data_path_is_refused(tmp_path: Path, used: bool) -> None:
    folder = tmp_path / "nsqd"
    folder.mkdir()
    if used:
        with Nsqd(folder) as nsqd:
            assert nsqd.post("/pub?topic=t", b"x").status == 200
    with read_only(folder):
        fatal = refused(folder)
    assert str(folder) in fatal
    assert "Read-only" in fatal or "Permission" in fatal


# Damaged files

BATCHES = 30
PER_BATCH = 10


def body_of(batch: int, place: int) -> bytes:
    return b"%d-%d " % (batch, place) + bytes(500)


def publish_all(nsqd: Nsqd) -> set[bytes]:
    """Batches of messages to t, for the channels a and b."""
    for channel in ("a", "b"):
        with nsqd.connect() as raw:
            raw.subscribe("t", channel, 0)
    with nsqd.connect() as raw:
        for batch in range(BATCHES):
            bodies = [body_of(batch, place) for place in range(PER_BATCH)]
            assert raw.command(commands.mpub("t", bodies))[1] == b"OK"
    return {body_of(batch, place) for batch in range(BATCHES) for place in range(PER_BATCH)}


def drain(nsqd: Nsqd, channel: str, count: int) -> set[bytes]:
    """The next ``count`` messages, finished; more must not come."""
    with nsqd.connect() as raw:
        raw.subscribe("t", channel, 2500)
        seen = set()
        for _ in range(count):
            message = raw.receive()
            seen.add(message.body)
            raw.send(commands.fin(message.id))
        assert raw.silent(0.3), "more than expected"
    assert len(seen) == count, "some came twice"
    return seen


def edit(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip(at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 0x40

    return change


def test_a_corrupt_byte_in_a_sealed_segment_costs_one_batch(tmp_path: Path) -> None:
    """R3: later messages are delivered, the damage is counted and logged, the bytes are kept."""
    nsqd = Nsqd(tmp_path / "nsqd", "--max-bytes-per-file=30000")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        folder = folder_of(nsqd, "t")
        segment = sorted(folder.glob("*.log"))[1]
        edit(segment, flip(9000))
        nsqd.start()
        seen = drain(nsqd, "a", len(published) - PER_BATCH)
        lost = published - seen
        (batch,) = {body.split(b"-")[0] for body in lost}
        assert len(lost) == PER_BATCH and int(batch) > 3
        nsqd.wait_for_log(rf"topic=t.*{segment.name}.*corrupt|topic=t.*corrupt.*{segment.name}")
        wait_until(
            lambda: bool(list(folder.glob("*.corrupt"))), 5, lambda: f"{list(folder.iterdir())}"
        )
        assert nsqd.channel("t", "a")["depth"] == 0
        assert drain(nsqd, "b", len(seen)) == seen
        assert nsqd.post("/pub?topic=t", b"goes on").status == 200
        assert drain(nsqd, "a", 1) == {b"goes on"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.extend(b"\xffgarbage" * 1000), "torn"),
        (lambda data: data.extend(data[64:4000]), "torn"),
        (lambda data: data.extend(bytes(10_000)), "zeros at [0-9]+, 10000 bytes, cut off"),
    ],
    ids=["garbage", "old batches again", "zeros"],
)
def test_bytes_behind_the_last_batch_are_cut_off(
    tmp_path: Path, change: Callable[[bytearray], None], told: str
) -> None:
    """R3: torn is not corrupt, and zeros may have been written ahead."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        (segment,) = folder_of(nsqd, "t").glob("*.log")
        edit(segment, change)
        nsqd.start()
        nsqd.wait_for_log(f"WARNING: topic=t: .*{told}")
        assert nsqd.post("/pub?topic=t", b"new").status == 200
        assert drain(nsqd, "a", len(published) + 1) == published | {b"new"}
        nsqd.kill()
        nsqd.start()
        assert not re.search(told, nsqd.log), "once is enough"
        assert drain(nsqd, "b", len(published) + 1) == published | {b"new"}


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "garbage"])
def test_a_damaged_journal_loses_no_message_and_no_channel(tmp_path: Path, damage: str) -> None:
    """R3, R6: finished messages may come again, on all channels that nsqd.dat knows."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        drain(nsqd, "a", len(published))
        assert nsqd.post("/channel/pause?topic=t&channel=b").status == 200
        time.sleep(0.4)
        nsqd.kill()
        journal = folder_of(nsqd, "t") / "journal"
        if damage == "gone":
            journal.unlink()
        elif damage == "garbage":
            journal.write_bytes(os.urandom(500))
        elif damage == "cut":
            edit(journal, lambda data: data.__delitem__(slice(0, 20)))
        else:
            edit(journal, lambda data: [flip(at)(data) for at in range(5, len(data), 30)] and None)
        nsqd.start()
        channels = {c["channel_name"]: c for c in nsqd.stats()["topics"][0]["channels"]}
        assert set(channels) == {"a", "b"}
        nsqd.post("/channel/unpause?topic=t&channel=b")
        assert drain(nsqd, "b", len(published)) == published
        time.sleep(0.4)
        nsqd.kill()
        nsqd.start()
        assert nsqd.channel("t", "b")["depth"] == 0, "the journal was not rewritten"


def test_a_damaged_nsqd_dat_is_put_aside(tmp_path: Path) -> None:
    """R6: the folders and journals are the truth, nsqd.dat is for people and tools."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        edit(nsqd.data_path / "nsqd.dat", lambda data: data.__delitem__(slice(10, 20)))
        nsqd.start()
        nsqd.wait_for_log(r"ERROR.*nsqd\.dat")
        assert (nsqd.data_path / "nsqd.dat.bad").exists()
        assert drain(nsqd, "a", len(published)) == published
        text = (nsqd.data_path / "nsqd.dat").read_text()
        assert [topic["name"] for topic in json.loads(text)["topics"]] == ["t"]


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}'])
def test_a_damaged_node_json_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    """R1, R7: an identity is not made up silently; without both files there is a new one."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        assert nsqd.terminate() == 0
        node = nsqd.data_path / "penstock" / "node.json"
        copy = nsqd.data_path / "penstock.node.json"
        node.write_text(text)
        copy.write_text(text)
        fatal = refused(nsqd.data_path)
        assert str(node) in fatal and f"remove {node} and {copy}" in fatal
        node.unlink()
        copy.unlink()
        nsqd.start()
        nsqd.wait_for_log(r"ERROR.*node\.json and its copy are missing.*new identity")
        assert nsqd.stats()["damage"]["kinds"] == {"node": 1}
        assert 'penstock_damage_total{kind="node"} 1' in nsqd.get("/metrics").text
        assert nsqd.get("/ping").status == 200
        assert drain(nsqd, "a", len(published)) == published


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "gone"])
@pytest.mark.parametrize("name", ["penstock/node.json", "penstock.node.json"])
def test_one_damaged_copy_of_node_json_is_told_and_written_anew(
    tmp_path: Path, name: str, damage: str
) -> None:
    """R7: Spark goes on with the node that it knows."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        uuid = nsqd.get("/info").json["node_uuid"]
        nsqd.kill()
        path = nsqd.data_path / name
        if damage == "flipped":
            edit(path, lambda data: flip(data.index(uuid[:8].encode()))(data))
        elif damage == "cut":
            edit(path, lambda data: data.__delitem__(slice(30, None)))
        elif damage == "empty":
            path.write_bytes(b"")
        else:
            path.unlink()
        nsqd.start()
        nsqd.wait_for_log(rf"ERROR.*{re.escape(name)}")
        assert nsqd.get("/info").json["node_uuid"] == uuid
        assert nsqd.stats()["damage"]["kinds"] == {"node": 1}
        assert drain(nsqd, "a", len(published)) == published
        nsqd.kill()
        nsqd.start()
        assert "ERROR" not in nsqd.log and "WARN" not in nsqd.log
        assert nsqd.get("/info").json["node_uuid"] == uuid


def test_a_later_version_of_node_json_is_refused_untouched(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        assert nsqd.terminate() == 0
        node = nsqd.data_path / "penstock" / "node.json"
        node.write_text('{"format": 9, "uuid": "x"}')
        assert "later version (format 9)" in refused(nsqd.data_path)
        assert node.read_text() == '{"format": 9, "uuid": "x"}'


def test_unknown_files_are_left_alone(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        root = nsqd.data_path
        strangers = [
            root / "notes.txt",
            root / "penstock" / "lost+found" / "x",
            root / "penstock" / "topics" / "README",
            root / "penstock" / "topics" / "no-instance" / "00000000000000000001.log",
            folder_of(nsqd, "t") / "backup.log",
            folder_of(nsqd, "t") / "12.log",
            root / "penstock" / "deferred" / "x.slot",
            root / "penstock" / "deferred" / "1-2.slot.orig",
        ]
        for path in strangers:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"a stranger")
        nsqd.start()
        assert drain(nsqd, "a", len(published)) == published
        assert nsqd.terminate() == 0
        assert all(path.read_bytes() == b"a stranger" for path in strangers)


def test_a_damaged_slot_costs_only_what_was_damaged(tmp_path: Path) -> None:
    """D-15, S2-4: the other deferred messages of the file are delivered, on time."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        with nsqd.connect() as raw:
            raw.subscribe("t", "a", 0)
        with nsqd.connect() as raw:
            for number in range(20):
                body = b"%02d" % number + bytes(300)
                assert raw.command(commands.dpub("t", 2000, body))[1] == b"OK"
        published_s = time.time()
        nsqd.kill()
        slots = list((nsqd.data_path / "penstock" / "deferred").glob("*.slot"))
        largest = max(slots, key=lambda path: path.stat().st_size)
        edit(largest, flip(largest.stat().st_size // 2))
        in_it = sum(1 for _ in re.finditer(rb"\d\d\0{300}", largest.read_bytes()))
        nsqd.start()
        with nsqd.connect() as raw:
            raw.subscribe("t", "a")
            seen = {raw.receive().body[:2] for _ in range(19)}
            assert time.time() >= published_s + 1.5
            assert len(seen) == 19 and in_it >= 1
            assert raw.silent(0.5)


def test_a_folder_without_its_segments_still_opens(tmp_path: Path) -> None:
    """R1: a person removed files; new messages get new indexes and are delivered."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        publish_all(nsqd)
        with nsqd.connect() as raw:
            raw.subscribe("t", "a", 1)
            old_id = raw.receive().id
        nsqd.kill()
        for path in folder_of(nsqd, "t").glob("*.log"):
            path.unlink()
        nsqd.start()
        assert nsqd.post("/pub?topic=t", b"new").status == 200
        with nsqd.connect() as raw:
            raw.subscribe("t", "a")
            message = raw.receive()
            assert message.body == b"new" and message.id > old_id


def test_a_copied_data_path_opens(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        shutil.copytree(nsqd.data_path, tmp_path / "copy")
    with Nsqd(tmp_path / "copy") as copy:
        assert drain(copy, "a", len(published)) == published
