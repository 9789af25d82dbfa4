"""Buried messages: their memory, the speed of a kick, and what failing messages cost a channel."""

from __future__ import annotations

import json
import socket
import time

from bench.broker import Broker
from bench.throughput import Metrics
from penstock.wire import commands

SIZE = 200
FRAME_SIZE = 4 + 4 + 8 + 2 + 16 + SIZE
OK_SIZE = 2 * (4 + 4 + 2)  # of IDENTIFY and SUB
ATTEMPTS_AT, ID_AT, ID_END = 17, 18, 34  # in a frame; attempts are below 256 here
# The last two digits of an id: 26 of 256 messages are the tenth that fails.
POISON = frozenset(b"%02x" % number for number in range(0, 256, 10))
ALL = frozenset(b"%02x" % number for number in range(256))
NONE: frozenset[bytes] = frozenset()


def buried(broker: Broker, *, messages: int) -> Metrics:
    """Bury a million messages, and kick them.

    A quarter as many are buried before: what grows with the first ones is not counted.
    """
    _fill(broker, "finished", messages, max_attempts=0)
    _answer(broker, "finished", messages, NONE, 1)
    _fill(broker, "first", messages // 4, max_attempts=1)
    _answer(broker, "first", messages // 4, ALL, 1)
    before = broker.settle()
    _fill(broker, "buried", messages, max_attempts=1)
    _answer(broker, "buried", messages, ALL, 1)
    after = broker.settle()
    begun_s = time.monotonic()
    answer = broker.post("/channel/kick?topic=buried&channel=bench").json
    kick_s = time.monotonic() - begun_s
    return {
        "each_size": (after.rss_size - before.rss_size) / messages,
        "kick_rate": answer["kicked"] / kick_s,
        "missing": messages - answer["kicked"],
    }


def failing(broker: Broker, *, messages: int, attempts: int) -> Metrics:
    """Consume with a tenth of the messages requeued until they are buried, and with none.

    The rate is that of deliveries: a message that fails has several.
    """
    speed, cpu_us = {}, {}
    for topic, poison in (("warm", NONE), ("good", NONE), ("tenth", POISON)):
        _fill(broker, topic, messages, max_attempts=attempts)
        broker.settle()
        before, begun_s = broker.usage(), time.monotonic()
        deliveries = _answer(broker, topic, messages, poison, attempts)
        speed[topic] = deliveries / (time.monotonic() - begun_s)
        cpu_us[topic] = (broker.usage().cpu_us - before.cpu_us) / deliveries
    return {
        "rate": speed["tenth"],
        "kept": speed["tenth"] / speed["good"],
        "cpu_us": cpu_us["tenth"],
        "missing": broker.unfinished("tenth"),
    }


def _fill(broker: Broker, topic: str, messages: int, **policy: int) -> None:
    broker.create(topic, "bench")
    body = json.dumps(policy).encode()
    assert broker.http("PUT", f"/policy?topic={topic}&channel=bench", body).status == 200
    broker.fill(messages, topic, size=SIZE)
    broker.settle()


def _answer(
    broker: Broker, topic: str, messages: int, poison: frozenset[bytes], attempts: int
) -> int:
    """Finish ``messages``, or requeue those in ``poison`` until they are buried.

    Returns the number of deliveries.
    """
    deliveries = 0
    with socket.create_connection(("127.0.0.1", broker.tcp_port), 60) as sock:
        fields = {"heartbeat_interval": 60_000}  # none in a run
        sock.sendall(commands.MAGIC_V2 + commands.identify(fields))
        sock.sendall(commands.sub(topic, "bench") + commands.rdy(2500))
        data, left = b"", messages
        while len(data) < OK_SIZE:
            data += sock.recv(1 << 20)
        data = data[OK_SIZE:]
        while left:
            if len(data) < FRAME_SIZE:  # the first ones may have come with the OKs
                more = sock.recv(1 << 20)
                assert more, "the broker closed the connection"
                data += more
            whole = len(data) // FRAME_SIZE * FRAME_SIZE
            answers = []
            for at in range(0, whole, FRAME_SIZE):
                id = data[at + ID_AT : at + ID_END]
                if id[-2:] in poison:
                    answers.append(b"REQ %b 0\n" % id)
                    left -= data[at + ATTEMPTS_AT] == attempts
                else:
                    answers.append(b"FIN %b\n" % id)
                    left -= 1
            deliveries += whole // FRAME_SIZE
            data = data[whole:]
            sock.sendall(b"".join(answers))
        sock.sendall(commands.cls())
        while b"CLOSE_WAIT" not in data:  # all answers were executed
            data += sock.recv(1 << 16)
    return deliveries
