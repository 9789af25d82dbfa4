"""TLS between two buffers: in pieces of any size, to its end, and what is not TLS."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import StreamError
from penstock.wire.tls import Tls
from tests.support.certificates import Pki


class Peer:
    """The client's side."""

    def __init__(self, pki: Pki, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        context = pki.client_context()
        context.maximum_version = version
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def shake(self) -> bool:
        try:
            self.session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


def agree(pki: Pki, step: int, version: ssl.TLSVersion) -> tuple[Tls, Peer]:
    """Both sides after a handshake whose bytes came ``step`` at a time."""
    tls, peer = Tls(pki.server_context()), Peer(pki, version)
    agreed = done = False
    for _ in range(10):
        done = done or peer.shake()
        data = peer.outgoing.read()
        for at in range(0, len(data), step):
            assert not agreed
            agreed = tls.handshake(data[at : at + step])
        peer.incoming.write(tls.take_output())
        if agreed and done:
            return tls, peer
    raise AssertionError("no agreement")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("step", [1, 5, 1000, 100_000])
def test_bytes_go_both_ways(pki: Pki, step: int, version: ssl.TLSVersion) -> None:
    tls, peer = agree(pki, step, version)
    body = bytes(range(256)) * 1000
    peer.session.write(body)
    sent = peer.outgoing.read()
    clear = b"".join(tls.receive(sent[at : at + step]) for at in range(0, len(sent), step))
    assert clear == body
    peer.incoming.write(tls.send([b"one ", memoryview(b"two"), body]))
    received = b""
    while len(received) < 7 + len(body):
        received += peer.session.read(1 << 20)
    assert received == b"one two" + body
    assert tls.send([b""]) == b""


@pytest.mark.parametrize("room", [100, 20_000, 1 << 20])
@pytest.mark.parametrize("step", [1000, 100_000])
def test_bytes_can_be_received_into_a_buffer(pki: Pki, step: int, room: int) -> None:
    tls, peer = agree(pki, 1000, ssl.TLSVersion.TLSv1_3)
    body = bytes(range(256)) * 1000
    peer.session.write(body)
    sent = peer.outgoing.read()
    buffer = memoryview(bytearray(room))
    clear = b""
    for at in range(0, len(sent), step):
        size = tls.receive_into(sent[at : at + step], buffer)
        clear += buffer[:size]
        while tls.waiting:
            size = tls.receive_into(b"", buffer)
            clear += buffer[:size]
    assert clear == body


def test_the_peers_farewell_ends_the_stream(pki: Pki) -> None:
    tls, peer = agree(pki, 100_000, ssl.TLSVersion.TLSv1_3)
    peer.session.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        peer.session.unwrap()
    assert tls.receive(peer.outgoing.read()) == b"last"
    assert tls.ended
    assert tls.receive(b"whatever follows") == b""
    peer.incoming.write(tls.close())
    peer.session.unwrap()


@pytest.mark.parametrize("junk", [b"junk", b"  V2", b"GET / HTTP/1.1", b"\x80\x2e", b"\x16\x20"])
def test_what_is_no_tls_is_refused_in_gos_words(pki: Pki, junk: bytes) -> None:
    with pytest.raises(
        StreamError, match=r"^tls: first record does not look like a TLS handshake$"
    ):
        Tls(pki.server_context()).handshake(junk)
    with pytest.raises(StreamError):
        tls = Tls(pki.server_context())
        for byte in junk:
            tls.handshake(bytes([byte]))


def test_a_damaged_record_is_refused(pki: Pki) -> None:
    tls, peer = agree(pki, 100_000, ssl.TLSVersion.TLSv1_3)
    peer.session.write(b"body")
    sent = bytearray(peer.outgoing.read())
    sent[-1] ^= 1
    with pytest.raises(StreamError, match=r"^tls: "):
        tls.receive(bytes(sent))
    assert tls.take_output()


def test_what_stats_show(pki: Pki) -> None:
    tls, _ = agree(pki, 100_000, ssl.TLSVersion.TLSv1_3)
    assert tls.version == "TLS1.3"
    assert tls.cipher_suite in {"Unknown 4865", "Unknown 4866", "Unknown 4867"}
    assert (tls.protocol, tls.common_name) == ("", "")


def test_the_name_in_a_clients_certificate(pki: Pki) -> None:
    pki.issue("alice")
    context = pki.server_context()
    context.load_verify_locations(pki.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = pki.client_context("alice").wrap_bio(incoming, outgoing, server_hostname="localhost")
    tls = Tls(context)
    for _ in range(5):
        with contextlib.suppress(ssl.SSLWantReadError):
            session.do_handshake()
        if tls.handshake(outgoing.read()):
            break
        incoming.write(tls.take_output())
    assert tls.common_name == "alice"


@given(st.lists(st.binary(max_size=100), max_size=5), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_is_an_error_or_nothing(pki: Pki, pieces: list[bytes], begins: bool) -> None:
    """Nothing but a StreamError, whatever a peer sends instead of a handshake."""
    tls = Tls(pki.server_context())
    try:
        tls.handshake(b"\x16\x03\x01" if begins else b"")
        for piece in pieces:
            assert not tls.handshake(piece)
    except StreamError:
        tls.take_output()
