from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.pipeline.coverage import Log, Span
from penstock.pipeline.details import details_of
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import LOSS, Accepted, Batch
from penstock.pipeline.lock import Owner
from penstock.pipeline.status import Status, StatusFile, ask_brokers, read_all, state_folder, table
from penstock.progress import PipelineState

GONE = 2**22 - 1


def test_a_run_is_seen_while_it_runs(tmp_path: Path) -> None:
    file = StatusFile(Status("orders", topics=["orders"]), tmp_path)
    file.update(state="running", batch=3, message_count=1234, messages_per_s=5.5, waiting=7)
    [run] = read_all(tmp_path)
    assert (run.name, run.batch, run.pid) == ("orders", 3, os.getpid())
    assert run.alive
    text = table([run])
    assert "orders" in text and "running" in text and "1,234" in text and "7" in text
    file.remove()
    assert read_all(tmp_path) == []


def test_one_that_was_killed_is_told_until_the_next_of_its_name(tmp_path: Path) -> None:
    StatusFile(Status("orders", pid=GONE), tmp_path).update(state="running")
    [run] = read_all(tmp_path)
    assert not run.alive
    assert "killed" in table([run])
    StatusFile(Status("clicks"), tmp_path).update()
    assert len(read_all(tmp_path)) == 2
    StatusFile(Status("orders"), tmp_path).update()
    assert {run.pid for run in read_all(tmp_path)} == {os.getpid()}


def test_one_that_failed_says_why(tmp_path: Path) -> None:
    StatusFile(Status("orders"), tmp_path).update(state="failed", error="the disk is full")
    [run] = read_all(tmp_path)
    assert "failed" in table([run]) and "the disk is full" in table([run])


def test_files_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "y.json").write_text('{"unknown": 1}')
    assert read_all(tmp_path) == []
    assert read_all(tmp_path / "none") == []


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = StatusFile(Status("x"), tmp_path / "file")
    file.update(state="running")
    file.remove()


def test_the_folder_is_the_user_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_STATE", raising=False)
    assert state_folder() == tmp_path / "penstock" / "pipelines"
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "here"))
    assert state_folder() == tmp_path / "here"


def test_a_broker_that_does_not_answer_leaves_it_unknown() -> None:
    started_s = time.monotonic()
    assert ask_brokers(Status("x", nodes=["127.0.0.1:1"])) is None
    assert ask_brokers(Status("x")) is None
    assert time.monotonic() - started_s < 5


def test_locks_and_ledgers_are_shown(tmp_path: Path) -> None:
    owner = Owner.of_this_process("orders")
    path, beside = "_penstock/ledger/orders", tmp_path / "c.ledger"
    ledger = Ledger(LocalFolder(str(tmp_path / "t")), path, "orders", "parquet t")
    ledger.create("ab" * 16, ["parquet t"])
    one, other = (Log("c", node, "orders", "0" * 16) for node in ("n1", "n2"))
    batch = Batch("q", 0, (Span(one, 0, 50, 40), Span(other, 0, 7, 5)))
    ledger.commit(ledger.batch_record(batch, batch.spans))
    batch = Batch("q", 1, (Span(one, 50, 70, 20),))
    ledger.commit(ledger.batch_record(batch, batch.spans))
    loss = Accepted("abc", 5, Span(one, 3, 9), "gone")
    ledger.commit(ledger.record(LOSS, losses=(loss,)))
    table_folder = tmp_path / "t" / path
    (table_folder / "lock.json").write_bytes(owner.to_json())
    (beside / "sink2").mkdir(parents=True)
    (beside / "sink2" / "head.json").write_text('{"version": 9, "ranges": 5, "losses": null}')
    found = details_of([str(table_folder), str(beside), "hdfs://x/y", str(tmp_path / "none")])
    assert found["lock"]["pid"] == os.getpid()
    assert found["identity"] == "ab" * 16
    assert [ledger["messages"] for ledger in found["ledgers"]] == [65]
    ends = {each["node"]: each["end"] for each in found["ledgers"][0]["ends"]}
    assert ends == {"n1": 70, "n2": 7}
    assert found["losses"] == [loss.as_json()]
    text = table([Status("orders")], [found])
    for part in (f"lock: process {os.getpid()} on ", "identity: abab", "orders on n1: 70"):
        assert part in text
    assert "65 messages up to record 3" in text and "loss accepted: {" in text
    assert details_of([]) == {"lock": None, "identity": "", "ledgers": [], "losses": []}


def test_a_run_that_is_being_stopped_keeps_its_state(tmp_path: Path) -> None:
    file = StatusFile(Status("orders"), tmp_path)
    file.update(state=PipelineState.RETRYING, stopping=True, attempt=2)
    [run] = read_all(tmp_path)
    assert (run.state, run.shown_state) == ("retrying", "retrying, stopping")
    file.update(state=PipelineState.FAILED)
    assert read_all(tmp_path)[0].shown_state == "failed"


def test_what_was_gone_before_a_topic_was_found_is_told(tmp_path: Path) -> None:
    file = StatusFile(Status("orders", topics=["a"]), tmp_path)
    file.update(gone_topics=1, gone_before=39_990)
    assert "a; at least 39,990 messages of 1 topics were removed" in table(read_all(tmp_path))
    file.update(gone_topics=2, gone_before=0)
    assert "a; an unknown number of messages of 2 topics" in table(read_all(tmp_path))
