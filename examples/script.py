"""Publish and consume without asyncio.

python examples/script.py [nsqd's TCP address]
"""

import sys

from penstock.client import sync

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"

with sync.Producer(NSQD) as producer:
    producer.publish("tasks", b"at once")
    producer.publish("tasks", b"in a second", delay=1.0)

with sync.Consumer("tasks", "worker", nsqd_tcp_addresses=NSQD) as consumer:
    for message in consumer:
        print(message.body.decode())
        if message.body == b"in a second":
            message.finish()
            break
