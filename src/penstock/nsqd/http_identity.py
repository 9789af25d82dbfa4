"""The reader of a pull channel, in requests and responses (R45).

409 CHANNEL_HAS_READER    the channel is bound to another identity
409 TAKE_OVER_REFUSED     the channel is not bound to the identity to be replaced
409 PULL_CHANNEL          a reader would lose messages, and ``force`` is not set
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.pull.channel import HasReaderError, PullChannel, ReaderError
from penstock.net.http_message import HttpError, Request
from penstock.storage.channel_reader import ChannelReader, is_identity, short_name

# Readers listed in a detail, which is one line of text.
READER_COUNT_MAX = 5


def argument_identity(request: Request, name: str = "identity") -> str | None:
    """An identity in the query."""
    return _identity(request.query.get(name), name)


def body_identity(body: Mapping[str, Any], name: str = "identity") -> str | None:
    """An identity in a body."""
    return _identity(body.get(name), name)


def body_reader(body: Mapping[str, Any]) -> str | None:
    """The name of a reader in a body, truncated to the maximum length."""
    name = body.get("reader")
    if name is not None and not isinstance(name, str):
        raise HttpError(400, "INVALID_READER")
    return None if name is None else short_name(name)


def _identity(value: object, name: str) -> str | None:
    if value is None:
        return None
    if not is_identity(value):
        detail = f"{name} must be 32 lower-case hex digits"
        raise HttpError(400, f"INVALID_{name.upper()}", detail=detail)
    return str(value)


def refusal(error: ReaderError) -> HttpError:
    """The response to a call from another reader: who is the reader, and since when."""
    channel, reader = error.channel, error.channel.reader
    code = "CHANNEL_HAS_READER" if isinstance(error, HasReaderError) else "TAKE_OVER_REFUSED"
    return HttpError(
        409,
        code,
        detail=str(error),
        topic=channel.topic.name,
        channel=channel.name,
        identity=None if reader is None else reader.identity,
        since_ms=None if reader is None else reader.since_ms,
    )


def admit(channel: PullChannel, identity: str | None) -> None:
    """Refuse all but the channel's reader, if it has one."""
    try:
        channel.admit(identity)
    except HasReaderError as error:
        raise refusal(error) from None


def guard_channel(topic: BaseTopic, channel: Channel, done: str) -> HttpError | None:
    """The refusal of an operation (``done``: "emptied") on a pull channel; None if it is plain."""
    if channel.pull is None:
        return None
    return _guard(
        topic,
        [channel],
        f"channel {channel.name} of topic {topic.name} is a pull channel, {_by(channel)};"
        f" if it is {done}, its reader loses what it has not read."
        f" With force=true it is {done} anyway",
    )


def guard_topic(topic: BaseTopic, done: str) -> HttpError | None:
    """The refusal of an operation on a topic with pull channels; None if it has none."""
    pulled = [channel for channel in topic.channels.values() if channel.pull is not None]
    if not pulled:
        return None
    some = "; ".join(f"{c.name}, {_by(c)}" for c in pulled[:READER_COUNT_MAX])
    more = len(pulled) - READER_COUNT_MAX
    return _guard(
        topic,
        pulled[:READER_COUNT_MAX],
        f"topic {topic.name} has pull channels: {some}{f'; and {more} more' if more > 0 else ''}."
        f" If it is {done}, their readers lose what they have not read."
        f" With force=true it is {done} anyway",
    )


def _guard(topic: BaseTopic, channels: Iterable[Channel], detail: str) -> HttpError:
    readers = [{"channel": channel.name, **_reader(channel)} for channel in channels]
    return HttpError(409, "PULL_CHANNEL", detail=detail, topic=topic.name, readers=readers)


def _reader(channel: Channel) -> dict[str, Any]:
    pull = channel.pull or {}
    return {key: pull.get(key) for key in ("identity", "reader", "reader_since_ms")}


def _by(channel: Channel) -> str:
    identity, name, since_ms = _reader(channel).values()
    if identity is None:
        return "not bound to a reader yet"
    return f"read by {ChannelReader(identity, name, since_ms)}"
