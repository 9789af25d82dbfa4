"""nsq_to_file as a process: names, rotation, gzip, signals, kill -9, a full disk."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tools import Tool, finished, prepare, source
from tests.support.bodies import numbered
from tests.support.client import publish
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.small_disk import small_disk
from tests.support.waits import eventually

CHANNEL = "nsq_to_file"
HOST = "--host-identifier=h"


def start(nsqd: Nsqd, tmp_path: Path, *flags: str, topic: str = "t") -> Tool:
    fixed = (f"--topic={topic}", source(nsqd), f"--output-dir={tmp_path / 'out'}", HOST)
    return Tool(tmp_path, "nsq_to_file", *fixed, *flags)


def files(tmp_path: Path, folder: str = "out") -> list[Path]:
    return sorted(path for path in (tmp_path / folder).rglob("*") if path.is_file())


def lines(paths: list[Path]) -> list[bytes]:
    found: list[bytes] = []
    for path in paths:
        text = path.read_bytes()
        found += (gzip.decompress(text) if path.suffix == ".gz" else text).splitlines()
    return found


def test_messages_are_lines_and_are_finished_after_the_sync(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, *numbered(10))
    with start(nsqd, tmp_path, "--sync-interval=1s") as tool:
        tool.until(lambda: lines(files(tmp_path)) == numbered(10))
        assert nsqd.channel("t", CHANNEL)["in_flight_count"] == 10, "finished before the sync"
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        publish(nsqd, "t", b"last")
        tool.until(lambda: lines(files(tmp_path))[-1:] == [b"last"])
        assert tool.terminate() == 0
    assert finished(nsqd, "t", CHANNEL), "SIGTERM syncs and finishes"
    (path,) = files(tmp_path)
    assert re.fullmatch(r"t\.h\.\d{4}-\d\d-\d\d_\d\d\.log", path.name)
    # Appended to by the next run; a line that a crash left torn is ended first.
    with path.open("ab") as file:
        file.write(b"torn")
    publish(nsqd, "t", b"again")
    with start(nsqd, tmp_path, "--sync-interval=50ms") as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        assert tool.terminate() == 0
    assert lines(files(tmp_path)) == [*numbered(10), b"last", b"torn", b"again"]


def test_gzip_rotation_and_a_work_dir_survive_hup(nsqd: Nsqd, tmp_path: Path) -> None:
    """NSQ fails here: after a HUP its closed file counts as open."""
    prepare(nsqd, "t", CHANNEL, *numbered(1000))
    name = "--filename-format=<TOPIC>/<PID><REV>.<DATETIME>%%.log"
    flags = ("--gzip", "--rotate-size=1500", "--sync-interval=50ms", "--skip-empty-files", name)
    with start(nsqd, tmp_path, *flags, f"--work-dir={tmp_path / 'work'}") as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        tool.send(signal.SIGHUP)
        tool.until(lambda: files(tmp_path, "work") == [])
        assert sorted(map(int, lines(files(tmp_path)))) == list(range(1000))
        publish(nsqd, "t", b"1000")
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        assert files(tmp_path, "work")
        assert tool.terminate() == 0
        pid = tool.process.pid
    paths = files(tmp_path)
    assert files(tmp_path, "work") == []
    assert sorted(map(int, lines(paths))) == list(range(1001))
    assert len(paths) >= 3
    for revision, path in enumerate(paths):
        assert path.parent == tmp_path / "out" / "t"
        assert re.fullmatch(rf"{pid}-{revision:06d}\..*%%\.log\.gz", path.name)


def test_a_finished_file_never_replaces_another(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, b"mine")
    name = "--filename-format=f<REV>"
    flags = (name, f"--work-dir={tmp_path / 'work'}", "--sync-interval=50ms")
    with start(nsqd, tmp_path, *flags) as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        (tmp_path / "out" / "f-000000").write_bytes(b"theirs\n")
        assert tool.terminate() == 0
    assert (tmp_path / "out" / "f-000000").read_bytes() == b"theirs\n"
    assert (tmp_path / "out" / "f-000001").read_bytes() == b"mine\n"


def test_hup_lets_a_log_be_moved_away(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, b"one")
    with start(nsqd, tmp_path, "--sync-interval=50ms", "--skip-empty-files") as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        (path,) = files(tmp_path)
        path.rename(tmp_path / "moved")
        tool.send(signal.SIGHUP)
        tool.until(lambda: "closing the file" in tool.log)
        publish(nsqd, "t", b"two")
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        assert tool.terminate() == 0
    assert (tmp_path / "moved").read_bytes() == b"one\n"
    assert path.read_bytes() == b"two\n"


def test_files_rotate_with_time_and_the_clock(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL)
    prepare(nsqd, "u", CHANNEL)
    by_age = ("--rotate-interval=150ms", "--sync-interval=50ms")
    by_name = ("--datetime-format=%S%q", "--sync-interval=50ms")
    with (
        start(nsqd, tmp_path / "a", *by_age) as first,
        start(nsqd, tmp_path / "b", *by_name, topic="u") as second,
    ):
        first.until(lambda: len(files(tmp_path / "a")) >= 3)
        second.until(lambda: len(files(tmp_path / "b")) >= 2)
        assert (first.terminate(), second.terminate()) == (0, 0)
    assert all(re.fullmatch(r"u\.h\.\d\d%q\.log", path.name) for path in files(tmp_path / "b"))


def test_topics_are_found_by_their_pattern(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        register = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with Nsqd(tmp_path / "nsqd", register, "--broadcast-address=127.0.0.1") as nsqd:
            prepare(nsqd, "log_a", CHANNEL, b"a")
            prepare(nsqd, "other", CHANNEL, b"x")
            assert eventually(lambda: len(lookupd.get("/topics").json["topics"]) == 2)
            flags = (
                f"--lookupd-http-address={lookupd.http_address}",
                f"--output-dir={tmp_path / 'out'}",
                *("--topic-pattern=^log_", "--topic-refresh=100ms", "--sync-interval=50ms"),
            )
            with Tool(tmp_path, "nsq_to_file", *flags, HOST) as tool:
                tool.until(lambda: finished(nsqd, "log_a", CHANNEL))
                prepare(nsqd, "log_b", CHANNEL, b"b")
                tool.until(lambda: finished(nsqd, "log_b", CHANNEL))
                assert tool.terminate() == 0
    assert [path.name.split(".")[0] for path in files(tmp_path)] == ["log_a", "log_b"]


def test_an_nsqd_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        prepare(nsqd, "t", CHANNEL, b"late")
        nsqd.terminate()
        with start(nsqd, tmp_path, "--sync-interval=50ms", "--skip-empty-files") as tool:
            tool.until(lambda: "refused" in tool.log)
            nsqd.start()
            tool.until(lambda: finished(nsqd, "t", CHANNEL))
            assert tool.terminate() == 0
    assert lines(files(tmp_path)) == [b"late"]


@pytest.mark.parametrize("zipped", [False, True])
def test_everything_finished_is_in_the_files_after_kill_9(
    nsqd: Nsqd, tmp_path: Path, zipped: bool
) -> None:
    """Documented: finished means synced.  Killed four times in the middle of the work."""
    count = 20_000
    prepare(nsqd, "t", CHANNEL)
    for first in range(0, count, 1000):
        publish(nsqd, "t", *numbered(1000, first))
    flags = ("--sync-interval=20ms", "--max-in-flight=50", *(["--gzip"] if zipped else []))
    for _ in range(4):
        with start(nsqd, tmp_path, *flags) as tool:
            before = nsqd.channel("t", CHANNEL)["depth"]
            tool.until(lambda before=before: nsqd.channel("t", CHANNEL)["depth"] < before - 500)
            tool.send(signal.SIGKILL)
            tool.wait()
        assert eventually(lambda: nsqd.channel("t", CHANNEL)["client_count"] == 0)
        state = nsqd.channel("t", CHANNEL)
        done = count - state["depth"] - state["in_flight_count"] - state["deferred_count"]
        assert len(set(whole_lines(tmp_path))) >= done
    with start(nsqd, tmp_path, *flags) as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        assert tool.terminate() == 0
    assert set(map(int, whole_lines(tmp_path))) >= set(range(count))


def whole_lines(tmp_path: Path) -> list[bytes]:
    """What can be read: a killed gzip file ends in the middle of its last member."""
    found: list[bytes] = []
    for path in files(tmp_path):
        if path.suffix != ".gz":
            found += path.read_bytes().splitlines()
            continue
        done = subprocess.run(["zcat", str(path)], capture_output=True, timeout=10)
        found += done.stdout[: done.stdout.rfind(b"\n") + 1].splitlines()
    return [line for line in found if line.isdigit()]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 1) as folder:
        yield folder


@pytest.mark.parametrize("zipped", [False, True])
def test_a_full_disk_ends_the_tool_and_loses_nothing(
    nsqd: Nsqd, disk: Path, tmp_path: Path, zipped: bool
) -> None:
    import random

    chance = random.Random(1)
    bodies = [b"%04d" % n + chance.randbytes(1000).hex().encode() for n in range(1500)]
    prepare(nsqd, "t", CHANNEL)
    for first in range(0, 1500, 300):
        publish(nsqd, "t", *bodies[first : first + 300])
    flags = ("--sync-interval=50ms", *(["--gzip"] if zipped else []))
    with start(nsqd, disk, *flags) as tool:
        assert tool.wait() == 1
    # Its log is on the full disk as well; what counts is in the files.
    assert eventually(lambda: nsqd.channel("t", CHANNEL)["client_count"] == 0)
    written = lines(files(disk))
    assert set(written) <= set(bodies), "a torn line"
    state = nsqd.channel("t", CHANNEL)
    left = state["depth"] + state["in_flight_count"] + state["deferred_count"]
    assert 0 < 1500 - left <= len(set(written))
    with start(nsqd, tmp_path / "more", *flags) as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        assert tool.terminate() == 0
    assert set(written) | set(lines(files(tmp_path / "more"))) == set(bodies)


def test_a_full_disk_leaves_no_empty_file_behind_each_start(
    nsqd: Nsqd, disk: Path, tmp_path: Path
) -> None:
    prepare(nsqd, "t", CHANNEL)
    (disk / "filler").write_bytes(bytes(1024 * 1024 - 8192))
    (disk / "out").mkdir()
    fixed = ("--topic=t", source(nsqd), f"--output-dir={disk / 'out'}", HOST)
    for way in (("--gzip",), ("--rotate-interval=1h",), ("--gzip", f"--work-dir={disk / 'w'}")):
        for _ in range(2):
            # Those of the run before come back with a growing wait.
            publish(nsqd, "t", *(os.urandom(4000).hex().encode() for _ in range(20)))
            with Tool(tmp_path, "nsq_to_file", *fixed, "--sync-interval=50ms", *way) as tool:
                assert tool.wait() == 1
                assert "No space left on device" in tool.log
        assert [path for path in disk.rglob("*") if path.is_file()] == [disk / "filler"], way


@pytest.mark.parametrize("topic", ["..", "."])
def test_a_topic_that_is_no_folder_name_is_refused(nsqd: Nsqd, tmp_path: Path, topic: str) -> None:
    """Also where the file would stay in the output folder, but in another topic's place."""
    for form in ("<TOPIC>/<HOST>.log", "deep/<TOPIC>/x<REV>", "<TOPIC>/<TOPIC>/<TOPIC>.log"):
        with start(nsqd, tmp_path, f"--filename-format={form}", topic=topic) as tool:
            assert tool.wait() == 1
            assert f"--filename-format and topic '{topic}'" in tool.log
    with start(nsqd, tmp_path, "--filename-format=.<TOPIC>/x", topic=".") as tool:
        assert tool.wait() == 1
    assert list(tmp_path.rglob("*.log")) == list(tmp_path.rglob("x*")) == []
    # As a part of a name they are names like any other.
    prepare(nsqd, topic, CHANNEL, b"dots")
    form = "--filename-format=<TOPIC>-<TOPIC>.log"
    with start(nsqd, tmp_path, form, "--sync-interval=50ms", topic=topic) as tool:
        tool.until(lambda: finished(nsqd, topic, CHANNEL))
        assert tool.terminate() == 0
    assert [path.name for path in files(tmp_path)] == [f"{topic}-{topic}.log"]


