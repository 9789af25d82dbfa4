"""Runs lookupd_transcripts.txt against a real nsqlookupd: by steps, bytewise, and in one packet."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_transcripts import MODES, Case, Play, read_cases
from tests.support.daemon import Nsqlookupd, Raw

CASES = read_cases(Path(__file__).with_name("lookupd_transcripts.txt"))
IDENTITY = json.dumps(
    {
        "broadcast_address": "10.0.0.9",
        "hostname": "h",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }
)
IDENTIFY = f"IDENTIFY\n\0\0\0{chr(len(IDENTITY))}{IDENTITY}"


class LookupdPlay(Play):
    """Replies have no frame type, and one word stands for a good IDENTIFY."""

    def _expect(self, client: Raw, text: str) -> None:
        (size,) = struct.unpack(">i", client.exactly(4))
        reply = client.exactly(size)
        if text != "place":
            assert reply == self._bytes(text)
            return
        place = json.loads(reply)
        assert list(place) == [
            *("broadcast_address", "hostname", "http_port", "tcp_port", "version")
        ]
        assert (place["http_port"], place["tcp_port"]) == (
            self._nsqd.http_port,
            self._nsqd.tcp_port,
        )
        assert (place["broadcast_address"], place["version"]) == ("127.0.0.1", "1.3.0")

    def _bytes(self, expression: str) -> bytes:
        return super()._bytes(re.sub(r"\bI\b(?=$| \+|\))", lambda _: repr(IDENTIFY), expression))


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd() as daemon:
        yield daemon


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_transcript(lookupd: Nsqlookupd, case: Case, mode: str) -> None:
    LookupdPlay(lookupd, mode).run(case)


def test_every_captured_exchange_is_in_the_transcripts() -> None:
    rows = {int(row) for case in CASES for row in re.findall(r"\[(\d+)\]", case.name)}
    assert rows == set(range(1, 8))
