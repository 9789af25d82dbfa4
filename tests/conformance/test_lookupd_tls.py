"""TLS between nsqd and nsqlookupd: with it, without it, and with the wrong certificates."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Consumer
from tests.clients.harness import QUICK, Received, run
from tests.support.certificates import Pki
from tests.support.client import publish
from tests.support.daemon import Nsqd, Nsqlookupd, Raw
from tests.support.waits import eventually, until

IDENTITY = b'{"broadcast_address":"x","tcp_port":1,"http_port":2,"version":"1"}'
IDENTIFY = b"IDENTIFY\n" + len(IDENTITY).to_bytes(4, "big") + IDENTITY


@pytest.fixture(scope="module")
def pki(pki: Pki) -> Pki:
    pki.issue("node")
    pki.issue("late", age_days=60)
    pki.issue_self_signed("mallory")
    return pki


@pytest.fixture(scope="module")
def open_(pki: Pki) -> Iterator[Nsqlookupd]:
    """One that takes TLS and plain peers."""
    with Nsqlookupd(*pki.options()) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.fixture(scope="module")
def strict(pki: Pki) -> Iterator[Nsqlookupd]:
    """One that wants signed certificates of everybody."""
    options = (f"--tls-root-ca-file={pki.ca}", "--tls-client-auth-policy=require-verify")
    with Nsqlookupd(*pki.options(), *options) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def trusting(pki: Pki, certificate: str = "") -> tuple[str, ...]:
    """nsqd's flags to speak TLS, and to show a certificate."""
    flags = ("--lookupd-tls", f"--lookupd-tls-root-ca-file={pki.ca}")
    if not certificate:
        return flags
    path = pki.path(certificate)
    return (*flags, f"--lookupd-tls-cert={path}.pem", f"--lookupd-tls-key={path}.key")


def nsqd_of(path: Path, lookupd: Nsqlookupd, *options: str, host: str = "127.0.0.1") -> Nsqd:
    return Nsqd(
        path,
        "--broadcast-address=127.0.0.1",
        f"--lookupd-tcp-address={host}:{lookupd.tcp_port}",
        *options,
    )


def nodes(lookupd: Nsqlookupd, tls: ssl.SSLContext | None = None) -> list[int]:
    shown = lookupd.http("GET", "/nodes", tls=tls).json["producers"]
    return sorted(node["tcp_port"] for node in shown)


def depths(nsqd: Nsqd) -> dict[str, int]:
    """Of all channels, by name."""
    topics = nsqd.stats()["topics"] or ()
    return {each["channel_name"]: each["depth"] for topic in topics for each in topic["channels"]}


def test_plain_and_secure_nsqds_share_a_port(open_: Nsqlookupd, pki: Pki, tmp_path: Path) -> None:
    with (
        nsqd_of(tmp_path / "plain", open_) as plain,
        nsqd_of(tmp_path / "secure", open_, *trusting(pki)) as secure,
    ):
        both = sorted([plain.tcp_port, secure.tcp_port])
        assert eventually(lambda: nodes(open_) == both)
        assert nodes(open_, pki.client_context()) == both


def test_channels_of_a_new_topic_are_asked_for_within_tls(
    strict: Nsqlookupd, pki: Pki, tmp_path: Path
) -> None:
    """Plain HTTP would be refused."""
    context = pki.client_context("node")
    assert strict.post("/channel/create?topic=t&channel=known").status == 403
    created = strict.http("POST", "/channel/create?topic=t&channel=known", tls=context)
    assert created.status == 200
    with nsqd_of(tmp_path, strict, *trusting(pki, "node")) as nsqd:
        assert eventually(lambda: nodes(strict, context) == [nsqd.tcp_port])
        publish(nsqd, "t", b"first")
        assert eventually(lambda: depths(nsqd) == {"known": 1})


def test_our_consumers_ask_within_tls(open_: Nsqlookupd, pki: Pki, tmp_path: Path) -> None:
    received = Received()

    async def work() -> None:
        async with Consumer(
            *("asked", "ch", received),
            lookupd_http_addresses=f"https://127.0.0.1:{open_.https_port}",
            tls_root_ca_file=pki.ca,
            **QUICK,
        ):
            await until(lambda: received.bodies == [b"x"])

    with nsqd_of(tmp_path, open_, *trusting(pki)) as nsqd:
        publish(nsqd, "asked", b"x")
        assert eventually(lambda: "asked" in open_.get("/topics").json["topics"])
        run(work())


# What is refused


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        ("", "client didn't provide a certificate"),
        ("mallory", "certificate signed by unknown authority"),
        ("late", "certificate has expired"),
    ],
)
def test_an_nsqd_that_cannot_prove_who_it_is_stays_outside(
    strict: Nsqlookupd, pki: Pki, tmp_path: Path, certificate: str, reason: str
) -> None:
    with nsqd_of(tmp_path, strict, *trusting(pki, certificate)) as nsqd:
        strict.wait_for_log(reason)
        nsqd.wait_for_log(r"ERROR: lookupd=\S+: \S+")
        assert nsqd.tcp_port not in nodes(strict, pki.client_context("node"))
        assert nsqd.get("/ping").text == "OK"


def test_a_plain_nsqd_is_refused_where_tls_is_required(
    strict: Nsqlookupd, pki: Pki, tmp_path: Path
) -> None:
    with strict.connect() as raw:
        raw.send(IDENTIFY)
        assert lookupd_reply(raw) == b"E_INVALID TLS is required"
        assert raw.closed()
    with nsqd_of(tmp_path, strict) as nsqd:
        nsqd.wait_for_log("E_INVALID TLS is required")
        assert nodes(strict, pki.client_context("node")) == []


