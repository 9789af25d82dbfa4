"""A message asks its owner; the reader puts the owner in."""

from __future__ import annotations

import struct

from penstock.client.message import DETACHED, RESPONDED, WAITING, Message
from penstock.core.frames import FrameReader

FRAME = struct.pack(">IIqH16s", 30 + 4, 2, 7, 3, b"0123456789abcdef") + b"body"


class Owner:
    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def finish(self, message: Message) -> None:
        self.asked.append(("finish", message))

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self.asked.append(("requeue", message, delay, backoff))

    def touch(self, message: Message) -> None:
        self.asked.append(("touch", message))


def read(owner: object) -> Message:
    (message,) = FrameReader(1000, owner).feed(FRAME)
    assert isinstance(message, Message)
    return message


def test_answers_go_to_the_owner() -> None:
    owner = Owner()
    message = read(owner)
    message.touch()
    message.requeue()
    message.requeue(1.5, backoff=False)
    message.finish()
    assert owner.asked == [
        ("touch", message),
        ("requeue", message, None, True),
        ("requeue", message, 1.5, False),
        ("finish", message),
    ]


def test_a_message_knows_whether_it_was_answered() -> None:
    message = read(Owner())
    assert (message.state, message.responded) == (WAITING, False)
    message.enable_async()
    assert message.state == DETACHED
    message.state = RESPONDED
    message.enable_async()
    assert message.responded


def test_a_reader_without_owner_gives_messages_without() -> None:
    (message,) = FrameReader().feed(FRAME)
    assert isinstance(message, Message) and message.owner is None
    assert (message.attempts, message.body) == (3, b"body")
