"""pynsq, nsqjs and ansq with TLS, with compression, with both, and with AUTH.

ansq 0.3 negotiates TLS and compression but leaves the upgrades themselves open;
clients/ansq_upgrades fills them in.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest

from tests.conformance import nodejs
from tests.conformance.scenarios import Driven
from tests.support.auth_server import AuthServer, entry, reply
from tests.support.bodies import numbered
from tests.support.certificates import Pki
from tests.support.daemon import Nsqd
from tests.support.waits import eventually

WAYS: dict[str, dict[str, object]] = {
    "tls": {"ca": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "tls+snappy": {"ca": True, "snappy": True},
    "tls+deflate": {"ca": True, "deflate": True},
    "auth": {"secret": "s3cret"},
    "tls+deflate+auth": {"ca": True, "deflate": True, "secret": "s3cret"},
}
CASES = [(client, way) for client in ("pynsq", "nsqjs", "ansq") for way in WAYS]


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    grants = {"s3cret": reply(entry("^(pynsq|nsqjs|ansq)"), entry("^other$"))}
    with AuthServer(grants) as server:
        yield server


@pytest.fixture(scope="module")
def open_nsqd(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("open"), *pki.options()) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.fixture(scope="module")
def guarded_nsqd(
    tmp_path_factory: pytest.TempPathFactory, pki: Pki, auth: AuthServer
) -> Iterator[Nsqd]:
    options = (*pki.options(), f"--auth-http-address={auth.address}")
    with Nsqd(tmp_path_factory.mktemp("guarded"), *options) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    nodejs.install()


def start(client: str, nsqd: Nsqd, security: dict[str, object]) -> Driven:
    given = [str(nsqd.tcp_port), json.dumps(security)]
    if client == "nsqjs":
        environment = {**os.environ, "NODE_PATH": str(nodejs.FOLDER / "node_modules")}
        return Driven(["node", str(nodejs.SOURCE / "nsqjs_driver.js"), *given], environment)
    driver = f"tests.conformance.clients.{client}_driver"
    return Driven([sys.executable, "-m", driver, *given])


@pytest.mark.parametrize(("client", "way"), CASES, ids=[f"{c}-{w}" for c, w in CASES])
def test_a_client_publishes_and_consumes(
    client: str, way: str, pki: Pki, open_nsqd: Nsqd, guarded_nsqd: Nsqd
) -> None:
    security = {key: pki.ca if key == "ca" else value for key, value in WAYS[way].items()}
    nsqd = guarded_nsqd if "secret" in security else open_nsqd
    topic = f"{client}-{way.replace('+', '-')}"
    bodies = [*numbered(150), b"x" * 20_000, bytes(range(256))]
    with (
        start(client, nsqd, security) as producer,
        start(client, nsqd, security).subscribe(topic, "work", ready=20) as consumer,
    ):
        producer.publish(topic, *bodies[:100])
        for body in bodies[100:]:
            producer.publish(topic, body)
        producer.defer(topic, 100, b"deferred")
        taken = []
        for _ in range(len(bodies) + 1):
            delivery = consumer.take()
            taken.append(delivery.body)
            consumer.finish(delivery)
        assert sorted(taken) == sorted([*bodies, b"deferred"])
        assert eventually(lambda: nsqd.channel(topic, "work")["in_flight_count"] == 0)
        (shown,) = nsqd.channel(topic, "work")["clients"]
        assert shown["finish_count"] == len(bodies) + 1
        assert shown["tls"] is ("ca" in security)
        assert shown["snappy"] is ("snappy" in security)
        assert shown["deflate"] is ("deflate" in security)
        assert shown.get("auth_identity") == ("bob" if "secret" in security else None)


@pytest.mark.parametrize("client", ["pynsq", "nsqjs", "ansq"])
def test_a_client_is_told_what_it_may_not_publish(client: str, guarded_nsqd: Nsqd) -> None:
    with start(client, guarded_nsqd, {"secret": "s3cret"}) as producer:
        producer.publish("other", b"m")
        producer._do("publish", topic="forbidden", bodies=["m"])
        guarded_nsqd.wait_for_log('E_UNAUTHORIZED AUTH failed for PUB on "forbidden" ""')
    assert guarded_nsqd.stats("&topic=forbidden")["topics"] is None
