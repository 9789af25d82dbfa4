"""TLS on TCP by upgrade, TLS on HTTP, and what is refused without it."""

from __future__ import annotations

import json
import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.bodies import numbered
from tests.support.certificates import Pki
from tests.support.client import Client
from tests.support.daemon import ERROR, RESPONSE, Nsqd, Raw
from tests.support.secure_client import SecureClient
from tests.support.timing import late_s
from tests.support.waits import eventually

ASK_TLS = commands.identify({"feature_negotiation": True, "tls_v1": True})


@pytest.fixture(scope="module")
def pki(pki: Pki) -> Pki:
    pki.issue("bob the client")
    pki.issue("late", age_days=60)
    pki.issue_self_signed("mallory")
    return pki


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("tls"), *pki.options()) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Nsqd]:
    """One that wants certificates of its clients."""
    options = (f"--tls-root-ca-file={pki.ca}", "--tls-client-auth-policy=require-verify")
    with Nsqd(tmp_path_factory.mktemp("strict"), *pki.options(), *options) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def test_messages_go_through_tls(nsqd: Nsqd, pki: Pki) -> None:
    with SecureClient.of(nsqd, pki.client_context()) as client:
        assert client.negotiated["tls_v1"] is True
        client.mpub("through", [*numbered(500), b"x" * 1_000_000])
        client.sub("through", "c", ready=100)
        bodies = {message.body for message in client.finish_all(501)}
        assert bodies == {*numbered(500), b"x" * 1_000_000}


def test_stats_show_the_tls_of_a_client(nsqd: Nsqd, pki: Pki) -> None:
    context = pki.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with SecureClient.of(nsqd, context).sub("shown", "old"):
        shown = nsqd.channel("shown", "old")["clients"][0]
        assert shown["tls"] is True
        assert shown["tls_version"] == "TLS1.2"
        assert shown["tls_cipher_suite"] == "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
        assert shown["tls_negotiated_protocol"] == ""
        assert shown["tls_negotiated_protocol_is_mutual"] is True
    with SecureClient.of(nsqd, pki.client_context()).sub("shown", "new"):
        shown = nsqd.channel("shown", "new")["clients"][0]
        assert shown["tls_version"] == "TLS1.3"
        assert shown["tls_cipher_suite"].startswith("Unknown 48")
    with Client.of(nsqd).sub("shown", "plain"):
        shown = nsqd.channel("shown", "plain")["clients"][0]
        assert (shown["tls"], shown["tls_version"], shown["tls_cipher_suite"]) == (False, "", "")
        assert shown["tls_negotiated_protocol_is_mutual"] is False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_clients_are_served(nsqd: Nsqd, pki: Pki, version: ssl.TLSVersion) -> None:
    with SecureClient.of(nsqd, old_context(pki, version)) as client:
        client.pub("old", b"m")
    with Nsqd(nsqd.data_path.with_name("new"), *pki.options(), "--tls-min-version=tls1.2") as new:
        with pytest.raises(ssl.SSLError):
            SecureClient.of(new, old_context(pki, version))
        with SecureClient.of(new, pki.client_context()) as client:
            client.pub("old", b"m")


