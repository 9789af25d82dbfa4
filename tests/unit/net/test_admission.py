"""Who may connect, and who has to leave for it."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.admission import IDLE_MIN_S, REPORT_SPACING_S, SEARCH_SPACING_S, Door, Doors


class Peer:
    """A connection without a socket."""

    def __init__(self) -> None:
        self.spoke = False
        self.idle_since_s = inf
        self.asked_count = 0
        self.evicted = False

    def evict(self) -> None:
        self.evicted = True


class CountingPeer(Peer):
    """Counts how often it is asked whether it has spoken."""

    @property  # type: ignore[override]
    def spoke(self) -> bool:
        self.asked_count += 1
        return self._spoke

    @spoke.setter
    def spoke(self, value: bool) -> None:
        self._spoke = value


def fill(doors: Doors, door: Door, count: int, *, spoke: bool = False) -> list[Peer]:
    peers = [Peer() for _ in range(count)]
    for number, peer in enumerate(peers):
        assert doors.enter(door, peer, float(number))
        peer.spoke = spoke
    return peers


def test_there_is_a_place_for_everybody_until_it_is_full() -> None:
    doors = Doors(3)
    door = doors.open("TCP")
    peers = fill(doors, door, 3, spoke=True)
    assert not doors.enter(door, Peer(), 5.0)
    assert (door.count, door.refused_count, door.evicted_count) == (3, 1, 0)
    doors.leave(peers[1])
    doors.leave(peers[1])
    assert doors.enter(door, Peer(), 6.0)
    doors.check()


def test_the_longest_waiting_of_those_without_a_command_goes() -> None:
    doors = Doors(4)
    door = doors.open("TCP")
    first, second, third, fourth = fill(doors, door, 4)
    first.spoke = True
    newcomer = Peer()
    assert doors.enter(door, newcomer, 9.0)
    assert [p.evicted for p in (first, second, third, fourth)] == [False, True, False, False]
    third.spoke = True
    assert doors.enter(door, Peer(), 9.0)
    assert fourth.evicted and not newcomer.evicted
    assert (door.count, door.refused_count, door.evicted_count) == (4, 0, 2)
    doors.check()


def test_who_has_sent_a_command_is_never_evicted() -> None:
    doors = Doors(50)
    door = doors.open("TCP")
    clients = fill(doors, door, 50, spoke=True)
    assert not any(doors.enter(door, Peer(), 100.0 + number) for number in range(1000))
    assert not any(client.evicted for client in clients)
    assert door.refused_count == 1000


def test_a_reserved_place_stays_for_its_door() -> None:
    doors = Doors(10)
    tcp, http = doors.open("TCP"), doors.open("HTTP", reserved_count=2)
    fill(doors, tcp, 8, spoke=True)
    assert not doors.enter(tcp, Peer(), 1.0)
    assert doors.enter(http, Peer(), 1.0)
    assert doors.enter(http, Peer(), 1.0)
    doors.check()


def test_a_silent_crowd_at_one_door_makes_room_for_the_other() -> None:
    doors = Doors(10)
    tcp, http = doors.open("TCP", reserved_count=2), doors.open("HTTP", reserved_count=2)
    crowd = fill(doors, tcp, 8)
    fill(doors, http, 2, spoke=True)
    assert doors.enter(http, Peer(), 9.0)
    assert [peer.evicted for peer in crowd].count(True) == 1
    doors.check()


def test_a_silent_crowd_keeps_what_is_reserved_for_its_door() -> None:
    doors = Doors(4)
    tcp, http = doors.open("TCP", reserved_count=2), doors.open("HTTP")
    crowd = fill(doors, tcp, 2)
    fill(doors, http, 2, spoke=True)
    assert not doors.enter(http, Peer(), 9.0)
    assert not any(peer.evicted for peer in crowd)


def test_a_door_at_its_own_maximum_takes_from_itself_only() -> None:
    doors = Doors(10)
    tcp, http = doors.open("TCP"), doors.open("HTTP", count_max=2)
    crowd = fill(doors, tcp, 5)
    own = fill(doors, http, 2)
    assert doors.enter(http, Peer(), 9.0)
    assert [peer.evicted for peer in own] == [True, False]
    own[1].spoke = True
    assert doors.enter(http, Peer(), 9.0)
    assert not any(peer.evicted for peer in crowd)
    doors.check()


def test_the_longest_idle_goes_when_nobody_is_silent() -> None:
    doors = Doors(4)
    http = doors.open("HTTP")
    busy, old, older, young = fill(doors, http, 4, spoke=True)
    old.idle_since_s, older.idle_since_s, young.idle_since_s = 5.0, 4.0, 6.0
    busy.idle_since_s = inf
    assert doors.enter(http, Peer(), 10.0)
    assert older.evicted and not old.evicted
    # Used since it was found: another one goes.
    old.idle_since_s = 10.0
    for peer in list(http.waiting):
        assert isinstance(peer, Peer)
        peer.spoke = True
    assert doors.enter(http, Peer(), 10.0)
    assert young.evicted and not old.evicted and not busy.evicted


def test_idle_connections_are_not_searched_for_every_newcomer() -> None:
    doors = Doors(2)
    http = doors.open("HTTP")
    first, second = fill(doors, http, 2, spoke=True)
    assert not doors.enter(http, Peer(), 10.0)
    first.idle_since_s = 1.0
    assert not doors.enter(http, Peer(), 10.0 + SEARCH_SPACING_S / 2)
    assert doors.enter(http, Peer(), 10.0 + SEARCH_SPACING_S)
    assert first.evicted and not second.evicted


def test_who_was_used_a_moment_ago_stays() -> None:
    doors = Doors(1)
    http = doors.open("HTTP")
    only = fill(doors, http, 1, spoke=True)[0]
    only.idle_since_s = 9.5
    assert not doors.enter(http, Peer(), 10.0)
    assert doors.enter(http, Peer(), 9.5 + IDLE_MIN_S)
    assert only.evicted


def test_clients_are_asked_once_whether_they_have_spoken() -> None:
    doors = Doors(1000)
    door = doors.open("TCP")
    peers = [CountingPeer() for _ in range(1000)]
    for peer in peers:
        assert doors.enter(door, peer, 0.0)
        peer.spoke = True
    for _ in range(100):
        assert not doors.enter(door, Peer(), 1.0)
    assert max(peer.asked_count for peer in peers) == 1


def test_descriptors_that_ran_out_cost_a_silent_one_its_place() -> None:
    doors = Doors(10)
    tcp = doors.open("TCP", reserved_count=5)
    silent = fill(doors, tcp, 1)[0]
    assert doors.relieve(1.0) and silent.evicted
    assert not doors.relieve(2.0)


def test_refusals_are_reported_now_and_then() -> None:
    doors = Doors(1)
    door = doors.open("TCP")
    fill(doors, door, 1, spoke=True)
    assert door.report(0.0) is None
    doors.enter(door, Peer(), 0.0)
    assert door.report(0.0) == "TCP: 1 connection refused, 1 are open and in use"
    for _ in range(7):
        doors.enter(door, Peer(), 1.0)
    assert door.report(1.0) is None
    report = door.report(REPORT_SPACING_S)
    assert report == "TCP: 7 connections refused, 1 are open and in use"
    assert door.report(2 * REPORT_SPACING_S) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["tcp", "http", "leave", "speak", "rest", "work", "relieve"]),
        st.integers(0, 30),
    ),
    max_size=150,
)


@given(STEPS, st.integers(1, 12), st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_whatever_happens_clients_stay_and_places_add_up(
    steps: list[tuple[str, int]], count_max: int, reserved_tcp: int, reserved_http: int
) -> None:
    doors = Doors(count_max)
    tcp = doors.open("TCP", reserved_count=reserved_tcp)
    http = doors.open("HTTP", reserved_count=reserved_http, count_max=6)
    inside: list[Peer] = []
    for now_s, (step, number) in enumerate(steps):
        if step in ("tcp", "http"):
            peer = Peer()
            if doors.enter(tcp if step == "tcp" else http, peer, float(now_s)):
                inside.append(peer)
        elif step == "relieve":
            doors.relieve(float(now_s))
        elif inside:
            peer = inside[number % len(inside)]
            if step == "leave":
                doors.leave(peer)
                inside.remove(peer)
            elif step == "speak":
                peer.spoke = True
            else:
                peer.idle_since_s = float(now_s) if step == "rest" and peer.spoke else inf
        for peer in [peer for peer in inside if peer.evicted]:
            assert not peer.spoke or peer.idle_since_s < inf
            inside.remove(peer)
        assert len(inside) == len(doors)
        doors.check()
