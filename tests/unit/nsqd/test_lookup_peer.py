"""nsqd's connection to an nsqlookupd, against one that a test scripts."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from penstock.nsqd import lookup_peer
from penstock.nsqd.lookup_peer import RETRY_MAX_S, RETRY_MIN_S, LookupPeer, retry_delay_s
from penstock.nsqd.lookupds import decode_channels
from penstock.wire.lookup import Command, CommandReader, Identity

NODE = Identity("a", "h", 4150, 4151, "1.3.0")
PLACE = b'{"broadcast_address":"lookup1","http_port":4161}'
SECONDS_MAX = 5.0


class ScriptedLookupd:
    """Answers IDENTIFY with ``place`` and everything else with what ``answer`` says."""

    def __init__(self) -> None:
        self.connections: list[list[str]] = []
        self.place = PLACE
        self.answer: Callable[[str], bytes | None] = lambda command: b"OK"
        self.writers: list[asyncio.StreamWriter] = []
        self.news = asyncio.Condition()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        seen: list[str] = []
        self.connections.append(seen)
        commands = CommandReader()
        while data := await reader.read(65536):
            for command in commands.feed(data):
                assert isinstance(command, Command)
                text = " ".join((command.name, *command.params))
                reply = self.place if command.identity else self.answer(text)
                if reply is not None:
                    writer.write(struct.pack(">i", len(reply)) + reply)
                seen.append(text)
            async with self.news:
                self.news.notify_all()

    async def wait(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX), self.news:
            await self.news.wait_for(happened)

    async def seen(self, connection: int, *commands: str) -> None:
        """Wait until a connection has said exactly this."""
        wanted = ["IDENTIFY", *commands]

        def said() -> bool:
            count = len(self.connections)
            return count > connection and len(self.connections[connection]) >= len(wanted)

        await self.wait(said)
        assert self.connections[connection] == wanted


@asynccontextmanager
async def peered(
    snapshot: list[bytes], reply_size_max: int = 1000
) -> AsyncIterator[tuple[ScriptedLookupd, LookupPeer]]:
    lookupd = ScriptedLookupd()
    server = await asyncio.start_server(lookupd.serve, "127.0.0.1", 0)
    lookupd.port = server.sockets[0].getsockname()[1]

    def commands() -> Iterator[bytes]:
        yield from snapshot

    peer = LookupPeer(f"127.0.0.1:{lookupd.port}", lambda: NODE, commands, reply_size_max)
    peer.start()
    try:
        yield lookupd, peer
    finally:
        peer.close()
        for writer in lookupd.writers:
            writer.close()
        server.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_peer, "RETRY_MIN_S", 0.01)
    monkeypatch.setattr(lookup_peer, "RETRY_MAX_S", 0.05)
    monkeypatch.setattr(lookup_peer, "TIMEOUT_S", 0.2)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * SECONDS_MAX):
            await scene()

    asyncio.run(bounded())


def test_everything_is_registered_first_and_changes_follow_in_order() -> None:
    async def scene() -> None:
        async with peered([b"REGISTER t a\n", b"REGISTER u\n"]) as (lookupd, peer):
            peer.change(b"REGISTER too-early\n")
            await lookupd.seen(0, "REGISTER t a", "REGISTER u")
            await peer.tried.wait()
            assert peer.http_url == "http://lookup1:4161"
            for number in range(3):
                peer.change(b"REGISTER n%d\n" % number)
                peer.change(b"UNREGISTER n%d\n" % number)
            later = [f"{verb} n{n}" for n in range(3) for verb in ("REGISTER", "UNREGISTER")]
            await lookupd.seen(0, "REGISTER t a", "REGISTER u", *later)

    play(scene)


def test_more_names_than_a_batch_keep_their_order() -> None:
    async def scene() -> None:
        names = [f"REGISTER t{number}" for number in range(1000)]
        async with peered([name.encode() + b"\n" for name in names]) as (lookupd, _):
            await lookupd.seen(0, *names)

    play(scene)


def test_a_lost_connection_is_made_anew_at_once_and_tells_everything_again() -> None:
    async def scene() -> None:
        snapshot = [b"REGISTER t\n"]
        async with peered(snapshot) as (lookupd, peer):
            await lookupd.seen(0, "REGISTER t")
            await peer.tried.wait()
            snapshot.append(b"REGISTER u\n")
            lookupd.writers[0].close()
            await lookupd.seen(1, "REGISTER t", "REGISTER u")
            assert peer.http_url == "http://lookup1:4161"

    play(scene)


def test_changes_of_a_lost_connection_are_not_said_on_the_next() -> None:
    async def scene() -> None:
        async with peered([b"REGISTER t\n"]) as (lookupd, peer):
            await peer.tried.wait()
            lookupd.answer = lambda _: None
            peer.change(b"REGISTER unanswered\n")
            await lookupd.seen(0, "REGISTER t", "REGISTER unanswered")
            # Made again before the next connection: the old word would be wrong there.
            peer.change(b"UNREGISTER t\n")
            lookupd.answer = lambda _: b"OK"
            await lookupd.seen(1, "REGISTER t")
            await asyncio.sleep(0.1)
            peer.change(b"REGISTER end\n")
            await lookupd.seen(1, "REGISTER t", "REGISTER end")

    play(scene)


def test_pings_go_out_between_changes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(lookup_peer, "PING_INTERVAL_S", 0.05)
        async with peered([]) as (lookupd, peer):
            await peer.tried.wait()
            for number in range(20):
                peer.change(b"REGISTER n%d\n" % number)
                await asyncio.sleep(0.01)
            await lookupd.wait(lambda: lookupd.connections[0].count("PING") >= 2)
            await lookupd.wait(lambda: len(lookupd.connections[0]) >= 23)
            changes = [said for said in lookupd.connections[0] if said.startswith("REG")]
            assert changes == [f"REGISTER n{number}" for number in range(20)]
            assert len(lookupd.connections) == 1

    play(scene)


def test_too_many_changes_begin_the_connection_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(lookup_peer, "CHANGE_COUNT_MAX", 10)
        snapshot: list[bytes] = []
        async with peered(snapshot) as (lookupd, peer):
            await lookupd.seen(0)
            await peer.tried.wait()
            snapshot += [b"REGISTER everything\n"]
            for number in range(12):
                peer.change(b"REGISTER n%d\n" % number)
            await lookupd.seen(1, "REGISTER everything")

    play(scene)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: None,
        lambda _: b"E_BAD_TOPIC no",
        lambda _: b"x" * 2000,
        lambda _: b"OK\0\0\0\2OK",
    ],
    ids=["silence", "an error", "a huge reply", "another word than OK"],
)
def test_a_bad_reply_ends_the_connection(answer: Callable[[str], bytes | None]) -> None:
    async def scene() -> None:
        async with peered([b"REGISTER t\n"]) as (lookupd, _):
            lookupd.answer = answer
            await lookupd.wait(lambda: len(lookupd.connections) >= 3)

    play(scene)


def test_a_reply_to_nothing_ends_the_connection() -> None:
    async def scene() -> None:
        async with peered([]) as (lookupd, peer):
            await lookupd.seen(0)
            await peer.tried.wait()
            lookupd.writers[0].write(b"\0\0\0\2OK")
            await lookupd.seen(1)

    play(scene)


@pytest.mark.parametrize(
    "place", [b"E_INVALID", b"E_BAD_BODY IDENTIFY missing fields", b"nonsense"]
)
def test_a_refused_identify_ends_the_connection(place: bytes) -> None:
    async def scene() -> None:
        async with peered([b"REGISTER t\n"]) as (lookupd, peer):
            lookupd.place = place
            await lookupd.seen(1)
            assert peer.tried.is_set() and peer.http_url == ""

    play(scene)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "a..b:4160", ":", "host:99999"])
def test_a_wrong_or_dead_address_is_tried_and_told_once(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        peer = LookupPeer(address, lambda: NODE, lambda: iter(()), 1000)
        peer.start()
        await peer.tried.wait()
        await asyncio.sleep(0.2)
        peer.close()

    play(scene)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and address in errors[0].getMessage()


def test_waits_grow_to_a_bound_below_nsqs_and_are_spread() -> None:
    assert RETRY_MIN_S < RETRY_MAX_S < 15
    assert retry_delay_s(0, 1.0) == lookup_peer.RETRY_MIN_S
    assert retry_delay_s(0, 0.0) == lookup_peer.RETRY_MIN_S / 2
    waits = [retry_delay_s(count, 1.0) for count in range(100)]
    assert waits == sorted(waits) and waits[-1] == lookup_peer.RETRY_MAX_S
    assert retry_delay_s(10**9, 1.0) == lookup_peer.RETRY_MAX_S


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"channels":["a","b"]}', ["a", "b"]),
        (b'{"channels":[]}', []),
        (b'{"channels":null}', []),
        (b"{}", []),
    ],
)
def test_channels_are_read(body: bytes, names: list[str]) -> None:
    assert decode_channels(body) == names


@pytest.mark.parametrize("body", [b"", b"[]", b'{"channels":"a"}', b'{"channels":[1]}', b"\xff"])
def test_what_is_no_list_of_channels_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_channels(body)
