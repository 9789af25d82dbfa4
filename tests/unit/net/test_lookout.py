"""Looking out for a lone client: who earns it, who loses it, and that it never lasts."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.net.lookout import Lookout

# What a client has to answer quickly in a row before it is looked out for.
RUN_COUNT = 8


class Loop:
    """Keeps what it is asked to call soon."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(ours, the client's)."""
    ours, client = socket.socketpair()
    with ours, client:
        yield ours, client


def quick_until_looking(loop: Loop, lookout: Lookout, fd: int) -> int:
    """Answer packets of ``fd`` until the lookout asks for its turn; return how many it took.

    A test that loses its core in the middle is a slow client: then it takes more.
    """
    for count in range(1, 10_001):
        lookout.heard(fd)
        lookout.answered()
        if loop.calls:
            return count
    raise AssertionError("10,000 quick packets have not earned it")


def test_a_lone_quick_client_is_looked_out_for(pair: tuple[socket.socket, socket.socket]) -> None:
    loop = Loop()
    lookout = Lookout(loop.soon)
    ours, client = pair
    taken = []
    for _ in range(10):
        taken.append(quick_until_looking(loop, lookout, ours.fileno()))
        client.send(b"NOP\n")
        loop.turn()
        ours.recv(4)
    assert taken[0] >= RUN_COUNT
    # It was there in time, so the next one was looked out for at once.
    assert min(taken) == 1


def test_two_clients_that_take_turns_are_not(pair: tuple[socket.socket, socket.socket]) -> None:
    loop = Loop()
    lookout = Lookout(loop.soon)
    for _ in range(100):
        for end in pair:
            lookout.heard(end.fileno())
            lookout.answered()
    assert not loop.calls


def test_another_client_in_the_same_turn_ends_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    loop = Loop()
    lookout = Lookout(loop.soon)
    first, other = (end.fileno() for end in pair)
    runs = []
    for _ in range(6):
        runs.append(quick_until_looking(loop, lookout, first))
        lookout.heard(other)
        loop.turn()
    # Nobody was waited for, so nobody was late: no run has to be longer than the first.
    assert min(runs[1:]) < 2 * RUN_COUNT, runs


def test_a_slow_client_is_not(pair: tuple[socket.socket, socket.socket]) -> None:
    loop = Loop()
    lookout = Lookout(loop.soon)
    for _ in range(3 * RUN_COUNT):
        lookout.heard(pair[0].fileno())
        lookout.answered()
        time.sleep(0.002)
    assert not loop.calls


def test_looking_ends_soon_and_a_late_client_has_to_earn_it_again(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    loop = Loop()
    lookout = Lookout(loop.soon)
    fd = pair[0].fileno()
    for run in range(4):
        assert quick_until_looking(loop, lookout, fd) >= RUN_COUNT << run
        before_s = time.thread_time()
        loop.turn()
        assert time.thread_time() - before_s < 0.05


def test_the_rest_of_a_packet_is_looked_out_for_as_an_answer_to_come(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    loop = Loop()
    lookout = Lookout(loop.soon)
    ours, client = pair
    lookout.heard(ours.fileno())
    lookout.expect()
    assert not loop.calls  # not earned yet
    quick_until_looking(loop, lookout, ours.fileno())
    client.send(b"PUB a\n\0\0")
    loop.turn()
    lookout.heard(ours.fileno())
    lookout.expect()
    assert len(loop.calls) == 1
    lookout.expect()
    assert len(loop.calls) == 1  # once a turn


def test_a_client_that_has_gone_is_not_waited_for() -> None:
    loop = Loop()
    lookout = Lookout(loop.soon)
    ours, client = socket.socketpair()
    quick_until_looking(loop, lookout, ours.fileno())
    ours.close()
    client.close()
    loop.turn()
    assert not loop.calls
