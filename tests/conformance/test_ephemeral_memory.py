"""What ephemeral queues keep is bounded by bytes, whichever way messages come to be kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.conformance.test_unread import MB, memory_growth, memory_size
from tests.support.client import Client
from tests.support.daemon import Nsqd

QUEUE_SIZE = 8 * MB
PUBLISHED_SIZE = 240 * MB


def publish(client: Client, topic: str) -> None:
    for _ in range(PUBLISHED_SIZE // (4 * MB)):
        client.mpub(topic, [bytes(MB // 4)] * 16)


def nobody_listens(nsqd: Nsqd, producer: Client) -> None:
    publish(producer, "t#ephemeral")


def nobody_is_ready(nsqd: Nsqd, producer: Client) -> None:
    with Client.of(nsqd).sub("t", "c#ephemeral"):
        publish(producer, "t")


def nothing_is_finished(nsqd: Nsqd, producer: Client) -> None:
    with Client.of(nsqd).sub("t", "c#ephemeral", ready=2500) as consumer:
        publish(producer, "t")
        assert len(consumer.arrived(0.2)) in range(16, 33)


def all_is_requeued(nsqd: Nsqd, producer: Client) -> None:
    """With a delay: then it is neither waiting nor in flight."""
    with Client.of(nsqd).sub("t#ephemeral", "c", ready=2500) as consumer:
        for _ in range(PUBLISHED_SIZE // (4 * MB)):
            producer.mpub("t#ephemeral", [bytes(MB // 4)] * 16)
            for message in consumer.arrived(0.02):
                consumer.req(message, 3_600_000)


def all_is_deferred(nsqd: Nsqd, producer: Client) -> None:
    for _ in range(PUBLISHED_SIZE // MB):
        for _ in range(4):
            producer.send(commands.dpub("t#ephemeral", 3_600_000, bytes(MB // 4)))
        for _ in range(4):
            assert producer.reply().text == b"OK"


@pytest.mark.parametrize(
    "use", [nobody_listens, nobody_is_ready, nothing_is_finished, all_is_requeued, all_is_deferred]
)
def test_an_ephemeral_queue_keeps_a_bounded_number_of_bytes(
    tmp_path: Path, use: Callable[[Nsqd, Client], None]
) -> None:
    with Nsqd(tmp_path, f"--mem-queue-bytes={QUEUE_SIZE}") as nsqd, Client.of(nsqd) as producer:
        producer.pub("warm", b"x")
        before = memory_size(nsqd)
        use(nsqd, producer)
        # Besides the queue: batches on their way, and the newest of a topic.
        assert memory_growth(nsqd, before) < QUEUE_SIZE + 48 * MB
        assert nsqd.metric("penstock_ephemeral_dropped_messages_total") > 100
        assert nsqd.metric("penstock_ephemeral_bytes") <= QUEUE_SIZE
