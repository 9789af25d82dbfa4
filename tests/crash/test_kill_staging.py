"""kill -9 of a real nsqd in the middle of publishing staged batches (R19)."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.daemon import Nsqd, Reply
from tests.support.staging import ATTEMPT, HttpQuery, deferred, plain

PART_COUNT = 40
ROW_COUNT = 1500
KILL_COUNT = 10
BATCH_COUNT_MAX = 30


def rows_of(batch: int, part: int) -> list[bytes]:
    return [b"%d %d %d " % (batch, part, row) + b"x" * 100 for row in range(ROW_COUNT)]


def late_rows_of(batch: int) -> list[tuple[int, bytes]]:
    """Some are due while their batch is being published, some later."""
    now_ns = time.time_ns()
    return [(now_ns + row * 2_000_000, b"%d late %d" % (batch, row)) for row in range(500)]


def stage(query: HttpQuery, batch: int) -> set[bytes]:
    """A batch of many parts for two topics; its rows."""
    rows: set[bytes] = set()
    for part in range(PART_COUNT):
        some = rows_of(batch, part)
        topic = "t" if part % 4 else "u"
        assert query.put(part, topic, plain(*some), batch=batch).status == 200
        rows.update(some)
    late = late_rows_of(batch)
    reply = query.put(PART_COUNT, "t", deferred(*late), batch=batch, deferred="true")
    assert reply.status == 200, reply
    rows.update(body for _, body in late)
    assert query.seal(PART_COUNT + 1, len(rows), batch=batch).status == 200
    return rows


def log_size(nsqd: Nsqd) -> int:
    """Bytes in all segments of all topics."""
    folder = nsqd.data_path / "penstock" / "topics"
    return sum(path.stat().st_size for path in folder.glob("*/*.log"))


def publish_until_killed(query: HttpQuery, batch: int, share: float) -> bool:
    """Ask for a publish and kill nsqd when ``share`` of the rows is in the logs.

    Returns whether nsqd died before it answered.
    """
    nsqd = query.nsqd
    replies: list[Reply] = []

    def ask() -> None:
        try:
            replies.append(query.publish(batch, (0, ATTEMPT)))
        except OSError:
            return

    begun = log_size(nsqd)
    wanted = begun + share * PART_COUNT * ROW_COUNT * 140
    asking = threading.Thread(target=ask)
    asking.start()
    while log_size(nsqd) < wanted and asking.is_alive():
        pass
    nsqd.kill()
    asking.join()
    return not replies


def logged(nsqd: Nsqd, topic: str) -> Iterator[bytes]:
    """The bodies of all messages in a topic's log."""
    state = nsqd.get(f"/log?topic={topic}").json
    start, end = state["first"], state["synced_end"]
    while start < end:
        reply = nsqd.get(
            f"/log/read?topic={topic}&instance={state['instance']}&start={start}&end={end}"
        )
        assert reply.status == 200, reply
        data, at = reply.body, 0
        while at < len(data):
            size, count = struct.unpack_from(">8xI12xI", data, at)
            frame, at = at + 56, at + 56 + size
            for _ in range(count):
                (length,) = struct.unpack_from(">I", data, frame)
                yield data[frame + 34 : frame + 4 + length]
                frame += 4 + length
        start = int(reply.headers["X-Penstock-Next"])


def test_rows_are_published_once_though_nsqd_is_killed_while_it_publishes(tmp_path: Path) -> None:
    """R19, R16: batches until ten kills came before the answer, each at another place."""
    chance = random.Random(19)
    wanted: Counter[bytes] = Counter()
    cut_count = 0
    with Nsqd(tmp_path) as nsqd:
        query = HttpQuery(nsqd)
        for batch in range(BATCH_COUNT_MAX):
            wanted.update(stage(query, batch))
            cut_count += publish_until_killed(query, batch, chance.uniform(0, 0.7))
            nsqd.start()
            answer = query.publish(batch, (0, ATTEMPT))
            assert answer.status == 200, answer
            assert answer.json["count"] == PART_COUNT * ROW_COUNT + 500
            if cut_count == KILL_COUNT:
                break
        deadline_s = time.monotonic() + 20
        found: Counter[bytes] = Counter()
        while time.monotonic() < deadline_s and found.total() < wanted.total():
            time.sleep(0.1)
            nsqd.post("/pub?topic=t", b"mark")  # what fired is synced with it, sooner or later
            found = Counter(body for topic in "tu" for body in logged(nsqd, topic))
            del found[b"mark"]
        assert found == wanted
        assert nsqd.get("/staging").json == []
    assert cut_count == KILL_COUNT, f"only {cut_count} kills came before the answer"
