"""Encodes answers."""

from __future__ import annotations

import time

from penstock.net.http_message import Request, Response


def encode_response(response: Response, request: Request, keep_alive: bool) -> bytes:
    """The head and the body of an answer; the pieces of a large one are sent after them."""
    head, connection = response.head, b""
    if not keep_alive:
        connection = b"Connection: close\r\n"
    if request.version == "1.0":
        head = b"HTTP/1.0" + head[8:]
        if keep_alive:
            connection = b"Connection: keep-alive\r\n"
    body = b"" if request.method == "HEAD" else response.body
    return b"".join((head, _date_header(), connection, b"\r\n", body))


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_date: tuple[int, bytes] = (-1, b"")


def _date_header() -> bytes:
    """The Date header, formatted once a second."""
    global _date
    second = int(time.time())
    if second != _date[0]:
        utc = time.gmtime(second)
        text = (
            f"Date: {_DAYS[utc.tm_wday]}, {utc.tm_mday:02d} {_MONTHS[utc.tm_mon - 1]} "
            f"{utc.tm_year} {utc.tm_hour:02d}:{utc.tm_min:02d}:{utc.tm_sec:02d} GMT\r\n"
        )
        _date = (second, text.encode())
    return _date[1]
