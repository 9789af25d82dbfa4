"""`penstock import-nsqd` as a process, and our nsqd on what it made."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.import_nsqd import main
from tests.support.client import Client
from tests.support.daemon import Nsqd
from tests.support.go_queues import GoMessage, GoPath, message

PENSTOCK = str(Path(sys.executable).parent / "penstock")


@pytest.fixture
def source(tmp_path: Path) -> GoPath:
    """Two topics with a past: orders was consumed, requeued and paused in places."""
    path = GoPath(tmp_path / "go")
    orders = [message(i, body=b"order-%d" % i) for i in range(2000)]
    path.metadata(
        {"orders": ["email", "billing", "audit"], "held": ["x"], "lonely": []},
        paused={"orders:billing", "held"},
    )
    path.queue("orders", [message(i, body=b"order-%d" % i) for i in range(2000, 2100)])
    path.queue("orders:email", orders, per_file=300, finished=700)
    # billing finished all but every 50th, which was requeued to the end of its queue.
    requeued = [message(i, attempts=1 + i % 3, body=b"order-%d" % i) for i in range(0, 2000, 50)]
    path.queue("orders:billing", [*orders, *requeued], finished=2000)
    path.queue("orders:audit", orders, per_file=300)
    path.queue("held", [message(i) for i in range(50, 80)])
    path.queue("held:x", [message(i) for i in range(50)])
    path.queue("lonely", [message(i) for i in range(10)])
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [PENSTOCK, "import-nsqd", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def consume(nsqd: Nsqd, topic: str, channel: str) -> dict[tuple[bytes, int], int]:
    """All that a channel has: attempts by (body, timestamp), each message exactly once."""
    count = nsqd.channel(topic, channel)["depth"]
    with Client.of(nsqd) as client:
        taken = client.sub(topic, channel, ready=500).finish_all(count)
        client.settle()
    found = {(m.body, m.timestamp_ns): m.attempts for m in taken}
    assert len(found) == count and nsqd.channel(topic, channel)["depth"] == 0
    return found


def first_delivery(messages: list[GoMessage]) -> dict[tuple[bytes, int], int]:
    return {(m.body, m.timestamp_ns): m.attempts + 1 for m in messages}


def test_each_channel_gets_exactly_what_it_had(source: GoPath, tmp_path: Path) -> None:
    before = source.snapshot()
    done = run("--from", source.folder, "--to", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert source.snapshot() == before
    orders = [message(i, body=b"order-%d" % i) for i in range(2100)]
    retried = [message(i, attempts=1 + i % 3, body=b"order-%d" % i) for i in range(0, 2000, 50)]
    with Nsqd(tmp_path / "new") as nsqd:
        stats = {t["topic_name"]: t for t in nsqd.stats()["topics"]}
        assert sorted(stats) == ["held", "lonely", "orders"]
        paused = {c["channel_name"]: c["paused"] for c in stats["orders"]["channels"]}
        assert paused == {"email": False, "billing": True, "audit": False}
        assert consume(nsqd, "orders", "email") == first_delivery(orders[700:])
        assert consume(nsqd, "orders", "audit") == first_delivery(orders)
        nsqd.post("/channel/unpause?topic=orders&channel=billing")
        assert consume(nsqd, "orders", "billing") == first_delivery([*retried, *orders[2000:]])
        assert stats["held"]["paused"] and stats["held"]["depth"] == 30
        numbers = [message(i) for i in range(80)]
        assert consume(nsqd, "held", "x") == first_delivery(numbers[:50])
        nsqd.post("/topic/unpause?topic=held")
        assert consume(nsqd, "held", "x") == first_delivery(numbers[50:])
        assert stats["lonely"]["depth"] == 10
        nsqd.post("/channel/create?topic=lonely&channel=first")
        assert consume(nsqd, "lonely", "first") == first_delivery(numbers[:10])


def test_publishing_and_restarting_go_on_after_an_import(source: GoPath, tmp_path: Path) -> None:
    assert run("--from", source.folder, "--to", tmp_path / "new").returncode == 0
    with Nsqd(tmp_path / "new") as nsqd:
        nsqd.post("/pub?topic=held", b"after the import")
        nsqd.restart()
        assert nsqd.channel("orders", "email")["depth"] == 1400
        nsqd.post("/topic/unpause?topic=held")
        bodies = [body for body, _ in consume(nsqd, "held", "x")]
        assert bodies[-1] == b"after the import" and len(bodies) == 81
    listed = json.loads((tmp_path / "new" / "nsqd.dat").read_text())
    assert sorted(topic["name"] for topic in listed["topics"]) == ["held", "lonely", "orders"]


def test_nsqd_refuses_a_folder_with_gos_queues_and_names_the_command(source: GoPath) -> None:
    before = source.snapshot()
    nsqd = Nsqd(source.folder)
    with pytest.raises(AssertionError):
        nsqd.start()
    assert "FATAL: failed to instantiate nsqd - " in nsqd.log
    assert f"`penstock import-nsqd --from {source.folder} --to DIR`" in nsqd.log
    assert source.snapshot() == before


def test_a_running_nsqd_on_either_side_is_refused(source: GoPath, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "busy"):
        done = run("--from", source.folder, "--to", tmp_path / "busy")
        assert done.returncode == 1 and "possibly in use by another instance" in done.stderr
        done = run("--from", tmp_path / "busy", "--to", tmp_path / "new")
        assert done.returncode == 1 and "in use by a running nsqd: stop it first" in done.stderr
    assert not (tmp_path / "new").exists()


# ---- what it says


def test_the_report_tells_topics_channels_and_sums(
    source: GoPath, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--from", str(source.folder), "--to", f"{tmp_path}/new"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "topic=orders: 2,100 messages, 19,890 bytes, 100 not yet in channels" in lines
    assert "  channel=email: 1,400 undelivered (0 with attempts), 700 finished" in lines
    assert "  channel=billing paused: 140 undelivered (40 with attempts), 1,960 finished" in lines
    assert "topic=held paused: 80 messages, 550 bytes, 30 not yet in channels" in lines
    assert lines[-2].startswith(
        "imported 2,190 messages in 3 topics, 4 channels, from 3,530 copies"
    )
    assert lines[-1] == f"next: nsqd --data-path={tmp_path}/new"
    assert err == ""


def test_damage_is_listed_and_changes_the_exit_status(
    source: GoPath, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = source.data_file("orders:audit", 1)
    path.write_bytes(path.read_bytes()[:-5])
    arguments = ["--from", str(source.folder), "--to", f"{tmp_path}/new"]
    assert main([*arguments, "--dry-run"]) == 3
    out = capsys.readouterr().out
    assert "left out as damaged:" in out and str(path) in out and "record cut off" in out
    assert "left out: 34 bytes in 1 damaged place" in out
    assert f"dry run: {tmp_path}/new was not changed" in out
    assert not (tmp_path / "new").exists()
    assert main(arguments) == 3
    assert (tmp_path / "new").exists()


def test_the_json_report_has_everything(
    source: GoPath, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.queue("orders:gone#ephemeral", [message(1)])
    source.data_file("lonely", 0).open("ab").write(b"\0" * 40)
    assert main(["--from", str(source.folder), "--to", f"{tmp_path}/new", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["topic_count"], report["channel_count"]) == (3, 4)
    assert (report["message_count"], report["record_count"]) == (2190, 3530)
    assert report["damaged_size"] == 40 and report["damage"][0]["what"] == "invalid length 0"
    assert report["notes"] == ["queue orders:gone#ephemeral: ephemeral, skipped"]
    (orders,) = [topic for topic in report["topics"] if topic["name"] == "orders"]
    assert orders["channels"][1] == {
        "name": "billing",
        "paused": True,
        "undelivered_count": 140,
        "retried_count": 40,
        "finished_count": 1960,
    }
    assert {"name": "orders:email", "depth": 1300, "record_count": 1300, "salvaged_count": 0} in (
        orders["queues"]
    )


def test_on_a_terminal_there_is_a_bar(source: GoPath, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [PENSTOCK, "import-nsqd", "--from", str(source.folder), "--to", f"{tmp_path}/new"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "read  [" in shown and "%" in shown
    assert shown.rstrip(" ").endswith("\r"), "the bar is taken away at the end"


def test_quiet_shows_no_bar(source: GoPath, tmp_path: Path) -> None:
    done = run("--from", source.folder, "--to", tmp_path / "new", "--quiet")
    assert done.returncode == 0 and done.stderr == ""


def test_what_is_wrong_is_said_in_a_line(
    source: GoPath, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, empty = f"{tmp_path}/new", tmp_path / "empty"
    empty.mkdir()
    for arguments, words in [
        (["--from", f"{tmp_path}/none", "--to", new], "No such file"),
        (["--from", new, "--to", new], "must be outside the source"),
        (["--from", str(empty), "--to", new], "is not a data path of nsqd"),
    ]:
        assert main(arguments) == 1
        err = capsys.readouterr().err
        assert words in err and err.endswith("; nothing was imported\n") and err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--from", "a"],
        ["--from", "a", "--to", "b", "--node-id", "1024"],
        ["--from", "a", "--to", "b", "--max-msg-size", "0"],
        ["--from", "a", "--to", "b", "more"],
    ],
)
def test_wrong_use_has_its_own_exit_status(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
