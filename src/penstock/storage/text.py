# Values formatted for people: times, bodies and lists, shortened.

from __future__ import annotations

from datetime import UTC, datetime

BODY_SIZE_SHOWN = 60


def signed(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def time_of(time_ns: int) -> str:
    """UTC to the microsecond; the number itself if it is out of range."""
    try:
        moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ns)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % 1_000_000_000 // 1000:06d}Z"


def body_of(body: bytes) -> str:
    shown = repr(body[:BODY_SIZE_SHOWN])[1:]
    more = "..." if len(body) > BODY_SIZE_SHOWN else ""
    return f"body={len(body)}:{shown}{more}"


def short(items: list[int] | list[str]) -> str:
    shown = ",".join(map(str, items[:8]))
    return f"[{shown}{f',... {len(items)}' if len(items) > 8 else ''}]"
