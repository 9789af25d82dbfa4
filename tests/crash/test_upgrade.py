"""A data path that the version before has written opens, whole and without a word.

``stored/version-0.1.0.tar.gz`` was left by a killed nsqd: a side file, finished and requeued
messages, a paused channel, a pull channel, messages deferred by a year, a staging that was decided
for.  Its formats know no checksum in ``node.json``, no counts of slots and no list of files: that
is not damage.
"""

from __future__ import annotations

import tarfile
import time
from pathlib import Path

import pytest

from tests.conformance.log_reader import LogReader
from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.staging import ATTEMPT, HttpQuery

ARCHIVE = Path(__file__).parent / "stored" / "version-0.1.0.tar.gz"


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path, filter="data")
    return path


def loaded(nsqd: Nsqd) -> tuple[dict[tuple[str, str], tuple[int, bool]], int]:
    """Depths and pauses of channels, and what waits for its time, once all of it is loaded.

    Messages that are due in November 2027 are delivered from then on.
    """
    give_up_s = time.monotonic() + 10
    while True:
        topics = {t["topic_name"]: t for t in nsqd.stats()["topics"]}
        depths = {
            (name, c["channel_name"]): (c["depth"], c["paused"])
            for name, topic in topics.items()
            for c in topic["channels"]
        }
        waiting = sum(topic["count"] for topic in nsqd.get("/deferred").json["topics"])
        if depths["b", "c"][0] + waiting == 60 or time.monotonic() > give_up_s:
            return depths, waiting
        time.sleep(0.02)


def told(nsqd: Nsqd) -> list[str]:
    return [line for line in nsqd.lines if " ERROR" in line or " WARNING" in line]


def test_a_data_path_of_the_version_before_opens_whole(data_path: Path) -> None:
    names = {path.relative_to(data_path) for path in data_path.rglob("*")}
    uuid = (data_path / "penstock" / "node.json").read_text().split('"uuid": "')[1][:36]
    with Nsqd(data_path, "--node-id=7") as nsqd:
        for start in ("first", "after kill -9", "after a stop"):
            assert told(nsqd) == [], start
            assert nsqd.get("/damage").json == {"records": []}
            assert nsqd.get("/info").json["node_uuid"] == uuid
            depths, waiting = loaded(nsqd)
            assert depths == {
                ("a", "c"): (2, False),
                ("a", "paused"): (1, True),
                ("b", "c"): (60 - waiting, False),
                ("b", "query"): (10 - waiting, False),
            }
            missing = [name for name in names if not (data_path / name).exists()]
            assert missing == [], "files keep their names and places"
            if start == "first":
                nsqd.kill()
                nsqd.start()
            elif start == "after kill -9":
                nsqd.restart()
        with Client.of(nsqd).sub("a", "c", ready=10) as consumer:
            assert {m.body for m in consumer.finish_all(2)} == {b"a 002", b"a 030"}
        with Client.of(nsqd).sub("b", "c", ready=100) as consumer:
            bodies = {message.body for message in consumer.finish_all(60 - waiting)}
        wanted = {b"b %03d" % n for n in range(40)} | {b"fired %d" % n for n in range(10)}
        assert wanted <= bodies
        assert HttpQuery(nsqd).publish(0, (0, ATTEMPT)).status == 200
        assert nsqd.channel("b", "c")["depth"] == 2


def test_a_reader_of_the_version_before_goes_on_and_may_take_an_identity(data_path: Path) -> None:
    """R45: its channel is bound by the next commit that carries one."""
    with Nsqd(data_path, "--node-id=7") as nsqd:
        older = LogReader(nsqd, None, topic="b", channel="query")
        assert older.pull().json["identity"] is None
        assert older.commit(older.told["low"]).status == 200
        reader = LogReader(nsqd, topic="b", channel="query")
        assert reader.pull().json["low"] == older.told["low"]
        assert reader.commit(reader.told["low"]).status == 200
        nsqd.restart()
        assert [reply.status for reply in reader.all_calls(reader.told).values()] == [200] * 4
        assert [reply.status for reply in older.all_calls(reader.told).values()] == [409] * 4
        assert len(told(nsqd)) == 1 and "refused identity none" in told(nsqd)[0]
