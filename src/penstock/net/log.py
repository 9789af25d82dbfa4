"""Log lines on standard error, in NSQ's form or as JSON.

    [nsqd] 2026/11/15 04:31:22.370396 INFO: TCP: listening on 127.0.0.1:4150
    {"time":"2026-11-15T04:31:22.370396+00:00","level":"INFO","program":"nsqd","text":"TCP: ..."}

Modules log with ``logging.getLogger(__name__)``; this module sets up the handler.  Importing it is
free, since asyncio imports ``logging`` anyway.

Rule 1: logging never raises, whatever happened to standard error.
Rule 2: logging never blocks.  If the reader of the pipe is stuck, lines are dropped and counted: it
        is the event loop that would block.
Rule 3: one call, one line; a name sent by a client cannot forge a line.  Only tracebacks have
        several.
"""

from __future__ import annotations

import json
import logging
import os
import select
import time

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_NAMES = {logging.CRITICAL: "FATAL"}
# A pipe that polls as writable takes this much without blocking (POSIX, PIPE_BUF on Linux).
_CHUNK_SIZE = 4096
_STDERR_FD = 2

LOGGER = logging.getLogger("penstock")


class TextFormatter(logging.Formatter):
    """NSQ's form: prefix, local time with microseconds, level, text."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._second = -1
        self._second_text = ""

    def format(self, record: logging.LogRecord) -> str:
        second, microsecond = _split_time(record.created)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
        level = _NAMES.get(record.levelno, record.levelname)
        text = _one_line(record.getMessage())
        line = f"{self._prefix}{self._second_text}.{microsecond:06d} {level}: {text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JSONFormatter(logging.Formatter):
    """One object per line; the time has its UTC offset, so lines of several machines compare."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._program = prefix.strip(" []:")

    def format(self, record: logging.LogRecord) -> str:
        second, microsecond = _split_time(record.created)
        zone = time.strftime("%z", time.localtime(second))
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))
            + f".{microsecond:06d}{zone[:3]}:{zone[3:]}",
            "level": _NAMES.get(record.levelno, record.levelname),
            "program": self._program,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


class StderrHandler(logging.Handler):
    """Writes to a file descriptor, by the rules above."""

    def __init__(self, fd: int = _STDERR_FD) -> None:
        super().__init__()
        self.dropped_count = 0
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped_count and self._writable():
                self._report_dropped()
            self._write(self.format(record))
        except (OSError, ValueError, TypeError):
            # Closed, or the arguments do not match the format: there is nowhere to report it.
            self.dropped_count += 1

    def _report_dropped(self) -> None:
        count, self.dropped_count = self.dropped_count, 0
        text = f"{count} log lines were dropped"
        self._write(
            self.format(LOGGER.makeRecord(LOGGER.name, logging.WARNING, "", 0, text, (), None))
        )

    def _write(self, text: str) -> None:
        line = (text + "\n").encode("utf-8", "backslashreplace")
        for start in range(0, len(line), _CHUNK_SIZE):
            if not self._writable():
                self.dropped_count += 1
                return
            os.write(self._fd, line[start : start + _CHUNK_SIZE])

    def _writable(self) -> bool:
        ready = self._poll.poll(0)
        return bool(ready) and ready[0][1] == select.POLLOUT


def configure(*, level: str = "info", prefix: str = "[nsqd] ", form: str = "text") -> None:
    """Send Penstock's log lines, and warnings of others, to standard error.  Repeatable."""
    occupy_standard_files()
    handler = StderrHandler()
    handler.setFormatter(JSONFormatter(prefix) if form == "json" else TextFormatter(prefix))
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old, StderrHandler):
            root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)


def set_level(level: str) -> None:
    """Change the level of Penstock's own lines: debug, info, warn, error or fatal."""
    LOGGER.setLevel(LEVELS[level])


def occupy_standard_files() -> None:
    """Open /dev/null where standard input, output or error is closed.

    Otherwise the next file opened gets that descriptor, and a log line would go into a segment.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free one, which is this


def _split_time(created: float) -> tuple[int, int]:
    return divmod(int(created * 1_000_000), 1_000_000)


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
