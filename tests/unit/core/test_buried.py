"""The table of buried messages against a dict."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.buried import ATTEMPTS, BURY, EXPIRED, REASONS, TEXT_SIZE_MAX, Buried

Model = dict[int, tuple[str, str, int, int, str]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "run", "remove", "range", "some", "shot"]),
        st.integers(0, 3000),
        st.integers(0, 1200),
        st.sampled_from(sorted(REASONS)),
    ),
    max_size=40,
)


def put(table: Buried, model: Model, index: int, reason: int) -> None:
    client, text = f"c{index % 5}", "" if index % 3 else f"why {index % 7}"
    table.put(index, index % 9, reason, 1000 + index, client, text)
    model[index] = (REASONS[reason], text, index % 9, 1000 + index, client)


def shown(model: Model) -> list[tuple[int, str, str, int, int, str]]:
    return [(index, *model[index]) for index in sorted(model)]


def reloaded(bodies: list[bytes]) -> Buried:
    table = Buried()
    for body in bodies:
        table.load(body)
    table.check()
    return table


@given(STEPS)
@settings(deadline=None)
def test_the_table_is_a_sorted_dict(steps: list[tuple[str, int, int, int]]) -> None:
    table, model = Buried(), Model()
    snapshots = []
    for kind, a, b, reason in steps:
        if kind == "put":
            put(table, model, a, reason)
        elif kind == "run":
            for index in range(a, a + b):
                put(table, model, index, reason)
        elif kind == "remove":
            assert table.remove(a) == (model.pop(a, None) is not None)
        elif kind == "range":
            gone = [i for i in model if a <= i < a + b]
            assert table.count_between(a, a + b) == len(gone)
            assert table.has_between(a, a + b) == bool(gone)
            assert table.remove(a, a + b) == len(gone)
            model = {i: model[i] for i in model if i not in gone}
        elif kind == "some":
            named = sorted(i for i in model if i >= a and model[i][0] == REASONS[reason])[:b]
            assert table.remove(a, 1 << 60, b, reason) == len(named)
            model = {i: model[i] for i in model if i not in named}
        else:
            snapshots.append((table.snapshot(), shown(model)))
        table.check()
    assert table.page(-1, len(model)) == shown(model)
    assert len(table) == len(model)
    found = [name for name, *_ in model.values()]
    assert table.reason_counts == {name: found.count(name) for name in REASONS.values()}
    for reason, name in REASONS.items():
        named = [one for one in shown(model) if one[1] == name]
        assert table.page(500, 10, reason) == [one for one in named if one[0] > 500][:10]
    inside = [i for i in sorted(model) if 100 <= i < 900]
    assert table.between(100, 900, len(inside)) == inside
    if inside:
        assert table.between(100, 900, len(inside) - 1) is None
    for snapshot, before in snapshots:  # whatever happened since
        assert reloaded(list(snapshot)).page(-1, len(before)) == before


def test_what_was_buried_is_drained_once() -> None:
    table = Buried()
    for index in range(1300):
        table.put(index * 2, 3, ATTEMPTS, index, "a")
    bodies = table.drain()
    assert [len(reloaded([body])) for body in bodies] == [512, 512, 276]
    assert reloaded(bodies).page(-1, 2000) == table.page(-1, 2000)
    assert table.drain() == []
    table.put(5, 1, BURY, 7, "b", "no")
    assert reloaded(table.drain()).page(-1, 9) == [(5, "bury", "no", 1, 7, "b")]


def test_a_snapshot_leaves_nothing_to_drain() -> None:
    table = Buried()
    table.put(5, 1, EXPIRED, 7)
    assert len(list(table.snapshot())) == 1
    assert table.drain() == []


def test_only_what_the_log_has_is_kept() -> None:
    table = Buried()
    for index in range(100):
        table.put(index, 1, BURY, 0)
    assert table.keep([(10, 20), (50, 51)]) == 89
    assert table.indexes() == [*range(10, 20), 50]
    table.check()


@pytest.mark.parametrize("order", ["ascending", "random", "descending"])
def test_a_burial_takes_less_than_40_bytes(order: str) -> None:
    table, indexes = Buried(), list(range(0, 200_000, 2))
    if order == "random":
        random.Random(1).shuffle(indexes)
    elif order == "descending":
        indexes.reverse()
    for index in indexes:
        table.put(index, 5, ATTEMPTS, 1, "worker", "")
    table.drain()
    assert table.size / len(table) < 34


def test_names_and_texts_are_bounded() -> None:
    table = Buried()
    for index in range(10_000):
        table.put(index, 1, BURY, 0, f"client {index}", f"text {index}")
    table.check()
    clients = {one[5] for one in table.page(-1, 10_000)}
    texts = {one[2] for one in table.page(-1, 10_000)}
    assert len(clients) == 1024 and len(texts) == 4096  # "" is one of them
    table.remove(0, 5000)
    table.put(5, 1, BURY, 0, "a new client", "a new text")
    assert table.get(5) == (5, "bury", "a new text", 1, 0, "a new client")
    table.check()


def test_long_texts_are_cut_between_characters() -> None:
    table = Buried()
    table.put(1, 1, BURY, 0, "é" * 200, "é" * 400)
    found = table.get(1)
    assert found is not None
    assert found[2] == "é" * (TEXT_SIZE_MAX // 2) and found[5] == "é" * 64


def test_a_full_chunk_with_the_longest_names_fits_a_record() -> None:
    table = Buried()
    for index in range(512):
        table.put(index, 1, BURY, 0, f"{index:03}".ljust(200), f"{index:03}".ljust(300))
    (body,) = table.drain()
    assert len(body) < 256 * 1024 - 100
    assert reloaded([body]).page(-1, 512) == table.page(-1, 512)


def test_damaged_bodies_are_refused() -> None:
    table = Buried()
    table.put(7, 1, BURY, 0, "a", "b")
    (body,) = table.drain()
    for size in range(len(body)):
        with pytest.raises(ValueError, match="BURIED record"):
            Buried().load(body[:size])
    for at, bad in ((len(body) - 5, 0), (len(body) - 5, 9), (len(body) - 3, 9)):
        with pytest.raises(ValueError, match="BURIED record"):
            Buried().load(body[:at] + bytes((bad,)) + body[at + 1 :])
    with pytest.raises(ValueError, match="codec"):
        Buried().load(struct.pack(">HB", 1, 1) + b"\xff")
    with pytest.raises(ValueError, match="no reason"):
        Buried().put(1, 1, 4, 0)
