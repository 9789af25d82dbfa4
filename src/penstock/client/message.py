"""A message and its answers.

    handler returns            finish
    handler returns False      requeue, and back off
    handler raises             requeue, and back off
    message.finish(), .requeue(delay), .touch(), .bury(text)      explicit answers, any thread
    message.enable_async()     the handler's return is not an answer; the program answers later

A message is answered once: answers after the first finish, requeue or bury are ignored, as in
go-nsq, and so are answers after the connection was lost: nsqd delivers the message again.
"""

from __future__ import annotations

from penstock.core.frames import Message

__all__ = ["DETACHED", "RESPONDED", "WAITING", "Message", "requeue_delay_s"]

WAITING = 0  # answered when the handler returns
DETACHED = 1  # enable_async was called: the program answers
RESPONDED = 2


def requeue_delay_s(attempts: int, unit_s: float, delay_max_s: float) -> float:
    """Delay of a message that failed ``attempts`` times."""
    return min(unit_s * attempts, delay_max_s)
