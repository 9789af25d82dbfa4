"""A message, and what may be said about it.

    handler returns            finish
    handler returns False      requeue, and back off
    handler raises             requeue, and back off
    message.finish(), .requeue(delay), .touch()      said explicitly, from any thread
    message.enable_async()     the handler's end says nothing; the program answers later

A message is answered once: what comes after the first finish or requeue is ignored, as in go-nsq,
and so is an answer after the connection was lost: nsqd delivers the message again.
"""

from __future__ import annotations

from penstock.core.frames import Message

__all__ = ["DETACHED", "RESPONDED", "WAITING", "Message", "requeue_delay_s"]

WAITING = 0  # the handler's end decides
DETACHED = 1  # the program has said it will answer itself
RESPONDED = 2


def requeue_delay_s(attempts: int, unit_s: float, delay_max_s: float) -> float:
    """How long a message waits that has failed ``attempts`` times."""
    return min(unit_s * attempts, delay_max_s)
