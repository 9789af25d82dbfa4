"""Discarding messages over HTTP gives their disk space back, without any other traffic.

Rules: R5.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.waits import eventually

# A topic's newest segment goes too when all of it is finished and it is larger than 4 MiB.
PUBLISHED_SIZE = 6_000_000
LEFT_SIZE_MAX = 200_000
QUIET_S = 7.0


CASES = [
    ("emptied", ("c",), "/channel/empty?topic=emptied&channel=c"),
    ("one-left", ("read", "c"), "/channel/delete?topic=one-left&channel=c"),
    ("none-left", ("c",), "/channel/delete?topic=none-left&channel=c"),
    ("held", (), "/topic/empty?topic=held"),
    ("deleted", ("c",), "/topic/delete?topic=deleted"),
]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("room")) as daemon:
        for topic, channels, _ in CASES:
            fill(daemon, topic, *channels)
            if "read" in channels:
                assert daemon.post(f"/channel/empty?topic={topic}&channel=read").status == 200
        # The daemon looks after topics for a while after they were used; not any more by then.
        time.sleep(QUIET_S)
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def fill(nsqd: Nsqd, topic: str, *channels: str) -> None:
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    for channel in channels:
        assert nsqd.post(f"/channel/create?topic={topic}&channel={channel}").status == 200
    with Client.of(nsqd) as producer:
        for _ in range(PUBLISHED_SIZE // 400_000):
            producer.mpub(topic, [bytes(1000)] * 400)


def size_on_disk(nsqd: Nsqd, topic: str) -> int:
    """Of everything the daemon still holds of the topic, open and unlinked files included."""
    total = 0
    for path in Path(f"/proc/{nsqd.pid}/fd").iterdir():
        # A descriptor may be closed between the listing and the look at it.
        with contextlib.suppress(FileNotFoundError):
            if f"/{topic}~" in str(path.readlink()):
                total += path.stat().st_size
    return total


@pytest.mark.parametrize(("topic", "action"), [(case[0], case[2]) for case in CASES])
def test_what_is_discarded_leaves_the_disk(nsqd: Nsqd, topic: str, action: str) -> None:
    assert size_on_disk(nsqd, topic) > PUBLISHED_SIZE
    assert nsqd.post(action).status == 200
    assert eventually(lambda: size_on_disk(nsqd, topic) < LEFT_SIZE_MAX), size_on_disk(nsqd, topic)
