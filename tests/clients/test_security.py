"""TLS, compression, both, and AUTH: checklist 10."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Consumer, Producer
from penstock.errors import NotConnectedError, RefusedError
from tests.clients.harness import LOOPS, QUICK, Received, run
from tests.support.auth_server import AuthServer, entry, reply
from tests.support.certificates import Pki
from tests.support.daemon import Nsqd
from tests.support.waits import until

WAYS: dict[str, dict[str, object]] = {
    "tls": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True, "deflate_level": 3},
    "tls+snappy": {"tls_v1": True, "snappy": True},
    "tls+deflate": {"tls_v1": True, "deflate": True},
}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Nsqd]:
    with AuthServer({"s3cret": reply(entry("^ok"))}) as server:
        options = (*pki.options(), f"--auth-http-address={server.address}")
        with Nsqd(tmp_path_factory.mktemp("nsqd"), *options) as daemon:
            yield daemon


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_messages_pass_in_both_directions(nsqd: Nsqd, pki: Pki, way: str, loop: str) -> None:
    topic = f"ok-{way.replace('+', '-')}-{loop}"
    received = Received()
    options = {**QUICK, **WAYS[way], "auth_secret": "s3cret", "tls_root_ca_file": pki.ca}
    address = f"127.0.0.1:{nsqd.tcp_port}"
    bodies = [b"%d" % n + b"x" * 1000 for n in range(500)]

    async def work() -> None:
        async with Producer(address, **options) as producer:
            await asyncio.gather(*(producer.publish(topic, body) for body in bodies))
        async with Consumer(
            topic, "ch", received, nsqd_tcp_addresses=address, max_in_flight=100, **options
        ):
            await until(lambda: len(received) == 500)

    run(work(), loop)
    assert sorted(received.bodies) == sorted(bodies)
    channel = nsqd.channel(topic, "ch")
    assert channel["depth"] + channel["in_flight_count"] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "requires auth_secret"),
        ({"auth_secret": "wrong"}, "E_AUTH_FAILED"),
        ({"tls_v1": True, "auth_secret": "s3cret"}, "certificate verify failed"),
    ],
)
def test_what_is_missing_is_named(nsqd: Nsqd, options: dict[str, object], reason: str) -> None:
    async def work() -> None:
        with pytest.raises(NotConnectedError, match=reason):
            await Producer(f"127.0.0.1:{nsqd.tcp_port}", **QUICK, **options).start()

    run(work())


def test_a_topic_that_is_not_allowed_is_refused(nsqd: Nsqd) -> None:
    async def work() -> None:
        address = f"127.0.0.1:{nsqd.tcp_port}"
        async with Producer(address, auth_secret="s3cret", **QUICK) as producer:
            with pytest.raises(RefusedError, match="E_UNAUTHORIZED"):
                await producer.publish("other", b"x")
            await producer.publish("ok", b"x")

    run(work())


def test_tls_that_nsqd_does_not_offer_is_not_done_without(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "plain") as plain:

        async def work() -> None:
            with pytest.raises(NotConnectedError, match="does not offer TLS"):
                await Producer(f"127.0.0.1:{plain.tcp_port}", tls_v1=True, **QUICK).start()

        run(work())


def test_sampling_takes_a_part(nsqd: Nsqd) -> None:
    received = Received()
    address = f"127.0.0.1:{nsqd.tcp_port}"
    options = {**QUICK, "auth_secret": "s3cret"}

    async def work() -> None:
        async with Producer(address, **options) as producer:
            await producer.publish_many("ok-sampled", [b"x"] * 2000)
        async with Consumer(
            *("ok-sampled", "ch", received),
            nsqd_tcp_addresses=address,
            sample_rate=30,
            max_in_flight=100,
            **options,
        ):
            await until(lambda: nsqd.channel("ok-sampled", "ch")["depth"] == 0)
            await asyncio.sleep(0.05)

    run(work())
    assert 450 < len(received) < 800
