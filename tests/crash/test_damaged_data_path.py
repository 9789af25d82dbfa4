"""A real nsqd on a data path with one damaged file: what is lost is told, everywhere it should be.

tests/crash/test_every_file.py tries every way; here the log, /metrics, /stats, /ping and the exit
status of real processes are looked at.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.crash.test_every_file import KINDS, cut, flip
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.staging import ATTEMPT, HttpQuery, plain
from tests.support.waits import eventually

SMALL = "--max-bytes-per-file=4000"
ROWS = [b"row %d" % number for number in range(3)]


def bodies(topic: str, count: int = 90) -> list[bytes]:
    return [b"%s %03d" % (topic.encode(), number) for number in range(count)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data path with a file of most kinds, after a clean stop."""
    path = tmp_path_factory.mktemp("template") / "data"
    with Nsqd(path, SMALL, "--sync-timeout=50ms") as nsqd:
        for topic in ("a", "b"):
            nsqd.post(f"/topic/create?topic={topic}")
            nsqd.post(f"/channel/create?topic={topic}&channel=c")
        for number in range(90):
            publish(nsqd, "a", bodies("a")[number])
        publish(nsqd, "b", *bodies("b"))
        for number in range(20):
            assert nsqd.post("/pub?topic=b&defer=3600000", b"later %d" % number).status == 200
        query = HttpQuery(nsqd)
        assert query.put(0, "a", plain(*ROWS)).status == 200
        assert query.seal(1, 3).status == 200
        node = nsqd.get("/info").json["node_uuid"]
        winners = [{"node": node, "partition": 0, "attempt": ATTEMPT, "count": 3}]
        decided = query.post("decide", batch=0, winners=winners)
        assert decided.status == 200, decided
        assert nsqd.terminate() == 0
    return path


def remove(path: Path) -> None:
    path.unlink()


def edit(change: Callable[[bytearray], None]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    return damage


WAYS: dict[str, Callable[[Path], None]] = {
    "a flipped bit": edit(flip(0.6)),
    "cut": edit(cut(0.5)),
    "missing": remove,
}


def files_of(root: Path, kind: str) -> list[Path]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return [path for path in files if fnmatchcase(str(path), KINDS[kind])]


def drain(nsqd: Nsqd, topic: str) -> set[bytes]:
    """Everything that a channel has, read and finished."""
    depth = nsqd.channel(topic, "c")["depth"]
    found: list[bytes] = []
    with Client.of(nsqd).sub(topic, "c", ready=2500) as consumer:
        while len(found) < depth and (more := consumer.arrived(0.5, depth - len(found))):
            found += [message.body for message in more]
    return set(found)


def missing_in(nsqd: Nsqd) -> set[str]:
    """Which kinds of promises were not kept."""
    missing = set()
    topics = {t["topic_name"]: t for t in nsqd.stats()["topics"]}
    for topic in ("a", "b"):
        channels = topics.get(topic, {"channels": []})["channels"]
        if not channels or set(bodies(topic)) - drain(nsqd, topic):
            missing.add(topic)
    # On a busy machine slots without their counts are read a little later.
    eventually(lambda: nsqd.get("/deferred").json["counted"], 10)
    waiting = {t["topic_name"]: t["count"] for t in nsqd.get("/deferred").json["topics"]}
    if waiting.get("b", 0) < 20:
        missing.add("deferred")
    if HttpQuery(nsqd).publish(0, (0, ATTEMPT)).status != 200:
        missing.add("staged")
    return missing


def judge(root: Path, name: str) -> None:
    nsqd = Nsqd(root, SMALL)
    try:
        nsqd.start()
    except AssertionError:
        assert "FATAL" in nsqd.log or "failed to instantiate" in nsqd.log, nsqd.log
        assert name in nsqd.log, nsqd.log
        return
    with nsqd:
        missing = missing_in(nsqd)
        if missing:  # what is found by a read is told in a second
            assert eventually(lambda: nsqd.get("/damage").json["records"]), f"{missing} untold"
        records = nsqd.get("/damage").json["records"]
        shown = re.search(r"(?m)^penstock_damage_records (\d+)$", nsqd.get("/metrics").text)
        assert shown is not None and int(shown[1]) == len(records)
        assert nsqd.stats().get("damage", {"records": 0})["records"] == len(records)
        for record in records:
            nsqd.wait_for_log(f"ERROR.*{re.escape(record['text'])}")
        assert nsqd.get("/ping").status == 200, "what is over does not fail the check"
        assert "Traceback" not in nsqd.log
        assert nsqd.terminate() == 0, nsqd.log


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("side file", "fired")])
def test_what_a_damaged_file_costs_is_told(
    template: Path, tmp_path: Path, kind: str, way: str
) -> None:
    for number, original in enumerate(files_of(template, kind)[:1]):
        root = tmp_path / f"{number}"
        shutil.copytree(template, root)
        path = root / original.relative_to(template)
        WAYS[way](path)
        judge(root, path.name)


def test_undamaged_nothing_is_missing_and_nothing_is_said(template: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(template, root)
    with Nsqd(root, SMALL) as nsqd:
        assert missing_in(nsqd) == set()
        assert nsqd.get("/damage").json == {"records": []}
        assert not [line for line in nsqd.lines if "ERROR" in line or "WARNING" in line]
