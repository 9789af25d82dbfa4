"""Framed records: torn told from corrupt at every cut and every flipped bit."""

from __future__ import annotations

from penstock.storage.records import FoundRecord, Framing, checked, is_checked

FRAMING = Framing(b"PX", payload_size_max=100)
RECORDS = [(1, b"one"), (2, b""), (3, b"PX three PX")]
WHOLE = [FRAMING.encode(kind, payload) for kind, payload in RECORDS]
DATA = b"".join(WHOLE)
ENDS = [sum(map(len, WHOLE[: n + 1])) for n in range(len(WHOLE))]


def good(data: bytes) -> list[tuple[int, bytes]]:
    return [(r.kind, r.payload) for r in FRAMING.records(data) if r.payload is not None]


def test_records_come_back() -> None:
    assert good(DATA) == RECORDS
    assert [r.end for r in FRAMING.records(DATA)] == ENDS
    assert DATA[:12] == b"PX\x01\x00\x00\x00\x00\x03" + DATA[8:12]


def test_every_cut_is_torn() -> None:
    for cut in range(len(DATA)):
        whole = [end for end in ENDS if end <= cut]
        found = list(FRAMING.records(DATA[:cut]))
        assert good(DATA[:cut]) == RECORDS[: len(whole)]
        start = whole[-1] if whole else 0
        bad = [FoundRecord(start, cut, torn=True)] if start < cut else []
        assert found[len(whole) :] == bad


def test_every_flipped_bit_is_one_bad_record() -> None:
    for bit in range(8 * len(DATA)):
        changed = bytearray(DATA)
        changed[bit // 8] ^= 1 << bit % 8
        at = next(n for n, end in enumerate(ENDS) if bit // 8 < end)
        found = list(FRAMING.records(bytes(changed)))
        start = ENDS[at - 1] if at else 0
        assert found[at] == FoundRecord(start, ENDS[at], torn=at == len(ENDS) - 1)
        assert good(bytes(changed)) == RECORDS[:at] + RECORDS[at + 1 :]


def test_a_size_over_the_limit_is_bad() -> None:
    large = Framing(b"PX", payload_size_max=1000).encode(1, bytes(101))
    assert next(FRAMING.records(large + DATA)) == FoundRecord(0, len(large))
    assert good(large + DATA) == RECORDS


def test_checked_bytes_are_known_by_magic_seed_and_sum() -> None:
    data = b"before" + checked(b"MAGC", b"rest", b"seed") + b"after"
    end = 6 + 4 + 4 + 4
    assert is_checked(data, b"MAGC", end, b"seed", 6)
    assert not is_checked(data, b"MAGC", end, b"sead", 6)
    assert not is_checked(data, b"MAGD", end, b"seed", 6)
    assert not is_checked(data, b"MAGC", end + 1, b"seed", 6)
    assert not is_checked(data[:end], b"MAGC", end + 1, b"seed", 6)
    assert not is_checked(data, b"MAGC", 7, b"seed", 6)