def lookupd_reply(raw: Raw) -> bytes:
    return raw.exactly(int.from_bytes(raw.exactly(4), "big"))


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [("mallory", "self-signed certificate"), ("late", "certificate has expired")],
)
def test_an_nsqlookupd_that_cannot_prove_who_it_is_hears_nothing(
    pki: Pki, tmp_path: Path, certificate: str, reason: str
) -> None:
    with (
        Nsqlookupd(*pki.options(certificate)) as lookupd,
        nsqd_of(tmp_path, lookupd, *trusting(pki)) as nsqd,
    ):
        nsqd.wait_for_log(rf"lookupd=\S+: .*{reason}")
        assert nodes(lookupd) == []


def test_a_certificate_for_another_name_is_refused(pki: Pki, tmp_path: Path) -> None:
    with Nsqlookupd(*pki.options(), "--tcp-address=0.0.0.0:0") as lookupd:
        there = nsqd_of(tmp_path, lookupd, *trusting(pki), host="127.0.0.2")
        with there as nsqd:
            nsqd.wait_for_log("IP address mismatch")
            assert nodes(lookupd) == []


def test_an_nsqd_that_wants_tls_tells_a_plain_nsqlookupd_nothing(pki: Pki, tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd, nsqd_of(tmp_path, lookupd, *trusting(pki)) as nsqd:
        lookupd.wait_for_log("E_BAD_PROTOCOL")
        nsqd.wait_for_log(r"ERROR: lookupd=\S+: \S+")
        assert nodes(lookupd) == []


# The bytes of TLS


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_where_the_handshake_is_split_changes_nothing(
    open_: Nsqlookupd, pki: Pki, step: int
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = pki.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with open_.connect(b"") as raw:
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                send_in_steps(raw, outgoing.read(), step)
                incoming.write(raw.sock.recv(65536))
        session.write(b"  V1PING\n" + IDENTIFY + b"NONSENSE\n")
        send_in_steps(raw, outgoing.read(), step)
        received = b""
        while data := raw.sock.recv(65536):
            incoming.write(data)
        incoming.write_eof()
        while chunk := session.read(65536):
            received += chunk
        assert received.startswith(b"\x00\x00\x00\x02OK")
        assert f'"https_port":{open_.https_port}'.encode() in received
        assert received.endswith(b"E_INVALID invalid command NONSENSE")


def send_in_steps(raw: Raw, data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        raw.send(data[at : at + step])


@pytest.mark.parametrize("junk", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" * 5000])
def test_a_handshake_that_makes_no_sense_harms_nobody(open_: Nsqlookupd, junk: bytes) -> None:
    with open_.connect(b"") as raw:
        raw.send(junk)
        raw.sock.shutdown(socket.SHUT_WR)
        while raw.sock.recv(65536):
            pass
    assert open_.get("/ping").text == "OK"


# Certificates that change


def test_new_certificates_are_read_on_sighup(tmp_path: Path) -> None:
    live = Pki(tmp_path / "live")
    live.issue("node", age_days=60)
    strict = (f"--tls-root-ca-file={live.ca}", "--tls-client-auth-policy=require-verify")
    with (
        Nsqlookupd(*live.options(), *strict) as lookupd,
        nsqd_of(tmp_path / "nsqd", lookupd, *trusting(live, "node")) as nsqd,
    ):
        lookupd.wait_for_log("certificate has expired")
        live.issue("node")
        context = live.client_context("node")
        assert nodes(lookupd, context) == []
        nsqd.signal(1)
        nsqd.wait_for_log("certificate for nsqlookupds reloaded")
        assert eventually(lambda: nodes(lookupd, context) == [nsqd.tcp_port], 20)

        before = shown_by(lookupd, context)
        live.issue("server")
        lookupd.signal(1)
        lookupd.wait_for_log("certificate reloaded")
        after = shown_by(lookupd, context)
        assert after != before
        Path(live.path("server.key")).write_text("nonsense")
        lookupd.signal(1)
        lookupd.wait_for_log("certificate not reloaded")
        assert shown_by(lookupd, context) == after
        assert nodes(lookupd, context) == [nsqd.tcp_port]


def shown_by(lookupd: Nsqlookupd, context: ssl.SSLContext) -> bytes | None:
    with (
        socket.create_connection(("127.0.0.1", lookupd.tcp_port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        return sock.getpeercert(binary_form=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--tls-cert=/no/such/file", "--tls-key=/no/such/file"), "failed to build TLS config"),
        (("--tls-cert=x",), "--tls-cert and --tls-key go together"),
        (("--tls-required",), "cannot require TLS client connections without TLS key and cert"),
    ],
)
def test_wrong_files_stop_the_start_of_nsqlookupd(options: tuple[str, ...], text: str) -> None:
    lookupd = Nsqlookupd(*options)
    with pytest.raises(AssertionError):
        lookupd.start()
    assert "failed to instantiate nsqlookupd" in lookupd.log
    assert text in lookupd.log


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--lookupd-tls-root-ca-file=/no/such/file",), "-root-ca-file /no/such/file: No such"),
        (("--lookupd-tls-cert=/no/a", "--lookupd-tls-key=/no/b"), "--lookupd-tls-cert /no/a"),
    ],
)
def test_wrong_files_stop_the_start_of_nsqd(
    tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    nsqd = Nsqd(tmp_path, "--lookupd-tls", *options)
    with pytest.raises(AssertionError):
        nsqd.start()
    assert "failed to instantiate nsqd" in nsqd.log
    assert text in nsqd.log
