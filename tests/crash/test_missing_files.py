"""Files that somebody removed or cut: what is gone is told and counted, the rest is delivered."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from pathlib import Path

import pytest

from penstock.storage.journal import FILE, SYNCED, records
from tests.crash.lossy import KEEP, LOSE, PREFIX, Crashed
from tests.crash.test_restart import folder_of
from tests.support.daemon import Nsqd
from tests.support.engine import SECOND, Client, Engine
from tests.support.waits import wait_until

COUNT = 12  # messages of a segment


def body(number: int) -> bytes:
    return b"%04d" % number + bytes(1000)


def logged(engine: Engine) -> int:
    return len(engine.logged("t"))


def several_segments(seconds: int = 3, per_file: int = 10_000) -> Engine:
    """Sealed segments, a last one, and one message of the first as a straggler in a side file."""
    engine = Engine(max_bytes_per_file=per_file)
    client = Client(engine, "t", "c", ready_count=2500)
    engine.settle()
    for number in range(10 * COUNT):
        assert engine.publish("t", body(number)) is None
    for place, received in enumerate(client.take()):
        if place < COUNT and place != 5:
            client.finish(received.index)
    engine.advance(20 * SECOND if seconds > 3 else seconds * SECOND)
    client.close()
    engine.advance(SECOND)
    return engine


def reported(engine: Engine) -> list[tuple[str, str, int | None]]:
    return [(str(r.kind), r.path, r.messages) for r in engine.components.damage.records]


def files_of(engine: Engine, suffix: str) -> list[str]:
    folder = engine.topic("t").log.folder
    return [f"{folder}/{name}" for name in engine.files.list(folder) if name.endswith(suffix)]


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_every_file_of_a_log_that_is_removed_is_told_with_its_messages(end: str) -> None:
    before = several_segments(20)
    if end == "stopped":
        before.exit()
    else:
        before.crash(KEEP)
    paths = files_of(before, ".log") + files_of(before, ".side")
    assert len(paths) > 5 and any(path.endswith(".side") for path in paths)
    whole = Engine(copy.deepcopy(before.files))
    assert reported(whole) == []
    count = logged(whole)
    for path in paths:
        files = copy.deepcopy(before.files)
        files.unlink(path)
        engine = Engine(files)
        missing = count - logged(engine)
        assert missing > 0
        kind = "side" if path.endswith(".side") else "log"
        assert reported(engine) == [(kind, path, missing)], path
        assert engine.publish("t", b"new") is None
        engine.crash(KEEP)
        engine.start()
        assert reported(engine) == [(kind, path, missing)], "once is enough"


def test_all_files_that_are_removed_are_told() -> None:
    engine = several_segments()
    engine.crash(KEEP)
    count = logged(engine)
    paths = files_of(engine, ".log") + files_of(engine, ".side")
    for path in paths:
        engine.files.unlink(path)
    engine.start()
    assert sorted(path for _, path, _ in reported(engine)) == sorted(paths)
    assert sum(messages or 0 for _, _, messages in reported(engine)) == count


def test_a_log_cut_at_any_byte_is_told_or_lost_nothing() -> None:
    """At the edge of a batch, too: nothing in the file itself is wrong then."""
    before = several_segments()
    before.crash(KEEP)
    count = logged(Engine(copy.deepcopy(before.files)))
    for path in (files_of(before, ".log")[2], files_of(before, ".log")[-1]):
        size = before.files.size(path)
        for at in [*range(0, size, 97), size - 1, size - 96, 64, 64 + 56 + 34 + 1004]:
            files = copy.deepcopy(before.files)
            files.truncate(path, at)
            engine = Engine(files)
            missing = count - logged(engine)
            told = sum(messages or 0 for _, _, messages in reported(engine))
            assert told >= missing, (path, at, reported(engine))
            assert not missing or {p for _, p, _ in reported(engine)} == {path}


def test_a_segment_removed_right_after_its_first_message_is_told() -> None:
    engine = Engine()
    assert engine.publish("t", b"one", b"two") is None
    engine.advance(SECOND // 2)
    engine.crash(KEEP)
    (path,) = files_of(engine, ".log")
    engine.files.unlink(path)
    engine.start()
    ((kind, told, messages),) = reported(engine)
    assert (kind, told, messages) == ("log", path, 2)


def without(data: bytes, *kinds: int) -> bytes:
    """A journal as an earlier version wrote it."""
    spans = [(found.start, found.kind) for found in records(data)]
    ends = [at for at, _ in spans[1:]] + [len(data)]
    return b"".join(
        data[at:end] for (at, kind), end in zip(spans, ends, strict=True) if kind not in kinds
    )


def test_a_data_path_of_the_version_before_opens_and_headers_tell_what_is_missing() -> None:
    before = several_segments()
    before.crash(KEEP)
    folder = before.topic("t").log.folder
    old = without(before.files.read(f"{folder}/journal"), FILE)
    before.files.put(f"{folder}/journal", old)
    before.files.unlink(before.data.node_copy)
    node = json.loads(before.files.read(before.data.node))
    del node["checksum"]
    before.files.put(before.data.node, json.dumps(node).encode())
    whole = Engine(copy.deepcopy(before.files))
    assert reported(whole) == []
    whole.advance(SECOND)
    whole.crash(KEEP)
    assert any(found.kind == FILE for found in records(whole.files.read(f"{folder}/journal")))
    for path in files_of(before, ".log")[1:-1]:
        files = copy.deepcopy(before.files)
        files.unlink(path)
        engine = Engine(files)
        assert len(reported(engine)) == 1, path
        kind, _, messages = reported(engine)[0]
        assert kind == "log" and messages == 10
    engine = Engine(before.files)
    engine.files.put(f"{folder}/journal", without(old, SYNCED))
    engine.crash(KEEP)
    engine.start()
    assert reported(engine) == []


def test_any_file_that_is_removed_costs_what_was_in_it_at_most_and_is_told() -> None:
    """Also files that hold no message: nsqd.dat, node.json, its copy and the journal."""
    before = several_segments(20)
    before.crash(KEEP)
    data = before.data
    own = [f"{data.own}/{name}" for name in before.files.list(data.own)]
    paths = [data.metadata, data.node_copy, *(p for p in own if p not in (data.topics,))]
    folder = before.topic("t").log.folder
    paths += [f"{folder}/{name}" for name in before.files.list(folder)]
    count = logged(Engine(copy.deepcopy(before.files)))
    # There are no deferred messages to be counted here.
    counts = f"{data.own}/deferred.counts"
    silent = {data.reserve, data.deferred, data.staging, data.damage, counts}
    for path in paths:
        if path in silent:
            continue
        files = copy.deepcopy(before.files)
        files.unlink(path)
        engine = Engine(files)
        assert [told for _, told, _ in reported(engine)] == [
            data.node if path == data.node_copy else path
        ], path
        missing = count - logged(engine)
        assert missing == sum(messages or 0 for _, _, messages in reported(engine)), path
        assert not missing or path.endswith((".log", ".side"))
        assert set(engine.topic("t").channels) == {"c"}
        assert engine.components.identity.uuid == before.components.identity.uuid


def retiring(seed: int) -> Engine:
    """About to remove segments, to move a straggler and to move it again."""
    engine = Engine(seed=seed, max_bytes_per_file=10_000)
    client = Client(engine, "t", "c", ready_count=2500)
    engine.settle()
    for number in range(3 * COUNT):
        assert engine.publish("t", body(number)) is None
    for place, received in enumerate(client.take()):
        if place not in (5, 17):
            client.finish(received.index)
    return engine


@pytest.mark.parametrize("mode", [KEEP, LOSE, PREFIX])
def test_a_crash_at_any_step_of_removing_and_moving_is_no_damage(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    step = 0
    finished = False
    while not finished:
        engine = retiring(seed=step % 3)
        engine.files.crash_at = engine.files.step_count + step
        try:
            engine.advance(8 * SECOND)
            finished = True
        except Crashed:
            pass
        engine.crash(mode, step)
        caplog.clear()
        engine.start()
        warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        torn = [text for text in warned if "torn" in text or "holds no message" in text]
        # A power cut may take a segment that was never synced, and that is what is said of it.
        unsynced = [r for r in engine.components.damage.records if "power cut may have" in r.text]
        assert engine.components.damage.records == (unsynced if mode != KEEP else []), (step, mode)
        assert len(warned) == (len(torn) + len(unsynced) if mode != KEEP else 0), (step, warned)
        step += 1
    assert step > 15


# Real ones


def publish(nsqd: Nsqd, count: int) -> None:
    for number in range(count):
        assert nsqd.post("/pub?topic=t", body(number)).status == 200


def kinds(nsqd: Nsqd) -> dict[str, int]:
    found: dict[str, int] = nsqd.stats()["damage"]["kinds"]
    return found


def test_a_missing_segment_of_a_real_nsqd_is_told_everywhere(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd", "--max-bytes-per-file=10000")
    with nsqd:
        assert nsqd.post("/topic/create?topic=t").status == 200
        assert nsqd.post("/channel/create?topic=t&channel=c").status == 200
        publish(nsqd, 40)
        folder = folder_of(nsqd, "t")
        segments = sorted(folder.glob("*.log"))
        journal = folder / "journal"
        wait_until(
            lambda: sum(found.kind == FILE for found in records(journal.read_bytes())) >= 4,
            10,
            lambda: nsqd.log,
        )
        nsqd.kill()
        segments[1].unlink()
        nsqd.start()
        nsqd.wait_for_log(rf"ERROR.*topic=t: damaged \(log\): .*{segments[1].name} is missing")
        damage = nsqd.stats()["damage"]
        assert damage["kinds"] == {"log": 1} and 5 <= damage["messages"] <= 12
        metrics = nsqd.get("/metrics").text
        assert 'penstock_damage_total{kind="log"} 1' in metrics
        assert f'penstock_damage_messages_total{{kind="log"}} {damage["messages"]}' in metrics
        assert nsqd.get("/ping").status == 200
        assert nsqd.channel("t", "c")["depth"] == 40 - damage["messages"]


@pytest.mark.parametrize("removed", ["folder", "topics", "penstock"])
def test_a_missing_topic_folder_is_told(tmp_path: Path, removed: str) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        publish(nsqd, 3)
        uuid = nsqd.get("/info").json["node_uuid"]
        nsqd.kill()
        gone = {
            "folder": folder_of(nsqd, "t"),
            "topics": nsqd.data_path / "penstock" / "topics",
            "penstock": nsqd.data_path / "penstock",
        }[removed]
        shutil.rmtree(gone)
        nsqd.start()
        nsqd.wait_for_log(r"ERROR.*topic=t: damaged \(topic\): .*no folder")
        assert kinds(nsqd)["topic"] >= 1 and nsqd.get("/ping").status == 200
        assert nsqd.get("/info").json["node_uuid"] == uuid, "its copy lies elsewhere"
        assert nsqd.post("/pub?topic=t", b"new").status == 200
        with nsqd.connect() as raw:
            raw.subscribe("t", "c")
            assert raw.receive().body == b"new"


def listed(path: Path) -> list[str]:
    """The topics of an nsqd.dat; none if it is missing or damaged."""
    try:
        return [topic["name"] for topic in json.loads(path.read_text())["topics"]]
    except (OSError, ValueError):
        return []


@pytest.mark.parametrize("how", ["gone", "empty", "damaged"])
def test_a_missing_or_damaged_nsqd_dat_is_told_and_written_anew(tmp_path: Path, how: str) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        publish(nsqd, 3)
        nsqd.kill()
        path = nsqd.data_path / "nsqd.dat"
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(b"" if how == "empty" else path.read_bytes()[:-5])
        nsqd.start()
        nsqd.wait_for_log(r"ERROR.*damaged \(metadata\): .*nsqd.dat")
        assert kinds(nsqd) == {"metadata": 1} and nsqd.get("/ping").status == 200
        assert [topic["topic_name"] for topic in nsqd.stats()["topics"]] == ["t"]
        damage = nsqd.data_path / "penstock" / "damage.json"
        wait_until(lambda: listed(path) == ["t"], 10, lambda: nsqd.log)
        wait_until(damage.exists, 10, lambda: nsqd.log)
        nsqd.kill()
        nsqd.start()
        assert "ERROR" not in nsqd.log and "WARN" not in nsqd.log
        assert listed(path) == ["t"]


def test_a_data_path_of_a_go_nsqd_is_no_damage(tmp_path: Path) -> None:
    """Its topics have no folders here, and never had."""
    text = '{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]}],'
    nsqd = Nsqd(tmp_path / "nsqd")
    nsqd.data_path.mkdir()
    (nsqd.data_path / "nsqd.dat").write_text(text + '"version":"1.3.0"}')
    with nsqd:
        assert "ERROR" not in nsqd.log and "damage" not in nsqd.stats()
        assert [topic["topic_name"] for topic in nsqd.stats()["topics"]] == ["t"]


def test_a_kill_right_after_a_start_without_segments_is_no_damage() -> None:
    """All earlier segments are removed, and the first of this start is in no FILE record yet."""
    engine = Engine()
    client = Client(engine, "t", "c", ready_count=100)
    engine.settle()
    assert engine.publish("t", body(0)) is None
    for received in client.take():
        client.finish(received.index)
    client.close()
    engine.exit()
    engine.start()
    engine.advance(20 * SECOND)
    assert files_of(engine, ".log") == []
    whole_from = engine.topic("t").whole_from
    assert whole_from
    engine.exit()
    engine.start()
    assert engine.publish("t", body(1)) is None
    engine.crash()
    engine.start()
    assert reported(engine) == []
    assert engine.topic("t").whole_from == whole_from
    assert logged(engine) == 1
