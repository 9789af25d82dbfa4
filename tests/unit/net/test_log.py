"""The form of log lines, and what becomes of them when nobody reads."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.net import log


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):
            os.close(fd)


def logger_on(handler: logging.Handler, formatter: logging.Formatter) -> logging.Logger:
    handler.setFormatter(formatter)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def drain(fd: int) -> str:
    parts = []
    while True:
        try:
            parts.append(os.read(fd, 65536))
        except BlockingIOError:
            return b"".join(parts).decode()


def test_a_text_line_has_nsqs_form(pipe: tuple[int, int]) -> None:
    logger = logger_on(log.StderrHandler(pipe[1]), log.TextFormatter("[nsqd] "))
    logger.debug("a %d", 1)
    logger.info("TCP: listening on %s", "127.0.0.1:4150")
    logger.warning("c")
    logger.error("d")
    logger.fatal("e")
    lines = drain(pipe[0]).splitlines()
    shape = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} ([A-Z]+): (.*)")
    matches = [shape.fullmatch(line) for line in lines]
    assert [match.groups() if match else None for match in matches] == [
        ("DEBUG", "a 1"),
        ("INFO", "TCP: listening on 127.0.0.1:4150"),
        ("WARNING", "c"),
        ("ERROR", "d"),
        ("FATAL", "e"),
    ]


def test_the_time_is_local_with_microseconds() -> None:
    child = (
        "import logging, sys; from penstock.net import log;"
        "r = logging.makeLogRecord({'msg': 'x', 'levelno': 20, 'levelname': 'INFO'});"
        "r.created = 1800000000.370396; print(log.TextFormatter('').format(r))"
    )
    result = subprocess.run(
        [sys.executable, "-c", child], env={**os.environ, "TZ": "UTC-2"}, capture_output=True
    )
    assert re.fullmatch(rb"2027/01/15 10:00:00\.37039[56] INFO: x\n", result.stdout)


def test_a_json_line_holds_any_text(pipe: tuple[int, int]) -> None:
    logger = logger_on(log.StderrHandler(pipe[1]), log.JSONFormatter("[nsqd] "))
    logger.warning('topic "a"\nb')
    line = json.loads(drain(pipe[0]))
    assert line["level"] == "WARNING"
    assert line["program"] == "nsqd"
    assert line["text"] == 'topic "a"\nb'
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d", line["time"])


def test_a_text_from_a_client_cannot_forge_a_line(pipe: tuple[int, int]) -> None:
    logger = logger_on(log.StderrHandler(pipe[1]), log.TextFormatter(""))
    logger.info("client %s", "a\n[nsqd] INFO: \x1b[2J\udcff ö")
    text = drain(pipe[0])
    assert text.count("\n") == 1
    assert text.endswith("client a\\n[nsqd] INFO: \\x1b[2J\\udcff ö\n")


def test_a_traceback_follows_its_line(pipe: tuple[int, int]) -> None:
    logger = logger_on(log.StderrHandler(pipe[1]), log.TextFormatter(""))
    try:
        raise RuntimeError("why")
    except RuntimeError:
        logger.exception("failed")
    text = drain(pipe[0])
    assert "ERROR: failed\nTraceback" in text
    assert text.endswith("RuntimeError: why\n")


def test_a_closed_standard_error_is_no_error(pipe: tuple[int, int]) -> None:
    handler = log.StderrHandler(pipe[1])
    logger = logger_on(handler, log.TextFormatter(""))
    os.close(pipe[0])
    logger.info("nobody reads")
    os.close(pipe[1])
    logger.info("nobody could")
    logger.info("arguments that do not fit %d", "x")
    assert handler.dropped_count == 3


def test_a_reader_that_is_stuck_costs_lines_and_not_time(pipe: tuple[int, int]) -> None:
    handler = log.StderrHandler(pipe[1])
    logger = logger_on(handler, log.TextFormatter(""))
    for _ in range(200):
        logger.info("x" * 1000)
    logger.info("x" * 1_000_000)
    dropped_count = handler.dropped_count
    assert dropped_count > 50
    drain(pipe[0])
    logger.info("back")
    lines = drain(pipe[0]).splitlines()
    assert lines[0].endswith(f"WARNING: {dropped_count} log lines were dropped")
    assert lines[1].endswith("INFO: back")


def test_the_level_changes_while_running() -> None:
    before = log.LOGGER.level
    try:
        log.set_level("error")
        assert not logging.getLogger("penstock.nsqd.client").isEnabledFor(logging.WARNING)
        log.set_level("debug")
        assert logging.getLogger("penstock.nsqd.client").isEnabledFor(logging.DEBUG)
    finally:
        log.LOGGER.setLevel(before)


def test_a_file_opened_after_a_closed_standard_error_does_not_receive_log_lines() -> None:
    child = (
        "import os, sys, logging; os.close(2);"
        "from penstock.net import log; log.configure();"
        "fd = os.open('/dev/null', os.O_RDONLY); logging.getLogger('penstock').info('x');"
        "print(fd)"
    )
    result = subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE)
    assert int(result.stdout) > 2
