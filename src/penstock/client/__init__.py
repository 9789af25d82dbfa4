"""The client: producers and consumers on asyncio.

config.py        options, checked                 errors are in penstock/errors.py
options.py       the same by name, for type checkers
backoff.py       how long a failing consumer pauses              no I/O, no clock
ready_counts.py  distributes max_in_flight over connections      no I/O, no clock
message.py       a message and its answers
connection.py    one connection to nsqd: setup, upgrades, frames, timeouts
link.py          reconnects one address
discovery.py     polls nsqlookupd for the nodes of a topic
subscription.py  a connection that consumes: in flight, FIN, REQ, TOUCH, CLS
runner.py        calls the program's handler: at once, in lanes, in batches
consumer.py      all connections of a topic and channel
publication.py   one publish, or a batch of them, until its response
producer.py      publishes to one nsqd or several
sync.py          both without asyncio: an event loop in its own thread
"""

from __future__ import annotations

from penstock.client.config import Config
from penstock.client.consumer import Consumer
from penstock.client.message import Message
from penstock.client.producer import Producer

__all__ = ["Config", "Consumer", "Message", "Producer"]