def old_context(pki: Pki, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = pki.client_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = version
        context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


@pytest.mark.parametrize("step", [1, 7, 100])
def test_the_handshake_may_come_in_pieces(nsqd: Nsqd, pki: Pki, step: int) -> None:
    """Also a ClientHello in the packet of IDENTIFY, which nsqd would lose."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = pki.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with nsqd.connect() as raw:
        with pytest.raises(ssl.SSLWantReadError):
            session.do_handshake()
        raw.send(ASK_TLS + outgoing.read(step))
        assert json.loads(raw.frame()[1])["tls_v1"] is True
        while True:
            hello = outgoing.read()
            for at in range(0, len(hello), step):
                raw.send(hello[at : at + step])
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                incoming.write(raw.sock.recv(65536))
        # The first command in the packet of the handshake's end.
        session.write(commands.pub("pieces", b"m"))
        raw.send(outgoing.read())
        received = b""
        while len(received) < 20:
            try:
                received += session.read(100)
            except ssl.SSLWantReadError:
                incoming.write(raw.sock.recv(65536))
        assert received == b"\x00\x00\x00\x06\x00\x00\x00\x00OK" * 2


def test_clear_commands_behind_identify_are_not_executed(nsqd: Nsqd) -> None:
    """Whoever sits in the middle could put them there."""
    with nsqd.connect() as raw:
        raw.send(ASK_TLS + commands.pub("injected", b"evil"))
        raw.frame()
        text = b"tls: first record does not look like a TLS handshake"
        assert raw.frame() == (ERROR, b"E_IDENTIFY_FAILED IDENTIFY failed " + text)
        assert raw.closed()
    assert nsqd.stats("&topic=injected")["topics"] is None


def test_junk_instead_of_a_handshake(nsqd: Nsqd) -> None:
    with nsqd.connect() as raw:
        raw.command(ASK_TLS)
        text = b"tls: first record does not look like a TLS handshake"
        assert raw.command(b"junk") == (ERROR, b"E_IDENTIFY_FAILED IDENTIFY failed " + text)
        assert raw.closed()


def test_a_handshake_that_is_cut_off(nsqd: Nsqd) -> None:
    with nsqd.connect() as raw:
        raw.command(ASK_TLS)
        raw.send(b"\x16\x03\x01")
        raw.sock.shutdown(socket.SHUT_WR)
        assert raw.frame() == (ERROR, b"E_IDENTIFY_FAILED IDENTIFY failed unexpected EOF")
        assert raw.closed()


def test_a_handshake_that_takes_too_long(nsqd: Nsqd) -> None:
    """5 s; meanwhile others are served, and no heartbeat is mixed in."""
    ask = {"feature_negotiation": True, "tls_v1": True, "heartbeat_interval": 1000}
    with nsqd.connect() as raw, Client.of(nsqd) as other:
        raw.command(commands.identify(ask))
        began_s = time.monotonic()
        other.pub("meanwhile", b"m")
        raw.send(b"\x16\x03\x01")
        assert raw.frame() == (ERROR, b"E_IDENTIFY_FAILED IDENTIFY failed i/o timeout")
        assert 4.9 < time.monotonic() - began_s < 5 + late_s(2)
        assert raw.closed()


def test_a_slow_handshake_does_not_count_as_silence(nsqd: Nsqd, pki: Pki) -> None:
    """It takes longer than the two heartbeats after which a silent client is given up."""
    with nsqd.connect() as raw:
        ask = {"feature_negotiation": True, "tls_v1": True, "heartbeat_interval": 1000}
        raw.command(commands.identify(ask))
        time.sleep(2.3)
        raw.sock = pki.client_context().wrap_socket(raw.sock, server_hostname="localhost")
        assert raw.frame() == (RESPONSE, b"OK")
        for _ in range(2):
            assert raw.frame() == (RESPONSE, b"_heartbeat_")
            raw.send(commands.NOP)


def test_a_broken_record_ends_the_connection_and_nothing_else(nsqd: Nsqd, pki: Pki) -> None:
    with SecureClient.of(nsqd, pki.client_context()) as client:
        assert isinstance(client.sock, ssl.SSLSocket)
        plain = socket.socket(fileno=client.sock.detach())
        plain.settimeout(10)
        plain.sendall(b"\x17\x03\x03\x00\x20" + b"?" * 32)
        while plain.recv(4096):
            pass
        plain.close()
    assert nsqd.get("/ping").text == "OK"


def test_a_client_may_end_its_side_first(nsqd: Nsqd, pki: Pki) -> None:
    """By TLS's own farewell; replies still come, and nsqd's farewell."""
    with SecureClient.of(nsqd, pki.client_context()) as client:
        client.pub("farewell", b"m")
        assert isinstance(client.sock, ssl.SSLSocket)
        client.sock.settimeout(5)
        client.sock.unwrap()
        client.wait_closed()


def test_nsqd_says_goodbye_too(nsqd: Nsqd, pki: Pki) -> None:
    """Without it a client could not tell the end from a cut."""
    with nsqd.connect() as raw:
        raw.command(ASK_TLS)
        raw.sock = pki.client_context().wrap_socket(
            raw.sock, server_hostname="localhost", suppress_ragged_eofs=False
        )
        assert raw.frame() == (RESPONSE, b"OK")
        assert raw.command(b"NONSENSE\n") == (ERROR, b"E_INVALID invalid command NONSENSE")
        assert raw.sock.recv(1) == b""


def test_tls_is_not_offered_without_a_certificate(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd, SecureClient.of(nsqd, ssl.create_default_context()) as client:
        assert client.negotiated["tls_v1"] is False
        client.pub("clear", b"m")


def test_a_second_identify_may_add_compression(nsqd: Nsqd, pki: Pki) -> None:
    with SecureClient.of(nsqd, pki.client_context()) as client:
        client.upgrade(None, snappy=True)
        assert (client.negotiated["tls_v1"], client.negotiated["snappy"]) == (False, True)
        for again in ("tls_v1", "snappy", "deflate"):
            assert client.identify(**{again: True})[again] is False
        client.pub("twice", b"m")
        client.sub("twice", "c", ready=1)
        assert client.message().body == b"m"
        shown = nsqd.channel("twice", "c")["clients"][0]
        assert (shown["tls"], shown["snappy"]) == (True, True)


# Certificates of clients


def test_a_client_with_a_signed_certificate_is_let_in(strict: Nsqd, pki: Pki) -> None:
    context = pki.client_context("bob the client")
    with SecureClient.of(strict, context) as client:
        client.pub("signed", b"m")
    assert strict.http("GET", "/ping", tls=context).text == "OK"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "client didn't provide a certificate"),
        (
            "mallory",
            "failed to verify client certificate: x509: certificate signed by unknown authority",
        ),
        (
            "late",
            "failed to verify client certificate: "
            "x509: certificate has expired or is not yet valid",
        ),
    ],
)
def test_a_client_with_a_wrong_certificate_is_refused(
    strict: Nsqd, pki: Pki, name: str, why: str, version: ssl.TLSVersion
) -> None:
    context = pki.client_context(name)
    context.maximum_version = version
    with strict.connect() as raw:
        raw.command(ASK_TLS)
        plain = raw.sock.dup()
        plain.settimeout(10)
        with pytest.raises(ssl.SSLError):
            session = context.wrap_socket(raw.sock, server_hostname="localhost")
            raw.sock = session
            session.recv(1)
        # The reason follows TLS's alert in clear, as from nsqd.
        reason = f"E_IDENTIFY_FAILED IDENTIFY failed tls: {why}".encode()
        assert Raw(plain).frame() == (ERROR, reason)
        assert Raw(plain).closed()
        plain.close()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        strict.http("GET", "/ping", tls=context)


def test_the_policy_require_takes_the_certificates_in_the_file(tmp_path: Path, pki: Pki) -> None:
    """Not only those that an authority in it signed."""
    known = tmp_path / "known.pem"
    known.write_text(Path(pki.path("mallory.pem")).read_text())
    options = (f"--tls-root-ca-file={known}", "--tls-client-auth-policy=require")
    with Nsqd(tmp_path / "nsqd", *pki.options(), *options) as nsqd:
        with SecureClient.of(nsqd, pki.client_context("mallory")) as client:
            client.pub("known", b"m")
        for name in ("", "bob the client"):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                SecureClient.of(nsqd, pki.client_context(name))


def test_a_policy_implies_that_tls_is_required(strict: Nsqd) -> None:
    with strict.connect() as raw:
        text = b"E_INVALID cannot NOP in current state (TLS required)"
        assert raw.command(commands.NOP) == (ERROR, text)
        assert raw.closed()
    assert strict.get("/ping").status == 403


# --tls-required


def test_plain_http_is_told_where_https_is(tmp_path: Path, pki: Pki) -> None:
    with Nsqd(tmp_path, *pki.options(), "--tls-required=true") as nsqd:
        body = f'{{"message": "TLS_REQUIRED", "https_port": {nsqd.https_port}}}'
        for method, target, sent in (
            ("GET", "/ping", None),
            ("GET", "/nonsense", None),
            ("POST", "/pub?topic=t", b"m"),
            ("POST", "/mpub?topic=t", b"m" * 1_000_000),
        ):
            reply = nsqd.http(method, target, sent)
            assert (reply.status, reply.text) == (403, body)
            assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
            assert reply.headers["X-NSQ-Content-Type"] == "nsq; version=1.0"
        context = pki.client_context()
        assert nsqd.http("GET", "/ping", tls=context).text == "OK"
        assert nsqd.http("POST", "/pub?topic=t", b"m", tls=context).text == "OK"
        with SecureClient.of(nsqd, context).sub("t", "c", ready=1) as client:
            assert client.message().body == b"m"


def test_tcp_https_leaves_plain_http_open(tmp_path: Path, pki: Pki) -> None:
    with Nsqd(tmp_path, *pki.options(), "--tls-required=tcp-https") as nsqd:
        assert nsqd.get("/ping").text == "OK"
        with nsqd.connect() as raw:
            text = b"E_INVALID cannot SUB in current state (TLS required)"
            assert raw.command(commands.sub("t", "c")) == (ERROR, text)
        with nsqd.connect() as raw:
            assert raw.command(commands.identify({})) == (RESPONSE, b"OK")
            text = b"E_INVALID cannot NOP in current state (TLS required)"
            assert raw.command(commands.NOP) == (ERROR, text)


def test_https_serves_the_whole_api(nsqd: Nsqd, pki: Pki) -> None:
    context = pki.client_context()
    assert nsqd.http("POST", "/topic/create?topic=https", tls=context).status == 200
    lines = b"\n".join(numbered(300_000))
    assert nsqd.http("POST", "/mpub?topic=https", lines, tls=context).text == "OK"
    shown = nsqd.http("GET", "/stats?format=json&topic=https", tls=context).json["topics"][0]
    assert shown["depth"] == 300_000
    assert nsqd.get("/ping").text == "OK"


def test_a_new_certificate_is_read_on_sighup(tmp_path: Path, pki: Pki) -> None:
    live = Pki(tmp_path / "live")
    with Nsqd(tmp_path / "nsqd", *live.options()) as nsqd:
        before = certificate_of(nsqd, live)
        live.issue("server")
        nsqd.signal(1)
        nsqd.wait_for_log("certificate reloaded")
        assert certificate_of(nsqd, live) != before
        after = certificate_of(nsqd, live)
        # A certificate whose key is not there yet, then no certificate at all.
        key = Path(live.path("server.key")).read_text()
        live.issue("server")
        Path(live.path("server.key")).write_text(key)
        for count, text in enumerate(("", "nonsense"), 1):
            if text:
                Path(live.path("server.pem")).write_text(text)
            nsqd.signal(1)
            refusal = "certificate and tokens stay as they were"
            assert eventually(lambda: nsqd.log.count(refusal) == count)  # noqa: B023
            assert certificate_of(nsqd, live) == after
            assert nsqd.http("GET", "/ping", tls=live.client_context()).text == "OK"


def certificate_of(nsqd: Nsqd, pki: Pki) -> bytes | None:
    with SecureClient.of(nsqd, pki.client_context()) as client:
        assert isinstance(client.sock, ssl.SSLSocket)
        return client.sock.getpeercert(binary_form=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--tls-cert=/no/such/file", "--tls-key=/no/such/file"), "failed to build TLS config"),
        (("--tls-required=true",), "cannot require TLS client connections without TLS key"),
        (("{pki}", "--tls-root-ca-file=/no/such/file"), "--tls-root-ca-file /no/such/file"),
        (("{pki}", "--tls-client-auth-policy=require"), "needs --tls-root-ca-file"),
    ],
)
def test_wrong_files_stop_the_start(
    tmp_path: Path, pki: Pki, options: tuple[str, ...], text: str
) -> None:
    given = [flag for o in options for flag in (pki.options() if o == "{pki}" else (o,))]
    nsqd = Nsqd(tmp_path, *given)
    with pytest.raises(AssertionError):
        nsqd.start()
    assert "failed to instantiate nsqd" in nsqd.log
    assert text in nsqd.log