def test_no_flag_leads_out_of_the_output_folder(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", CHANNEL, b"inside")
    for flags in (
        ("--filename-format=../<TOPIC>.log",),
        ("--filename-format=a/../../<TOPIC>.log",),
        ("--filename-format=<HOST>/<TOPIC>.log", "--host-identifier=.."),
        ("--filename-format=<DATETIME>/<TOPIC>.log", "--datetime-format=.."),
        ("--filename-format=.",),
    ):
        with start(nsqd, tmp_path, *flags) as tool:
            assert tool.wait() == 1, flags
            assert "is not in" in tool.log
    # An absolute name lies below the folder, as in NSQ.
    absolute = f"--filename-format={tmp_path}/sub/<TOPIC>.log"
    with start(nsqd, tmp_path, absolute, "--sync-interval=50ms") as tool:
        tool.until(lambda: finished(nsqd, "t", CHANNEL))
        assert tool.terminate() == 0
    assert files(tmp_path) == [tmp_path / "out" / str(tmp_path)[1:] / "sub" / "t.log"]
    assert not (tmp_path / "sub").exists()


def test_a_found_topic_without_a_folder_of_its_own_does_not_end_the_others(tmp_path: Path) -> None:
    """Anybody may publish to a topic named '..'."""
    with Nsqlookupd() as lookupd:
        register = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with Nsqd(tmp_path / "nsqd", register, "--broadcast-address=127.0.0.1") as nsqd:
            prepare(nsqd, "..", CHANNEL, b"out")
            prepare(nsqd, "good", CHANNEL, b"in")
            assert eventually(lambda: len(lookupd.get("/topics").json["topics"]) == 2)
            flags = (
                f"--lookupd-http-address={lookupd.http_address}",
                f"--output-dir={tmp_path / 'deep' / 'out'}",
                *("--filename-format=<TOPIC>/<HOST>.log", "--topic-refresh=50ms"),
                "--sync-interval=50ms",
            )
            with Tool(tmp_path / "log", "nsq_to_file", *flags, HOST) as tool:
                tool.until(lambda: finished(nsqd, "good", CHANNEL))
                tool.until(lambda: "topic=..: skipped" in tool.log)
                time.sleep(0.3)  # several refreshes
                assert tool.log.count("skipped") == 1
                assert tool.terminate() == 0
            assert nsqd.channel("..", CHANNEL)["depth"] == 1, "not consumed, not lost"
    assert files(tmp_path, "deep") == [tmp_path / "deep" / "out" / "good" / "h.log"]


def test_it_syncs_as_soon_as_nothing_more_can_come(nsqd: Nsqd, tmp_path: Path) -> None:
    """Starved long before the sync-interval."""
    prepare(nsqd, "t", CHANNEL, *numbered(2000))
    with start(nsqd, tmp_path, "--max-in-flight=10") as tool:
        since_s = time.monotonic()
        tool.until(lambda: nsqd.channel("t", CHANNEL)["depth"] == 0)
        assert time.monotonic() - since_s < 25, "the sync-interval is 30 s"
        assert tool.terminate() == 0
    assert finished(nsqd, "t", CHANNEL)
