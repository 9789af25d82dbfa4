"""Decoding of answers: whole values in pieces, limits, and a loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
import marshal
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.admin import decoder_process, decoders
from penstock.admin.daemon import COLLECT_COUNTS
from penstock.admin.decoders import SMALL_SIZE, Building, Decoding
from penstock.admin.meter import Meter, Metered


def built(value: Any) -> Any:
    building = Building()
    for piece in decoder_process.pieces(value):
        building.add(marshal.loads(marshal.dumps(piece)))
    return building.value


def some(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 5)
    if kind < 5:
        return [None, True, chance.random(), "x" * chance.randrange(2000), 1 << 70][kind]
    size = chance.choice((0, 1, 3, 50))
    if kind == 5:
        return {str(n): some(chance, depth - 1) for n in range(size)}
    return [some(chance, depth - 1) for _ in range(size)]


@pytest.mark.parametrize("seed", range(20))
def test_a_value_comes_together_again_however_it_is_cut(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_process, "VALUES", 7)
    value = some(random.Random(seed), 4)
    assert built(value) == value
    assert built({"a": [value] * 20, "b": {"c": value}}) == {"a": [value] * 20, "b": {"c": value}}


def test_a_long_text_and_a_text_alone_are_values_too() -> None:
    for value in ("x" * 3_000_000, {"a": "x" * 3_000_000, "b": 1}, [["x" * 3_000_000], 5]):
        assert built(value) == value


def decoded(body: bytes, **options: Any) -> Any:
    async def run() -> Any:
        decoding = Decoding(**{"seconds_max": 60.0, **options})
        try:
            return await decoding.decode(body)
        finally:
            await decoding.close()

    return asyncio.run(run())


def test_large_and_small_answers_are_the_same() -> None:
    for count in (1, 100, 200_000):
        value = {"topics": [{"n": n, "name": f"t{n}", "deep": [{"x": None}]} for n in range(count)]}
        assert decoded(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[" + b"[]," * 19_000_000 + b"[]]", "more than 4,000,000 values"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "not JSON"),
        (b"[" + b" " * SMALL_SIZE + b"NaN]", "not JSON"),
        (b"[" + b" " * SMALL_SIZE + b"1", "not JSON"),
        (b"[" * 100 + b" " * SMALL_SIZE + b"]" * 100, "nested too deeply"),
        (b"\xff" * (SMALL_SIZE + 1), "not JSON"),
        (b"[NaN]", "not JSON"),
        (b"[" * 10_000, "not JSON"),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_what_is_too_much_or_no_json_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decoded(body)


@pytest.fixture
def collected_as_in_nsqadmin() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_COUNTS)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collected_as_in_nsqadmin")
def test_the_loop_goes_on_while_a_large_answer_is_decoded() -> None:
    channel = {f"key_{n}": n for n in range(14)}
    value = {"topics": [{"topic_name": f"t{n}", "channels": [channel] * 10} for n in range(6000)]}
    body = json.dumps(value).encode()
    longest_s = 0.0

    async def run() -> Any:
        nonlocal longest_s
        decoding = Decoding(60.0)
        task = asyncio.create_task(decoding.decode(body))
        while not task.done():
            # Of this thread, because others on the machine take their time too.
            began_s = time.thread_time()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.thread_time() - began_s)
        await decoding.close()
        return task.result()

    assert asyncio.run(run()) == value
    began_s = time.thread_time()
    json.loads(body)
    # Decoded here it would be a stop of that long.
    assert longest_s < max(0.06, (time.thread_time() - began_s) / 2)


def test_what_takes_too_long_is_given_up_and_the_next_is_decoded() -> None:
    async def run() -> None:
        decoding = Decoding(seconds_max=0.0001)
        body = json.dumps(["x" * 100] * 10_000).encode()
        with pytest.raises(ValueError, match="too long"):
            await decoding.decode(body)
        decoding._seconds_max = 60
        assert len(await decoding.decode(body)) == 10_000
        # One that dies is replaced.
        assert decoding._process is not None
        decoding._process.kill()
        await decoding._process.wait()
        assert len(await decoding.decode(body)) == 10_000
        await decoding.close()

    asyncio.run(run())


def test_the_other_process_ends_when_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "IDLE_S", 0.01)

    async def run() -> None:
        one = Decoding()
        await one.decode(json.dumps(["x" * 100] * 10_000).encode())
        process = one._process
        assert process is not None
        async with asyncio.timeout(10):
            await process.wait()
        assert one._process is None
        await one.close()

    asyncio.run(run())


def test_of_all_answers_together_the_largest_is_given_up() -> None:
    meter = Meter(size_max=1000)
    with Metered(meter, 10_000) as large, Metered(meter, 10_000) as small:
        large.on_body(b"x" * 900)
        small.on_body(b"x" * 200)
        assert meter.size == 200, "of the large one nothing is kept"
        with pytest.raises(ValueError, match="too large beside the others"):
            large.on_body(b"x")
        small.on_body(b"x" * 700)
        with pytest.raises(ValueError, match="too large beside the others"):
            small.on_body(b"x" * 200)
    assert meter.size == 0


def test_an_answer_in_place_of_another_counts_once() -> None:
    meter = Meter(size_max=1000)
    with Metered(meter, 10_000) as first:
        first.on_body(b"x" * 300)
        first.again().on_body(b"x" * 400)
        assert meter.size == 400
    assert meter.size == 0
