"""The pictures of docs/admin.md and README.md: pages of a cluster that is busy for some minutes.

python -m tests.admin.pictures           # 200 s; writes docs/images/admin-*.png
python -m tests.admin.pictures 20 /tmp   # shorter, elsewhere
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from penstock import Consumer, Message, Producer
from tests.admin.browser import REPOSITORY, Browser, launched
from tests.admin.cluster import Cluster

SECONDS = 200.0
TURN_S = 0.1
BATCH_S = 3.0
SIZE = {"width": 1280, "height": 860}
# topic, messages a second on all nodes, channels
TOPICS = (
    ("orders", 80, ("billing", "archive", "email")),
    ("payments", 30, ("ledger", "fraud")),
    ("signups", 8, ("welcome", "crm")),
    ("clicks", 120, ("sessions", "heatmap#ephemeral")),
    ("audit.log", 2, ("storage",)),
    ("invoices", 4, ("pdf",)),
    ("stock", 15, ("warehouse", "search")),
)
# Pages, and whether their picture is dark.
PICTURES = (
    ("overview", "/", False),
    ("topics", "/topics", False),
    ("topic", "/topics/orders", True),
    ("channel", "/topics/orders/email", False),
    ("dead", "/topics/payments/fraud/dead", False),
    ("node", "/nodes/{node}", False),
    ("deferred", "/deferred", False),
    ("pipelines", "/pipelines", True),
    ("lookup", "/lookup", False),
)


class Traffic:
    """Producers and consumers on a loop of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        lookupd = self._cluster.lookupd.http_address
        consumers = [
            Consumer(
                topic,
                channel,
                _handler(channel),
                lookupd_http_addresses=[lookupd],
                max_in_flight=30,
                concurrency=30,
                client_id=f"{channel.partition('#')[0]}-{number}",
                hostname=f"{channel.partition('#')[0]}-{number}.example.org",
                lookupd_poll_interval=2,
            )
            for topic, _, channels in TOPICS
            for channel in channels
            for number in range(2)
            if channel not in ("pdf", "search")
        ]
        for consumer in consumers:
            await consumer.start()
        addresses = [f"127.0.0.1:{nsqd.tcp_port}" for nsqd in self._cluster.nsqds]
        async with asyncio.TaskGroup() as group:
            for address in addresses:
                group.create_task(self._produce(address))
        await asyncio.gather(*(consumer.stop() for consumer in consumers))

    async def _produce(self, address: str) -> None:
        chance = random.Random(address)
        begun_s = time.monotonic()
        async with Producer(address) as producer:
            while not self._stop.is_set():
                now_s = time.monotonic() - begun_s
                for number, (topic, rate, _) in enumerate(TOPICS):
                    wave = 1 + 0.45 * math.sin(now_s / (9 + 4 * number) + number)
                    share = rate * wave * TURN_S / 3 * chance.uniform(0.6, 1.4)
                    for _ in range(int(share + chance.random())):
                        await producer.publish(topic, _body(topic, chance))
                if chance.random() < 0.2:
                    delay_s = chance.expovariate(1 / 50_000)
                    await producer.publish("invoices", _body("invoices", chance), delay=delay_s)
                await asyncio.sleep(TURN_S)


def _handler(channel: str):  # type: ignore[no-untyped-def]
    async def handle(message: Message) -> None:
        await asyncio.sleep(random.uniform(0.3, 1.3) if channel == "email" else 0.002)
        if channel == "fraud" and json.loads(message.body)["id"] % 200 == 0:
            message.requeue(0, backoff=False)
        elif channel == "fraud" and random.random() < 0.02:
            message.requeue(5.0, backoff=False)

    return handle


def _body(topic: str, chance: random.Random) -> bytes:
    return json.dumps(
        {"topic": topic, "id": chance.randrange(10**9), "amount": round(chance.random() * 90, 2)}
    ).encode()


def prepare(cluster: Cluster) -> None:
    """What makes the pages less empty: a paused channel, dead letters, a pipeline, a leftover."""
    for topic, _, channels in TOPICS:
        cluster.create(topic, *channels)
    for nsqd in cluster.nsqds:
        nsqd.post("/channel/pause?topic=stock&channel=search")
        nsqd.http("PUT", "/policy?topic=payments&channel=fraud", b'{"max_attempts": 3}')
    cluster.lookupd.post("/topic/create?topic=returns")
    cluster.lookupd.post("/channel/create?topic=returns&channel=refunds")


def pull(cluster: Cluster, batch: int) -> None:
    """One batch of a Spark query, as the nsqds see it."""
    for nsqd in cluster.nsqds:
        pulled = nsqd.post("/channel/pull?topic=clicks&channel=lake&start=earliest").json
        progress = {
            "name": "clicks to the lake",
            "query": "0b9c6a52-clicks",
            "state": "running",
            "batch": batch,
            "input_rate": 118 + 9 * math.sin(batch),
            "processed_rate": 1130.0 + 40 * math.sin(batch),
            "batch_ms": 640 + batch % 7 * 12,
            "rows": 361 + batch % 5 * 7,
            "sink": "parquet s3://lake/clicks",
            "error": None,
            "at_ms": int(time.time() * 1000),
        }
        place = {"index": pulled["end"], "instance": pulled["instance"]}
        body = {"channel": "lake", "topics": {"clicks": place}, "progress": progress}
        nsqd.post("/channel/commit", json.dumps(body).encode())


def take(cluster: Cluster, browser: Browser, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path, dark in PICTURES:
        scheme = "dark" if dark else "light"
        with browser.tab(cluster.admin.url, color_scheme=scheme, viewport=SIZE) as tab:
            tab.open(path.format(node=cluster.node(0)))
            tab.page.wait_for_timeout(300)
            tab.page.screenshot(path=folder / f"admin-{name}.png")


def main(arguments: list[str]) -> None:
    seconds = float(arguments[0]) if arguments else SECONDS
    folder = Path(arguments[1]) if arguments[1:] else REPOSITORY / "docs" / "images"
    with (
        tempfile.TemporaryDirectory() as data,
        Cluster(Path(data)) as cluster,
        launched() as browser,
    ):
        prepare(cluster)
        with Traffic(cluster):
            for batch in range(int(seconds / BATCH_S)):
                pull(cluster, batch)
                time.sleep(BATCH_S)
            take(cluster, browser, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
