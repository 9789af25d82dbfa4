"""Several nsqds, and finding them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Consumer, Message
from tests.clients.harness import QUICK, Received, run
from tests.support.bodies import numbered
from tests.support.client import publish
from tests.support.daemon import Nsqd
from tests.support.lookup_server import Lookup
from tests.support.waits import until


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    with ExitStack() as stack:
        paths = [tmp_path_factory.mktemp(f"nsqd{n}") for n in range(3)]
        yield [stack.enter_context(Nsqd(path)) for path in paths]


def address(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.tcp_port}"


def consumer(topic: str, handler: Any, **options: Any) -> Consumer:
    return Consumer(topic, "ch", handler, **{**QUICK, **options})


def ready_counts(nsqds: list[Nsqd], topic: str) -> list[int]:
    return sorted(
        client["ready_count"]
        for nsqd in nsqds
        for client in nsqd.stats(f"&topic={topic}")["topics"][0]["channels"][0]["clients"]
    )


def test_all_nsqds_are_consumed_and_share_max_in_flight(nsqds: list[Nsqd]) -> None:
    """Checklist 2."""
    received = Received()
    for at, nsqd in enumerate(nsqds):
        publish(nsqd, "three", *numbered(100, at * 100))

    async def work() -> None:
        addresses = [address(nsqd) for nsqd in nsqds]
        async with consumer("three", received, nsqd_tcp_addresses=addresses, max_in_flight=10):
            await until(lambda: len(received) == 300)
            assert await asyncio.to_thread(ready_counts, nsqds, "three") == [3, 3, 4]

    run(work())
    assert sorted(received.bodies) == sorted(numbered(300))


def test_one_in_flight_for_three_nsqds_comes_round(nsqds: list[Nsqd]) -> None:
    """Checklist 3."""
    received = Received()
    most = 0

    async def handle(message: Message) -> None:
        nonlocal most
        most = max(most, one.in_flight)
        received(message)
        await asyncio.sleep(0.001)

    one = consumer(
        "rotate",
        handle,
        nsqd_tcp_addresses=[address(nsqd) for nsqd in nsqds],
        max_in_flight=1,
        low_rdy_idle_timeout=0.1,
        low_rdy_timeout=0.2,
        rdy_redistribute_interval=0.05,
    )
    for at, nsqd in enumerate(nsqds):
        publish(nsqd, "rotate", *numbered(30, at * 30))

    async def work() -> None:
        async with one:
            await until(lambda: len(received) == 90)
            assert sum(await asyncio.to_thread(ready_counts, nsqds, "rotate")) <= 1

    run(work())
    assert sorted(received.bodies) == sorted(numbered(90))


def test_nsqds_of_all_lookupds_are_found(nsqds: list[Nsqd]) -> None:
    received = Received()
    for at, nsqd in enumerate(nsqds):
        publish(nsqd, "found", b"%d" % at)

    async def work() -> None:
        with Lookup(address(nsqds[0]), address(nsqds[1])) as one, Lookup(address(nsqds[2])) as two:
            lookupds = [one.address, two.address, "127.0.0.1:1"]
            async with consumer(
                *("found", received),
                lookupd_http_addresses=lookupds,
                auth_secret="s3cret",
                max_in_flight=3,
            ):
                await until(lambda: len(received) == 3)
            assert one.topics == two.topics == ["found"]
            assert one.requests[0].headers["accept"] == "application/vnd.nsq; version=1.0"
            assert one.requests[0].headers["authorization"] == "Bearer s3cret"

    run(work())


def test_an_nsqd_that_appears_is_found_within_a_poll(nsqds: list[Nsqd]) -> None:
    """Checklist 8 and 9: the lookupd fails for a while, too."""
    received = Received()
    publish(nsqds[0], "appears", b"0")
    publish(nsqds[1], "appears", b"1")

    async def work() -> None:
        with Lookup(address(nsqds[0])) as lookup:
            async with consumer(
                "appears",
                received,
                lookupd_http_addresses=lookup.address,
                lookupd_poll_interval=0.1,
                max_in_flight=2,
            ) as found:
                await until(lambda: len(received) == 1)
                lookup.status = 500
                asked = len(lookup.topics)
                await until(lambda: len(lookup.topics) > asked + 1)
                assert found.connections == [address(nsqds[0])]
                lookup.status = 200
                lookup.addresses.append(address(nsqds[1]))
                await until(lambda: len(received) == 2)
                # No longer listed, but connected: it stays.
                lookup.addresses.clear()
                asked = len(lookup.topics)
                await until(lambda: len(lookup.topics) > asked + 1)
                assert len(found.connections) == 2

    run(work())


def test_a_lost_nsqd_is_asked_for_at_once_and_left_alone_when_it_is_gone(tmp_path: Path) -> None:
    received = Received()

    async def work() -> None:
        with Nsqd(tmp_path / "nsqd") as nsqd, Lookup(address(nsqd)) as lookup:
            async with consumer(
                "gone",
                received,
                lookupd_http_addresses=lookup.address,
                lookupd_poll_interval=300,
                lookupd_poll_jitter=1.0,
            ) as found:
                assert len(lookup.topics) == 1
                await asyncio.to_thread(nsqd.restart)
                publish(nsqd, "gone", b"x")
                await until(lambda: len(received) == 1)
                assert len(lookup.topics) >= 2
                lookup.addresses.clear()
                asked = len(lookup.topics)  # connections end before nsqd does
                await asyncio.to_thread(nsqd.terminate)
                await until(lambda: len(lookup.topics) > asked and not found.connections)
                await asyncio.sleep(0.5)
                assert found.connections == []

    run(work())


def test_addresses_may_be_left_out(nsqds: list[Nsqd]) -> None:
    async def work() -> None:
        with Lookup(*map(address, nsqds)) as lookup:
            wanted = address(nsqds[1])
            async with consumer(
                "filter",
                Received(),
                lookupd_http_addresses=lookup.address,
                accept=lambda found: found == wanted,
            ) as found:
                assert found.connections == [wanted]

    run(work())
