"""The CRC-32C, against another implementation."""

from __future__ import annotations

import random

import pytest
from google_crc32c import value as google_crc32c

from penstock.core.crc32c import crc32c, crc32c_by_tables

# Three lanes of these lengths are computed at once.
LANES = (128, 1024, 5456)


def test_every_way_gives_the_same_sum() -> None:
    data = random.Random(1).randbytes(4 * 3 * LANES[-1])
    near = (3 * lane * n + more for lane in LANES for n in range(1, 4) for more in range(-9, 10))
    for size in [*range(40), *near]:
        part = data[size % 7 : size % 7 + size]
        assert crc32c(part) == crc32c_by_tables(part) == google_crc32c(part), size


def test_a_sum_can_be_extended_at_any_byte() -> None:
    data = random.Random(2).randbytes(600)
    for at in range(len(data)):
        assert crc32c(data[at:], crc32c(data[:at])) == crc32c(data)


@pytest.mark.parametrize("size", [5, 100_000])
def test_any_contiguous_bytes_will_do(size: int) -> None:
    data = random.Random(3).randbytes(size)
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == crc32c(data)
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        crc32c(memoryview(data)[::2])


def test_the_known_sum() -> None:
    assert crc32c(b"123456789") == crc32c_by_tables(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
