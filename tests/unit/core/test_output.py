"""core/output.pyx: bytes leave in the order they came, however they are cut."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.output import Output

SIZES = st.sampled_from([0, 1, 10, 300, 8191, 8192, 8193, 20_000, 70_000])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), SIZES),
        st.tuples(st.just("view"), SIZES),
        st.tuples(st.just("take"), st.integers(0, 100_000)),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_bytes_leave_in_order(steps: list[tuple[str, int]]) -> None:
    output, expected = Output(), bytearray()
    for number, (step, size) in enumerate(steps):
        if step == "take":
            assert output.take(size) == expected[:size]
            del expected[:size]
        else:
            data = bytes([number]) * (size + 100)
            output.write(data[:size] if step == "write" else memoryview(data)[50 : 50 + size])
            expected += data[:size]
        assert output.size == len(expected)
    assert output.take() == expected
    assert output.size == 0


def test_a_large_piece_is_not_copied_and_is_let_go() -> None:
    output = Output()
    data = bytes(100_000)
    before = sys.getrefcount(data)
    output.write(memoryview(data)[10:90_000])
    assert sys.getrefcount(data) == before + 1
    output.take(50_000)
    assert sys.getrefcount(data) == before + 1
    output.take(50_000)
    assert sys.getrefcount(data) == before
    output.write(data)
    del output
    assert sys.getrefcount(data) == before


def test_an_output_that_is_never_empty_does_not_grow() -> None:
    output = Output()
    output.write(b"x" * 1000)
    large = bytes(9000)
    for _ in range(20_000):
        output.write(b"y" * 500)
        output.write(large)
        output.take(9500)
    assert output.size == 1000
    assert sys.getsizeof(output) < 200
    output.clear()
    assert output.take() == b""
