"""The client: producers and consumers on asyncio.

config.py        options, checked                 errors are in penstock/errors.py
options.py       the same by name, for type checkers
backoff.py       when a failing consumer gets messages again       no I/O, no clock
ready_counts.py         how max_in_flight is spread over connections      no I/O, no clock
message.py       a message and its answers
connection.py    one connection to nsqd: bring-up, upgrades, frames, liveness
link.py          keeps one address connected
discovery.py     asks nsqlookupd where a topic is; http.py is its GET
subscription.py  a connection that consumes: in flight, FIN, REQ, TOUCH, CLS
runner.py        how messages meet the program's function: at once, in lanes, in batches
consumer.py      all connections of a topic and channel
publication.py   one publish, or a batch of them, until its answer
producer.py      publishing to one nsqd or several
sync.py          both without asyncio: a loop in a thread of its own
"""

from __future__ import annotations

from penstock.client.config import Config
from penstock.client.consumer import Consumer
from penstock.client.message import Message
from penstock.client.producer import Producer

__all__ = ["Config", "Consumer", "Message", "Producer"]
