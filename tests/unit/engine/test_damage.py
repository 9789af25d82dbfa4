"""Damage is reported once, survives a restart and stays until it is cleared."""

from __future__ import annotations

import errno
import json
import logging

import pytest

from penstock.errors import StorageError
from penstock.storage.damage import RECORD_MAX
from tests.crash.lossy import LossyFiles
from tests.support.engine import SECOND, Engine

PATH = "/data/penstock/damage.json"


def texts(engine: Engine) -> list[str]:
    return [record.text for record in engine.components.damage.records]


def test_a_report_is_logged_counted_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    assert engine.components.damage.summary is None
    with caplog.at_level(logging.ERROR):
        engine.components.damage.report("log", "12 bytes are bad", topic="t", path="/x", messages=3)
    assert [record.getMessage() for record in caplog.records] == [
        "topic=t: damaged (log): 12 bytes are bad"
    ]
    engine.settle()
    assert engine.components.health.problem is None
    summary = engine.components.damage.summary
    assert summary is not None and (summary["records"], summary["messages"]) == (1, 3)
    engine.crash("lose")
    engine.start()
    assert texts(engine) == ["12 bytes are bad"]
    assert not engine.components.damage.counts, "counters begin with the process"


def test_the_same_damage_is_reported_once_also_after_it_was_cleared() -> None:
    engine = Engine()
    for _ in range(3):
        engine.components.damage.report("side", "gone", topic="t", path="/x")
    assert texts(engine) == ["gone"] and engine.components.damage.counts["side"] == 1
    assert engine.done(engine.components.damage.clear()) is None
    assert texts(engine) == [] and engine.components.damage.summary is None
    engine.crash("lose")
    engine.start()
    engine.components.damage.report("side", "gone", topic="t", path="/x")
    assert texts(engine) == []
    engine.components.damage.report("side", "another is gone", topic="t", path="/x")
    assert texts(engine) == ["another is gone"]


def test_reports_are_bounded() -> None:
    engine = Engine()
    for number in range(RECORD_MAX + 7):
        engine.components.damage.report("log", f"place {number}")
    assert len(texts(engine)) == RECORD_MAX and texts(engine)[0] == "place 7"


def test_a_record_that_cannot_be_written_comes_with_the_next() -> None:
    files = LossyFiles()
    engine = Engine(files)
    files.fail("append", errno.EIO)
    engine.components.damage.report("log", "first")
    engine.settle()
    assert engine.components.health.problem is not None
    engine.advance(3 * SECOND)
    assert engine.components.health.problem is None
    engine.components.damage.report("log", "second")
    engine.settle()
    engine.crash("lose")
    engine.start()
    assert texts(engine) == ["first", "second"]


def test_a_damaged_file_of_records_is_kept_and_reported() -> None:
    engine = Engine()
    engine.components.damage.report("log", "first")
    engine.settle()
    engine.crash("keep")
    engine.files.write_new(PATH, b'{"format": 1, "records": [{}]}')
    engine.start()
    (text,) = texts(engine)
    assert "damage.json.bad" in text and engine.files.exists(PATH + ".bad")


def test_a_later_format_of_records_refuses_the_start_and_is_left_alone() -> None:
    engine = Engine()
    engine.crash("keep")
    later = json.dumps({"format": 2, "records": []}).encode()
    engine.files.write_new(PATH, later)
    with pytest.raises(StorageError, match=r"later version \(format 2\)"):
        engine.start()
    assert engine.files.read(PATH) == later


def test_what_fails_now_is_in_health_and_only_while_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    health = engine.components.health
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            health.failing("topic=t", OSError(errno.EIO, "cannot be read"))
        health.failing("slot", "cannot be opened")
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 2
    assert engine.components.health.text == "NOK - topic=t: [Errno 5] cannot be read"
    engine.advance(5 * SECOND)  # a probe of writes does not say that reads work
    health.working("topic=t")
    assert engine.components.health.text == "NOK - slot: cannot be opened"
    health.working("slot")
    health.working("slot")
    assert engine.components.health.problem is None
